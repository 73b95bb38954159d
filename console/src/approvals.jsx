// One inbox of what waits for a decision in all sessions, the last decisions, and the permissions that were given.
import { useEffect, useRef, useState } from "./libraries.js";
import { get, post, segment } from "./api.js";
import { age, plural } from "./format.js";
import { useKeys } from "./keys.js";
import { live, may, useLive } from "./live.js";
import { CallList } from "./cells.jsx";
import { attempt, Button, Command, Dialog, Empty, Failure, say, useFetched, useNear, useSeconds, useStill } from "./parts.jsx";
import { Precedent } from "./precedent.jsx";
import { go } from "./route.js";
import { ruleOf } from "./rule.js";
import { Arguments, Code, Marked } from "./text.jsx";

const KINDS = { tool: "Tool", shell: "Command", network: "Host", http: "Request", server: "New server", question: "Question" };

/** What was decided in this page. */
export const own = new Set();

const decide = (ids, answer) => attempt(async () => {
  for (const id of ids) own.add(id);
  const { decided } = await post("/approvals", { ids, ...answer });
  if (!decided.length) throw new Error("Nothing was decided: it no longer waits.");
  const what = decided.length === 1 ? live.approvals.get(decided[0])?.text.slice(0, 100) ?? "1 request" : plural(decided.length, "request");
  const missed = decided.length < ids.length ? `. ${plural(ids.length - decided.length, "request")} had ended before` : "";
  say(`${answer.answer ? "Answered" : !answer.allow ? "Refused" : answer.always ? "Allowed from now on" : "Allowed once"}: ${what}${missed}`);
  // Not only when the stream tells it: what was decided here is gone at once.
  for (const id of decided) live.approvals.delete(id);
});

const oldest = () => [...live.approvals.values()].sort((a, b) => a.since - b.since);

export function Approvals() {
  useLive();
  useSeconds(live.approvals.size > 0);
  const [selected, setSelected] = useState("");
  const [chosen, setChosen] = useState(new Set());
  const [asking, setAsking] = useState(null); // {ids, what: "refuse" | "session" | "tool"}
  const all = oldest();
  const place = Math.max(all.findIndex((one) => one.id === selected), 0);
  const now = all[place];
  const list = useRef([]);
  // If what is selected is decided, the next one has its place.
  if (now && now.id !== selected) {
    const before = list.current.indexOf(selected);
    const next = before >= 0 ? all[Math.min(before, all.length - 1)] : now;
    if (next.id !== selected) setSelected(next.id);
  }
  list.current = all.map((one) => one.id);
  const { still, guarded } = useStill(list.current, own);
  const several = [...chosen].filter((id) => live.approvals.has(id));
  const meant = several.length ? several : now ? [now.id] : [];
  const calls = meant.filter((id) => live.approvals.get(id).kind !== "question");
  const move = (by) => all.length && setSelected(all[Math.min(Math.max(place + by, 0), all.length - 1)].id);
  const toggle = (id) => setChosen((before) => {
    const after = new Set(before);
    if (!after.delete(id)) after.add(id);
    return after;
  });
  const allow = (ids) => decide(ids, { allow: true }).then(() => setChosen(new Set()));
  const able = may("approve");
  useKeys({
    j: () => move(1), ArrowDown: () => move(1), k: () => move(-1), ArrowUp: () => move(-1),
    Enter: () => now && go("session", now.session),
    ...(able ? {
      a: () => calls.length && still() && allow(calls),
      s: () => now && now.kind !== "question" && still() && setAsking({ ids: [now.id], what: "call" }),
      r: () => meant.length && still() && setAsking({ ids: meant, what: "refuse" }),
      x: () => now && still() && toggle(now.id),
    } : {}),
    Escape: () => setChosen(new Set()),
  });
  return (
    <section class="view" aria-label="Approvals">
      <header class="bar">
        <h1>Approvals</h1>
        {able && several.length > 0 && (
          <div class="several" {...guarded}>
            <span>{several.length} selected</span>
            <Button kind="solid" keys="a" onClick={() => allow(calls)}>Allow once</Button>
            <Button kind="bad" keys="r" onClick={() => setAsking({ ids: several, what: "refuse" })}>Refuse</Button>
            <Button onClick={() => setChosen(new Set())}>Clear</Button>
          </div>
        )}
        {!able && <p class="note">This token may look, and not decide.</p>}
      </header>
      <div class="inbox" {...guarded}>
        {all.map((one) => (
          <Pending key={one.id} pending={one} selected={one.id === now?.id} chosen={chosen.has(one.id)} onChoose={() => toggle(one.id)}
            onSelect={() => setSelected(one.id)} onAsk={(what) => setAsking({ ids: [one.id], what })} />
        ))}
        {live.known && all.length === 0 && (
          <Empty title="Nothing waits for a decision">
            <p>Calls of tools, commands and hosts appear here if a session asks about them:</p>
            <Command>cellblock exec asks "!date" -o approve_shell_cmds=true</Command>
          </Empty>
        )}
      </div>
      <Decided waiting={all.length} />
      {asking?.what === "refuse" && <Refuse ids={asking.ids} onClose={() => { setAsking(null); setChosen(new Set()); }} />}
      {asking && asking.what !== "refuse" && <Always id={asking.ids[0]} scope={asking.what} onClose={() => setAsking(null)} />}
    </section>
  );
}

const MAX_ASKED = 10;
const MAX_DECIDED = 20;

/** The last decisions in the sessions that were used last. */
function Decided({ waiting }) {
  const recent = [...live.sessions.values()].sort((a, b) => b.used - a.used).slice(0, MAX_ASKED);
  const { data, error, retry } = useFetched(async (signal) => {
    const found = await Promise.all(recent.map(async ({ kernel_id: id, name }) => {
      const { decisions } = await get(`/sessions/${segment(id)}/decisions?count=${MAX_DECIDED}`, { signal });
      return decisions.map((one) => ({ ...one, session: id, name }));
    }));
    return found.flat().sort((a, b) => b.at - a.at).slice(0, MAX_DECIDED);
  }, [waiting, recent.map((one) => one.kernel_id).join()]);
  if (!error && !data?.length) return null;
  return (
    <section class="calls decided" aria-label="Last decisions">
      <h2>Last decisions</h2>
      <Failure error={error} retry={retry} />
      <CallList calls={data ?? []} />
    </section>
  );
}

/** The code that asks. */
function Asking({ execution }) {
  const element = useRef();
  const near = useNear(element);
  const { data } = useFetched(async (signal) => near && execution && get(`/executions/${segment(execution)}/source`, { signal }), [execution, near]);
  return <div ref={element} class="asking">{data && <><p class="note">The cell that asks:</p><Code text={data.code.trim()} /></>}</div>;
}

/** What waits in one session. */
export function Waiting({ all }) {
  const { guarded } = useStill(all.map((one) => one.id), own);
  return <div {...guarded}>{all.map((one) => <Pending key={one.id} pending={one} within />)}</div>;
}

/** Something that waits, with what can be decided about it. */
function Pending({ pending, selected = false, chosen = false, within = false, onSelect, onChoose, onAsk }) {
  const element = useRef();
  const [asking, setAsking] = useState("");
  useEffect(() => {
    if (selected) element.current.scrollIntoView({ block: "nearest" });
  }, [selected]);
  const ask = onAsk ?? setAsking;
  const { kind, server, tool } = pending;
  const able = may("approve");
  return (
    <article ref={element} class={`pending ${selected ? "selected" : ""} ${chosen ? "chosen" : ""}`} onClick={onSelect} aria-current={selected ? "true" : undefined}
      aria-label={`${KINDS[kind] ?? kind} of ${pending.session_name}`}>
      <div class="pending-head">
        {onChoose && able && <input type="checkbox" checked={chosen} onChange={onChoose} aria-label={`Select ${pending.text.slice(0, 100)}`} />}
        <span class={`kind ${kind}`}>{KINDS[kind] ?? kind}</span>
        {kind !== "shell" && kind !== "network" && kind !== "http" && <strong><Marked text={kind === "question" ? server : `${server}.${tool}`} /></strong>}
        {!within && <a href={`#/session/${segment(pending.session)}`}><Marked text={pending.session_name} /></a>}
        <span class="age">{age(pending.since)}</span>
      </div>
      {pending.changed && <p class="warning">The tool has changed since its API was generated: <Marked text={pending.changed} /></p>}
      {kind === "question" ? <Form pending={pending} able={able} onRefuse={() => ask("refuse")} /> : (
        <>
          <Wanted pending={pending} />
          {!within && <Asking execution={pending.execution} />}
          {kind !== "network" && <Precedent pending={pending} />}
          {able && (
            <div class="decide">
              <Button kind="solid" keys={selected ? "a" : ""} onClick={() => decide([pending.id], { allow: true })}>Allow once</Button>
              <Button keys={selected ? "s" : ""} onClick={() => ask("call")}>Exactly this, always…</Button>
              {kind !== "server" && <Button onClick={() => ask("tool")}>{kind === "tool" ? "This tool" : kind === "shell" ? "All commands" : kind === "http" ? `Every ${tool} to ${server}` : "All hosts"}, always…</Button>}
              <Button kind="bad" keys={selected ? "r" : ""} onClick={() => ask("refuse")}>Refuse…</Button>
            </div>
          )}
        </>
      )}
      {asking === "refuse" && <Refuse ids={[pending.id]} onClose={() => setAsking("")} />}
      {asking && asking !== "refuse" && <Always id={pending.id} scope={asking} onClose={() => setAsking("")} />}
    </article>
  );
}

/** What exactly would be done. */
function Wanted({ pending: { kind, arguments: given } }) {
  if (kind === "shell") {
    const { command, cmd, cwd, ...rest } = given;
    return <><pre class="wanted" tabIndex={0} aria-label="Command">$ <Marked text={command ?? cmd ?? ""} lines /></pre>{cwd && <p class="note">in <code><Marked text={cwd} /></code></p>}{Object.keys(rest).length > 0 && <Arguments value={rest} />}</>;
  }
  if (kind === "network") return <pre class="wanted" tabIndex={0} aria-label="Host"><Marked text={`${given.host}:${given.port}`} /></pre>;
  if (kind === "http") {
    const { method, url, host, path, body, ...rest } = given;
    return <><pre class="wanted" tabIndex={0} aria-label="Request"><Marked text={`${method} ${url}`} /></pre>{body && <pre class="wanted" tabIndex={0} aria-label="Body"><Marked text={body} lines /></pre>}{Object.keys(rest).length > 0 && <Arguments value={rest} />}</>;
  }
  return Object.keys(given).length ? <Arguments value={given} /> : <p class="note">without arguments</p>;
}

function Refuse({ ids, onClose }) {
  const [reason, setReason] = useState("");
  const submit = (event) => {
    event.preventDefault();
    decide(ids, { allow: false, reason }).then(onClose);
  };
  return (
    <Dialog title={ids.length === 1 ? "Refuse this call?" : `Refuse ${plural(ids.length, "call")}?`} onClose={onClose}>
      <form onSubmit={submit}>
        <label>Why, for the model that asked (it may be left out)
          <input type="text" maxLength={500} autofocus value={reason} onInput={(event) => setReason(event.currentTarget.value)} />
        </label>
        <div class="dialog-buttons">
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" kind="bad solid">Refuse</Button>
        </div>
      </form>
    </Dialog>
  );
}

function Always({ id, scope, onClose }) {
  const pending = live.approvals.get(id);
  useEffect(() => {
    if (!pending) onClose();
  }, [pending]);
  if (!pending) return null;
  const { kind, server, tool, session_name: name } = pending;
  const rule = { session: name, kind, ...(kind === "tool" || kind === "server" ? { server, tool } : {}), ...(scope === "call" ? { arguments: pending.arguments } : { arguments: "any" }) };
  return (
    <Dialog title="Allow from now on?" onClose={onClose}>
      <p>In session <strong><Marked text={name} /></strong>, calls like these are made without asking, until the session ends, or you {kind === "network" && scope === "call" ? "remove the host from the session's Network" : "revoke this under Permissions"}{kind === "tool" && ". It covers the server that has this name now, and no other one that is registered under the same name"}:</p>
      <Arguments value={rule} />
      {scope === "tool" && <p class="warning">With any arguments, whatever they are.</p>}
      <details>
        <summary>In all sessions, always: a rule</summary>
        <Rule pending={pending} scope={scope} />
      </details>
      <div class="dialog-buttons">
        <Button onClick={onClose}>Cancel</Button>
        <Button kind="solid" autofocus onClick={() => decide([id], { allow: true, always: scope }).then(onClose)}>Allow from now on</Button>
      </div>
    </Dialog>
  );
}

/** The same as a rule, to be read and written by whoever makes sessions: a click that changes what nobody is asked about would be too easy. */
function Rule({ pending, scope }) {
  const { text, why } = ruleOf(pending, scope);
  if (why) return <p class="note">It cannot be said as a rule: {why}.</p>;
  return (
    <>
      <p class="note">Add it to a file of rules, and make sessions with that: <code>-o rules=FILE</code>.{scope === "call" && pending.kind !== "network" && " It matches calls with further arguments, too."}</p>
      <pre class="wanted" tabIndex={0} aria-label="Rule">{text}</pre>
    </>
  );
}

// -- questions of MCP servers -----------------------------------------------------------------------------------------------

function Form({ pending, able, onRefuse }) {
  const { message, schema } = pending.arguments;
  const fields = Object.entries(schema?.properties ?? {});
  const required = schema?.required ?? [];
  const [values, setValues] = useState(() => Object.fromEntries(fields.map(([name, field]) => [name, field.default ?? (field.type === "boolean" ? false : field.type === "array" ? [] : "")])));
  const submit = (event) => {
    event.preventDefault();
    const answer = {};
    for (const [name, field] of fields) {
      const value = values[name];
      if (value === "" && !required.includes(name)) continue;
      answer[name] = field.type === "number" || field.type === "integer" ? Number(value) : value;
    }
    decide([pending.id], { allow: true, answer });
  };
  const set = (name, value) => setValues((before) => ({ ...before, [name]: value }));
  return (
    <form class="form" onSubmit={submit}>
      <p>The server asks: <Marked text={message} lines /></p>
      {fields.map(([name, field]) => <Field key={name} name={name} field={field} value={values[name]} required={required.includes(name)} disabled={!able} onChange={(value) => set(name, value)} />)}
      <p class="note">These are the server's words. Type no secrets here.</p>
      {able && (
        <div class="decide">
          <Button type="submit" kind="solid">Answer</Button>
          <Button kind="bad" onClick={onRefuse}>Refuse…</Button>
        </div>
      )}
    </form>
  );
}

const choicesOf = (field) => (field.enum ?? []).map((one, place) => [one, field.enumNames?.[place] ?? one]).concat((field.oneOf ?? field.anyOf ?? []).map((one) => [one.const, one.title ?? one.const]));

function Field({ name, field, value, required, disabled, onChange }) {
  const label = <span><Marked text={field.title ?? name} />{required && " *"}{field.description && <span class="note"> <Marked text={field.description} /></span>}</span>;
  const shared = { disabled, required };
  if (field.type === "boolean") {
    return <label class="check"><input type="checkbox" checked={value} disabled={disabled} onChange={(event) => onChange(event.currentTarget.checked)} />{label}</label>;
  }
  if (field.type === "array") {
    return (
      <fieldset><legend>{label}</legend>
        {choicesOf(field.items ?? {}).map(([one, title]) => (
          <label key={one} class="check"><input type="checkbox" checked={value.includes(one)} disabled={disabled}
            onChange={(event) => onChange(event.currentTarget.checked ? [...value, one] : value.filter((other) => other !== one))} /><Marked text={title} /></label>
        ))}
      </fieldset>
    );
  }
  const choices = choicesOf(field);
  if (choices.length) {
    return <label>{label}<select {...shared} value={value} onChange={(event) => onChange(event.currentTarget.value)}><option value="" />{choices.map(([one, title]) => <option key={one} value={one}>{title}</option>)}</select></label>;
  }
  const number = field.type === "number" || field.type === "integer";
  return <label>{label}<input {...shared} type={number ? "number" : "text"} step={field.type === "integer" ? 1 : "any"} min={field.minimum} max={field.maximum} minLength={field.minLength} maxLength={field.maxLength} value={value} onInput={(event) => onChange(event.currentTarget.value)} /></label>;
}

// -- permissions --------------------------------------------------------------------------------------------------------------

export function Permissions() {
  useLive();
  const waiting = live.approvals.size;
  const { data, error, retry } = useFetched((signal) => get("/approvals/allowed", { signal }), [waiting, live.sessions.size]);
  const allowed = data?.allowed ?? [];
  const revoke = (id) => attempt(() => post("/approvals/revoke", { ids: [id] }), "Revoked: the next such call is asked about again").then(retry);
  return (
    <section class="view" aria-label="Permissions">
      <header class="bar"><h1>Permissions</h1><p class="note">What was allowed for the rest of a session.</p></header>
      <Failure error={error} retry={retry} />
      {data && allowed.length === 0 && <Empty title="No permissions"><p>“Exactly this, always” and “This tool, always” in the inbox give one, until its session ends.</p></Empty>}
      <ul class="plain-list">
        {allowed.map((one) => (
          <li key={one.id} class="permission">
            <div>
              <p><span class={`kind ${one.kind}`}>{KINDS[one.kind] ?? one.kind}</span> {one.kind === "tool" && <strong><Marked text={`${one.server}.${one.tool}`} /></strong>} {one.scope === "tool" ? "with any arguments" : "exactly as below"}</p>
              <code class="wanted"><Marked text={one.text} /></code>
              <p class="note">in <a href={`#/session/${segment(one.session)}`}><Marked text={one.session_name} /></a>, by <Marked text={one.by || "somebody"} />, {age(one.since)} ago</p>
            </div>
            {may("approve") && <Button kind="bad" onClick={() => revoke(one.id)}>Revoke</Button>}
          </li>
        ))}
      </ul>
    </section>
  );
}
