// node web.js FOLDER CHROMIUM PROGRAM [CHECK…]: FOLDER holds hankelite.html, a model and what the program
// makes of it. Without names all checks run.
"use strict";
const assert = require("node:assert/strict");
const { execFileSync } = require("node:child_process");
const fs = require("node:fs");
const path = require("node:path");
const { launch } = require("./browser.js");
const [folder, executablePath, program, ...only] = process.argv.slice(2);
const at = (name) => path.resolve(folder, name);

const WAIT = { state: "attached", timeout: 120000 };
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
const until = (page, state) => page.waitForSelector(`html[data-state=${state}]`, WAIT);

async function chosen(page, files) {
  await page.evaluate(() => { state.state = ""; });
  // The same files once more are no change.
  await page.setInputFiles("#file", []);
  await page.setInputFiles("#file", files);
  await until(page, "opened");
}
async function example(browser, options) {
  const page = await opened(browser, options);
  await page.click("#example");
  await until(page, "opened");
  return page;
}
async function saved(page, what) {
  const [download] = await Promise.all([page.waitForEvent("download"), page.click(`#save-${what}`)]);
  const to = at(`page-${download.suggestedFilename()}`);
  await download.saveAs(to);
  await until(page, "saved");
  return fs.readFileSync(to);
}
async function reduced(page) {
  await page.click("#reduce");
  await until(page, "reduced");
  return page.textContent("#verdict");
}
async function played(page, button) {
  await page.evaluate(() => { state.state = ""; });
  await page.click(button);
  await until(page, "played");
  return page.evaluate(() => ({ ...played, words: [...signal.words], label: signal.label }));
}
function same(own, name) {
  const wanted = fs.readFileSync(at(`program/${name}`));
  assert.ok(own.equals(wanted), `${name}: ${own.length} bytes differ from the program's ${wanted.length}`);
}

/** The same bytes as the program's, in every container, and of all that is made of a checkpoint. */
async function bytes(browser) {
  for (const end of ["safetensors", "pth", "npz"]) {
    const page = await opened(browser);
    const name = `model.${end}`;
    // The ending chooses the container of what is saved.
    await chosen(page, at("model.safetensors"));
    await page.fill("#order", "8");
    await page.evaluate((to) => { source.name = to; }, name);
    await reduced(page);
    same(await saved(page, "checkpoint"), `model-8.${end}`);
    if (end === "safetensors") {
      for (const [what, ending] of [["image", "edge"], ["header", "h"], ["onnx", "onnx"]]) {
        same(await saved(page, what), `model-8.${ending}`);
      }
    }
    await page.context().close();
  }
  console.log("the program's bytes: .safetensors, .pth, .npz, .edge, .h, .onnx");
}

/** The example, with data that the page makes, to an order and to a sixth of the bytes. */
async function calibrated(browser) {
  const page = await example(browser);
  assert.match(await page.textContent("#known"), /S4D, 2 layers, 5,514 parameters; 31,136 bytes.*; 9[78]\.\d % right on 500 sequences/);
  assert.equal(await page.locator("#spectra path").count(), 32);
  const byOrder = await reduced(page);
  assert.match(byOrder, /logits change by .* %; accuracy 9\d\.\d % → 9\d\.\d % of 500 other sequences/);
  const took = await page.evaluate(() => Number(state.took));
  const change = await page.evaluate(() => made.record.logit_change);
  const wanted = JSON.parse(fs.readFileSync(at("program/calibrated.json"))).calibration.logit_change;
  assert.ok(Math.abs(change / wanted - 1) < 5e-3, `logits change by ${change}, in the program by ${wanted}`);
  await page.check("#by-times");
  const sixth = await reduced(page);
  const total = Number(/31,136 → ([\d,]+) bytes/.exec(sixth)[1].replace(",", ""));
  assert.ok(total <= 31136 / 6, sixth);
  console.log(`calibrated in ${(took / 1000).toFixed(1)} s: ${byOrder}`);
  console.log(`the program's change of the logits: ${wanted}, the page's: ${change}`);
  console.log(`a sixth in ${((await page.evaluate(() => Number(state.took))) / 1000).toFixed(1)} s: ${sixth}`);
  // Cancelled, it goes on with the same checkpoint and data.
  await page.click("#reduce");
  await page.click("#cancel");
  await until(page, "cancelled");
  assert.ok(await page.isHidden("#made"));
  await page.check("#by-order");
  assert.match(await reduced(page), /of 500 other sequences/);
  await page.context().close();
}

/** The streamed answers are the program's: of the full model, and of the file that is saved. */
async function streamed(browser) {
  const page = await example(browser);
  await page.check("#by-times");
  await reduced(page);
  fs.writeFileSync(at("program/small.safetensors"), await saved(page, "checkpoint"));
  const own = (file, words) => {
    fs.writeFileSync(at("program/signal.txt"), words.join(" "));
    const said = execFileSync(program, ["--quiet", "--format", "json", "stream", at(file), "--input", at("program/signal.txt"), "--last"]);
    return JSON.parse(said);
  };
  let right = 0;
  for (let turn = 0; turn < 5; turn += 1) {
    const found = await played(page, "#next");
    for (const [which, file] of [["full", "model.safetensors"], ["reduced", "program/small.safetensors"]]) {
      const wanted = own(file, found.words);
      assert.equal(found[which].length, 10);
      found[which].forEach((y, i) => assert.ok(Math.abs(y - wanted[i]) < 1e-3 * (1 + Math.abs(wanted[i])), `${which} ${i}: ${y}, the program gives ${wanted[i]}`));
    }
    right += found.full.indexOf(Math.max(...found.full)) === found.label;
  }
  assert.ok(right >= 4, `${right} of 5 sequences right`);
  assert.equal(await page.locator("#bars tr").count(), 10);
  const speed = await page.textContent("#speed");
  assert.match(speed, /full [\d.]+ µs, smaller [\d.]+ µs/);
  console.log(`the program's answers, sample by sample. ${speed}`);
  // By the keyboard, and by the pointer.
  await page.selectOption("#shape", "square");
  const drawn = await played(page, "#draw");
  assert.ok(drawn.words.every((x) => Math.abs(x) === 1));
  assert.match(await page.textContent("#answer"), /^full: class 2; smaller: class 2$/);
  await page.evaluate(() => { state.state = ""; });
  const box = await page.locator("#sketch").boundingBox();
  await page.mouse.move(box.x + 5, box.y + box.height / 2);
  await page.mouse.down();
  for (let i = 1; i <= 20; i += 1) await page.mouse.move(box.x + i * box.width / 20 - 2, box.y + box.height * (i % 2 ? .2 : .8));
  await page.mouse.up();
  await until(page, "played");
  const sketch = await page.evaluate(() => [...signal.words]);
  assert.ok(Math.max(...sketch) > 1 && Math.min(...sketch) < -1 && sketch.length === 256);
  await page.context().close();
}

/** What no tensor records is changed in place. */
async function conventions(browser) {
  const page = await example(browser);
  const accuracy = async () => Number(/; ([\d.]+) % right/.exec(await page.textContent("#known"))[1]);
  const before = await accuracy();
  await page.click("#declare summary");
  const change = async (value) => {
    await page.evaluate(() => { state.state = ""; });
    await page.selectOption("#declare-pooling", value);
    await until(page, "opened");
  };
  await change("last");
  const after = await accuracy();
  assert.ok(after < before - 10, `${before} % → ${after} %`);
  await reduced(page);
  assert.match(await page.textContent("#report"), /report model\.safetensors --pooling last /);
  await change("");
  assert.equal(await accuracy(), before);
  console.log(`pooling by the last step: ${before} → ${after} % right`);
  await page.context().close();
}

/** A model in two safetensors files with an index. */
function shards() {
  const whole = fs.readFileSync(at("model.safetensors")), length = Number(whole.readBigUInt64LE(0));
  const { __metadata__: metadata, ...tensors } = JSON.parse(whole.subarray(8, 8 + length));
  const names = Object.keys(tensors), map = {};
  const parts = [names.slice(0, 5), names.slice(5)].map((own, number) => {
    const name = `model-0000${number + 1}-of-00002.safetensors`, header = { __metadata__: metadata }, data = [];
    let next = 0;
    for (const tensor of own) {
      const [from, to] = tensors[tensor].data_offsets;
      header[tensor] = { ...tensors[tensor], data_offsets: [next, next += to - from] };
      data.push(whole.subarray(8 + length + from, 8 + length + to));
      map[tensor] = name;
    }
    const text = Buffer.from(JSON.stringify(header)), size = Buffer.alloc(8);
    size.writeBigUInt64LE(BigInt(text.length));
    return { name, mimeType: "", buffer: Buffer.concat([size, text, ...data]) };
  });
  const index = Buffer.from(JSON.stringify({ metadata: {}, weight_map: map }));
  return [...parts, { name: "model.safetensors.index.json", mimeType: "", buffer: index }];
}

/** A file that is read by parts gives the same bytes, in every container; data bring the rest of it. */
async function parts(browser) {
  for (const from of ["model.safetensors", "program/model-8.pth", "program/model-8.npz", "program/model-8.msgpack"]) {
    const page = await opened(browser);
    const cut = async () => {
      await page.fill("#order", "4");
      await reduced(page);
      return saved(page, "checkpoint");
    };
    await chosen(page, at(from));
    assert.equal(await page.evaluate(() => reading), "whole");
    const whole = await cut();
    await page.evaluate(() => { LIMITS.whole = 100; });
    await chosen(page, at(from));
    assert.equal(await page.evaluate(() => reading), "parts");
    assert.match(await page.textContent("#notes"), /a large file/);
    assert.ok(await page.isHidden("#try"));
    assert.ok(whole.equals(await cut()), `${from} by parts`);
    assert.equal(await page.locator("#saves button").count(), 1);
    await page.setInputFiles("#data", { name: "data.npz", mimeType: "", buffer: Buffer.from("no data") });
    await until(page, "fault");
    assert.match(await page.textContent("#state"), /data\.npz/);
    await page.context().close();
  }
  console.log("by parts the same bytes: .safetensors, .pth, .npz, .msgpack");
}

/** Several files, dropped together; MessagePack. */
async function containers(browser) {
  const page = await opened(browser), all = shards();
  await page.evaluate((files) => {
    const moved = new DataTransfer();
    for (const { name, bytes } of files) moved.items.add(new File([Uint8Array.from(atob(bytes), (c) => c.charCodeAt(0))], name));
    $("drop").dispatchEvent(new DragEvent("drop", { dataTransfer: moved, bubbles: true, cancelable: true }));
  }, all.map(({ name, buffer }) => ({ name, bytes: buffer.toString("base64") })));
  await until(page, "opened");
  assert.match(await page.textContent("#known"), /S4D, 2 layers, 5,514 parameters; 31,136 bytes/);
  await page.fill("#order", "8");
  await reduced(page);
  const one = await saved(page, "checkpoint");
  fs.writeFileSync(at("program/one.safetensors"), one);
  const said = execFileSync(program, ["--quiet", "--format", "json", "inspect", at("program/one.safetensors")]);
  assert.ok(JSON.parse(said).layers.every((layer) => layer.order === 8));
  await page.setInputFiles("#file", all.slice(1));
  await until(page, "fault");
  assert.match(await page.textContent("#state"), /the file `model-00001-of-00002\.safetensors` of the index is missing/);
  await chosen(page, at("program/model-8.msgpack"));
  assert.match(await page.textContent("#known"), /S4D, 2 layers/);
  console.log("several files with their index, and .msgpack");
  await page.context().close();
}

/** A wrong file is named, a good one is opened after it; what is too large gets the program's command; an
 * old browser is told. */
async function wrong(browser) {
  const page = await opened(browser);
  await page.setInputFiles("#file", { name: "notes.bin", mimeType: "", buffer: Buffer.from("hello world") });
  await until(page, "fault");
  assert.match(await page.textContent("#state"), /notes\.bin/);
  await page.evaluate(() => open([{ name: "my model.pth", size: 9e9 }]));
  await until(page, "fault");
  assert.match(await page.textContent("#state"), /my model\.pth has 9,000,000,000 bytes/);
  assert.equal(await page.textContent("#command"), "compress-model reduce 'my model.pth' --order 8 --output 'my model-8.pth'");
  await chosen(page, at("model.safetensors"));
  assert.ok(await page.isHidden("#command-line"));
  const refused = await page.evaluate(() => fetch("http://127.0.0.1:9/").then(() => "sent", () => "refused"));
  assert.equal(refused, "refused");
  // That one try is told on the console, as it must be.
  const told = faults.filter((text) => /Content Security Policy|127\.0\.0\.1/.test(text));
  assert.ok(told.length >= 1);
  told.forEach((text) => faults.splice(faults.indexOf(text), 1));
  await page.context().close();
  const context = await browser.newContext(), old = await context.newPage();
  await old.addInitScript(() => { WebAssembly.compile = () => Promise.reject(new Error("no vectors")); });
  await old.goto(`file://${at("hankelite.html")}`);
  await until(old, "fault");
  assert.match(await old.textContent("#state"), /too old for the page/);
  await context.close();
}

/** Screenshots; nothing is wider than the window; every control has a name; the keys reach all. */
async function looks(browser) {
  for (const colorScheme of ["light", "dark"]) {
    for (const width of [400, 1000, 1600]) {
      const page = await opened(browser, { colorScheme, viewport: { width, height: 900 } });
      const press = async (id, state) => {
        await page.focus(id);
        await page.keyboard.press("Enter");
        await until(page, state);
      };
      await press("#example", "opened");
      await press("#reduce", "reduced");
      assert.equal(await page.evaluate(() => document.activeElement.id), "reduce", "the focus stays");
      await page.click("#declare summary");
      await press("#next", "played");
      const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      assert.ok(over <= 0, `${over} pixels wider than a window of ${width}`);
      const unnamed = await page.evaluate(() => [...document.querySelectorAll("input, select, button, canvas, progress")]
        .filter((one) => !one.labels?.length && !one.getAttribute("aria-label") && !one.textContent.trim()).map((one) => one.id));
      assert.deepEqual(unnamed, []);
      await page.screenshot({ path: at(`${colorScheme}-${width}.png`), fullPage: true });
      await page.context().close();
    }
  }
}

(async () => {
  const browser = await launch(executablePath);
  const checks = [bytes, calibrated, streamed, conventions, parts, containers, wrong, looks];
  for (const check of checks.filter(({ name }) => !only.length || only.includes(name))) await check(browser);
  await browser.close();
  assert.deepEqual(faults, []);
  console.log("the page: all checks passed");
})().catch((error) => { console.error(error, faults); process.exit(1); });
