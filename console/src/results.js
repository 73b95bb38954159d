// Results of executions: followed while they run, read when they have ended.
import { useEffect, useState } from "./libraries.js";
import { events, get, segment } from "./api.js";

const MAX_KEPT = 300;
const kept = new Map();

function keep(id, result) {
  kept.set(id, result);
  if (kept.size > MAX_KEPT) kept.delete(kept.keys().next().value);
  return result;
}

/** The result of an execution that has ended: {outputs, …}, or {failed}. */
export async function resultOf(id, signal) {
  if (kept.has(id)) return kept.get(id);
  try {
    return keep(id, await get(`/executions/${segment(id)}/result`, { signal }));
  } catch (error) {
    if (error.name === "AbortError" || error.status === 0) throw error;
    return keep(id, { outputs: [], failed: error.message });
  }
}

export function useResult(id, near) {
  const [state, setState] = useState(kept.get(id) ?? null);
  useEffect(() => {
    if (!near || !id || kept.has(id)) {
      if (kept.has(id)) setState(kept.get(id));
      return undefined;
    }
    const stop = new AbortController();
    resultOf(id, stop.signal).then(setState, () => {});
    return () => stop.abort();
  }, [id, near]);
  return state;
}

/** What an execution has shown so far, while it runs: {outputs, prompt, ended}. */
export function useRunning(id, onEnd) {
  const [state, setState] = useState({ outputs: [], prompt: null, ended: false });
  useEffect(() => {
    const stop = new AbortController();
    run(id, stop.signal, setState, onEnd);
    return () => stop.abort();
  }, [id]);
  return state;
}

async function run(id, signal, show, onEnd) {
  const shown = { outputs: [], prompt: null, ended: false, clear: false };
  let after = "";
  let asked = 0;
  const draw = () => {
    // The more there is, the longer it takes to draw, and the less often that is done.
    const length = shown.outputs.at(-1)?.text?.length ?? 0;
    asked ||= setTimeout(() => {
      asked = 0;
      if (!signal.aborted) show({ ...shown, outputs: [...shown.outputs] });
    }, 50 + length / 10_000);
  };
  while (!signal.aborted) {
    try {
      for await (const event of events(`/executions/${segment(id)}/events`, { after, signal })) {
        if (event.event === "problem") break;
        take(shown, JSON.parse(event.data));
        after = event.id || after;
        draw();
        if (shown.ended) {
          if (shown.result) keep(id, shown.result);
          onEnd();
          return;
        }
      }
    } catch (error) {
      if (signal.aborted || error.status >= 400) return;
    }
    await new Promise((resolve) => setTimeout(resolve, 500));
  }
}

/** All output of an execution that the journal still has: its result has the beginning and the end of it. */
export async function wholeOutput(id) {
  const shown = { outputs: [], prompt: null, ended: false, clear: false };
  for await (const event of events(`/executions/${segment(id)}/events`)) {
    const { kind, data } = JSON.parse(event.data);
    if (kind === "result" || kind === "failed") break;
    take(shown, { kind, data });
  }
  return shown.outputs;
}

function take(shown, { kind, data }) {
  if (["stream", "display"].includes(kind) && shown.clear) {
    shown.outputs = [];
    shown.clear = false;
  }
  const last = shown.outputs.at(-1);
  if (kind === "stream") {
    if (last?.kind === "stream" && last.name === data.name) shown.outputs[shown.outputs.length - 1] = { ...last, text: last.text + data.text };
    else shown.outputs.push({ kind: "stream", name: data.name, text: data.text });
  } else if (kind === "display") {
    const place = data.kind === "update_display_data" ? shown.outputs.findIndex((one) => one.display_id === data.display_id) : -1;
    if (place >= 0) shown.outputs[place] = data;
    else shown.outputs.push(data);
  } else if (kind === "clear") {
    if (data.wait) shown.clear = true;
    else shown.outputs = [];
  } else if (kind === "input") shown.prompt = data;
  else if (kind === "gap") shown.outputs.push({ kind: "stream", name: "stderr", text: `[${data.dropped} events are no longer kept]\n` });
  else if (kind === "result") {
    shown.ended = true;
    shown.result = data;
    shown.outputs = data.outputs;
  } else if (kind === "failed") {
    shown.ended = true;
    shown.result = { outputs: [], failed: data.message };
  }
}
