// The library in the page's worker. `makeHankelite` takes a compiled module and a function that is
// told of progress, and gives `open` and `reduce`.
function makeHankelite(module, onProgress) {
  let library, fault = null;
  const text = (at, length) => new TextDecoder().decode(new Uint8Array(library.memory.buffer, at, length));
  const page = {
    progress: (at, length, done, total) => onProgress?.(text(at, length), done >>> 0, total >>> 0),
    panicked: (at, length) => { fault = text(at, length); },
  };
  const imports = { page };
  // Other crates import what is never called here: random numbers of the system.
  for (const { module: from, name, kind } of WebAssembly.Module.imports(module)) {
    if (from === "page" || kind !== "function") continue;
    (imports[from] ??= {})[name] = () => { throw new Error(`called: ${name}`); };
  }
  library = new WebAssembly.Instance(module, imports).exports;
  library.start();
  const put = (bytes) => {
    const at = library.room(bytes.length) >>> 0;
    if (!at) throw new Error(`out of memory: ${bytes.length} bytes, a page has 4 GB`);
    new Uint8Array(library.memory.buffer, at, bytes.length).set(bytes);
    return [at, bytes.length];
  };
  const call = (which, ...all) => {
    let code;
    fault = null;
    try {
      const bytes = all.map((one) => (typeof one === "string" ? new TextEncoder().encode(one) : one));
      code = which(...bytes.flatMap(put));
    } catch (error) {
      throw new Error(fault ?? String(error));
    }
    const said = text(library.answer_at() >>> 0, library.answer_length() >>> 0);
    if (code) throw new Error(said);
    return JSON.parse(said);
  };
  const taken = (at, length) => new Uint8Array(library.memory.buffer, at >>> 0, length >>> 0).slice();
  return {
    open: (name, bytes) => call(library.open, name, bytes),
    reduce(request, name = "", data = new Uint8Array()) {
      const record = call(library.reduce, JSON.stringify(request), name, data);
      return {
        record,
        file: taken(library.file_at(), library.file_length()),
        image: taken(library.image_at(), library.image_length()),
      };
    },
  };
}
if (typeof module !== "undefined") module.exports = makeHankelite;
