// Builds the page of the console into the package. `make console` runs it. plotly.js comes from elsewhere: fetch_plotly.py.
import { build } from "esbuild";
import { createHash } from "node:crypto";
import { copyFile, mkdir, readdir, readFile, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { dirname, join } from "node:path";
import { gzipSync } from "node:zlib";

const here = dirname(fileURLToPath(import.meta.url));
const target = process.argv[2] ?? join(here, "../src/cellblock/fronts/gateway/console_page");
const sources = ["build.mjs", "package-lock.json", ...(await readdir(join(here, "src"))).sort().map((name) => `src/${name}`)];
const digest = createHash("sha256");
for (const name of sources) digest.update(await readFile(join(here, name)));
const options = {
  absWorkingDir: here,
  outdir: target,
  bundle: true,
  minify: true,
  format: "esm",
  legalComments: "none",
  charset: "utf8",
  logLevel: "warning",
};
const apart = {
  name: "libraries in a file of their own",
  setup: ({ onResolve }) => onResolve({ filter: /^\.\/libraries\.js$|^preact\// }, () => ({ path: "./libraries.js", external: true })),
};

await mkdir(target, { recursive: true });
const scripts = { ...options, target: "es2022" };
const banner = { js: `// Built by "make console" from console/, whose files have the SHA-256 ${digest.digest("hex")}.` };
await build({ ...scripts, banner, entryPoints: { console: "src/main.jsx" }, jsx: "automatic", jsxImportSource: "preact", plugins: [apart] });
await build({ ...options, entryPoints: { console: "src/style.css" } });
const { outputFiles } = await build({ ...scripts, entryPoints: { libraries: "src/libraries.js" }, write: false });
await writeFile(join(target, "libraries.js.gz"), gzipSync(outputFiles[0].contents, { level: 9 }));
for (const name of ["index.html", "frame.html", "figure.html", "icon.svg"]) await copyFile(join(here, "src", name), join(target, name));
