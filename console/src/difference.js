// What differs between the arguments of two calls, in a few lines.

const MAX_ARGUMENTS = 12;
const MAX_LINES = 12;
const MAX_LINE = 300;
const AROUND = 40;

/** Return {rows, same, more}: the arguments that differ, how many are the same, and how many differ and are not told. */
export function differences(before, after) {
  const names = [...new Set([...Object.keys(after), ...Object.keys(before)])];
  const different = names.filter((name) => canonical(before[name]) !== canonical(after[name]));
  const rows = different.slice(0, MAX_ARGUMENTS).map((name) => ({ name, lines: lines(written(before[name]), written(after[name])) }));
  return { rows, same: names.length - different.length, more: different.length - rows.length };
}

const written = (value) => (value === undefined ? null : typeof value === "string" ? value : canonical(value));

/** JSON with sorted keys. Both come from JSON that was checked for its depth. */
function canonical(value) {
  return JSON.stringify(value, (_, one) => (one && typeof one === "object" && !Array.isArray(one) ? Object.fromEntries(Object.entries(one).sort(([a], [b]) => (a < b ? -1 : 1))) : one));
}

/** Return lines as {kind: "del" | "ins", pieces: [text, differs]} between two texts, of which one may be null. */
function lines(before, after) {
  const [old, now] = [before, after].map((text) => (text === null ? [] : text.split("\n")));
  const [start, end] = common(old, now);
  const gone = old.slice(start, old.length - end);
  const come = now.slice(start, now.length - end);
  if (gone.length === 1 && come.length === 1) return within(gone[0], come[0]);
  return [...told("del", gone), ...told("ins", come)];
}

function told(kind, all) {
  const shown = all.slice(0, MAX_LINES).map((line) => ({ kind, pieces: [[line.length > MAX_LINE ? `${line.slice(0, MAX_LINE)}…` : line, false]] }));
  return all.length > MAX_LINES ? [...shown, { kind: "", pieces: [[`… ${all.length - MAX_LINES} more lines`, false]] }] : shown;
}

/** Of two lines, return what differs, and a little of what is around it. */
function within(before, after) {
  const [old, now] = [[...before], [...after]];
  const [start, end] = common(old, now);
  // Lines that have little in common are two lines, and not one that was changed.
  if ((start + end) * 3 < Math.min(old.length, now.length)) return [...told("del", [before]), ...told("ins", [after])];
  const line = (kind, all) => {
    const [left, middle, right] = [all.slice(0, start), all.slice(start, all.length - end), all.slice(all.length - end)];
    return {
      kind,
      pieces: [
        [left.length > AROUND ? `…${left.slice(-AROUND).join("")}` : left.join(""), false],
        [middle.length > MAX_LINE ? `${middle.slice(0, MAX_LINE).join("")}…` : middle.join(""), true],
        [right.length > AROUND ? `${right.slice(0, AROUND).join("")}…` : right.join(""), false],
      ].filter(([text]) => text !== ""),
    };
  };
  return [line("del", old), line("ins", now)];
}

/** Return how many items two lists have in common at their beginnings and at their ends. */
function common(one, other) {
  const most = Math.min(one.length, other.length);
  let start = 0;
  while (start < most && one[start] === other[start]) start += 1;
  let end = 0;
  while (end < most - start && one[one.length - 1 - end] === other[other.length - 1 - end]) end += 1;
  return [start, end];
}
