// ---- The microphone: one channel, brought to the steps that the model takes, through both networks as the
// samples come. Nothing of it is kept.

const REFUSED = {
  NotFoundError: "There is no microphone here. Draw a signal, choose a wave, or play a sequence of the data.",
  NotAllowedError: "The browser may not use the microphone: allow it for this page.",
  NotReadableError: "The microphone cannot be read: another program may hold it.",
};
/** Posts one channel of what comes in. */
const LISTENER = `registerProcessor("listener", class extends AudioWorkletProcessor {
  process([[one]]) { if (one) this.port.postMessage(one.slice()); return true; }
});`;
/** Below this root mean square it is silence, and is not made louder. */
const SILENCE = 1e-3;
let ear;

/** Begins, or ends, on a click. */
async function microphone() {
  if (ear) return hush();
  const own = (ear = { waiting: [], steps: 0, took: {}, left: 0 });
  playing += 1;
  $("microphone").textContent = "Stop the microphone";
  $("answer").textContent = "waiting for the microphone";
  $("speed").textContent = "";
  try {
    if (!navigator.mediaDevices) throw new DOMException("", "NotFoundError");
    const audio = { channelCount: 1, echoCancellation: false, noiseSuppression: false, autoGainControl: false };
    own.stream = await navigator.mediaDevices.getUserMedia({ audio });
    if (ear !== own) return unplug(own);
    await connect(own);
    $("answer").textContent = "listening";
    state.state = "listening";
    while (ear === own) await heard(own);
  } catch (error) {
    if (ear !== own) return;
    hush();
    $("answer").textContent = REFUSED[error.name] ?? error.fault ?? error.message;
    state.state = "silent";
  }
}
async function connect(own) {
  const { stream } = own, context = (own.context = new AudioContext());
  // A blob of a page from disk is of no origin, and a worklet takes none such.
  await context.audioWorklet.addModule(`data:text/javascript,${encodeURIComponent(LISTENER)}`);
  const listener = new AudioWorkletNode(context, "listener", { channelCount: 1, channelCountMode: "explicit" });
  own.rate = number("rate", 16000);
  own.window = Math.round(number("heard", STEPS));
  own.energy = 0;
  const resampler = new Resampler(context.sampleRate, own.rate);
  listener.port.onmessage = ({ data }) => own.waiting.push(...levelled(own, resampler.push(data)));
  context.createMediaStreamSource(stream).connect(listener);
  // It gives silence; what leads nowhere is not run everywhere.
  listener.connect(context.destination);
  stream.getAudioTracks()[0].onended = () => ear === own && hush();
  await context.resume();
}
/** The number in a field, within its limits. */
function number(id, otherwise) {
  const { min, max } = $(id), value = Number($(id).value) || otherwise;
  return Math.min(Number(max), Math.max(Number(min), value));
}
/** Divided by the root mean square of about a window before, where that is asked for. */
function levelled(own, samples) {
  if (!$("level").checked) return samples;
  return samples.map((x) => {
    own.heard = (own.heard ?? 0) + 1;
    own.energy += (x * x - own.energy) / Math.min(own.heard, own.window);
    return x / Math.max(Math.sqrt(own.energy), SILENCE);
  });
}
/** What has come, through the networks; behind a whole window they begin anew. */
async function heard(own) {
  await new Promise(requestAnimationFrame);
  // Networks that take longer than the samples hear the newest.
  const over = own.waiting.length - 2 * Math.max(own.window, own.rate);
  if (over > 0) {
    own.waiting.splice(0, over);
    own.left += over;
    own.from = 0;
  }
  while (ear === own && own.waiting.length) {
    if (!own.from) {
      own.from = 0;
      signal = { words: new Float32Array(own.window), width: 1 };
    }
    const piece = Float32Array.from(own.waiting.splice(0, Math.min(own.waiting.length, own.window - own.from)));
    signal.words.set(piece, own.from);
    if (!(await answered(own, piece))) return;
    own.from += piece.length;
    paint(own.from);
    bars();
    if (own.from < own.window) continue;
    own.from = 0;
    own.windows = (own.windows ?? 0) + 1;
    $("answer").textContent = verdict();
    tellReal(own);
    state.windows = own.windows;
  }
}
async function answered(own, piece) {
  const found = {};
  for (const which of made ? ["full", "reduced"] : ["full"]) {
    const rewind = own.from === 0 && which === "full";
    const { bytes, took } = await call({ request: { play: { which, rewind } }, parts: [piece.buffer.slice(0)] });
    if (ear !== own) return false;
    const all = new Float32Array(bytes.buffer);
    found[which] = [...all.slice(-all.length / piece.length)];
    own.took[which] = (own.took[which] ?? 0) + took;
  }
  own.steps += piece.length;
  played = found;
  return true;
}
function tellReal({ took, steps, rate, left }) {
  const each = Object.fromEntries(Object.entries(took).map(([which, ms]) => [which, 1000 * ms / steps]));
  const lost = left ? ` ${count(left)} steps were left out: the networks take longer.` : "";
  $("speed").textContent = `A step as the samples come: ${inMicroseconds(each)}; one comes every ${(1e6 / rate).toPrecision(3)} µs (${count(steps)} steps).${lost}`;
}
function hush() {
  const own = ear;
  if (!own) return;
  ear = undefined;
  unplug(own);
  $("microphone").textContent = "Use the microphone";
}
function unplug({ stream, context }) {
  stream?.getTracks().forEach((track) => track.stop());
  context?.close().catch(() => {});
}

$("microphone").onclick = microphone;
