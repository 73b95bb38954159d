// The console: see what agents do, and decide what they may.
import { render, useEffect, useState } from "./libraries.js";
import { Approvals, Permissions } from "./approvals.jsx";
import { get, hasToken, onRefused, post, setToken } from "./api.js";
import { Compare } from "./compare.jsx";
import { Figures } from "./figures.jsx";
import { count } from "./format.js";
import { HELP, useKeys } from "./keys.js";
import { changed, follow, live, unfollow, useLive } from "./live.js";
import { Login } from "./login.jsx";
import { Dialog, Messages } from "./parts.jsx";
import { Refusals } from "./refusals.jsx";
import { go, useRoute } from "./route.js";
import { Search } from "./search.jsx";
import { Session } from "./session.jsx";
import { Sessions } from "./sessions.jsx";
import { setTheme, show, theme } from "./theme.js";

const VIEWS = { sessions: Sessions, session: Session, compare: Compare, approvals: Approvals, permissions: Permissions, refusals: Refusals, figures: Figures, search: Search };
const NAVIGATION = [["sessions", "Sessions"], ["approvals", "Approvals"], ["permissions", "Permissions"], ["refusals", "Refusals"], ["figures", "Figures"], ["search", "Search"]];
const ABOVE = { session: "sessions", compare: "sessions" };

function App() {
  const [inside, setInside] = useState(null); // null: not known yet
  const enter = async () => {
    if (!hasToken() && document.documentElement.dataset.auth === "tokens") {
      setInside(false);
      return "";
    }
    try {
      live.caller = await get("/whoami");
      setInside(true);
      follow();
      return "";
    } catch (error) {
      setInside(false);
      return error.message;
    }
  };
  useEffect(() => {
    onRefused(() => {
      unfollow();
      setToken("");
      setInside(false);
    });
    begin().then(enter);
  }, []);
  if (inside === null) return null;
  if (!inside) return <Login onToken={(token) => { setToken(token); return enter(); }} />;
  return <Console onLeave={() => { unfollow(); setToken(""); setInside(false); }} />;
}

/** Exchange what `cellblock console` has put behind the # for a token, and remove it from the address. */
async function begin() {
  const login = location.hash.match(/^#login=([\w-]+)$/);
  if (!login) return;
  history.replaceState(null, "", location.pathname);
  try {
    setToken("");
    setToken((await post("/console/login", { code: login[1] })).token);
  } catch (error) {
    if (!hasToken()) live.problem = error.message;
  }
}

function Console({ onLeave }) {
  useLive();
  const { view, rest } = useRoute();
  const [help, setHelp] = useState(false);
  const [, again] = useState(0);
  const View = VIEWS[view] ?? Sessions;
  const keys = { "?": () => setHelp(true) };
  NAVIGATION.forEach(([name], place) => (keys[place + 1] = () => go(name)));
  useKeys(keys);
  const badges = { sessions: live.sessions.size, approvals: live.approvals.size };
  const look = { system: "Theme: system", light: "Theme: light", dark: "Theme: dark" };
  const next = { system: "light", light: "dark", dark: "system" };
  return (
    <div class="page">
      <nav class="side" aria-label="Views">
        <a class="brand" href="#/sessions"><img src="console/icon.svg" alt="" width="22" height="22" />cellblock</a>
        <ul>
          {NAVIGATION.map(([name, label]) => (
            <li key={name}>
              <a href={`#/${name}`} aria-current={(ABOVE[view] ?? view) === name ? "page" : undefined}>
                {label}
                {badges[name] > 0 && <span class={`badge ${name}`}>{count(badges[name])}</span>}
              </a>
            </li>
          ))}
        </ul>
        <div class="below">
          <Connection />
          <button type="button" class="link" onClick={() => { setTheme(next[theme()]); again((number) => number + 1); }}>{look[theme()]}</button>
          <button type="button" class="link" onClick={() => setHelp(true)}>Keys <kbd>?</kbd></button>
          {hasToken() && <button type="button" class="link" onClick={onLeave}>Log out</button>}
        </div>
      </nav>
      <main>
        {live.connection === "lost" && <div class="banner" role="alert">The connection is lost, and taken up again as soon as possible. What you see may be old. {live.problem}</div>}
        <View key={`${view}/${rest.join("/")}`} rest={rest} />
      </main>
      <Messages />
      {help && (
        <Dialog title="Keys" onClose={() => setHelp(false)}>
          <dl class="keys">{HELP.map(([key, what]) => <div key={key}><dt>{key.split(" ").map((one) => (one === "…" ? " … " : <kbd>{one}</kbd>))}</dt><dd>{what}</dd></div>)}</dl>
        </Dialog>
      )}
    </div>
  );
}

function Connection() {
  const { name, scopes, session } = live.caller;
  const rights = scopes.includes("admin") ? "all rights" : ["look", scopes.includes("run") && "run", scopes.includes("approve") && "decide"].filter(Boolean).join(", ");
  return (
    <p class="connection" title={`token: ${name}${session ? `, for one session` : ""}`}>
      <span class={`dot ${live.connection}`} aria-hidden="true" />
      {live.connection === "live" ? "Live" : live.connection === "lost" ? "Reconnecting" : "Connecting"}
      <span class="quiet rights">{rights}</span>
    </p>
  );
}

show();
setInterval(changed, 15000);
render(<App />, document.getElementById("root"));
