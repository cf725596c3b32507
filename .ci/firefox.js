"use strict";
// node firefox.js FOLDER FIREFOX: what web.js does in Chromium at length, in short. The page opens from
// disk, cuts with data, saves the program's bytes without, plays a sequence, shows the report, and
// reads a file by parts. Without a sound device its audio does not run: the microphone is tested in Chromium.
const assert = require("node:assert/strict");
const fs = require("node:fs");
const path = require("node:path");
const { launchFirefox } = require("./browser.js");
const [folder, executablePath] = process.argv.slice(2);
const at = (name) => path.resolve(folder, name);

/** The bytes that a click would save. */
const saved = (page) => page.evaluate(async () => {
  const { blob } = await call({ request: { smaller: {} } });
  const bytes = new Uint8Array(await blob.arrayBuffer());
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
});

async function used(page) {
  const until = (state) => page.waitForSelector(`html[data-state=${state}]`, { timeout: 120000 });
  const text = (id) => page.$eval(id, (one) => one.textContent);
  await page.goto(`file://${at("hankelite.html")}`);
  await page.waitForSelector("html[data-ready=yes]");
  await page.click("#example");
  await until("opened");
  await page.click("#reduce");
  await until("reduced");
  const verdict = await text("#verdict");
  assert.match(verdict, /accuracy 9\d\.\d % → 9\d\.\d % of 500 other sequences/);
  const took = await page.evaluate(() => Number(state.took));
  await page.click("#next");
  await until("played");
  assert.match(await text("#speed"), /full [\d.]+ µs, smaller [\d.]+ µs/);
  await page.click("#look summary");
  await until("reported");
  const frame = await (await page.$("#view")).contentFrame();
  await frame.waitForSelector("html[data-ready=yes]");
  assert.equal((await frame.$$("#layers tbody tr")).length, 2);
  const wanted = fs.readFileSync(at("program/model-8.safetensors"));
  for (const whole of [3e8, 100]) {
    await page.evaluate((most) => { LIMITS.whole = most; state.state = $("file").value = ""; }, whole);
    await (await page.$("#file")).uploadFile(at("model.safetensors"));
    await until("opened");
    assert.equal(await page.evaluate(() => reading), whole > 100 ? "whole" : "parts");
    await page.$eval("#order", (one) => { one.value = 8; });
    await page.click("#reduce");
    await until("reduced");
    assert.ok(Buffer.from(await saved(page), "base64").equals(wanted), "the program's bytes");
  }
  console.log(`Firefox: calibrated in ${(took / 1000).toFixed(1)} s, and the program's bytes. ${verdict}`);
}

(async () => {
  const browser = await launchFirefox(executablePath), faults = [];
  const page = await browser.newPage();
  page.on("console", (message) => faults.push(message.text()));
  page.on("pageerror", (error) => faults.push(error.message));
  await used(page);
  await page.screenshot({ path: at("firefox.png"), fullPage: true });
  await browser.close();
  assert.deepEqual(faults, []);
})().catch((error) => { console.error(error); process.exit(1); });
