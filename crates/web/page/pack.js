// node pack.js MODULE.wasm MODEL OUT.html: one page of the template, its style and scripts, the library
// and the model that is one click away.
"use strict";
const fs = require("fs"), path = require("path"), zlib = require("zlib");
const [wasm, model, out] = process.argv.slice(2);
const beside = (name) => fs.readFileSync(path.join(__dirname, name), "utf8");
const packed = (file) => zlib.gzipSync(fs.readFileSync(file), { level: 9 }).toString("base64");
const parts = {
  STYLE: beside("page.css"),
  SCRIPT: ["page.js", "report.js", "resample.js", "microphone.js"].map(beside).join(""),
  WORKER: JSON.stringify(["files.js", "glue.js", "worker.js"].map(beside).join("")),
  WASM: JSON.stringify(packed(wasm)),
  MODEL: JSON.stringify(packed(model)),
};
const page = beside("template.html").replace(/\/\*([A-Z]+)\*\//g, (_, name) => parts[name]);
fs.writeFileSync(out, page);
console.log(`${out}: ${page.length} bytes`);
