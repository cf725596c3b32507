"use strict";
// Opens the reports of a folder in a headless browser and uses them as a person would.
const assert = require("node:assert");
const path = require("node:path");
const { launch } = require("./browser.js");

const folder = path.resolve(process.argv[2]);
/* A page whose console and requests are watched. */
async function open(browser, name, settings = {}) {
  const context = await browser.newContext({ viewport: { width: 1400, height: 900 }, ...settings });
  const page = await context.newPage();
  const faults = [];
  page.on("console", (message) => { if (["error", "warning"].includes(message.type())) faults.push(message.text()); });
  page.on("pageerror", (error) => faults.push(error.message));
  page.on("request", (request) => { if (!/^(file|blob|data):/.test(request.url())) faults.push(`request ${request.url()}`); });
  await page.goto(`file://${folder}/${name}`);
  await page.waitForSelector("html[data-ready=yes]", { state: "attached" });
  const close = async () => { assert.deepStrictEqual(faults, [], `${name}: faults`); await context.close(); };
  return { page, close };
}

async function sorting(browser) {
  const { page, close } = await open(browser, "reduce.html");
  const column = (index) => page.$$eval("#layers tbody tr", (rows, i) => rows.map((row) => Number(row.cells[i].dataset.value ?? NaN)), index);
  const heads = await page.$$eval("#layers thead th", (cells) => cells.map((cell) => cell.textContent));
  const error = heads.findIndex((text) => text.startsWith("kernel error"));
  const rising = [...(await column(error))].sort((a, b) => a - b);
  const button = page.locator("#layers thead th button").nth(error);
  await button.click();
  assert.deepStrictEqual(await column(error), rising, "sorted upwards");
  // The second time by the keyboard.
  await button.focus();
  await page.keyboard.press("Enter");
  assert.deepStrictEqual(await column(error), rising.reverse(), "sorted downwards");
  assert.strictEqual(await page.locator("#layers th[aria-sort]").getAttribute("aria-sort"), "descending");
  await close();
}

async function slider(browser) {
  const { page, close } = await open(browser, "sweep.html");
  const command = () => page.locator("#size-choice code").textContent();
  const size = page.locator("#size");
  await size.focus();
  await page.keyboard.press("Home");
  const smallest = await command();
  await page.keyboard.press("ArrowRight");
  const next = await command();
  assert.notStrictEqual(smallest, next, "the slider changes the command");
  assert.match(next, /^compress-model reduce .* --budget 0\.125 /);
  assert.match(await size.getAttribute("aria-valuetext"), /4 stored states/);
  assert.match(await page.locator("#size-choice").textContent(), /Accuracy9\d\.\d/);
  await close();
}

async function channels(browser) {
  const { page, close } = await open(browser, "reduce.html");
  const summary = () => page.locator("#channel-summary").textContent();
  assert.match(await summary(), /^s4_layers\.0, channel 0:/);
  await page.locator("#heat").focus();
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("ArrowDown");
  assert.match(await summary(), /^s4_layers\.1, channel 1:/, "arrow keys walk over the heat map");
  await page.locator("#heat canvas").first().click({ position: { x: 3, y: 3 } });
  assert.match(await summary(), /^s4_layers\.0, channel 0:/, "a click chooses a channel");
  await page.fill("#index", "5");
  assert.match(await summary(), /channel 5:/);
  await page.selectOption("#measure", "slowest |a|");
  assert.match(await page.locator("#heat-legend").textContent(), /0\.9/);
  assert.strictEqual(await page.locator("#channel-charts figure").count(), 4);
  // Charts are read by arrow keys, and as tables.
  const chart = page.locator("#spectrum-charts svg").first();
  await chart.focus();
  await page.keyboard.press("ArrowRight");
  assert.match(await page.locator("#spectrum-charts output").first().textContent(), /state 1: .*median 1\b/);
  await page.locator("#spectrum-charts summary").first().click();
  await page.waitForSelector("#spectrum-charts table");
  assert.ok((await page.locator("#spectrum-charts table").first().locator("tbody tr").count()) >= 64);
  const paths = await page.$$eval("svg path", (all) => all.map((one) => one.getAttribute("d")));
  assert.ok(paths.length > 10 && paths.every((d) => !/NaN|Infinity/.test(d)), "paths are numbers");
  await close();
}

async function trainings(browser) {
  const { page, close } = await open(browser, "pipeline.html");
  // Accuracy after and before training; the pretraining, and one chart for each number of states.
  assert.strictEqual(await page.locator("[data-charts='0'] figure").count(), 2);
  assert.strictEqual(await page.locator("[data-charts='1'] figure").count(), 4);
  const chart = page.locator("[data-charts='0'] svg").first();
  await chart.focus();
  await page.keyboard.press("ArrowRight");
  assert.match(await page.locator("[data-charts='0'] output").first().textContent(), /^states 2: reduced [\d.]+ ± /);
  await page.locator("[data-charts='1'] summary").nth(1).click();
  await page.waitForSelector("[data-charts='1'] table");
  await page.locator("#size").focus();
  await page.keyboard.press("Home");
  assert.match(await page.locator("#size-choice").textContent(), /States of a channel2.*After training[\d.]+ ± /);
  assert.strictEqual(await page.locator("#layers tbody tr").count(), 1 + 5 * 2);
  const paths = await page.$$eval("svg path", (all) => all.map((one) => one.getAttribute("d")));
  assert.ok(paths.length > 15 && paths.every((d) => d && !/NaN|Infinity/.test(d)), "paths are numbers");
  await close();
}

async function record(browser) {
  const { page, close } = await open(browser, "reduce.html");
  const [download] = await Promise.all([page.waitForEvent("download"), page.click("#save")]);
  assert.strictEqual(download.suggestedFilename(), "record.json");
  await page.locator("#provenance summary").click();
  await page.waitForFunction(() => document.getElementById("record-text").textContent);
  assert.match(await page.locator("#record-text").textContent(), /"step_microseconds"/);
  await close();
}

async function withoutScripts(browser) {
  const context = await browser.newContext({ javaScriptEnabled: false });
  const page = await context.newPage();
  await page.goto(`file://${folder}/reduce.html`);
  assert.match(await page.locator("body").innerText(), /drawn by a script/);
  assert.strictEqual(await page.locator("#layers tbody tr").count(), 2);
  await context.close();
}

async function pictures(browser) {
  for (const name of ["reduce", "sweep", "inspect", "pipeline"]) {
    for (const width of [400, 1400]) {
      for (const colorScheme of ["light", "dark"]) {
        const { page, close } = await open(browser, `${name}.html`, { viewport: { width, height: 900 }, colorScheme });
        const wide = await page.evaluate(() => document.documentElement.scrollWidth);
        assert.ok(wide <= width, `${name}.html is ${wide} pixels wide on ${width}`);
        await page.screenshot({ path: `${folder}/${name}-${width}-${colorScheme}.png`, fullPage: true });
        await close();
      }
    }
    const { page, close } = await open(browser, `${name}.html`);
    await page.pdf({ path: `${folder}/${name}.pdf`, format: "A4" });
    await close();
  }
}

(async () => {
  const browser = await launch(process.argv[3]);
  try {
    for (const check of [sorting, slider, channels, trainings, record, withoutScripts, pictures]) {
      await check(browser);
      console.log(`report: ${check.name} works`);
    }
  } finally {
    await browser.close();
  }
})().catch((error) => {
  console.error(error);
  process.exit(1);
});
