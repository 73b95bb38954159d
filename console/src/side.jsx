// Beside the cells: variables, files, checkpoints, branches, network, secrets, ports and requests of a session.
import { useRef, useState } from "./libraries.js";
import { Asleep, asleep } from "./asleep.jsx";
import { Changes } from "./changes.jsx";
import { fetched, get, post, remove, segment } from "./api.js";
import { age, plural, size } from "./format.js";
import { live, may, useLive } from "./live.js";
import { Network } from "./network.jsx";
import { attempt, Button, Confirm, Dialog, Empty, Failure, useFetched } from "./parts.jsx";
import { Ports } from "./ports.jsx";
import { State } from "./sessions.jsx";
import { Marked, Output } from "./text.jsx";

const TABS = { variables: "Variables", files: "Files", checkpoints: "Checkpoints", branches: "Branches", network: "Network", secrets: "Secrets", ports: "Ports", requests: "Requests" };
let last = "variables";

export function Side({ session, version, onChange }) {
  const able = may("run");
  const tabs = Object.keys(TABS).filter((name) => able || !["variables", "ports"].includes(name));
  const [tab, setTab] = useState(tabs.includes(last) ? last : tabs[0]);
  const choose = (name) => { last = name; setTab(name); };
  const step = (event, by) => {
    event.preventDefault();
    const next = tabs[(tabs.indexOf(tab) + by + tabs.length) % tabs.length];
    choose(next);
    event.currentTarget.querySelector(`#tab-${next}`).focus();
  };
  const View = { variables: Variables, files: Files, checkpoints: Checkpoints, branches: Branches, network: Network, secrets: Secrets, ports: Ports, requests: Requests }[tab];
  return (
    <aside class="beside" aria-label="State of the session">
      <div class="tabs" role="tablist" aria-label="State" onKeyDown={(event) => ({ ArrowRight: () => step(event, 1), ArrowLeft: () => step(event, -1) })[event.key]?.()}>
        {tabs.map((name) => (
          <button key={name} id={`tab-${name}`} type="button" role="tab" aria-selected={tab === name} aria-controls="tab-panel" tabIndex={tab === name ? 0 : -1} onClick={() => choose(name)}>{TABS[name]}</button>
        ))}
      </div>
      <div class="tab-panel" id="tab-panel" role="tabpanel" aria-labelledby={`tab-${tab}`} tabIndex={0}><View session={session} version={version} onChange={onChange} /></div>
    </aside>
  );
}

const NAMES_OF_CODE = new Set(["module", "function", "type", "method", "builtin_function_or_method"]);

function Variables({ session, version }) {
  const idle = !session.execution;
  const path = `/sessions/${segment(session.kernel_id)}/variables`;
  const { data, error, retry } = useFetched((signal) => (asleep(session) || !idle ? Promise.resolve(null) : get(path, { signal })), [session.kernel_id, session.cells, session.status, idle, version]);
  const kept = useRef(null);
  if (data) kept.current = data;
  if (asleep(session)) return <Asleep />;
  const variables = kept.current?.variables ?? [];
  return (
    <>
      <Failure error={error} retry={retry} />
      {!idle && kept.current && <p class="note">As they were before the cell that runs.</p>}
      {kept.current && variables.length === 0 && <Empty title="No variables"><p>What cells assign appears here.</p></Empty>}
      {!idle && !kept.current && <Empty title="A cell runs"><p>Variables can be looked at between cells.</p></Empty>}
      <VariableList variables={variables.filter((one) => !NAMES_OF_CODE.has(one.type))} />
      {variables.some((one) => NAMES_OF_CODE.has(one.type)) && (
        <details class="variables-more">
          <summary>Modules, functions and classes</summary>
          <VariableList variables={variables.filter((one) => NAMES_OF_CODE.has(one.type))} />
        </details>
      )}
    </>
  );
}

export function VariableList({ variables, marks = new Map() }) {
  return (
    <ul class="variables">
      {variables.map((one) => (
        <li key={one.name} class={marks.get(one.name) ?? ""}>
          <div><b><Marked text={one.name} /></b><span class="type"><Marked text={one.type} />{one.shape && ` ${one.shape.join(" × ")}`}</span><span class="quiet">{size(one.size)}</span></div>
          {one.preview && <code><Marked text={one.preview} /></code>}
        </li>
      ))}
    </ul>
  );
}

// -- files ------------------------------------------------------------------------------------------------------------------

const MAX_SHOWN = 200_000;

function Files({ session, version }) {
  const [folder, setFolder] = useState(".");
  const [open, setOpen] = useState(null);
  const [removing, setRemoving] = useState(null);
  const upload = useRef();
  const base = `/sessions/${segment(session.kernel_id)}/files`;
  const { data, error, retry } = useFetched((signal) => (asleep(session) ? Promise.resolve(null) : get(`${base}?path=${segment(folder)}`, { signal })), [session.kernel_id, session.cells, folder, session.status, version]);
  if (asleep(session)) return <Asleep />;
  const files = (data?.files ?? []).filter((one) => one.path !== folder).sort((a, b) => (b.kind === "directory") - (a.kind === "directory") || a.path.localeCompare(b.path));
  const able = may("run");
  const send = async (given) => {
    for (const file of given) {
      const path = folder === "." ? file.name : `${folder}/${file.name}`;
      await attempt(() => fetched(`${base}/${path.split("/").map(segment).join("/")}`, { method: "PUT", body: file }), `${file.name} was uploaded`);
    }
    retry();
  };
  return (
    <div onDragOver={(event) => able && event.preventDefault()} onDrop={(event) => { if (able) { event.preventDefault(); send(event.dataTransfer.files); } }}>
      <div class="files-bar">
        <nav class="path" aria-label="Folder">
          <button type="button" class="link" onClick={() => setFolder(".")}>workspace</button>
          {folder !== "." && folder.split("/").map((part, place, parts) => <> / <button type="button" class="link" onClick={() => setFolder(parts.slice(0, place + 1).join("/"))}><Marked text={part} /></button></>)}
        </nav>
        {able && <><input ref={upload} type="file" multiple hidden aria-label="Files to upload" onChange={(event) => { send([...event.currentTarget.files]); event.currentTarget.value = ""; }} /><Button onClick={() => upload.current.click()}>Upload</Button></>}
      </div>
      <Failure error={error} retry={retry} />
      {data && files.length === 0 && <Empty title="An empty folder">{able && <p>Drop files here to upload them.</p>}</Empty>}
      <ul class="files">
        {files.map((one) => {
          const name = one.path.split("/").at(-1);
          return (
            <li key={one.path}>
              <button type="button" class={`link file ${one.kind}`} onClick={() => (one.kind === "directory" ? setFolder(one.path) : one.kind === "file" && setOpen(one))}><Marked text={name} />{one.kind === "directory" && "/"}</button>
              <span class="quiet">{one.kind === "file" ? size(one.size) : one.kind === "directory" ? "" : one.kind}</span>
              {able && <button type="button" class="link bad" aria-label={`Remove ${name}`} onClick={() => setRemoving(one)}>×</button>}
            </li>
          );
        })}
      </ul>
      {open && <FileView base={base} file={open} onClose={() => setOpen(null)} />}
      {removing && <Confirm title={`Remove ${removing.path}?`} text={removing.kind === "directory" ? "With all that is in it." : "It is removed from the workspace."} action="Remove"
        onYes={() => attempt(() => remove(`${base}/${removing.path.split("/").map(segment).join("/")}?recursive=true`), "Removed").then(retry)} onClose={() => setRemoving(null)} />}
    </div>
  );
}

const PICTURE = /\.(png|jpe?g|gif|webp)$/i;

function FileView({ base, file, onClose }) {
  const address = `${base}/${file.path.split("/").map(segment).join("/")}`;
  const name = file.path.split("/").at(-1);
  const picture = PICTURE.test(name) && file.size < 20e6;
  const { data, error } = useFetched(async (signal) => {
    if (picture) return { url: URL.createObjectURL(new Blob([await (await fetched(address, { signal })).arrayBuffer()], { type: `image/${name.split(".").at(-1).toLowerCase().replace("jpg", "jpeg")}` })) };
    const headers = file.size > MAX_SHOWN ? { Range: `bytes=0-${MAX_SHOWN - 1}` } : {};
    const bytes = await (await fetched(address, { signal, headers })).arrayBuffer();
    const text = new TextDecoder().decode(bytes);
    return text.includes("\u0000") ? { binary: true } : { text };
  }, [file.path]);
  const download = () => attempt(async () => {
    if (file.size > 1e9) throw new Error("This file is too large for the browser: 'cellblock files get' takes it.");
    const url = URL.createObjectURL(await (await fetched(address)).blob());
    const link = Object.assign(document.createElement("a"), { href: url, download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  });
  return (
    <Dialog title={name} onClose={onClose}>
      <p class="note">{size(file.size)}, changed {age(file.modified)} ago{!picture && file.size > MAX_SHOWN && `; the first ${size(MAX_SHOWN)}`}</p>
      <Failure error={error} />
      {data?.url && <img class="picture" src={data.url} alt={name} />}
      {data?.text !== undefined && (data.text ? <Output text={data.text} /> : <p class="note">The file is empty.</p>)}
      {data?.binary && <p class="note">This is no text.</p>}
      <div class="dialog-buttons"><Button onClick={onClose}>Close</Button><Button kind="solid" onClick={download}>Download</Button></div>
    </Dialog>
  );
}

// -- checkpoints ----------------------------------------------------------------------------------------------------------------

function Checkpoints({ session, version, onChange }) {
  const [comparing, setComparing] = useState(null);
  const [going, setGoing] = useState(null);
  const base = `/sessions/${segment(session.kernel_id)}/checkpoints`;
  const { data, error, retry } = useFetched((signal) => (asleep(session) ? Promise.resolve(null) : get(base, { signal })), [session.kernel_id, session.checkpoints, session.cells, session.status, version]);
  if (asleep(session)) return <Asleep />;
  const able = may("run");
  const found = [...(data?.checkpoints ?? [])].reverse();
  const restore = (one) => attempt(() => post(`${base}/${segment(one.id)}/restore`, {}), ({ changes }) => {
    const files = changes.written.length + changes.removed.length;
    return `Went back to ${one.name || `the state after cell ${one.execution_count}`}${files ? `; ${plural(files, "file")} changed` : ""}`;
  }).then(onChange);
  return (
    <>
      <Failure error={error} retry={retry} />
      {data && found.length === 0 && <Empty title="No checkpoints"><p>The session makes one at the end of each cell.</p></Empty>}
      <ul class="checkpoints-list">
        {found.map((one) => (
          <li key={one.id}>
            <div><b>{one.name ? <Marked text={one.name} /> : `after cell ${one.execution_count}`}</b><span class="quiet">{one.name ? `after cell ${one.execution_count}` : "automatic"} · {age(Date.parse(one.made_at) / 1000)} ago{one.files === "copy" ? " · with files" : ""}</span></div>
            {able && <div class="row-buttons">
              <Button onClick={() => setComparing(one)}>Compare</Button>
              <Button onClick={() => setGoing(one)}>Go to</Button>
              {!one.automatic && <Button kind="bad" onClick={() => attempt(() => remove(`${base}/${segment(one.id)}`)).then(retry)}>Drop</Button>}
            </div>}
          </li>
        ))}
      </ul>
      {comparing && <Differences base={base} checkpoint={comparing} onClose={() => setComparing(null)} />}
      {going && <Confirm title="Go back to this checkpoint?" text={`Variables${going.files === "copy" ? " and files" : ""} become what they were after cell ${going.execution_count}. Later cells are shown as undone.`} action="Go back" onYes={() => restore(going)} onClose={() => setGoing(null)} />}
    </>
  );
}

function Differences({ base, checkpoint, onClose }) {
  const { data, error } = useFetched((signal) => get(`${base}/${segment(checkpoint.id)}/diff`, { signal }), [checkpoint.id]);
  return (
    <Dialog title={`Since ${checkpoint.name || `cell ${checkpoint.execution_count}`}`} onClose={onClose}>
      <Failure error={error} />
      {!data && !error && <p class="note">Comparing…</p>}
      {data && <Changes changes={data} versions={`${base}/${segment(checkpoint.id)}/file-versions?path=`} />}
      <div class="dialog-buttons"><Button onClick={onClose}>Close</Button></div>
    </Dialog>
  );
}

// -- branches -----------------------------------------------------------------------------------------------------------------------

function Branches({ session }) {
  useLive();
  const [chosen, setChosen] = useState([]);
  const [adopting, setAdopting] = useState(null);
  const own = [...live.sessions.values()].filter((one) => one.branch_of === session.kernel_id);
  const origin = live.sessions.get(session.branch_of);
  const family = [session, ...own, ...(origin ? [origin] : [])];
  const toggle = (id) => setChosen((before) => (before.includes(id) ? before.filter((one) => one !== id) : [...before, id].slice(-2)));
  const [left, right] = chosen.length === 2 ? chosen : [session.kernel_id, own[0]?.kernel_id];
  return (
    <>
      {family.length === 1 && <Empty title="No branches"><p>“Branch” makes a session that begins with this one's variables and files.</p></Empty>}
      {family.length > 1 && (
        <>
          <ul class="branches">
            {family.map((one) => (
              <li key={one.kernel_id} class={one.branch_of === session.kernel_id ? "below" : ""}>
                <input type="checkbox" aria-label={`Compare ${one.name}`} checked={chosen.includes(one.kernel_id)} onChange={() => toggle(one.kernel_id)} />
                <State state={one.status} />
                <a href={`#/session/${segment(one.kernel_id)}`}><Marked text={one.name} /></a>
                <span class="quiet">{one.kernel_id === session.kernel_id ? "this one" : one.branch_of === session.kernel_id ? `after cell ${one.branch_at}` : "origin"}</span>
                {may("run") && one.branch_of === session.kernel_id && <Button onClick={() => setAdopting(one)}>Adopt</Button>}
              </li>
            ))}
          </ul>
          {right && <p><a class="button" href={`#/compare/${segment(left)}/${segment(right)}`}>Compare {chosen.length === 2 ? "the two" : "with the first branch"}</a></p>}
        </>
      )}
      {adopting && <Adopt into={session} branch={adopting} onClose={() => setAdopting(null)} />}
    </>
  );
}

// -- secrets ------------------------------------------------------------------------------------------------------------------------

function Secrets({ session, version }) {
  const { data, error, retry } = useFetched((signal) => get(`/sessions/${segment(session.kernel_id)}/secrets`, { signal }), [session.kernel_id, session.cells, session.execution, session.status, version]);
  return (
    <>
      <Failure error={error} retry={retry} />
      {data && data.secrets.length === 0 && <Empty title="No secrets"><p>Secrets that the session uses by placeholders appear here, without their values.</p></Empty>}
      <ul class="checkpoints-list" aria-label="Secrets">
        {(data?.secrets ?? []).map((one) => (
          <li key={one.name}>
            <div><b><Marked text={one.name} /></b><span class="quiet">{one.last_used == null ? "not used yet" : `used ${age(one.last_used)} ago`}</span></div>
            <div class="quiet">for {one.hosts.map((host, place) => <>{place > 0 && ", "}<code><Marked text={host} /></code></>)}</div>
          </li>
        ))}
      </ul>
    </>
  );
}

// -- requests -----------------------------------------------------------------------------------------------------------------------

function Requests({ session, version }) {
  const { data, error, retry } = useFetched((signal) => get(`/sessions/${segment(session.kernel_id)}/requests`, { signal }), [session.kernel_id, session.cells, session.execution, session.status, version]);
  const newest = [...(data?.requests ?? [])].reverse();
  return (
    <>
      <Failure error={error} retry={retry} />
      {data && newest.length === 0 && <Empty title="No requests"><p>Requests to hosts with secrets or request lines appear here.</p></Empty>}
      <ul class="checkpoints-list">
        {newest.map((one, place) => (
          <li key={newest.length - place}>
            <div><code><Marked text={`${one.method} ${one.host}${one.path}`} /></code><span class="quiet">{age(one.at)} ago</span></div>
            <div class="quiet">{one.decision}{one.status > 0 && ` · ${one.status} · ${size(one.bytes)}`}{one.secrets.length > 0 && ` · ${one.secrets.join(", ")}`}</div>
          </li>
        ))}
      </ul>
    </>
  );
}

export function Adopt({ into, branch, onClose, onDone = () => {} }) {
  return <Confirm title={`Go on with ${branch.name}?`} text={`${into.name} gets the variables and files of ${branch.name}, which ends. What ${into.name} did since the branch was made is shown as undone.`} action="Adopt"
    onYes={() => attempt(() => post(`/sessions/${segment(into.kernel_id)}/adopt`, { branch: branch.kernel_id }), `${into.name} goes on with what was ${branch.name}`).then((went) => went && onDone())} onClose={onClose} />;
}
