// Requests to the gateway. The token is in this tab's session storage, and goes into a header: nothing sends it by itself.

const KEY = "cellblock.token";
const BASE = new URL("./", location.href.replace(/\/console\/?(#.*)?$/, "/")).href;

let token = sessionStorage.getItem(KEY) ?? "";
let refused = () => {};

export const hasToken = () => token !== "";

export function setToken(text) {
  token = text;
  if (text) sessionStorage.setItem(KEY, text);
  else sessionStorage.removeItem(KEY);
}

/** Have a function called when the token is no longer valid. */
export function onRefused(call) {
  refused = call;
}

export class Problem extends Error {
  constructor(status, code, detail) {
    super(detail);
    this.status = status;
    this.code = code;
  }
}

export const segment = (text) => encodeURIComponent(text);

export async function fetched(path, { headers = {}, ...options } = {}) {
  const auth = token ? { Authorization: `Bearer ${token}` } : {};
  let answer;
  try {
    answer = await fetch(BASE + path.replace(/^\//, ""), {
      ...options, headers: { ...auth, ...headers }, credentials: "omit", cache: "no-store", redirect: "error",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "unreachable", "The gateway does not answer. Is 'cellblock serve' or 'cellblock console' still running?");
  }
  if (answer.ok) return answer;
  const problem = await answer.json().catch(() => ({}));
  if (answer.status === 401) refused();
  throw new Problem(answer.status, problem.code ?? "", sentence(problem.detail ?? `The gateway answered ${answer.status}.`));
}

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

export async function get(path, options) {
  return (await fetched(path, options)).json();
}

export async function post(path, body = undefined, options = {}) {
  const sent = body === undefined ? {} : { body: JSON.stringify(body), headers: { "Content-Type": "application/json" } };
  return (await fetched(path, { method: "POST", ...sent, ...options })).json();
}

export async function remove(path) {
  return (await fetched(path, { method: "DELETE" })).json();
}

/** Yield server-sent events as they come: {id, event, data}, where data is text. */
export async function* events(path, { after = "", signal } = {}) {
  const headers = after ? { "Last-Event-ID": after } : {};
  const answer = await fetched(path, { headers, signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = [];
  let found = { id: "", event: "message", data: [] };
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      // A line can come in hundreds of pieces: they are joined once, when its end has come.
      const lines = value.split("\n");
      if (lines.length === 1) {
        rest.push(value);
        continue;
      }
      lines[0] = rest.join("") + lines[0];
      rest = [lines.pop()];
      for (const line of lines) {
        if (line === "") {
          if (found.data.length) yield { ...found, data: found.data.join("\n") };
          found = { id: "", event: "message", data: [] };
        } else if (line.startsWith("id:")) found.id = line.slice(3).trimStart();
        else if (line.startsWith("event:")) found.event = line.slice(6).trimStart();
        else if (line.startsWith("data:")) found.data.push(line.slice(line[5] === " " ? 6 : 5));
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
