// The library in the page's worker. `makeHankelite` takes a compiled module, the files that it reads and
// the new one that it writes, and a function that is told of progress; it gives `ask`: a request and bytes
// in, an answer and bytes out.
function makeHankelite(module, files, onProgress) {
  let library, fault = null;
  const done = (work) => {
    try { work(); return 0; } catch { return 1; }
  };
  const bytes = (at, length) => new Uint8Array(library.memory.buffer, at >>> 0, length >>> 0);
  const text = (at, length) => new TextDecoder().decode(new Uint8Array(library.memory.buffer, at, length));
  const page = {
    progress: (at, length, done, total) => onProgress?.(text(at, length), done >>> 0, total >>> 0),
    panicked: (at, length) => { fault = text(at, length); },
    read: (file, from, into, length) => done(() => files.read(file >>> 0, from, bytes(into, length))),
    write: (from, at, length) => done(() => files.write(from, bytes(at, length))),
  };
  const imports = { page };
  // Other crates import what is never called here: random numbers of the system.
  for (const { module: from, name, kind } of WebAssembly.Module.imports(module)) {
    if (from === "page" || kind !== "function") continue;
    (imports[from] ??= {})[name] = () => { throw new Error(`called: ${name}`); };
  }
  library = new WebAssembly.Instance(module, imports).exports;
  library.start();
  const put = (parts) => {
    const length = parts.reduce((sum, part) => sum + part.byteLength, 0);
    const at = library.room(length) >>> 0;
    if (!at) throw new Error(`out of memory: ${length} bytes, a page has 4 GB`);
    let next = at;
    for (const part of parts) {
      new Uint8Array(library.memory.buffer, next, part.byteLength).set(new Uint8Array(part));
      next += part.byteLength;
    }
    return [at, length];
  };
  return function ask(request, parts = []) {
    let code;
    fault = null;
    try {
      const said = new TextEncoder().encode(JSON.stringify(request));
      code = library.ask(...put([said]), ...put(parts));
    } catch (error) {
      // What stopped in the middle cannot go on.
      throw Object.assign(new Error(fault ?? error.message), { broken: true });
    }
    const said = text(library.answer_at() >>> 0, library.answer_length() >>> 0);
    if (code) throw new Error(said);
    return { answer: JSON.parse(said), bytes: bytes(library.file_at(), library.file_length()).slice() };
  };
}
if (typeof module !== "undefined") module.exports = makeHankelite;
