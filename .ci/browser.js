"use strict";
// Browsers without a window, for checks that run as root and in containers.
const ARGUMENTS = [
  "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run",
  "--disable-background-networking", "--disable-component-update", "--disable-sync",
];
const TRIES = 3;

/* A machine under load may be too slow for the first try. */
async function tried(executablePath, start) {
  for (let turn = 1; ; turn += 1) {
    try {
      return await start({ executablePath, timeout: 60000 });
    } catch (error) {
      console.error(`${executablePath} did not start, try ${turn} of ${TRIES}: ${error.message}`);
      if (turn === TRIES) throw new Error(`${executablePath} did not start`);
    }
  }
}

exports.launch = (path, more = []) =>
  tried(path, (options) => require("playwright-core").chromium.launch({ ...options, args: [...ARGUMENTS, ...more] }));

exports.launchFirefox = (path) =>
  tried(path, (options) => require("puppeteer-core").launch({ ...options, browser: "firefox", headless: true }));
