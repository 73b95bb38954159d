// What is known of all sessions, kept up to date by one stream of changes.
import { useEffect, useReducer } from "./libraries.js";
import { events, Problem } from "./api.js";

const MAX_REFUSALS = 500;
const MAX_SAMPLES = 300;

export const live = {
  connection: "connecting", // or "live", "lost"
  problem: "",
  caller: { name: "", scopes: [], session: "", version: "" },
  known: false, // whether the first picture has come
  sessions: new Map(),
  approvals: new Map(),
  refusals: [],
  samples: [],
};

export const may = (scope) => live.caller.scopes.includes(scope);

const listeners = new Set();
let asked = 0;

/** Have what shows this drawn anew, at most once in a frame. */
export function changed() {
  asked ||= requestAnimationFrame(() => {
    asked = 0;
    for (const listener of listeners) listener();
  });
  if (document.hidden) title();
}

/** Draw a component anew when something changes. */
export function useLive() {
  const [, again] = useReducer((count) => count + 1, 0);
  useEffect(() => {
    listeners.add(again);
    return () => listeners.delete(again);
  }, []);
  return live;
}

export function title() {
  const waiting = live.approvals.size;
  document.title = waiting ? `(${waiting}) cellblock` : "cellblock";
}

function apply(change) {
  if (change.fresh) {
    live.sessions.clear();
    live.approvals.clear();
    live.refusals = [];
    live.samples = [];
  }
  for (const one of change.ended) live.sessions.delete(one);
  for (const one of change.decided) live.approvals.delete(one);
  for (const one of change.sessions) live.sessions.set(one.kernel_id, one);
  for (const one of change.approvals) live.approvals.set(one.id, one);
  if (change.refusals.length) live.refusals = [...live.refusals, ...change.refusals].slice(-MAX_REFUSALS);
  if (change.samples.length) live.samples = [...live.samples, ...change.samples].slice(-MAX_SAMPLES);
  title();
  changed();
}

let stop = new AbortController();

/** Follow all sessions until `unfollow`. A lost connection is taken up again where it was lost. */
export async function follow() {
  stop.abort();
  stop = new AbortController();
  const { signal } = stop;
  let position = "";
  let wait = 250;
  while (!signal.aborted) {
    try {
      for await (const event of events("/events", { after: position, signal })) {
        if (event.event === "problem") throw new Problem(0, "problem", JSON.parse(event.data).detail);
        apply(JSON.parse(event.data));
        position = event.id || position;
        if (event.id) live.known = true;
        connected("live");
        wait = 250;
      }
      connected("live");
    } catch (error) {
      if (signal.aborted || error.status === 401) return;
      connected("lost", error.message);
      await new Promise((resolve) => setTimeout(resolve, wait));
      wait = Math.min(wait * 2, 4000);
    }
  }
}

export function unfollow() {
  stop.abort();
}

function connected(state, problem = "") {
  if (live.connection === state && live.problem === problem) return;
  live.connection = state;
  live.problem = problem;
  changed();
}
