// node web.js FOLDER CHROMIUM: FOLDER holds hankelite.html, a model and what the program makes of it.
"use strict";
const assert = require("node:assert/strict");
const fs = require("node:fs");
const path = require("node:path");
const [folder, executablePath] = process.argv.slice(2);
const at = (name) => path.resolve(folder, name);
const { chromium } = require(at("node_modules/playwright-core"));

const WAIT = { state: "attached", timeout: 240000 };
const faults = [];

async function opened(browser, options) {
  const context = await browser.newContext({ acceptDownloads: true, ...options });
  const page = await context.newPage();
  page.on("console", (message) => faults.push(message.text()));
  page.on("pageerror", (error) => faults.push(error.message));
  page.on("request", (request) => {
    if (!/^(file|blob|data):/.test(request.url())) faults.push(`request ${request.url()}`);
  });
  await page.goto(`file://${at("hankelite.html")}`);
  await page.waitForSelector("html[data-ready=yes]", WAIT);
  return page;
}

async function saved(page, button) {
  const [download] = await Promise.all([page.waitForEvent("download"), page.click(button)]);
  const to = at(`page-${download.suggestedFilename()}`);
  await download.saveAs(to);
  return fs.readFileSync(to);
}

async function reduced(page) {
  await page.click("#reduce");
  await page.waitForSelector("html[data-state=reduced]", WAIT);
  return page.textContent("#verdict");
}

/** The same bytes as the program's, in every container. */
async function bytes(browser) {
  for (const end of ["safetensors", "pth", "npz"]) {
    const page = await opened(browser);
    const name = `model.${end}`;
    // The ending chooses the container of what is saved.
    await page.setInputFiles("#file", at("model.safetensors"));
    await page.waitForSelector("html[data-state=opened]", WAIT);
    await page.fill("#order", "8");
    await page.evaluate((to) => { source.name = to; }, name);
    await reduced(page);
    const [own, program] = [await saved(page, "#save"), fs.readFileSync(at(`program/model-8.${end}`))];
    assert.ok(own.equals(program), `${name}: ${own.length} bytes differ from the program's ${program.length}`);
    const image = await saved(page, "#image");
    assert.ok(image.length > 1000);
    await page.context().close();
  }
  console.log("the program's bytes: .safetensors, .pth, .npz");
}

/** The example, with data that the page makes, to an order and to a sixth of the bytes. */
async function example(browser) {
  const page = await opened(browser);
  await page.click("#example");
  await page.waitForSelector("html[data-state=opened]", WAIT);
  assert.match(await page.textContent("#known"), /S4D, 2 layers, 5,514 parameters; 31,136 bytes/);
  assert.equal(await page.locator("#spectra path").count(), 32);
  const byOrder = await reduced(page);
  assert.match(byOrder, /logits change by .* %; accuracy 9\d\.\d % → 9\d\.\d % of 500 other sequences/);
  const took = await page.evaluate(() => Number(document.documentElement.dataset.took));
  await page.check("#by-times");
  const sixth = await reduced(page);
  const total = Number(/31,136 → ([\d,]+) bytes/.exec(sixth)[1].replace(",", ""));
  assert.ok(total <= 31136 / 6, sixth);
  console.log(`calibrated in ${(took / 1000).toFixed(1)} s: ${byOrder}`);
  console.log(`a sixth: ${sixth}`);
  // Cancelled, it goes on with the same checkpoint.
  await page.click("#reduce");
  await page.click("#cancel");
  await page.waitForSelector("html[data-state=cancelled]", WAIT);
  await page.check("#by-order");
  await reduced(page);
  await page.context().close();
}

/** A wrong file is named, and a good one is opened after it. */
async function wrong(browser) {
  const page = await opened(browser);
  await page.setInputFiles("#file", { name: "notes.bin", mimeType: "", buffer: Buffer.from("hello world") });
  await page.waitForSelector("html[data-state=fault]", WAIT);
  assert.match(await page.textContent("#state"), /notes\.bin/);
  await page.setInputFiles("#file", at("model.safetensors"));
  await page.waitForSelector("html[data-state=opened]", WAIT);
  const refused = await page.evaluate(() => fetch("http://127.0.0.1:9/").then(() => "sent", () => "refused"));
  assert.equal(refused, "refused");
  // That one try is told on the console, as it must be.
  const told = faults.filter((text) => /Content Security Policy|127\.0\.0\.1/.test(text));
  assert.ok(told.length >= 1);
  told.forEach((text) => faults.splice(faults.indexOf(text), 1));
  await page.context().close();
}

/** Screenshots; nothing is wider than the window; the keys reach everything. */
async function looks(browser) {
  for (const colorScheme of ["light", "dark"]) {
    for (const width of [400, 900, 1600]) {
      const page = await opened(browser, { colorScheme, viewport: { width, height: 900 } });
      await page.focus("#example");
      await page.keyboard.press("Enter");
      await page.waitForSelector("html[data-state=opened]", WAIT);
      await page.focus("#reduce");
      await page.keyboard.press("Enter");
      await page.waitForSelector("html[data-state=reduced]", WAIT);
      const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      assert.ok(over <= 0, `${over} pixels wider than a window of ${width}`);
      await page.screenshot({ path: at(`${colorScheme}-${width}.png`), fullPage: true });
      await page.context().close();
    }
  }
}

(async () => {
  const args = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"];
  const browser = await chromium.launch({ executablePath, args });
  for (const check of [bytes, example, wrong, looks]) await check(browser);
  await browser.close();
  assert.deepEqual(faults, []);
  console.log("the page: all checks passed");
})().catch((error) => { console.error(error, faults); process.exit(1); });
