// What a cell shows, as a notebook would. HTML and SVG of outputs are shown in frames without an origin, never in the page.
import { MarkdownIt, temml, useEffect, useMemo, useRef, useState } from "./libraries.js";
import { useNear } from "./parts.jsx";
import { Output } from "./text.jsx";
import { isDark } from "./theme.js";

const PICTURES = ["image/png", "image/jpeg", "image/gif", "image/webp"];
const BASE64 = /^[A-Za-z0-9+/=\s]*$/;
const MAX_JSON = 200_000;
const PLOTLY = "application/vnd.plotly.v1+json";
const MAX_FIGURE = 10_000_000;

/** One output of a cell. */
export function Item({ item, growing = false }) {
  if (item.kind === "stream") return <Output text={item.text ?? ""} kind={item.name === "stderr" ? "stderr" : ""} growing={growing} />;
  if (item.kind === "error") return <Output text={item.text ?? ""} kind="error" />;
  return <Bundle data={item.data ?? {}} text={item.text} />;
}

function Bundle({ data, text }) {
  const picture = PICTURES.find((mime) => typeof data[mime] === "string" && BASE64.test(data[mime]));
  if (picture) return <img class="picture" alt={data["text/plain"] || "A picture that the code has made"} src={`data:${picture};base64,${data[picture].replace(/\s/g, "")}`} />;
  if (data["image/svg+xml"]) return <Frame html={data["image/svg+xml"]} text={data["text/plain"] ?? text} />;
  if (data[PLOTLY]) return <Figure figure={data[PLOTLY]} html={data["text/html"]} />;
  if (data["text/html"]) return <Html html={data["text/html"]} text={data["text/plain"] ?? text} />;
  if (data["text/markdown"]) return <Markdown text={data["text/markdown"]} />;
  if (data["text/latex"]) return <Latex text={data["text/latex"]} />;
  if (data["application/json"]) return <Output text={pretty(data["application/json"])} />;
  return <Output text={data["text/plain"] ?? text ?? ""} />;
}

function pretty(text) {
  try {
    return text.length > MAX_JSON || depthOf(text) > MAX_NESTING ? text : JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

const MAX_NESTING = 50;

/** At most how deep JSON is nested. Indented, it could be as large as the square of that. */
function depthOf(text) {
  let depth = 0;
  let most = 0;
  for (const character of text) {
    if (character === "[" || character === "{") most = Math.max(most, (depth += 1));
    else if (character === "]" || character === "}") depth -= 1;
  }
  return most;
}

// -- HTML -----------------------------------------------------------------------------------------------------------------

const OF_TABLES = new Set(["TABLE", "THEAD", "TBODY", "TFOOT", "TR", "TH", "TD", "DIV", "P", "BR", "B", "I", "SPAN", "CAPTION", "COLGROUP", "COL"]);
const MAX_CELLS = 20_000;
const MAX_TABLE = 1_000_000;
const MAX_DEPTH = 32;
const MAX_COLUMNS = 1000;
const TABLE_MS = 60;

function Html({ html, text }) {
  const table = useMemo(() => readTable(html), [html]);
  return table ? <Table {...table} /> : <Frame html={html} text={text} />;
}

/** Return the rows of a plain table, such as a data frame's, as text; null if it is more than that. Nothing of it is run. */
function readTable(html) {
  if (html.length > MAX_TABLE || !/<table/i.test(html)) return null;
  const body = tableIn(html);
  if (body === null || body.querySelectorAll("td, th").length > MAX_CELLS) return null;
  const tables = body.querySelectorAll("table");
  if (tables.length !== 1) return null;
  const rows = [...tables[0].querySelectorAll("tr")].map((row) => ({
    head: row.parentElement.tagName === "THEAD",
    cells: [...row.children].map((cell) => ({
      head: cell.tagName === "TH",
      text: cell.textContent.trim(),
      across: Math.min(Math.max(cell.colSpan | 0, 1), 1000),
      down: Math.min(Math.max(cell.rowSpan | 0, 1), 1000),
    })),
  }));
  // A few cells that span thousands of columns would take seconds to lay out.
  if (rows.some(({ cells }) => cells.reduce((sum, cell) => sum + cell.across, 0) > MAX_COLUMNS)) return null;
  const note = [...body.querySelectorAll("p")].map((one) => one.textContent).join(" ");
  return { rows, note };
}

/** Return an element with the tags and the text of a table in it, detached from any page; null if there is more than that.
 *  The page's policy lets no text become HTML, not even for reading: hence not the browser's parser. */
function tableIn(html) {
  const page = document.implementation.createHTMLDocument("");
  const root = page.createElement("div");
  const open = [root];
  const pattern = /<!--[\s\S]*?-->|<style\b[^>]*>([\s\S]*?)<\/style\s*>|<(\/?)([a-zA-Z][a-zA-Z0-9]*)((?:"[^"]*"|'[^']*'|[^'">])*)>|([^<]+)/gy;
  const until = performance.now() + TABLE_MS;
  for (let count = 0; pattern.lastIndex < html.length; count += 1) {
    const match = pattern.exec(html);
    if (match === null || open.length > MAX_DEPTH || (count % 500 === 0 && performance.now() > until)) return null;
    const [, style, closing, tag, attributes, text] = match;
    const top = open.at(-1);
    if (text !== undefined) top.append(entities(text));
    else if (style !== undefined) {
      if (style.includes("#")) return null; // the rules are the point, as with pandas' Styler: they are for ids
    } else if (tag !== undefined) {
      const name = tag.toUpperCase();
      if (!OF_TABLES.has(name)) return null;
      if (name === "BR") top.append("\n");
      else if (closing) {
        const place = open.findLastIndex((one) => one.tagName === name);
        if (place > 0) open.length = place;
      } else if (name !== "COL") {
        const element = page.createElement(name);
        for (const [, key, value] of attributes.slice(0, 1000).matchAll(/(colspan|rowspan)\s*=\s*["']?(\d{1,9})/gi)) element.setAttribute(key, value);
        top.append(element);
        open.push(element);
      }
    }
  }
  return root;
}

const NAMED = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", "#39": "'" };

function entities(text) {
  return text.replace(/&(#x[0-9a-f]{1,6}|#\d{1,7}|[a-z]{2,6});/gi, (whole, name) => {
    if (NAMED[name] !== undefined) return NAMED[name];
    const code = name[0] === "#" ? Number(name[1] === "x" || name[1] === "X" ? `0x${name.slice(2)}` : name.slice(1)) : NaN;
    return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : whole;
  });
}

function Table({ rows, note }) {
  return (
    <div class="table-box" tabIndex={0} role="region" aria-label="Table">
      <table class="data">
        <tbody>
          {rows.map((row, place) => (
            <tr key={place} class={row.head ? "head" : ""}>
              {row.cells.map((cell) => (
                cell.head && cell.text ? <th colSpan={cell.across} rowSpan={cell.down} scope={row.head ? "col" : "row"}>{cell.text}</th>
                  : <td colSpan={cell.across} rowSpan={cell.down} class={/^[-+]?[\d.,]+(e[-+]?\d+)?%?$/i.test(cell.text) ? "number" : ""}>{cell.text}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      {note && <p class="note">{note}</p>}
    </div>
  );
}

const MAX_FRAME = 600;

const MAX_HTML = 10_000_000;

/** Each character is looked at a few times at most: a tag has no < within. */
const SCRIPTS = /<script|<[^<>]+\son\w+\s*=/i;

/** A frame of its own for HTML that code has made: no origin, no network, and no way out; scripts only if somebody asks for it. */
function Frame({ html, text = "" }) {
  const [scripts, setScripts] = useState(false);
  const has = useMemo(() => html.length <= MAX_HTML && SCRIPTS.test(html), [html]);
  const [problem, setProblem] = useState(html.length > MAX_HTML ? "it is too large" : "");
  if (problem) return <><p class="note">HTML that is not shown: {problem}.</p>{text && <Output text={text} />}</>;
  return (
    <div class="framed">
      <Within key={scripts} page={scripts ? "frame-with-scripts" : "frame"} given={{ html }} most={MAX_FRAME} onProblem={setProblem} />
      {!scripts && has && <button type="button" class="link" onClick={() => setScripts(true)}>Run the scripts of this output</button>}
    </div>
  );
}

/** A figure of plotly, drawn by a page that has plotly.js within, and which is fetched only for that. */
function Figure({ figure, html }) {
  const [problem, setProblem] = useState(figure.length > MAX_FIGURE ? "it is too large" : "");
  if (problem && html) return <Html html={html} />;
  if (problem) return <p class="note">A figure of plotly that is not drawn: {problem}. <code>display(HTML(fig.to_html()))</code> shows it here.</p>;
  return <div class="framed"><Within page="figure" given={{ figure, most: MAX_DRAWN }} most={MAX_DRAWN} onProblem={setProblem} /></div>;
}

const MAX_DRAWN = 900;

/** A page of the gateway that shows what is given to it, without an origin. What it says is worth as little as what it shows. */
function Within({ page, given, most, onProblem = () => {} }) {
  const element = useRef();
  const [height, setHeight] = useState(40);
  const near = useNear(element, "400px");
  useEffect(() => {
    if (!near) return undefined;
    const frame = element.current;
    const take = (event) => {
      if (event.source !== frame.contentWindow) return;
      if (event.data === "ready") frame.contentWindow.postMessage({ ...given, dark: isDark() }, "*");
      else if (typeof event.data?.problem === "string") onProblem(event.data.problem.slice(0, 300));
      else if (typeof event.data?.height === "number") setHeight(Math.min(Math.max(event.data.height, 20), most) || 40);
    };
    addEventListener("message", take);
    frame.src = new URL(`console/${page}`, document.baseURI.replace(/\/console\/?(#.*)?$/, "/")).href;
    return () => removeEventListener("message", take);
  }, [page, given.html, given.figure, near]);
  return <iframe ref={element} class="frame" title="Output of the code" sandbox="allow-scripts" referrerpolicy="no-referrer" style={{ height: `${height}px` }} />;
}

// -- Markdown and LaTeX -----------------------------------------------------------------------------------------------------

const markdown = new MarkdownIt({ html: false, linkify: false, typographer: false });
markdown.validateLink = (address) => /^(https?:|mailto:|data:image\/(png|jpeg|gif|webp);base64,)/i.test(address.trim());

const TAGS = new Set(["p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "em", "strong", "s", "table", "thead", "tbody", "tr", "th", "td"]);
const MAX_MARKDOWN = 50_000;
const MAX_FORMULAS = 200;

export function Markdown({ text }) {
  const nodes = useMemo(() => (text.length > MAX_MARKDOWN ? null : drawn(markdown.parse(text, {}))), [text]);
  return nodes === null ? <Output text={text} /> : <div class="markdown">{nodes}</div>;
}

/** Turn markdown-it's tokens into elements. Only tags that are known here are made, and no attributes but addresses of links. */
function drawn(tokens) {
  const root = { tag: "", children: [] };
  const open = [root];
  for (const token of tokens) {
    const top = open.at(-1).children;
    if (token.type === "inline") top.push(...drawn(token.children));
    else if (token.nesting === 1) {
      const made = { tag: token.tag, href: token.attrGet("href"), hidden: token.hidden, children: [] };
      open.push(made);
    } else if (token.nesting === -1) {
      if (open.length > 1) {
        const made = open.pop();
        open.at(-1).children.push(element(made));
      }
    } else top.push(leaf(token));
  }
  return root.children;
}

function element({ tag, href, hidden, children }) {
  if (hidden) return <>{children}</>;
  // No link: browsers look up the names of links, and connect when the pointer is near them.
  if (tag === "a") return /^(https?:|mailto:)/i.test(href ?? "") ? <button type="button" class="link" title={href} onClick={() => window.open(href, "_blank", "noopener,noreferrer")}>{children}</button> : <>{children}</>;
  if (!TAGS.has(tag)) return <>{children}</>;
  const Tag = tag;
  return <Tag>{children}</Tag>;
}

function leaf(token) {
  switch (token.type) {
    case "text":
      return <Mathematical text={token.content} />;
    case "softbreak":
      return "\n";
    case "hardbreak":
      return <br />;
    case "code_inline":
      return <code>{token.content}</code>;
    case "fence":
    case "code_block":
      return <pre class="code" tabIndex={0}><code>{token.content}</code></pre>;
    case "hr":
      return <hr />;
    case "image": {
      const source = token.attrGet("src") ?? "";
      return source.startsWith("data:image/") ? <img class="picture" alt={token.content} src={source} /> : <span class="note">[picture: {token.content}]</span>;
    }
    default:
      return token.content;
  }
}

function Mathematical({ text }) {
  if (!text.includes("$")) return text;
  const parts = text.split(/(\$\$[^$]+\$\$|\$[^$\s](?:[^$]*[^$\s])?\$)/g);
  return parts.length > 2 * MAX_FORMULAS ? text : parts.map((part, place) => (place % 2 ? <Latex text={part} /> : part));
}

const MAX_LATEX = 2000;

function Latex({ text }) {
  const box = useRef();
  const [failed, setFailed] = useState(false);
  useEffect(() => {
    const source = text.trim();
    const wide = /^(\$\$|\\\[|\\begin)/.test(source);
    const inner = source.replace(/^(\$\$?|\\\[|\\\()/, "").replace(/(\$\$?|\\\]|\\\))$/, "");
    box.current.replaceChildren();
    try {
      if (source.length > MAX_LATEX) throw new Error("too long");
      temml.render(inner.trim(), box.current, { displayMode: wide, trust: false, maxExpand: 1000, maxSize: [50, 50], throwOnError: true });
      setFailed(false);
    } catch {
      setFailed(true);
    }
  }, [text]);
  return <><span ref={box} class="latex" hidden={failed} />{failed && <code>{text}</code>}</>;
}
