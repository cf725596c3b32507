// The worker: one request at a time, in order. Behind files.js and glue.js.
const ROUNDS = 9, ROUND_MS = 12, WARM_MS = 300, STEPS_LEAST = 4096;
let ask;
const store = new Files();
onmessage = async ({ data: { id, module, files, request, parts } }) => {
  const say = (message, moved) => postMessage({ id, ...message }, moved ?? []);
  try {
    if (module) {
      ask = makeHankelite(module, store, (stage, done, total) => postMessage({ stage, done, total }));
      return say({ answer: null });
    }
    if (request.time) return say({ answer: times(request.time, parts) });
    if (request.smaller) return say({ answer: null, blob: store.new.blob() });
    if (request.open) {
      store.give(files);
      request = { open: { ...request.open, files: files.map((file) => [file.name, file.size]) } };
    } else if (files) {
      parts = [await files[0].arrayBuffer()];
    }
    if (request.reduce) store.begin();
    const from = performance.now(), { answer, bytes } = ask(request, parts);
    say({ answer, bytes, took: performance.now() - from }, [bytes.buffer]);
  } catch (error) {
    const lost = error.name === "NotReadableError" || error instanceof RangeError;
    say({ fault: error.message, broken: Boolean(error.broken), lost });
  }
};

/** Microseconds of a step of each network: the median of some rounds, turn by turn. */
function times(networks, parts) {
  const found = networks.which.map(() => []);
  // So many steps that what stands around them is not felt.
  const copies = Math.ceil(STEPS_LEAST / networks.steps), steps = copies * networks.steps;
  const many = Array(copies).fill(parts[0]);
  const once = (which) => ask({ play: { which, rewind: true } }, many);
  // A browser compiles what runs often once more, and better.
  for (const from = performance.now(); performance.now() - from < WARM_MS;) networks.which.forEach(once);
  let all = 0;
  for (let round = 0; round < ROUNDS; round += 1) {
    networks.which.forEach((which, index) => {
      const from = performance.now();
      let count = 0, took;
      do { once(which); count += 1; took = performance.now() - from; } while (took < ROUND_MS);
      found[index].push(1000 * took / (count * steps));
      all += count * steps;
    });
  }
  const median = (list) => list.sort((a, b) => a - b)[list.length >> 1];
  return { microseconds: found.map(median), steps: all };
}
