// All sessions: what each does. Thousands of rows, of which only those that can be seen are in the page.
import { useMemo, useRef, useState } from "./libraries.js";
import { post, remove, segment } from "./api.js";
import { age, clock, count, plural, size } from "./format.js";
import { useKeys } from "./keys.js";
import { live, may, useLive } from "./live.js";
import { attempt, Button, Command, Confirm, Empty, useSeconds, VirtualList } from "./parts.jsx";
import { go } from "./route.js";
import { Marked } from "./text.jsx";

const STATES = [["", "All"], ["waiting", "Waiting"], ["running", "Running"], ["idle", "Idle"], ["dead", "Without kernel"]];
const SORTS = { activity: "Activity", name: "Name", memory: "Memory", cells: "Cells", age: "Age" };
const kept = { filter: "", state: "", sort: "activity", selected: "" };

export function stateOf(session, waiting) {
  if (waiting.has(session.kernel_id)) return "waiting";
  return session.status;
}

export const waitingSessions = () => new Set([...live.approvals.values()].map((one) => one.session));

const RANK = { waiting: 0, running: 1, idle: 2, unknown: 3, dead: 4 };

function arranged(sessions, waiting, { filter, state, sort }) {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const found = sessions.filter((one) => {
    if (state && stateOf(one, waiting) !== state) return false;
    if (!words.length) return true;
    const text = `${one.name} ${Object.entries(one.tags).flat().join(" ")} ${one.code} ${one.workspace}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
  const orders = {
    activity: (a, b) => RANK[stateOf(a, waiting)] - RANK[stateOf(b, waiting)] || b.used - a.used,
    name: (a, b) => a.name.localeCompare(b.name),
    memory: (a, b) => b.memory - a.memory,
    cells: (a, b) => b.cells - a.cells,
    age: (a, b) => a.created_at.localeCompare(b.created_at),
  };
  return found.sort((a, b) => orders[sort](a, b) || a.name.localeCompare(b.name));
}

export function Sessions() {
  useLive();
  const [, again] = useState(0);
  const [ending, setEnding] = useState(null);
  const [resetting, setResetting] = useState(null);
  const filter = useRef();
  const set = (name, value) => {
    kept[name] = value;
    again((number) => number + 1);
  };
  const all = [...live.sessions.values()];
  useSeconds(all.some((one) => one.execution));
  const waiting = waitingSessions();
  const shown = useMemo(() => arranged(all, waiting, kept), [live.sessions, all.map((one) => one.used + one.status).join(), waiting.size, kept.filter, kept.state, kept.sort, all.length]);
  const rows = shown.map((one) => live.sessions.get(one.kernel_id)).filter(Boolean);
  const place = rows.findIndex((one) => one.kernel_id === kept.selected);
  const move = (by) => rows.length && set("selected", rows[Math.min(Math.max(place + by, 0), rows.length - 1)].kernel_id);
  const selected = rows[place];
  useKeys({
    j: () => move(1), ArrowDown: () => move(1), k: () => move(-1), ArrowUp: () => move(-1),
    Enter: () => selected && go("session", selected.kernel_id),
    a: () => selected && waiting.has(selected.kernel_id) && go("approvals"),
    i: () => selected?.execution && may("run") && interrupt(selected),
    "/": () => filter.current.focus(),
    Escape: () => { document.activeElement?.blur(); set("filter", ""); },
  });
  const counts = { "": all.length };
  for (const one of all) counts[stateOf(one, waiting)] = (counts[stateOf(one, waiting)] ?? 0) + 1;
  const narrow = matchMedia("(max-width: 720px)").matches;
  return (
    <section class="view" aria-label="Sessions">
      <header class="bar">
        <h1>Sessions</h1>
        <input ref={filter} class="filter" type="search" placeholder="Filter by name, label or code" aria-label="Filter" value={kept.filter}
          onInput={(event) => set("filter", event.currentTarget.value)} />
        <div class="choices" role="group" aria-label="State">
          {STATES.filter(([name]) => !name || counts[name]).map(([name, label]) => (
            <button key={name} type="button" aria-pressed={kept.state === name} onClick={() => set("state", kept.state === name ? "" : name)}>
              {label} <span class="count">{count(counts[name] ?? 0)}</span>
            </button>
          ))}
        </div>
        <label class="sort">Sort
          <select value={kept.sort} onChange={(event) => set("sort", event.currentTarget.value)}>
            {Object.entries(SORTS).map(([name, label]) => <option key={name} value={name}>{label}</option>)}
          </select>
        </label>
      </header>
      {!narrow && rows.length > 0 && (
        <div class="session-row titles" aria-hidden="true">
          <span /><span>Name</span><span>Code</span><span class="right">Time</span><span class="right">Cells</span><span class="right">Checkpoints</span><span class="right">Memory</span><span class="right">Used</span>
        </div>
      )}
      {rows.length > 0 && <VirtualList items={rows} rowHeight={narrow ? 60 : 44} selected={place} role="list" label="Sessions" render={(session) => (
        <Row key={session.kernel_id} session={session} state={stateOf(session, waiting)} selected={session.kernel_id === kept.selected}
          onSelect={() => set("selected", session.kernel_id)} onEnd={() => setEnding(session)} onReset={() => setResetting(session)} />
      )} />}
      {rows.length === 0 && live.known && <NoSessions filter={kept.filter} filtered={all.length > 0} onClear={() => { kept.state = ""; set("filter", ""); }} />}
      {ending && <Confirm title={`End ${ending.name}?`} text="Its variables and checkpoints are lost. The files in its workspace stay." action="End session"
        onYes={() => attempt(() => remove(`/kernels/${segment(ending.kernel_id)}`), `${ending.name} has ended`)} onClose={() => setEnding(null)} />}
      {resetting && <Reset session={resetting} onClose={() => setResetting(null)} />}
    </section>
  );
}

export function Reset({ session, onDone = () => {}, onClose }) {
  return <Confirm title={`Reset ${session.name}?`} text="It gets a fresh kernel. Its variables and checkpoints are lost; its files stay." action="Reset"
    onYes={() => attempt(() => post(`/kernels/${segment(session.kernel_id)}/restart`), `${session.name} has a fresh kernel`).then(onDone)} onClose={onClose} />;
}

export const interrupt = (session) => attempt(() => post(`/kernels/${segment(session.kernel_id)}/interrupt`), (answer) => (answer.done ? `${session.name} was interrupted` : "Nothing ran"));

function NoSessions({ filter, filtered, onClear }) {
  if (filtered) return <Empty title="No session matches"><Button onClick={onClear}>Show all</Button><Button onClick={() => go("search", filter)}>Search ended sessions</Button></Empty>;
  return (
    <Empty title="No sessions yet">
      <p>Sessions appear here as soon as somebody makes one:</p>
      <Command>cellblock exec demo "prices = [3, 4]; sum(prices)"</Command>
    </Empty>
  );
}

function Row({ session, state, selected, onSelect, onEnd, onReset }) {
  const running = session.execution !== "";
  const tags = Object.entries(session.tags);
  return (
    <div class={`session-row row ${selected ? "selected" : ""}`} role="listitem" aria-current={selected ? "true" : undefined}
      onClick={(event) => (event.target.closest("button") ? null : event.target.closest("a") ? onSelect() : (onSelect(), go("session", session.kernel_id)))}>
      <State state={state} />
      <span class="name">
        <a href={`#/session/${segment(session.kernel_id)}`} title={session.name}><Marked text={session.name} /></a>
        {session.branch_of && <span class="tag" title={`a branch, made after cell ${session.branch_at}`}>branch</span>}
        {tags.slice(0, 3).map(([key, value]) => <span key={key} class="tag" title={`${key}: ${value}`}><Marked text={value || key} /></span>)}
      </span>
      <span class="doing">
        {session.code ? <code class={running ? "" : "was"}><Marked text={session.code} /></code> : <span class="quiet">nothing has run yet</span>}
        {running && session.said && <span class="said"><Marked text={lastLine(session.said)} /></span>}
      </span>
      <span class="right time">{running && session.began ? clock(Date.now() / 1000 - session.began) : ""}{session.queued > 0 && <span class="quiet"> +{session.queued}</span>}</span>
      <span class="right number-of-cells">{session.cells || <span class="quiet">–</span>}</span>
      <span class="right checkpoints">{session.checkpoints || <span class="quiet">–</span>}</span>
      <span class="right memory">{session.memory ? size(session.memory) : <span class="quiet">–</span>}</span>
      <span class="right used">{age(session.used)}</span>
      {may("run") && (
        <span class="actions">
          {running && <Button onClick={() => interrupt(session)}>Interrupt</Button>}
          <Button onClick={onReset} aria-label={`Reset ${session.name}`}>Reset</Button>
          <Button kind="bad" onClick={onEnd} aria-label={`End ${session.name}`}>End</Button>
        </span>
      )}
    </div>
  );
}

const lastLine = (text) => text.replace(/\u001b\[[0-9;]*m/g, "").trimEnd().split(/[\r\n]/).at(-1);

const NAMES = { running: "running", waiting: "waits for a decision", idle: "idle", dead: "without kernel", unknown: "unknown" };

export function State({ state, words = false }) {
  return <span class={`state ${state}`} title={NAMES[state]}><span class="dot" aria-hidden="true" />{words ? NAMES[state] : <span class="hidden">{NAMES[state]}</span>}</span>;
}

export const summary = () => plural(live.sessions.size, "session");
