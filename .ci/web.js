// node web.js FOLDER CHROMIUM PROGRAM [CHECK…]: FOLDER holds hankelite.html, a model and what the program
// makes of it. Without names all checks run.
"use strict";
const assert = require("node:assert/strict");
const { execFileSync } = require("node:child_process");
const fs = require("node:fs");
const path = require("node:path");
const { launch } = require("./browser.js");
const Resampler = require("../crates/web/page/resample.js");
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
async function until(page, state) {
  try {
    await page.waitForSelector(`html[data-state=${state}]`, WAIT);
  } catch (error) {
    const stands = await page.evaluate(() => `${state.state}: ${$("state").textContent}`);
    throw new Error(`the page is not "${state}" but ${stands}`, { cause: error });
  }
}

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
  const [download] = await Promise.all([page.waitForEvent("download", { timeout: WAIT.timeout }), page.click(`#save-${what}`)]);
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
  await page.fill("#bytes", "4000");
  assert.ok(await page.isChecked("#by-bytes"));
  const few = await reduced(page), left = Number(/31,136 → ([\d,]+) bytes/.exec(few)[1].replace(",", ""));
  assert.ok(left <= 4000 && left > 2000, few);
  // Cancelled, it goes on with the same checkpoint and data.
  await page.click("#reduce");
  await page.click("#cancel");
  await until(page, "cancelled");
  assert.ok(await page.isHidden("#made"));
  await page.check("#by-order");
  assert.match(await reduced(page), /of 500 other sequences/);
  await page.context().close();
}

/** The program's answer to a signal. */
function programs(file, words) {
  fs.writeFileSync(at("program/signal.txt"), words.join(" "));
  const said = execFileSync(program, ["--quiet", "--format", "json", "stream", file, "--input", at("program/signal.txt"), "--last"]);
  return JSON.parse(said);
}

/** The streamed answers are the program's: of the full model, and of the file that is saved. */
async function streamed(browser) {
  const page = await example(browser);
  await page.check("#by-times");
  await reduced(page);
  fs.writeFileSync(at("program/small.safetensors"), await saved(page, "checkpoint"));
  let right = 0;
  for (let turn = 0; turn < 5; turn += 1) {
    const found = await played(page, "#next");
    for (const [which, file] of [["full", "model.safetensors"], ["reduced", "program/small.safetensors"]]) {
      const wanted = programs(at(file), found.words);
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

/** As the slider moves, the size and the kernel error that the cut then has. */
async function foretold(browser) {
  const page = await opened(browser);
  // What is answered after a file is open must not move the button away from a pointer that presses it.
  await page.evaluate(() => {
    new MutationObserver(() => {
      if (state.state === "opened") state.stood = $("reduce").getBoundingClientRect().top + scrollY;
    }).observe(document.documentElement, { attributeFilter: ["data-state"] });
  });
  await chosen(page, at("model.safetensors"));
  const settled = (text) => page.waitForFunction((old) => !["", old].includes($("foretold").textContent) && !foretelling, text, WAIT);
  await settled("");
  const [stood, stands] = await page.evaluate(() => [state.stood, $("reduce").getBoundingClientRect().top + scrollY]);
  assert.equal(stands, Number(stood), "the button moved after the file was open");
  const said = async (change) => {
    await settled("");
    const before = await page.textContent("#foretold");
    await change();
    await settled(before);
    return page.textContent("#foretold");
  };
  const four = await said(() => page.fill("#order", "4"));
  await reduced(page);
  const { record } = await page.evaluate(() => made);
  const worst = Math.max(...record.layers.map((layer) => layer.relative_kernel_error));
  const wanted = `${record.bytes.toLocaleString("en")} bytes on a device (${(100 * record.bytes / 31136).toPrecision(3)} %), ${record.parameters_after.toLocaleString("en")} parameters; the kernels of the worst layer change by ${(100 * worst).toPrecision(3)} %.`;
  assert.equal(four, wanted);
  // The bound by its own slider, on a logarithmic scale.
  const bound = await said(() => page.fill("#tens", "-1"));
  assert.ok(await page.isChecked("#by-tolerance"));
  assert.equal(await page.inputValue("#tolerance"), "0.1");
  await reduced(page);
  assert.ok(bound.startsWith(`${(await page.evaluate(() => made.record.bytes)).toLocaleString("en")} bytes`), bound);
  console.log(`told as the slider moves: ${four}`);
  await page.context().close();
}

/** The cells of a report's first table, and its figures. */
const figures = (frame) => frame.evaluate(() => ({
  rows: [...document.querySelectorAll("#layers tbody tr")].map((row) => [...row.cells].map((cell) => cell.textContent)),
  facts: [...document.querySelectorAll(".facts dt")].map((one) => one.textContent),
}));

/** The report in the page and as a file: the figures of the program's, and its charts at work. */
async function reports(browser) {
  const page = await opened(browser);
  await chosen(page, at("model.safetensors"));
  const shown = async () => {
    await until(page, "reported");
    const frame = await (await page.$("#view")).contentFrame();
    await frame.waitForSelector("html[data-ready=yes]", WAIT);
    return frame;
  };
  await page.click("#look summary");
  const alone = await shown();
  assert.equal((await figures(alone)).rows.length, 2);
  await page.fill("#order", "8");
  await page.evaluate(() => { state.state = ""; });
  await page.click("#reduce");
  const pair = await shown();
  await pair.locator("#heat").focus();
  await page.keyboard.press("ArrowRight");
  assert.match(await pair.locator("#channel-summary").textContent(), /channel 1:/);
  assert.equal(await pair.locator("#channel-charts figure").count(), 4);
  await pair.locator("#contents a").last().click();
  assert.equal((await figures(pair)).rows.length, 2, "a link stays in the report");
  const own = await saved(page, "report"), other = await page.context().newPage();
  fs.writeFileSync(at("report.html"), own);
  await other.goto(`file://${at("report.html")}`);
  const found = await figures(other);
  await other.goto(`file://${at("program/report.html")}`);
  assert.deepEqual(found, await figures(other));
  const page8 = await other.evaluate(() => document.title);
  console.log(`the program's report: ${page8}, ${own.length} bytes, ${found.facts.join(", ")}`);
  await page.context().close();
  // With data also accuracies, and the spectra of what the layers get.
  const calibrated = await example(browser);
  await reduced(calibrated);
  await calibrated.click("#look summary");
  await until(calibrated, "reported");
  const text = (await saved(calibrated, "report")).toString();
  assert.match(text, /Accuracy.*\d\d\.\d\d ± /s);
  assert.match(text, /"name":"input, root mean square"/);
  await calibrated.context().close();
}

/** Seconds of a sine as a WAV file. */
function sine(file, hertz, rate, seconds) {
  const samples = Int16Array.from({ length: rate * seconds }, (_, i) => 8000 * Math.sin(2 * Math.PI * hertz * i / rate));
  const data = Buffer.from(samples.buffer), head = Buffer.alloc(44);
  head.write("RIFF", 0);
  head.writeUInt32LE(36 + data.length, 4);
  head.write("WAVEfmt ", 8);
  [[16, 16, 4], [1, 20, 2], [1, 22, 2], [rate, 24, 4], [2 * rate, 28, 4], [2, 32, 2], [16, 34, 2]]
    .forEach(([value, to, bytes]) => head.writeUIntLE(value, to, bytes));
  head.write("data", 36);
  head.writeUInt32LE(data.length, 40);
  fs.writeFileSync(file, Buffer.concat([head, data]));
}

/** Samples of another rate are those of the same tone, and what lies above is gone. */
function resampled() {
  for (const [from, to, hertz, gain] of [[48000, 16000, 440, 1], [44100, 16000, 750, 1], [16000, 48000, 440, 1], [48000, 16000, 12000, 0]]) {
    const made = [], resampler = new Resampler(from, to), late = -resampler.half / from;
    const tone = Float32Array.from({ length: from }, (_, i) => Math.sin(2 * Math.PI * hertz * i / from));
    for (let i = 0; i < from; i += 128) made.push(...resampler.push(tone.slice(i, i + 128)));
    assert.ok(Math.abs(made.length - to) < 2);
    made.slice(2000).forEach((y, i) => {
      const wanted = gain * Math.sin(2 * Math.PI * hertz * ((i + 2000) / to + late));
      assert.ok(Math.abs(y - wanted) < 2e-3, `${from} to ${to}: ${y}, expected ${wanted}`);
    });
  }
}

/** A tone at the microphone, a file in its place: the networks' answers are the program's. Without a microphone the
 * page says so, and goes on. */
async function listened(browser) {
  resampled();
  const tone = at("tone.wav");
  // Twelve periods in 256 steps of 16 kHz.
  sine(tone, 750, 48000, 4);
  const loud = await launch(executablePath, [
    "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream", `--use-file-for-fake-audio-capture=${tone}`,
  ]);
  const page = await example(loud);
  await page.check("#by-times");
  await reduced(page);
  const small = at("program/heard.safetensors");
  fs.writeFileSync(small, await saved(page, "checkpoint"));
  await page.evaluate(() => {
    window.kept = [];
    const tell = tellReal;
    tellReal = (own) => { kept.push({ words: [...signal.words], ...played, answer: verdict() }); tell(own); };
  });
  await page.click("#microphone");
  await page.waitForFunction(() => kept.length >= 20, null, WAIT);
  await page.click("#microphone");
  assert.equal(await page.textContent("#microphone"), "Use the microphone");
  const [speed, windows] = [await page.textContent("#speed"), await page.evaluate(() => kept)];
  assert.match(speed, /as the samples come: full [\d.]+ µs, smaller [\d.]+ µs; one comes every 62\.5 µs/);
  assert.doesNotMatch(speed, /left out/);
  const last = windows.at(-1);
  assert.match(last.answer, /^full: class 0; smaller: class 0$/);
  const mean = last.words.reduce((sum, x) => sum + x * x, 0) / last.words.length;
  assert.ok(Math.abs(mean - 1) < .1, `a loudness of ${mean}`);
  for (const [which, file] of [["full", at("model.safetensors")], ["reduced", small]]) {
    const wanted = programs(file, last.words);
    last[which].forEach((y, i) => assert.ok(Math.abs(y - wanted[i]) < 1e-3 * (1 + Math.abs(wanted[i])), `${which} ${i}: ${y}, the program gives ${wanted[i]}`));
  }
  await loud.close();
  console.log(`the microphone: ${windows.length} windows. ${speed}`);
  const deaf = await example(browser);
  await deaf.click("#microphone");
  await until(deaf, "silent");
  assert.match(await deaf.textContent("#answer"), /^(There is no microphone here|The browser may not use the microphone)/);
  await played(deaf, "#next");
  await deaf.evaluate(() => Object.defineProperty(navigator, "mediaDevices", { value: undefined }));
  await deaf.click("#microphone");
  await until(deaf, "silent");
  assert.match(await deaf.textContent("#answer"), /^There is no microphone here/);
  await deaf.context().close();
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
  assert.match(await page.textContent("#same"), /reduce model\.safetensors --pooling last --calibrate waves:held_out=600 --calibration-split test --order 8 --output /);
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
      await page.click("#look summary");
      await until(page, "reported");
      await page.waitForTimeout(500);
      const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      assert.ok(over <= 0, `${over} pixels wider than a window of ${width}`);
      const unnamed = await page.evaluate(() => [...document.querySelectorAll("input, select, button, canvas, progress, iframe, output")]
        .filter((one) => !one.labels?.length && !one.getAttribute("aria-label") && !one.title && !one.textContent.trim()).map((one) => one.id));
      assert.deepEqual(unnamed, []);
      await page.screenshot({ path: at(`${colorScheme}-${width}.png`), fullPage: true });
      await page.context().close();
    }
  }
}

(async () => {
  const browser = await launch(executablePath);
  const checks = [bytes, calibrated, foretold, reports, streamed, listened, conventions, parts, containers, wrong, looks];
  for (const check of checks.filter(({ name }) => !only.length || only.includes(name))) await check(browser);
  await browser.close();
  assert.deepEqual(faults, []);
  console.log("the page: all checks passed");
})().catch((error) => { console.error(error, faults); process.exit(1); });
