// One session: its cells, its state, and what can be done with it.
import { useEffect, useMemo, useRef, useState } from "./libraries.js";
import { get, post, remove, segment } from "./api.js";
import { callsOf, Cell } from "./cells.jsx";
import { Editor } from "./editor.jsx";
import { plural, size } from "./format.js";
import { useKeys } from "./keys.js";
import { live, may, useLive } from "./live.js";
import { attempt, Button, Command, Confirm, Dialog, Empty, Failure, say, useFetched } from "./parts.jsx";
import { go } from "./route.js";
import { EndedSession } from "./search.jsx";
import { interrupt, Reset, State, stateOf, waitingSessions } from "./sessions.jsx";
import { Side } from "./side.jsx";
import { Marked } from "./text.jsx";
import { treeOf } from "./tree.js";

const MANY = 50;
const MAX_DEPTH = 5;

export function Session({ rest: [id = ""] }) {
  useLive();
  const session = live.sessions.get(id) ?? [...live.sessions.values()].find((one) => one.name === id);
  if (!session) {
    return live.known ? <EndedSession key={id} id={id} /> : null;
  }
  return <Shown session={session} />;
}

function Shown({ session }) {
  const id = session.kernel_id;
  const path = `/sessions/${segment(id)}`;
  const [version, setVersion] = useState(0);
  const again = () => setVersion((number) => number + 1);
  const inputs = [id, session.cells, session.execution, session.queued, session.status, version];
  const { data, error, retry } = useFetched((signal) => get(`${path}/cells?count=1000`, { signal }), inputs);
  const decided = useFetched((signal) => get(`${path}/decisions?count=1000`, { signal }), [...inputs, live.approvals.size]);
  const kept = useFetched((signal) => (session.status === "dead" || session.kernel_type !== "python3" ? Promise.resolve(null) : get(`${path}/checkpoints`, { signal })), [...inputs, session.checkpoints]);
  const [many, setMany] = useState(MANY);
  const [past, setPast] = useState(null); // the slider: how many cells are shown, or null for all
  const [chosen, setChosen] = useState("");
  const [asking, setAsking] = useState("");
  const editor = useRef(null);
  const end = useRef();
  const cells = data?.cells ?? [];
  const calls = useMemo(() => callsOf(cells, decided.data?.decisions ?? []), [data, decided.data]);
  const spans = useMemo(() => spansOf(cells, kept.data?.checkpoints ?? []), [data, kept.data]);
  const tree = useMemo(() => treeOf(cells), [data]);
  const shown = tree.slice(-many);
  const first = tree.length - shown.length;
  const selected = tree.findIndex((one) => one.cell.id === chosen);
  const setSelected = (place) => setChosen(tree[place]?.cell.id ?? "");
  const branches = branchesOf(id, cells);

  // The end stays in sight while somebody looks at it.
  const atEnd = useRef(true);
  const scroll = useRef();
  useEffect(() => {
    const box = scroll.current;
    let before = 0;
    const look = () => {
      // What grows above and below moves the box, too: only who scrolls up leaves the end.
      if (box.scrollHeight - box.scrollTop - box.clientHeight < 80) atEnd.current = true;
      else if (box.scrollTop < before - 4) atEnd.current = false;
      before = box.scrollTop;
    };
    const follow = new ResizeObserver(() => atEnd.current && (box.scrollTop = box.scrollHeight));
    box.addEventListener("scroll", look, { passive: true });
    follow.observe(end.current.parentElement);
    return () => { box.removeEventListener("scroll", look); follow.disconnect(); };
  }, []);

  const run = may("run");
  const submit = (code) => attempt(async () => {
    atEnd.current = true;
    setPast(null);
    await post(`${path}/executions`, { code, stdin: true });
    again();
  });
  const redo = () => attempt(() => post(`${path}/redo`, {}), "The undo was taken back").then(again);
  const undo = async (partial = false) => {
    try {
      const undone = await post(`${path}/undo`, { count: 1, partial });
      const outside = undone.outside.length ? `. Not undone, as it was outside: ${undone.outside.join("; ").slice(0, 200)}` : "";
      const files = undone.files.length ? `: ${undone.files.slice(0, 5).map((file) => `${file.path} ${file.action}`).join(", ")}${undone.files.length > 5 ? ` and ${undone.files.length - 5} more` : ""}` : "";
      const left = undone.files_left ? `. ${undone.files_left}` : "";
      say(`Undone: ${undone.cells.length ? plural(undone.cells.length, "cell") : "nothing"}${files}${left}${outside}`, "", undone.redoable ? { label: "Redo", run: redo } : null);
      again();
    } catch (failed) {
      if (failed.code === "checkpoint" && !partial) setAsking({ partial: failed.message });
      else if (failed.status !== 401) say(failed.message, "bad");
    }
  };
  useKeys({
    j: () => setSelected(Math.min((selected < 0 ? first - 1 : selected) + 1, tree.length - 1)),
    k: () => setSelected(Math.max((selected < 0 ? tree.length : selected) - 1, first)),
    Escape: () => (selected >= 0 ? setSelected(-1) : go("sessions")),
    a: () => waitingSessions().has(id) && go("approvals"),
    ...(run ? { e: () => editor.current?.focus(), u: () => undo(), i: () => session.execution && interrupt(session) } : {}),
  });
  const counted = cells.filter((cell) => !cell.abandoned).length;
  return (
    <section class="view session" aria-label={`Session ${session.name}`}>
      <header class="bar">
        <a class="back" href="#/sessions" aria-label="All sessions">‹</a>
        <h1 title={session.name}><Marked text={session.name} /></h1>
        <State state={stateOf(session, waitingSessions())} words />
        <span class="facts">
          {session.memory > 0 && <span>{size(session.memory)}</span>}
          <span>sandbox: {session.isolate || "none yet"}</span>
          {session.branch_of && <span>branch of {live.sessions.has(session.branch_of) ? <a href={`#/session/${segment(session.branch_of)}`}><Marked text={live.sessions.get(session.branch_of).name} /></a> : "a session that has ended"}</span>}
        </span>
        {run && (
          <span class="tools">
            {session.execution && <Button kind="solid" keys="i" onClick={() => interrupt(session)}>Interrupt</Button>}
            <Button keys="u" onClick={() => undo()} disabled={!counted || Boolean(session.execution)}>Undo</Button>
            <Button onClick={() => setAsking("checkpoint")}>Checkpoint</Button>
            <Button onClick={() => setAsking("branch")}>Branch</Button>
            <Button onClick={() => setAsking("reset")}>Reset</Button>
            <Button kind="bad" onClick={() => setAsking("end")}>End</Button>
          </span>
        )}
      </header>
      <div class="columns">
        <div class="work">
          <div class="cells" ref={scroll} tabIndex={0} role="region" aria-label="Cells">
            <div>
              <Failure error={error} retry={retry} />
              {first > 0 && <button type="button" class="link earlier" onClick={() => setMany(many + MANY)}>Show {plural(Math.min(MANY, first), "earlier cell")}</button>}
              {shown.map(({ cell, place, depth, begins }) => (
                <div key={cell.id} class={depth ? "undone-line" : ""} style={{ "--depth": Math.min(depth, MAX_DEPTH) }}>
                  {begins && <p class="line-begins">{begins.after ? `After cell ${begins.after}, undone` : "Undone"}: {plural(begins.count, "cell")}</p>}
                  <Cell cell={cell} calls={calls.get(cell.id) ?? []} inherited={cell.session !== id} span={may("run") ? spans.get(cell.id) : undefined} path={path} selected={cell.id === chosen}
                    past={past !== null && place >= past} branches={branches.get(cell.id)} onEnd={again} />
                </div>
              ))}
              {data && cells.length === 0 && <Empty title="Nothing has run yet"><p>{run ? "Write a cell below, or run one in a terminal:" : "Cells appear here as they run:"}</p><Command>cellblock exec {session.name} "6 * 7"</Command></Empty>}
              <div ref={end} />
            </div>
          </div>
          {cells.length > 1 && <Past cells={cells} past={past} onMove={(number) => { setPast(number); if (number !== null) { const at = tree.findIndex((one) => one.place === number - 1); setMany(Math.max(many, tree.length - at + 5)); setSelected(at); } }} />}
          {run && <div class="next"><Editor session={id} onRun={submit} control={editor} /><Button kind="solid" keys="⇧↵" onClick={() => editor.current.run()}>Run</Button></div>}
        </div>
        <Side session={session} version={version} onChange={again} />
      </div>
      {asking === "checkpoint" && <Name title="Make a checkpoint" label="Name" text="The session can go back to its present state." action="Make checkpoint" onClose={() => setAsking("")}
        onName={(name) => attempt(() => post(`${path}/checkpoints`, { name }), `Checkpoint ${name} was made`).then((went) => { again(); return went; })} />}
      {asking === "branch" && <Name title="Make a branch" label="Name of the new session" initial={`${session.name}-2`} text="It begins with the present variables and files, and goes its own way." action="Make branch" onClose={() => setAsking("")}
        onName={(name) => attempt(() => post(`${path}/fork`, { names: [name] }), `Branch ${name} was made`)} />}
      {asking === "reset" && <Reset session={session} onDone={again} onClose={() => setAsking("")} />}
      {asking === "end" && <Confirm title={`End ${session.name}?`} text="Its variables and checkpoints are lost. The files in its workspace stay." action="End session"
        onYes={() => attempt(() => remove(`/kernels/${segment(id)}`), `${session.name} has ended`).then(() => go("sessions"))} onClose={() => setAsking("")} />}
      {asking.partial && <Confirm title="This cannot be undone exactly" text={asking.partial} action="Go back as far as possible" onYes={() => undo(true)} onClose={() => setAsking("")} />}
    </section>
  );
}

/** The branches of a session, by the cell after which they were made. */
function branchesOf(id, cells) {
  const found = new Map();
  for (const one of live.sessions.values()) {
    if (one.branch_of !== id) continue;
    const from = cells.findLast((cell) => !cell.abandoned && cell.execution_count === one.branch_at) ?? cells.findLast((cell) => cell.execution_count === one.branch_at);
    if (from) found.set(from.id, [...(found.get(from.id) ?? []), one]);
  }
  return found;
}

/** For each cell that led to the present state, the checkpoints before and after it, as far as they are kept. */
function spansOf(cells, checkpoints) {
  const after = new Set(checkpoints.map((one) => one.cell));
  const found = new Map();
  let before = "";
  for (const cell of cells) {
    if (cell.abandoned) continue;
    if (before && after.has(before) && after.has(cell.id)) found.set(cell.id, { before, until: cell.id });
    if (cell.status) before = cell.id;
  }
  return found;
}

/** A slider through the session's past: later cells are dimmed, and the chosen one is in sight. */
function Past({ cells, past, onMove }) {
  const at = past ?? cells.length;
  const cell = cells[at - 1];
  return (
    <div class="past">
      <label><span class="hidden">Through the past</span>
        <input type="range" min="1" max={cells.length} value={at} onInput={(event) => onMove(Number(event.currentTarget.value) === cells.length ? null : Number(event.currentTarget.value))} />
      </label>
      <span class="quiet">{past === null ? "now" : `cell ${at} of ${cells.length}, ${new Date((cell.begun ?? cell.submitted) * 1000).toLocaleTimeString()}`}</span>
      {past !== null && <button type="button" class="link" onClick={() => onMove(null)}>Now</button>}
    </div>
  );
}

export function Name({ title, label, text, action, initial = "", onName, onClose }) {
  const [name, setName] = useState(initial);
  const submit = async (event) => {
    event.preventDefault();
    if (await onName(name.trim())) onClose();
  };
  return (
    <Dialog title={title} onClose={onClose}>
      <form onSubmit={submit}>
        <p>{text}</p>
        <label>{label}<input type="text" required maxLength={128} autofocus value={name} onInput={(event) => setName(event.currentTarget.value)} /></label>
        <div class="dialog-buttons"><Button onClick={onClose}>Cancel</Button><Button type="submit" kind="solid">{action}</Button></div>
      </form>
    </Dialog>
  );
}
