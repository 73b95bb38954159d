// Builds the page of the console into the package. `make console` runs it.
import { build } from "esbuild";
import { copyFile, mkdir, readFile, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { dirname, join } from "node:path";

const here = dirname(fileURLToPath(import.meta.url));
const target = process.argv[2] ?? join(here, "../src/cellblock/fronts/gateway/console_page");

await mkdir(target, { recursive: true });
await build({
  absWorkingDir: here,
  entryPoints: { console: "src/main.jsx" },
  outdir: target,
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  charset: "utf8",
  logLevel: "warning",
});
await build({ absWorkingDir: here, entryPoints: { console: "src/style.css" }, outdir: target, minify: true, logLevel: "warning" });
for (const name of ["index.html", "frame.html", "icon.svg"]) await copyFile(join(here, "src", name), join(target, name));

// The page that draws a figure has plotly.js within: a frame without an origin may load nothing of the gateway's.
const plotly = await readFile(join(here, "node_modules/plotly.js-cartesian-dist-min/plotly-cartesian.min.js"), "utf8");
if (/<\/script|<!--/i.test(plotly)) throw new Error("plotly.js cannot be put into a page as it is");
const figure = await readFile(join(here, "src/figure.html"), "utf8");
await writeFile(join(target, "figure.html"), figure.replace("/* plotly.js */", () => plotly));
