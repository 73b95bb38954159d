// Two branches side by side.
import { useState } from "./libraries.js";
import { get, segment } from "./api.js";
import { Cell } from "./cells.jsx";
import { live, may, useLive } from "./live.js";
import { Button, Empty, Failure, useFetched } from "./parts.jsx";
import { go } from "./route.js";
import { State } from "./sessions.jsx";
import { Adopt, VariableList } from "./side.jsx";
import { Marked } from "./text.jsx";

export function Compare({ rest: [left = "", right = ""] }) {
  useLive();
  const sessions = [live.sessions.get(left), live.sessions.get(right)];
  if (!sessions[0] || !sessions[1]) {
    return live.known ? <section class="view"><Empty title="One of the two has ended"><p><a href="#/sessions">All sessions</a></p></Empty></section> : null;
  }
  return <Two sessions={sessions} />;
}

function Two({ sessions }) {
  const [adopting, setAdopting] = useState(null);
  const inputs = sessions.flatMap((one) => [one.kernel_id, one.cells, one.execution]);
  const cells = useFetched((signal) => both(sessions, "cells?count=1000", "cells", signal), inputs);
  const variables = useFetched((signal) => (may("run") ? both(sessions, "variables", "variables", signal) : Promise.resolve([[], []])), inputs);
  const shared = new Set((cells.data?.[0] ?? []).map((one) => one.id).filter((id) => cells.data[1].some((other) => other.id === id)));
  const origin = sessions.find((one) => sessions.some((other) => other.branch_of === one.kernel_id)) ?? live.sessions.get(sessions[0].branch_of);
  return (
    <section class="view" aria-label="Comparison of two sessions">
      <header class="bar"><h1>Compare</h1><p class="note">{shared.size} cells are common to both, and not shown.</p></header>
      <Failure error={cells.error ?? variables.error} />
      <div class="two">
        {sessions.map((session, side) => (
          <div key={session.kernel_id} class="one" role="region" aria-label={session.name}>
            <header>
              <State state={session.status} />
              <h2><a href={`#/session/${segment(session.kernel_id)}`}><Marked text={session.name} /></a></h2>
              {may("run") && origin && session !== origin && session.branch_of && <Button kind="solid" onClick={() => setAdopting(session)}>Adopt into {origin.name}</Button>}
            </header>
            {(cells.data?.[side] ?? []).filter((one) => !shared.has(one.id)).map((cell) => <Cell key={cell.id} cell={cell} calls={[]} inherited={false} onEnd={cells.retry} />)}
            {cells.data && cells.data[side].every((one) => shared.has(one.id)) && <p class="note">No cells of its own.</p>}
            {may("run") && <h3>Variables</h3>}
            <VariableList variables={variables.data?.[side] ?? []} marks={marks(variables.data, side)} />
          </div>
        ))}
      </div>
      {adopting && <Adopt into={origin} branch={adopting} onClose={() => setAdopting(null)} onDone={() => go("session", origin.kernel_id)} />}
    </section>
  );
}

async function both(sessions, what, within, signal) {
  return Promise.all(sessions.map(async (one) => (await get(`/sessions/${segment(one.kernel_id)}/${what}`, { signal }))[within]));
}

function marks(data, side) {
  if (!data) return new Map();
  const other = new Map(data[1 - side].map((one) => [one.name, one]));
  const told = (one) => JSON.stringify([one.type, one.size, one.shape, one.preview]);
  return new Map(data[side].map((one) => [one.name, !other.has(one.name) ? "new" : told(one) === told(other.get(one.name)) ? "" : "changed"]));
}
