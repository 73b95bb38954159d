// What waits for a decision as a rule, in the form of the files that sessions are made with (docs/approvals.md).

/** Return `{ text }`, a rule that allows such calls in every session that has it, or `{ why }` if no rule says exactly that. */
export function ruleOf({ kind, server, tool, arguments: given }, scope) {
  try {
    const lines = ["[[rule]]", 'decision = "allow"'];
    if (kind !== "tool") lines.push(`kind = ${toml(kind)}`);
    if (kind === "tool") lines.push(`server = ${pattern(server)}`, `tool = ${pattern(tool)}`);
    if (kind === "http") {
      // A rule is about the host, the method and the path, with any body.
      const { host, method, path } = given;
      lines.push(`arguments = ${table(scope === "call" ? { host, method, path } : { host, method }, pattern)}`);
    } else if (scope === "call" && Object.keys(given).length) lines.push(`arguments = ${table(given, pattern)}`);
    return { text: lines.join("\n") };
  } catch (error) {
    if (error instanceof Unsayable) return { why: error.message };
    throw error;
  }
}

class Unsayable extends Error {}

/** Text that a rule compares: wildcards in it would mean more than themselves. */
function pattern(value) {
  if (typeof value === "string" && /[*?]/.test(value)) throw new Unsayable("* and ? are wildcards in rules, so none means exactly these arguments");
  return toml(value);
}

function toml(value) {
  if (value === null) throw new Unsayable("a rule cannot say null");
  if (Array.isArray(value)) return `[${value.map(toml).join(", ")}]`;
  if (typeof value === "object") return table(value, toml);
  if (typeof value !== "string") return JSON.stringify(value);
  // As in JSON, except for the characters that TOML has written as escapes and JSON does not. Half a pair has no form.
  if (!value.isWellFormed()) throw new Unsayable("a rule cannot say text that is not valid Unicode");
  return JSON.stringify(value).replace(/[\x7f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

const table = (value, form) => `{ ${Object.entries(value).map(([name, one]) => `${toml(name)} = ${form(one)}`).join(", ")} }`;
