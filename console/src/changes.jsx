// What differs between two states of a session.
import { structuredPatch, useState } from "./libraries.js";
import { get } from "./api.js";
import { plural, size } from "./format.js";
import { Failure, useFetched } from "./parts.jsx";
import { Marked } from "./text.jsx";

/** The longest that lines are compared, in ms: texts that have nothing in common take longest. */
const PATIENCE = 300;
const MAX_LINES = 2000;

/** Differences of variables and files. `versions` is where a file of both states is read; it ends with "path=". */
export function Changes({ changes: { variables, files }, versions }) {
  const rows = [
    ...variables.new.map((one) => ["new", one.name, "", one.preview]),
    ...variables.changed.map(({ before, after }) => ["changed", after.name, before.preview, after.preview]),
    ...variables.deleted.map((one) => ["deleted", one.name, one.preview, ""]),
    ...variables.unknown.map((one) => ["unknown", one.name, "", "may have changed"]),
  ];
  const paths = files ? [...files.new.map((one) => ["new", one]), ...files.changed.map((one) => ["changed", one]), ...files.deleted.map((one) => ["deleted", one])] : [];
  if (!rows.length && !paths.length) return <p class="note">Nothing has changed.</p>;
  return (
    <div class="changes">
      {rows.length > 0 && <table><caption>Variables</caption><tbody>{rows.map(([how, name, before, after]) => (
        <tr key={name} class={how}><th scope="row"><Marked text={name} /></th><td>{before && <del><Marked text={before} /></del>}</td><td>{after && <ins><Marked text={after} /></ins>}</td></tr>
      ))}</tbody></table>}
      {paths.length > 0 && <table><caption>Files</caption><tbody>{paths.map(([how, one]) => <File key={one.path} how={how} file={one} versions={versions} />)}</tbody></table>}
      {files?.more > 0 && <p class="note">and {plural(files.more, "more file")}</p>}
    </div>
  );
}

function File({ how, file: { path, before, after }, versions }) {
  const [open, setOpen] = useState(false);
  return (
    <>
      <tr class={how}>
        <th scope="row">{path.endsWith("/") ? <Marked text={path} /> : <button type="button" class="link" aria-expanded={open} onClick={() => setOpen(!open)}><Marked text={path} /></button>}</th>
        <td>{before != null && <del>{size(before)}</del>}</td>
        <td>{after != null && <ins>{size(after)}</ins>}</td>
      </tr>
      {open && <tr class="lines"><td colSpan={3}><Lines path={path} versions={versions} /></td></tr>}
    </>
  );
}

/** The lines of a file that differ. */
function Lines({ path, versions }) {
  const { data, error } = useFetched((signal) => get(versions + encodeURIComponent(path), { signal }), [path, versions]);
  if (!data) return error ? <Failure error={error} /> : <p class="note">Comparing…</p>;
  const without = [data.before, data.after].find((one) => one && one.text === null);
  if (without) return <p class="note">Its lines are not shown: <Marked text={without.why} />.</p>;
  const [before, after] = [data.before?.text ?? "", data.after?.text ?? ""];
  const patch = structuredPatch("", "", before, after, "", "", { context: 3, timeout: PATIENCE });
  if (!patch) return <p class="note">The two have too little in common to compare their lines.</p>;
  if (!patch.hunks.length) return <p class="note">{before === "" && after === "" ? "It is empty." : "Its text is the same."}</p>;
  const lines = patch.hunks.flatMap((hunk) => [`@@ line ${hunk.newStart || hunk.oldStart}`, ...hunk.lines]);
  return (
    <>
      <pre class="diff" tabIndex={0} aria-label={`Lines of ${path} that differ`}>{lines.slice(0, MAX_LINES).map((line, place) => <Line key={place} line={line} />)}</pre>
      {lines.length > MAX_LINES && <p class="note">and {plural(lines.length - MAX_LINES, "more line")}</p>}
    </>
  );
}

function Line({ line }) {
  const Tag = { "+": "ins", "-": "del" }[line[0]] ?? "span"; // style.css writes the signs of these two
  return <Tag class={line[0] === "@" ? "place" : ""}><Marked text={Tag === "span" && line[0] !== " " ? line : line.slice(1)} lines /></Tag>;
}
