// The cells of a session: what ran, what it showed, and what it asked for.
import { useEffect, useRef, useState } from "./libraries.js";
import { get, post, Problem, segment } from "./api.js";
import { Waiting } from "./approvals.jsx";
import { age, clock, span } from "./format.js";
import { live, may } from "./live.js";
import { Item } from "./outputs.jsx";
import { Changes } from "./changes.jsx";
import { attempt, Button, Failure, useFetched, useNear, useSeconds } from "./parts.jsx";
import { useResult, useRunning, wholeOutput } from "./results.js";
import { Code, Marked } from "./text.jsx";

const ENDS = { error: "failed", timeout: "ran out of time", interrupted: "interrupted", max_attempts_exceeded: "failed" };

export function Cell({ cell, calls, inherited, selected, past, span: between, path, onEnd, branches = [] }) {
  const element = useRef();
  const near = useNear(element);
  const [open, setOpen] = useState(false);
  useEffect(() => {
    if (selected) element.current.scrollIntoView({ block: "nearest" });
  }, [selected]);
  const runs = cell.state === "queued" || cell.state === "running";
  const mark = cell.abandoned ? "undone" : inherited ? "inherited" : runs ? cell.state : cell.status || "unknown";
  return (
    <article ref={element} class={`cell ${mark} ${selected ? "selected" : ""} ${past ? "later" : ""}`} aria-label={`Cell ${cell.execution_count ?? ""}`}>
      <div class="cell-head">
        <span class="number">{cell.execution_count ?? (runs ? "…" : "–")}</span>
        <Standing cell={cell} inherited={inherited} />
        {between && <button type="button" class="link changes-link" aria-expanded={open} onClick={() => setOpen(!open)}>What it changed</button>}
      </div>
      <Code text={cell.code.replace(/^\s*\n|\s+$/g, "")} />
      {cell.code.length >= 10_000 && <p class="note">The code is longer; this is its beginning.</p>}
      {runs ? <Running cell={cell} onEnd={onEnd} /> : <Ended cell={cell} near={near} />}
      {calls.length > 0 && <Calls calls={calls} />}
      {open && between && <Changed path={path} between={between} />}
      {branches.length > 0 && (
        <p class="note branched">Branched here: {branches.map((one, place) => <>{place > 0 && ", "}<a href={`#/session/${segment(one.kernel_id)}`}><Marked text={one.name} /></a></>)}</p>
      )}
    </article>
  );
}

function Changed({ path, between: { before, until } }) {
  const { data, error } = useFetched(async (signal) => {
    // Now, and not when the cell was drawn: checkpoints come and go.
    const { checkpoints } = await get(`${path}/checkpoints`, { signal });
    const [first, last] = [before, until].map((id) => checkpoints.findLast((one) => one.cell === id)?.id);
    if (!first || !last) throw new Problem(404, "gone", "The checkpoints before and after this cell are no longer kept.");
    const at = `${path}/checkpoints/${segment(first)}`;
    const changes = await get(`${at}/diff?until=${segment(last)}`, { signal });
    return { changes, versions: `${at}/file-versions?until=${segment(last)}&path=` };
  }, [before, until]);
  return (
    <div class="cell-changes">
      <Failure error={error} />
      {!data && !error && <p class="note">Comparing…</p>}
      {data && <Changes {...data} />}
    </div>
  );
}

function Standing({ cell, inherited }) {
  useSeconds(cell.state === "running");
  const took = cell.begun && cell.ended ? span(cell.ended - cell.begun) : "";
  const how = cell.state === "queued" ? "waits for its turn"
    : cell.state === "running" ? `running ${clock(Date.now() / 1000 - (cell.begun ?? cell.submitted))}`
    : cell.state === "unknown" ? "nobody knows how it ended"
    : ENDS[cell.status] ?? (cell.status === "success" ? "" : cell.status || "left no trace");
  return (
    <span class="standing">
      {cell.abandoned && <span class="tag">undone</span>}
      {inherited && <span class="tag" title="It ran in the session that this branch was made from">before the branch</span>}
      {how && <span class="how">{how}</span>}
      {took && <span>{took}</span>}
      {cell.ended && <span>{age(cell.ended)} ago</span>}
    </span>
  );
}

function Ended({ cell, near }) {
  const result = useResult(cell.id, near);
  const [whole, setWhole] = useState(null);
  const showWhole = () => attempt(async () => {
    const found = await wholeOutput(cell.id);
    if (!found.length) throw new Error("No more of it was kept: nobody followed this cell.");
    setWhole(found);
  });
  if (!result) return cell.status ? <div class="outputs waiting" /> : null;
  return (
    <div class="outputs">
      {result.failed && <p class="failure">{result.failed}</p>}
      {(whole ?? result.outputs).map((item, place) => <Item key={`${whole ? "whole" : ""}${place}`} item={item} />)}
      {result.truncated && !whole && <p class="note">Some of the output is left out. <button type="button" class="link" onClick={showWhole}>Show all that is kept</button></p>}
      {result.recovery && <p class="note">{recovery(result.recovery)}</p>}
      {result.not_undoable && <p class="note">Cannot be undone: {result.not_undoable}</p>}
    </div>
  );
}

const recovery = (how) => ({
  interrupted: "The code was interrupted. All variables are kept.",
  restored: "The session went on from its state before this cell.",
  restored_earlier: "The session went on from an earlier state.",
  restarted: "The session got a fresh kernel: its variables are lost.",
}[how] ?? `Stopped: ${how}.`);

function Running({ cell, onEnd }) {
  const state = useRunning(cell.id, onEnd);
  const [answered, setAnswered] = useState(null);
  const waiting = [...live.approvals.values()].filter((one) => one.execution === cell.id);
  return (
    <div class="outputs" aria-live="off">
      {state.outputs.map((item, place) => <Item key={place} item={item} growing={!state.ended && place === state.outputs.length - 1} />)}
      {state.prompt && state.prompt !== answered && !state.ended && <Prompt cell={cell} prompt={state.prompt} told={state.outputs.at(-1)?.text?.trimEnd().endsWith((state.prompt.prompt ?? "").trimEnd())} onAnswer={() => setAnswered(state.prompt)} />}
      <Waiting all={waiting} />
    </div>
  );
}

function Prompt({ cell, prompt, told, onAnswer }) {
  const [line, setLine] = useState("");
  const answer = (event) => {
    event.preventDefault();
    attempt(() => post(`/executions/${segment(cell.id)}/input`, { line })).then((went) => went && onAnswer());
  };
  return (
    <form class="prompt" onSubmit={answer}>
      <label>
        <span class={told ? "hidden" : ""}><Marked text={prompt.prompt || "The code asks for input"} /></span>
        <input type={prompt.password ? "password" : "text"} value={line} disabled={!may("run")} onInput={(event) => setLine(event.currentTarget.value)} autocomplete="off" />
      </label>
      {may("run") && <Button type="submit">Answer</Button>}
    </form>
  );
}

/** What the code of a cell asked for, and who decided. */
function Calls({ calls }) {
  return (
    <details class="calls" open={calls.length <= 5}>
      <summary>{calls.length === 1 ? "1 call" : `${calls.length} calls`}</summary>
      <CallList calls={calls} />
    </details>
  );
}

/** Calls and their decisions; with the session's `name` and `session`, also where. */
export function CallList({ calls }) {
  return (
    <ul>
      {calls.map((call, place) => (
        <li key={place} class={call.outcome}>
          <span class="outcome">{call.outcome === "allow" ? "allowed" : "denied"}</span>
          <code><Marked text={called(call)} /></code>
          <span class="quiet">by <Marked text={call.by} />{call.reason && <>: <Marked text={call.reason} /></>}</span>
          {call.name && <span class="quiet">in <a href={`#/session/${segment(call.session)}`}><Marked text={call.name} /></a>, {age(call.at)} ago</span>}
          {call.result && !call.name && <code class="call-result">→ <Marked text={call.result.length >= 2000 ? `${call.result}…` : call.result} lines /></code>}
        </li>
      ))}
    </ul>
  );
}

const called = (call) => `${call.kind === "tool" ? `${call.server}.${call.tool}` : call.kind} ${call.arguments}`;

/** Give each cell the calls that were decided while it ran. */
export function callsOf(cells, decisions) {
  const found = new Map(cells.map((cell) => [cell.id, []]));
  const begun = cells.filter((cell) => cell.begun);
  for (const one of decisions) {
    const cell = begun.findLast((candidate) => candidate.begun <= one.at && (candidate.ended ?? Infinity) >= one.at);
    if (cell) found.get(cell.id).push(one);
  }
  return found;
}
