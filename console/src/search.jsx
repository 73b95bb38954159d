// A search over all sessions, ended ones included, and the cells of an ended one.
import { useEffect, useRef, useState } from "./libraries.js";
import { get, segment } from "./api.js";
import { callsOf, Cell } from "./cells.jsx";
import { age } from "./format.js";
import { useKeys } from "./keys.js";
import { live, useLive } from "./live.js";
import { Empty, Failure, useFetched } from "./parts.jsx";
import { go } from "./route.js";
import { State, stateOf, waitingSessions } from "./sessions.jsx";
import { Marked } from "./text.jsx";

const PAUSE_MS = 250;

export function Search({ rest: [words = ""] }) {
  useLive();
  const [typed, setTyped] = useState(words);
  const [wanted, setWanted] = useState(words);
  const [place, setPlace] = useState(-1);
  const field = useRef();
  useEffect(() => {
    const timer = setTimeout(() => { setWanted(typed.trim()); setPlace(-1); }, PAUSE_MS);
    return () => clearTimeout(timer);
  }, [typed]);
  useEffect(() => field.current.focus(), []);
  const { data, error, retry } = useFetched((signal) => get(`/sessions?count=200&words=${segment(wanted)}`, { signal }), [wanted, live.sessions.size]);
  const found = data?.sessions ?? [];
  useKeys({
    j: () => setPlace(Math.min(place + 1, found.length - 1)), ArrowDown: () => setPlace(Math.min(place + 1, found.length - 1)),
    k: () => setPlace(Math.max(place - 1, 0)), ArrowUp: () => setPlace(Math.max(place - 1, 0)),
    Enter: () => found[place] && go("session", found[place].kernel_id),
    "/": () => field.current.focus(),
    Escape: () => document.activeElement?.blur(),
  });
  return (
    <section class="view" aria-label="Search">
      <header class="bar">
        <h1>Search</h1>
        <input ref={field} class="filter" type="search" maxLength={400} placeholder="Name, label, directory or code" aria-label="Search all sessions" value={typed}
          onInput={(event) => setTyped(event.currentTarget.value)} />
        <p class="note">All sessions, ended ones included. Each word must be in the name, a label, the directory, or one cell.</p>
      </header>
      <Failure error={error} retry={retry} />
      {data && found.length === 0 && <Empty title="No session matches"><p>Ended sessions are found for the days of the setting history_days.</p></Empty>}
      <ul class="plain-list found">
        {found.map((one, number) => <Found key={one.kernel_id} one={one} selected={number === place} />)}
      </ul>
    </section>
  );
}

function Found({ one, selected }) {
  const element = useRef();
  useEffect(() => {
    if (selected) element.current.scrollIntoView({ block: "nearest" });
  }, [selected]);
  const session = live.sessions.get(one.kernel_id);
  return (
    <li ref={element} class={`refusal ${selected ? "selected" : ""}`} aria-current={selected ? "true" : undefined}>
      {session ? <State state={stateOf(session, waitingSessions())} words /> : <span class="state">ended</span>}
      <div>
        <a href={`#/session/${segment(one.kernel_id)}`}><Marked text={one.name} /></a>
        {Object.entries(one.tags).slice(0, 3).map(([key, value]) => <span key={key} class="tag" title={`${key}: ${value}`}><Marked text={value || key} /></span>)}
        {one.code && <code class="wanted"><Marked text={one.code} /></code>}
        {one.workspace && <p class="note"><Marked text={one.workspace} /></p>}
      </div>
      <span class="quiet">{age(one.used)} ago</span>
    </li>
  );
}

/** The cells of a session that has ended, as far as the journal has them. */
export function EndedSession({ id }) {
  const path = `/sessions/${segment(id)}`;
  const cells = useFetched((signal) => get(`${path}/cells?count=1000`, { signal }), [id]);
  const decided = useFetched((signal) => get(`${path}/decisions?count=1000`, { signal }), [id]);
  useKeys({ Escape: () => go("search") });
  if (cells.error?.status === 404) {
    return <section class="view"><Empty title="There is no such session"><p>It may have ended. <a href="#/search">Search ended sessions</a></p></Empty></section>;
  }
  const shown = cells.data?.cells ?? [];
  const calls = callsOf(shown, decided.data?.decisions ?? []);
  return (
    <section class="view session" aria-label="A session that has ended">
      <header class="bar">
        <a class="back" href="#/search" aria-label="Search">‹</a>
        <h1>A session that has ended</h1>
        <p class="note">Its variables are gone. These are its last cells, undone ones included.</p>
      </header>
      <Failure error={cells.error} retry={cells.retry} />
      <div class="cells" tabIndex={0} role="region" aria-label="Cells">
        <div>{shown.map((cell) => <Cell key={cell.id} cell={cell} calls={calls.get(cell.id) ?? []} path={path} onEnd={cells.retry} />)}</div>
        {cells.data && shown.length === 0 && <Empty title="Its cells are no longer stored" />}
      </div>
    </section>
  );
}
