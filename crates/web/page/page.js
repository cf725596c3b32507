// The page: what is open, what is asked of the worker, what is shown. One request at a time.
const $ = (id) => document.getElementById(id);
const element = (name, text, more) => Object.assign(document.createElement(name), { textContent: text ?? "" }, more);
const count = (n) => n.toLocaleString("en");
const percent = (x) => (x === null || x === undefined ? "–" : `${(100 * x).toPrecision(3)} %`);
const points = (x) => `${(100 * x).toFixed(1)} %`;
const state = document.documentElement.dataset;
/** Bytes of files. Beyond `whole` the systems of a file are read alone and everything else is copied by
 * parts. With data all of it is needed, and a reduction holds two to three copies in a page's 4 GB. No more
 * than `parts` was tried. */
const LIMITS = { whole: 3e8, data: 1.2e9, parts: 4e9 };
const EXAMPLE = "waves:held_out=600";
/** What each convention is, by the name that the program has for it. */
const CONVENTIONS = {
  norm: "where the normalisation stands", pooling: "how the steps are pooled", length: "sequence length L",
  discretisation: "discretisation", gelu: "GELU", half_gate: "what gates act on", dss_version: "DSS kernel",
  dt_transform: "steps inv_dt go through", real_transform: "decays go through", bandlimit: "bandlimit",
  conj_sym: "one of each conjugate pair", clip_eigs: "clip real parts of poles", diagonalise: "DPLR as diagonal, R modes",
};
let compiled, worker, waiting = new Map(), asked = 0;
/** Files, their common name, what a person declared, the data, what was answered. */
let source, reading, declared = {}, data, known, opened, made;

async function unpacked(text) {
  const packed = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}
const ready = (async () => {
  compiled = await WebAssembly.compile(await unpacked(WASM));
  state.ready = "yes";
})();
ready.catch(() => {
  $("state").className = "fault";
  $("state").textContent = "This browser is too old for the page, which needs WebAssembly with vectors: Chromium 91, Firefox 113, Safari 16.4 or newer.";
  state.state = "fault";
});

// ---- The worker.

async function start() {
  await ready;
  worker?.terminate();
  for (const { reject } of waiting.values()) reject({ cancelled: true });
  waiting = new Map();
  const url = URL.createObjectURL(new Blob([WORKER], { type: "text/javascript" }));
  worker = new Worker(url);
  URL.revokeObjectURL(url);
  worker.onmessage = ({ data: m }) => {
    if (m.stage) return progress(m);
    const { resolve, reject } = waiting.get(m.id) ?? {};
    waiting.delete(m.id);
    return "fault" in m ? reject?.(m) : resolve?.(m);
  };
  worker.onerror = (event) => waiting.forEach(({ reject }) => reject({ fault: event.message, broken: true }));
  await call({ module: compiled });
}
function call(message, moved = []) {
  const id = (asked += 1);
  return new Promise((resolve, reject) => {
    waiting.set(id, { resolve, reject });
    worker.postMessage({ id, parts: [], ...message }, moved);
  });
}
const ask = async (request, parts = []) => (await call({ request, parts })).answer;

/** The checkpoint and the data into a new worker. */
async function bring() {
  await start();
  reading = source.size > (data ? LIMITS.data : LIMITS.whole) ? "parts" : "whole";
  const answer = (await call({ request: { open: { declared, reading } }, files: source.files })).answer;
  forget();
  opened = answer;
  if (data) await takeData();
}
async function takeData() {
  const files = data.file ? [data.file] : undefined;
  known = (await call({ request: { data: { name: data.name } }, files })).answer;
}
/** What was made is gone with the worker that made it. */
function forget() {
  made = undefined;
  $("made").hidden = true;
  $("look").open = false;
  unlook();
  for (const cell of document.querySelectorAll("#answers th.smaller")) cell.hidden = true;
}

// ---- What the page is doing.

let focused, tasks = 0;
function busy(text) {
  // A control that is disabled loses the focus of the keyboard.
  if (text) {
    focused = document.activeElement;
    hush();
  }
  $("state").className = "";
  $("state").textContent = text;
  if (text) state.state = "busy";
  $("work").hidden = !text;
  $("bar").removeAttribute("value");
  for (const control of document.querySelectorAll("main button:not(#cancel), main select, main input")) control.disabled = Boolean(text);
  if (!text && document.activeElement === document.body) focused?.focus({ preventScroll: true });
}
function progress({ stage, done, total }) {
  $("state").textContent = stage;
  $("bar").max = total || 1;
  $("bar").value = done;
}
/** Long work: what goes wrong is told, and the worker is there afterwards. */
async function task(text, then, work) {
  const began = performance.now(), own = (tasks += 1);
  busy(text);
  try {
    await work();
    busy("");
    state.took = performance.now() - began;
    $("state").textContent = `${then === "data" ? "data read" : then} in ${(state.took / 1000).toFixed(2)} s`;
    state.state = then;
    return true;
  } catch (error) {
    if (own === tasks) busy("");
    if (error.cancelled) return false;
    $("state").className = "fault";
    $("state").textContent = error.fault ?? error.message;
    tooLarge(error);
    if (error.broken) await bring().catch(() => {});
    state.state = "fault";
    return false;
  }
}
async function cancel() {
  await (opened ? bring().catch(() => {}) : start());
  busy("");
  $("state").textContent = "cancelled";
  state.state = "cancelled";
}
const quoted = (name) => (/^[\w./:=,+@%-]+$/.test(name) ? name : `'${name.replaceAll("'", "'\\''")}'`);
const flags = () => Object.entries(declared).map(([key, value]) => ` --${key.replaceAll("_", "-")} ${value}`).join("");
function command(size) {
  // The example's data are of the task's second split.
  const calibrate = data ? ` --calibrate ${quoted(data.name)}${data.file ? "" : " --calibration-split test"}` : "";
  return `compress-model reduce ${quoted(source.name)}${flags()}${calibrate} ${size.flag} --output ${quoted(size.output)}`;
}
/** A page that has no room names the program. */
function tooLarge({ broken, lost, large }) {
  const full = large || lost || (broken && source.size > LIMITS.data / 6);
  $("command-line").hidden = !full;
  if (full) $("command").textContent = `compress-model reduce ${quoted(source.name)}${flags()} --order 8 --output ${quoted(renamed("8"))}`;
}
/** The name of a smaller file: of several shards one file is made. */
function renamed(size, end) {
  const name = source.name.replace(/\.index\.json$/, ""), dot = name.lastIndexOf(".");
  return `${name.slice(0, dot)}-${size}${end ?? name.slice(dot)}`;
}

// ---- Opening and looking.

async function open(files, given) {
  files = [...files];
  const index = files.find((file) => file.name.endsWith(".index.json"));
  const size = files.reduce((sum, file) => sum + file.size, 0);
  source = { files, size, name: (index ?? files[0]).name };
  [declared, data, known, opened] = [{}, given, undefined, undefined];
  forget();
  $("opened").hidden = $("looking").hidden = $("try").hidden = $("declare").hidden = $("command-line").hidden = true;
  $("declare").open = false;
  $("data").value = "";
  await again("reading");
}
function require(most, why) {
  if (source.size > most) throw { fault: `${source.name} has ${count(source.size)} bytes, and ${why} ${count(most)}`, large: true };
}
/** Reads the files as they are declared now. */
async function again(text) {
  signal = undefined;
  const good = await task(text, "opened", async () => {
    require(LIMITS.parts, "a page has room for about");
    await bring();
    await show();
  });
  quick = good && opened.layers.reduce((sum, layer) => sum + layer.order * layer.channels.length, 0) <= QUICK;
  if (good) foretell();
  if (!good && source) await offerChoices().catch(() => {});
}
/** All that stands above the buttons is there when the file is open: nothing moves under a pointer. */
async function show() {
  await offerChoices();
  $("opened").hidden = $("looking").hidden = false;
  $("save-report").textContent = `Save ${reportName()}`;
  $("title").textContent = source.name;
  $("notes").replaceChildren(...[...opened.notes, ...opened.assumptions, ...unstreamed()].map((text) => element("li", text)));
  const most = Math.max(...opened.layers.map((layer) => layer.order));
  $("order").max = most;
  $("order").value = Math.max(1, Math.round(most / 4));
  $("bytes").value = Math.round((opened.bytes ?? 0) / 8);
  $("heard").value = opened.declared.length ?? STEPS;
  aboutData();
  draw();
  showTry();
}
/** Why a whole network does not run sample by sample. */
function unstreamed() {
  if (reading === "parts") return [`a large file: its layers' systems were read, everything else is copied as it is. To run it here, add data (up to ${count(LIMITS.data)} bytes)`];
  const whole = opened.width !== null || opened.vocabulary !== null;
  return whole && opened.not_streamed !== null ? [`no image, and nothing to try: ${opened.not_streamed}`] : [];
}
function sentence() {
  const layers = `${opened.layers.length} ${opened.layers.length === 1 ? "layer" : "layers"}`;
  const whole = opened.bytes ? `; ${count(opened.bytes)} bytes of weights and state on a device` : "";
  const right = known?.accuracy != null ? `; ${points(known.accuracy)} right on ${count(known.others)} sequences` : "";
  return `${opened.family}, ${layers}, ${count(opened.parameters)} parameters${whole}${right}`;
}
function aboutData() {
  $("known").textContent = sentence();
  $("using").textContent = !data ? "Without data every channel is cut for white noise."
    : `${data.name}: ${count(known.calibrating)} sequences calibrate, ${known.accuracy != null ? `${count(known.others)} others are scored` : "none is scored"}.`;
  const whole = Boolean(opened.bytes && data);
  $("whole").hidden = $("limit").hidden = !whole;
  $("bound").hidden = Boolean(data);
  if (whole ? $("by-tolerance").checked : $("by-times").checked || $("by-bytes").checked) $("by-order").checked = true;
  if (data) $("by-tolerance").checked = false;
  if (!document.querySelector("[name=size]:checked")) $("by-order").checked = true;
}
/** Those conventions that the file leaves open, or all where it could not be read. */
async function offerChoices() {
  const choices = await ask("choices"), settled = opened?.declared ?? {};
  const shown = choices.filter(([key]) => !opened || key in settled || key in declared);
  $("declare").hidden = !shown.length;
  if (!opened) $("declare").open = true;
  $("choices").replaceChildren(...shown.map(([key, words]) => choice(key, words, settled[key])));
}
function choice(key, words, settled) {
  const label = element("label", CONVENTIONS[key] ?? key);
  const own = key in declared ? String(declared[key]) : "";
  const input = element(words.length ? "select" : "input", "", { id: `declare-${key}` });
  if (words.length) {
    input.append(element("option", settled === undefined || own ? "as assumed" : `as assumed: ${settled}`, { value: "" }), ...words.map((word) => element("option", word, { value: word })));
  } else {
    Object.assign(input, { type: "number", min: 0, step: "any", placeholder: settled ?? "" });
  }
  input.value = own;
  input.onchange = () => {
    const value = input.value;
    if (value === "") delete declared[key];
    else declared[key] = words.length ? (words[0] === "true" ? value === "true" : value) : Number(value);
    again("reading");
  };
  label.append(input);
  return label;
}
async function useData(file) {
  data = { name: file.name, file };
  const good = await task("reading the data", "data", async () => {
    require(LIMITS.data, "with data a page has room for about");
    if (reading === "whole") return takeData();
    await bring();
    await show();
  });
  if (!good) {
    [data, known] = [undefined, undefined];
    $("data").value = "";
  }
  aboutData();
  showTry();
}
function draw() {
  const order = Number($("order").value);
  $("shown").textContent = `${order} of ${$("order").max}`;
  $("spectra").replaceChildren(...opened.layers.map((layer) => spectrum(layer, order)));
}
function spectrum(layer, order) {
  const all = layer.channels.map((c) => c.hankel_singular_values).filter((v) => v.length && v[0] > 0);
  const n = Math.max(1, ...all.map((v) => v.length));
  // Down to the smallest value, by whole powers of ten.
  const least = Math.min(...all.flatMap((v) => v.map((s) => s / v[0])).filter((r) => r > 0), 1e-2);
  const tens = Math.min(12, Math.ceil(-Math.log10(least)));
  const x = (i) => 40 + 330 * i / n, y = (r) => 10 + 120 * Math.min(1, -Math.log10(Math.max(r, 1e-12)) / tens);
  const lines = all.map((v) => `<path d="M${v.map((s, i) => `${x(i + .5).toFixed(1)} ${y(s / v[0]).toFixed(1)}`).join("L")}"/>`);
  const cut = x(order * n / layer.order);
  const energy = (v, until) => v.slice(0, until).reduce((sum, s) => sum + s * s, 0);
  const kept = all.map((v) => energy(v, order * n / layer.order) / energy(v, v.length));
  const box = element("div");
  const said = kept.length ? `; the worst channel keeps ${(100 * Math.min(...kept)).toFixed(2)} % of Σσ²` : "";
  box.innerHTML = `<svg viewBox="0 0 380 155" role="img" aria-label="Hankel singular values of all channels over their index">
    <text x="4" y="16">1</text><text x="4" y="134">1e-${tens}</text><text x="40" y="150">σ/σ₁ over index</text>${lines.join("")}
    <line class="cut" x1="${cut}" x2="${cut}" y1="5" y2="135"/></svg>`;
  box.prepend(element("p", `${layer.name}: ${layer.order} states, ${layer.channels.length} channels${layer.stable ? "" : ", not stable"}${said}`));
  return box;
}

// ---- The smaller model.

function requested() {
  const [times, order, bound, bytes] = ["times", "order", "tolerance", "bytes"].map((id) => Number($(id).value));
  if ($("by-times").checked) return { size: { times }, flag: `--times ${times}`, stem: `1-${times}` };
  if ($("by-bytes").checked) return { size: { bytes: Math.round(bytes) }, flag: `--max-bytes ${Math.round(bytes)}`, stem: `${Math.round(bytes)}-bytes` };
  if ($("by-tolerance").checked) return { size: { tolerance: bound / 100 }, flag: `--tolerance ${bound / 100}`, stem: `within-${bound}` };
  return { size: { order }, flag: `--order ${order}`, stem: `${order}` };
}
async function reduce() {
  const wanted = requested();
  wanted.output = renamed(wanted.stem);
  $("made").hidden = true;
  const good = await task("reducing", "reduced", async () => {
    made = { ...wanted, record: await ask({ reduce: { ...wanted.size, output: wanted.output } }) };
    showMade();
  });
  if (good && $("look").open) await look();
}
let quick, foretelling, foretold;
/** Modes of a model that is cut anew as the slider moves: about a second. */
const QUICK = 4096;
/** What the size would give, as the slider moves: what is asked last is answered. */
async function foretell() {
  const { size } = requested();
  foretold = opened && !size.times && !size.bytes && quick ? size : undefined;
  if (!foretold) $("foretold").textContent = "";
  if (foretelling) return;
  foretelling = true;
  while (foretold) {
    const wanted = foretold, of = opened;
    foretold = undefined;
    try {
      const found = await ask({ preview: wanted });
      if (of === opened && !foretold) tellSize(found);
    } catch (error) {
      if (!error.cancelled) $("foretold").textContent = error.fault ?? error.message;
    }
  }
  foretelling = false;
}
function tellSize({ kernel_error: error, parameters, bytes }) {
  const device = bytes ? `${count(bytes)} bytes on a device (${percent(bytes / opened.bytes)}), ` : "";
  const white = data ? " without the data" : "";
  $("foretold").textContent = `${device}${count(parameters)} parameters; the kernels of the worst layer change by ${percent(error)}${white}.`;
}
function showMade() {
  const { record, output } = made;
  $("made").hidden = false;
  for (const cell of document.querySelectorAll("#answers th.smaller")) cell.hidden = false;
  const said = [`${count(record.parameters_before)} → ${count(record.parameters_after)} parameters`];
  if (record.bytes && opened.bytes) said.push(`${count(opened.bytes)} → ${count(record.bytes)} bytes on a device`);
  if (record.logit_change !== null) said.push(`logits change by ${percent(record.logit_change)}`);
  const a = record.accuracy;
  if (a) said.push(`accuracy ${points(a.full)} → ${points(a.reduced)} of ${a.scored} other sequences (± ${points(a.error)})`);
  $("verdict").textContent = said.join("; ");
  $("same").textContent = command(made);
  const files = [["checkpoint", output, `${count(record.file_bytes)} bytes, ${count(source.size)} before`]];
  const stem = output.slice(0, output.lastIndexOf("."));
  if (opened.not_streamed === null) files.push(["image", `${stem}.edge`, "for devices"], ["header", `${stem}.h`, "the same for C"], ["onnx", `${stem}.onnx`, "a step as a graph"]);
  $("saves").replaceChildren(...files.map(([what, name, about]) =>
    element("button", `Save ${name} (${about})`, { id: `save-${what}`, onclick: () => save(what, name) })));
  $("save-report").textContent = `Save ${reportName()}`;
  $("rows").replaceChildren(...record.layers.map((layer) => {
    const row = element("tr"), errors = [layer.relative_h2_error, layer.relative_kernel_error, layer.relative_weighted_error];
    row.append(...[layer.name, `${layer.order_before} → ${layer.order}`, ...errors.map(percent)].map((text) => element("td", text)));
    return row;
  }));
  if (signal) play();
}
async function save(what, name) {
  await task("writing", "saved", async () => {
    const request = what === "checkpoint" ? { smaller: {} } : { save: { what, name } };
    const { bytes, blob } = await call({ request });
    download(blob ?? new Blob([bytes]), name);
  });
}
function download(blob, name) {
  const url = URL.createObjectURL(blob);
  element("a", "", { href: url, download: name }).click();
  // A large file takes its time.
  setTimeout(() => URL.revokeObjectURL(url), 600000);
}

// ---- The networks at work.

/** What is played: numbers or tokens of all steps, how many each, its class where that is known. */
let signal, sequence = 0, playing = 0, played;
const STEPS = 256, FRAMES = 90, SHOWN = 16;

function showTry() {
  const streams = opened.not_streamed === null, sketch = opened.width === 1;
  $("try").hidden = !(streams && (sketch || data));
  $("next").hidden = !data;
  $("drawing").hidden = $("hearing").hidden = !sketch;
  $("try-how").textContent = `The network takes one sample at a time, as on a device${sketch ? ": draw a signal with the pointer, choose one below, or use the microphone" : ""}. The bars are its answers as the samples come.`;
  $("speed").textContent = $("answer").textContent = "";
  $("bars").replaceChildren();
  played = undefined;
  paint(0);
}
async function next() {
  const sample = await ask({ sequence: { index: sequence } });
  sequence += 1;
  const words = sample.tokens ? Uint32Array.from(sample.tokens) : Float32Array.from(sample.values);
  signal = { words, width: sample.tokens ? 1 : opened.width, label: sample.label };
  await play();
}
function shaped() {
  const periods = Number($("periods").value) || 1;
  const waves = {
    sine: (p) => Math.SQRT2 * Math.sin(2 * Math.PI * p),
    triangle: (p) => Math.sqrt(3) * (4 * Math.abs(p - .5) - 1),
    square: (p) => (p < .5 ? 1 : -1),
    sawtooth: (p) => Math.sqrt(3) * (2 * p - 1),
    pulses: (p) => (p < .15 ? .85 : -.15) / Math.sqrt(.15 * .85),
  };
  const words = Float32Array.from({ length: STEPS }, (_, i) => waves[$("shape").value]((periods * i / STEPS) % 1));
  signal = { words, width: 1 };
  return play();
}
/** Runs the signal through the networks, some samples for each frame, then measures a step. */
async function play() {
  hush();
  const own = (playing += 1), { words, width } = signal;
  const steps = words.length / width, still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const each = still ? steps : Math.ceil(steps / FRAMES), networks = made ? ["full", "reduced"] : ["full"];
  $("answer").textContent = $("speed").textContent = "";
  try {
    for (let from = 0; from < steps; from += each) {
      const piece = words.slice(from * width, (from + each) * width);
      const found = {};
      for (const which of networks) {
        const rewind = from === 0 && which === "full";
        const { bytes } = await call({ request: { play: { which, rewind } }, parts: [piece.buffer] });
        const all = new Float32Array(bytes.buffer);
        found[which] = [...all.slice(-all.length / (piece.length / width))];
      }
      if (own !== playing) return;
      played = found;
      paint(from + piece.length / width);
      bars();
      await new Promise(requestAnimationFrame);
    }
    $("answer").textContent = verdict();
    const speed = await ask({ time: { which: networks, steps } }, [words.buffer.slice(0)]);
    if (own === playing) tellSpeed(speed, networks);
    state.state = "played";
  } catch (error) {
    if (!error.cancelled) $("answer").textContent = error.fault ?? error.message;
  }
}
function tellSpeed({ microseconds, steps }, networks) {
  const each = Object.fromEntries(networks.map((which, i) => [which, microseconds[i]]));
  $("speed").textContent = `A step in this page, on one thread: ${inMicroseconds(each)} (${count(steps)} steps).`;
}
const inMicroseconds = (each) => Object.entries(each).map(([which, time]) => `${which === "full" ? which : "smaller"} ${time.toPrecision(3)} µs`).join(", ");
const best = (all) => all.indexOf(Math.max(...all));
function verdict() {
  if (opened.declared.per_step) return "";
  const said = [`full: class ${best(played.full)}`];
  if (played.reduced) said.push(`smaller: class ${best(played.reduced)}`);
  if (signal.label != null) said.push(`label: ${signal.label}`);
  return said.join("; ");
}
/** Shares of a softmax; outputs that are no classes by their size. */
function shares(all) {
  const most = Math.max(...all);
  if (all.length < 2 || opened.declared.per_step) return all.map((y) => Math.abs(y) / Math.max(...all.map(Math.abs), 1e-30));
  const raised = all.map((y) => Math.exp(y - most)), sum = raised.reduce((a, b) => a + b, 0);
  return raised.map((y) => y / sum);
}
function bars() {
  const { full, reduced } = played;
  const order = full.map((_, i) => i);
  const shown = full.length <= SHOWN ? order : order.sort((a, b) => full[b] - full[a]).slice(0, SHOWN);
  const both = [full, reduced].filter(Boolean).map((all) => [all, shares(all), best(all)]);
  $("bars").replaceChildren(...shown.map((index) => {
    const row = element("tr");
    row.append(element("td", index), ...both.map(([all, share, top], i) => {
      const cell = element("td", "", { className: i ? "smaller" : "" }), box = element("div", "", { className: "share" }), bar = element("i");
      bar.style.width = `calc((100% - 4.7rem) * ${share[index].toFixed(4)})`;
      box.append(element("span", all[index].toFixed(2), { className: index === top ? "best" : "" }), bar);
      cell.append(box);
      return cell;
    }));
    return row;
  }));
}
function paint(until) {
  const canvas = $("sketch"), pen = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
  const { width: w, height: h } = canvas;
  pen.clearRect(0, 0, w, h);
  pen.lineWidth = 1;
  pen.strokeStyle = "#8888";
  pen.beginPath();
  pen.moveTo(0, h / 2);
  pen.lineTo(w, h / 2);
  pen.stroke();
  if (!signal) return;
  const steps = signal.words.length / signal.width, most = range();
  const line = (from, to, colour) => {
    pen.beginPath();
    pen.lineWidth = 2.5;
    pen.strokeStyle = colour;
    for (let i = from; i < to; i += 1) pen.lineTo(w * (i + .5) / steps, h / 2 - .45 * h * signal.words[i * signal.width] / most);
    pen.stroke();
  };
  line(Math.max(0, until - 1), steps, "#8888");
  line(0, until, style.getPropertyValue("--full"));
}
const range = () => signal.words.reduce((most, x) => Math.max(most, Math.abs(x)), 2);

/** A signal drawn with the pointer: it begins as silence, and plays when the pointer is lifted. */
function sketching(event) {
  if (opened?.width !== 1 || state.state === "busy") return;
  const canvas = $("sketch"), box = canvas.getBoundingClientRect();
  const at = (e) => [Math.floor(STEPS * (e.clientX - box.left) / box.width), 2 * (1 - 2 * (e.clientY - box.top) / box.height) / .9];
  playing += 1;
  signal = { words: new Float32Array(STEPS), width: 1 };
  canvas.setPointerCapture(event.pointerId);
  let last = at(event);
  canvas.onpointermove = (e) => {
    const [i, y] = at(e), [from, before] = last, far = Math.abs(i - from) || 1;
    for (let k = 0; k <= far; k += 1) {
      const j = from + Math.sign(i - from) * k;
      if (j >= 0 && j < STEPS) signal.words[j] = Math.max(-2, Math.min(2, before + (y - before) * k / far));
    }
    last = [i, y];
    paint(STEPS);
  };
  canvas.onpointerup = canvas.onpointercancel = () => {
    canvas.onpointermove = canvas.onpointerup = canvas.onpointercancel = null;
    play();
  };
}

// ---- Controls.

// The same file may be chosen again, as it is then.
$("file").onclick = $("data").onclick = (event) => { event.target.value = ""; };
$("file").onchange = (event) => event.target.files.length && open(event.target.files);
$("drop").ondragover = (event) => { event.preventDefault(); $("drop").classList.add("over"); };
$("drop").ondragleave = () => $("drop").classList.remove("over");
$("drop").ondrop = (event) => {
  event.preventDefault();
  $("drop").classList.remove("over");
  if (event.dataTransfer.files.length) open(event.dataTransfer.files);
};
$("example").onclick = async () => open([new File([await unpacked(MODEL)], "model.safetensors")], { name: EXAMPLE });
$("data").onchange = (event) => event.target.files[0] && useData(event.target.files[0]);
const choose = (id) => { $(id).checked = true; foretell(); };
$("order").oninput = () => { choose("by-order"); draw(); };
$("times").oninput = () => choose("by-times");
$("bytes").oninput = () => choose("by-bytes");
$("tolerance").oninput = () => {
  $("tens").value = Math.log10(Number($("tolerance").value) || 1);
  choose("by-tolerance");
};
$("tens").oninput = () => {
  $("tolerance").value = Number((10 ** Number($("tens").value)).toPrecision(2));
  choose("by-tolerance");
};
for (const one of document.querySelectorAll("[name=size]")) one.onchange = foretell;
$("reduce").onclick = reduce;
$("cancel").onclick = cancel;
$("next").onclick = next;
$("draw").onclick = shaped;
$("sketch").onpointerdown = sketching;
