// Text that others have written: always text nodes, never HTML.
import { Anser, classHighlighter, highlightCode, pythonLanguage, useMemo, useState } from "./libraries.js";
import { VirtualList } from "./parts.jsx";
import { count, plural } from "./format.js";

// -- what does not look like what it is -----------------------------------------------------------------------------------

const HIDDEN = /[\p{Cc}\p{Cf}\p{Co}\p{Cn}\p{Cs}\p{Zl}\p{Zp}\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\uffa0\ufe00-\ufe0f\u{e0100}-\u{e01ef}\u0334-\u0338\u0489]|(?! )\p{Zs}/u;
const WORD = /[\p{L}\p{M}\p{N}_]+/gu;
const LATIN = /\p{Script=Latin}/u;
const OTHER = /[\p{Script=Cyrillic}\p{Script=Greek}\p{Script=Armenian}\p{Script=Cherokee}\p{Script=Coptic}\p{Script=Lisu}]/u;
const LIKE_LATIN = /^[аеорсухіјѕһԁԛԝѵɡӏүпгкмтвнАВЕКМНОРСТУХІЈЅҮαοενρτυιγκωΑΒΕΖΗΙΚΜΝΟΡΤΥΧօսոհց0-9_]+$/u;
const RUN = / {17,}/g;

const hex = (character) => `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;

/** Whether a character stands for an ASCII one in another form: fullwidth, mathematical, a ligature. */
const disguised = (character) => character > "\u007f" && /^[\x21-\x7e]+$/.test(character.normalize("NFKC"));

function suspicious(word) {
  if (/^[\x00-\x7f]*$/.test(word)) return () => false;
  if (LATIN.test(word) && OTHER.test(word)) return (character) => OTHER.test(character);
  return LIKE_LATIN.test(word) && OTHER.test(word) ? (character) => OTHER.test(character) : () => false;
}

const MAX_MARKS = 2000;

/** Split a text into pieces: plain text, and marks for what cannot be seen or looks like something else. */
export function pieces(text, { lines = false } = {}) {
  if (/^[ -~]*$/.test(text)) return runs(text);
  const found = [];
  let plain = "";
  const flush = () => {
    if (plain) found.push({ text: plain });
    plain = "";
  };
  const odd = new Map();
  for (const match of text.matchAll(WORD)) {
    const isOdd = suspicious(match[0]);
    let place = match.index;
    for (const character of match[0]) {
      if (isOdd(character)) odd.set(place, true);
      place += character.length;
    }
  }
  let place = 0;
  for (const character of text) {
    if (lines && (character === "\n" || character === "\t")) plain += character;
    else if (found.length > MAX_MARKS && (HIDDEN.test(character) || odd.has(place) || disguised(character))) {
      plain += `⟨${hex(character)}⟩`; // thousands of marks would take seconds to draw
    } else if (HIDDEN.test(character)) {
      flush();
      const name = { "\n": "line end", "\t": "tab", "\r": "carriage return", "\u001b": "escape" }[character];
      found.push({ mark: name ?? hex(character), title: `an invisible character: ${hex(character)}` });
    } else if (odd.has(place) || disguised(character)) {
      flush();
      found.push({ mark: `${character} ${hex(character)}`, title: `looks like another character: ${hex(character)}`, like: true });
    } else plain += character;
    place += character.length;
  }
  flush();
  return found.flatMap((piece) => (piece.text === undefined ? [piece] : runs(piece.text)));
}

/** Long runs of spaces, which push the rest out of sight, are counted. */
function runs(text) {
  const found = [];
  let from = 0;
  for (const match of text.matchAll(RUN)) {
    found.push({ text: text.slice(from, match.index) }, { mark: plural(match[0].length, "space"), title: "a long run of spaces" });
    from = match.index + match[0].length;
  }
  found.push({ text: text.slice(from) });
  return found.filter((piece) => piece.text !== "");
}

export function Marked({ text, lines = false }) {
  return (
    <bdi class="marked">
      {pieces(String(text), { lines }).map((piece) => (
        piece.text === undefined ? <mark class={piece.like ? "like" : ""} title={piece.title}>{piece.mark}</mark> : piece.text
      ))}
    </bdi>
  );
}

// -- terminal output ------------------------------------------------------------------------------------------------------

const OTHER_SEQUENCES = /\u001b(?:\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[P_^X][^\u001b]*(?:\u001b\\)?|\[[0-9;:?<=>]{0,200}[ -/]{0,20}[@-ln-~]|[()#][0-9A-Za-z]|[@-OQ-WYZ\\`-~0-9=>])/g;
const CONTROLS = /[\u0000-\u0007\u000b-\u000c\u000e-\u001a\u001c-\u001f\u007f]/g;

/** Return what a terminal would show: overwritten lines are gone, and only colours are left of escape sequences. */
export function terminal(text) {
  if (!/[\u0000-\u0008\u000b-\u001f\u007f]/.test(text)) return text;
  return text.replace(OTHER_SEQUENCES, "").replace(CONTROLS, "").split("\n").map(line).join("\n");
}

/** Carriage returns overwrite from the left, and backspaces remove a character. Each character is looked at once. */
function line(text) {
  let shown = text.endsWith("\r") ? text.slice(0, -1) : text;
  if (shown.includes("\r")) {
    const written = shown.split("\r").filter(Boolean);
    const parts = [];
    let length = 0;
    for (let place = written.length - 1; place >= 0; place -= 1) {
      // What has colours replaces the line: which characters it covers is not known.
      if (parts.length && (written[place].includes("\u001b") || written[place + 1].includes("\u001b"))) break;
      if (written[place].length > length) parts.push(written[place].slice(length));
      length = Math.max(length, written[place].length);
    }
    shown = parts.join("");
  }
  if (!shown.includes("\u0008")) return shown;
  const kept = [];
  for (const character of shown) {
    if (character === "\u0008") kept.pop();
    else kept.push(character);
  }
  return kept.join("");
}

function Coloured({ text }) {
  if (!text.includes("\u001b")) return text;
  return Anser.ansiToJson(text, { json: true, remove_empty: true, use_classes: true }).map((piece) => {
    const style = {};
    const names = [];
    if (piece.fg) names.push(colour(piece.fg, piece.fg_truecolor, "color", style, "fg"));
    if (piece.bg) names.push(colour(piece.bg, piece.bg_truecolor, "backgroundColor", style, "bg"));
    for (const one of piece.decorations ?? []) names.push(`ansi-${one}`);
    return <span class={names.filter(Boolean).join(" ")} style={style}>{piece.content.replaceAll("\u001b", "")}</span>;
  });
}

function colour(name, truecolor, property, style, which) {
  if (truecolor) style[property] = `rgb(${truecolor})`;
  else if (name.startsWith("ansi-palette-")) style[property] = palette(Number(name.slice(13)));
  else return `${name}-${which}`;
  return "";
}

function palette(number) {
  if (number >= 232) return `rgb(${[0, 0, 0].fill(8 + 10 * (number - 232))})`;
  const level = (value) => (value ? 55 + 40 * value : 0);
  const cube = number - 16;
  return `rgb(${[Math.floor(cube / 36), Math.floor(cube / 6) % 6, cube % 6].map(level)})`;
}

const SHORT_LINES = 60;
const SHOWN_LINES = 40;
const MANY_LINES = 400;
const MANY = 60_000;
const LONG_LINE = 4000;
const MAX_LINES = 600_000;
const LINE_HEIGHT = 19;

/** Output of any length: long text is a list of lines of which only what can be seen is in the page. */
export function Output({ text, kind = "", growing = false }) {
  const [open, setOpen] = useState(false);
  const shown = useMemo(() => terminal(text), [text]);
  const lines = useMemo(() => (shown.endsWith("\n") ? shown.slice(0, -1) : shown).split("\n"), [shown]);
  if (!shown) return null;
  if (shown.length > MANY || lines.length > MANY_LINES) return <LongOutput lines={lines} length={text.length} kind={kind} />;
  const long = lines.length > SHORT_LINES;
  // Of what still grows, the end is what somebody waits for.
  const shownLines = !long || open ? lines : growing ? lines.slice(-SHOWN_LINES) : lines.slice(0, SHOWN_LINES);
  const more = long && (
    <button type="button" class="link" onClick={() => setOpen(!open)}>
      {open ? "Show less" : `Show ${plural(lines.length - SHOWN_LINES, growing ? "earlier line" : "more line")}`}
    </button>
  );
  return (
    <div class={`stream ${kind}`}>
      {growing && more}
      <pre tabIndex={0} aria-label="Output"><Coloured text={shownLines.join("\n")} /></pre>
      {!growing && more}
    </div>
  );
}

function LongOutput({ lines, length, kind }) {
  const kept = lines.length > MAX_LINES ? lines.slice(-MAX_LINES) : lines;
  return (
    <div class={`stream long ${kind}`}>
      <p class="note">{plural(lines.length, "line")}, {plural(length, "character")}</p>
      <VirtualList items={kept} rowHeight={LINE_HEIGHT} role="log" label="Output" className="lines" render={(text, place) => (
        <div key={place} class="line">
          <Coloured text={text.slice(0, LONG_LINE)} />
          {text.length > LONG_LINE && <span class="note"> … {count(text.length - LONG_LINE)} more characters</span>}
        </div>
      )} />
    </div>
  );
}

// -- code -----------------------------------------------------------------------------------------------------------------

const MAX_HIGHLIGHTED = 20_000;

export function Code({ text }) {
  const parts = useMemo(() => highlighted(text), [text]);
  return <pre class="code" tabIndex={0} aria-label="Code"><code>{parts}</code></pre>;
}

function highlighted(text) {
  if (text.length > MAX_HIGHLIGHTED) return text;
  const parts = [];
  highlightCode(text, pythonLanguage.parser.parse(text), classHighlighter,
    (piece, classes) => parts.push(classes ? <span class={classes}>{piece}</span> : piece), () => parts.push("\n"));
  return parts;
}

/** JSON data as text in which nothing hides. */
export function Arguments({ value }) {
  if (typeof value !== "object" || value === null) return <Marked text={JSON.stringify(value)} />;
  return (
    <dl class="arguments" tabIndex={0}>
      {Object.entries(value).map(([name, one]) => (
        <div key={name}>
          <dt><Marked text={name} /></dt>
          <dd><Marked text={typeof one === "string" ? one : JSON.stringify(one, null, 1)} lines /></dd>
        </div>
      ))}
    </dl>
  );
}
