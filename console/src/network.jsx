// The hosts and requests that a session and its branches can reach, with a form to change them.
import { useState } from "./libraries.js";
import { get, post, segment } from "./api.js";
import { Asleep, asleep } from "./asleep.jsx";
import { plural } from "./format.js";
import { may } from "./live.js";
import { attempt, Button, Confirm, Empty, Failure, useFetched } from "./parts.jsx";
import { Marked } from "./text.jsx";

export function Network({ session, version }) {
  const path = `/sessions/${segment(session.kernel_id)}/network`;
  const { data, error, retry } = useFetched((signal) => (asleep(session) ? Promise.resolve(null) : get(path, { signal })), [session.kernel_id, session.cells, session.status, version]);
  const [host, setHost] = useState("");
  const [removing, setRemoving] = useState(null);
  if (asleep(session)) return <Asleep />;
  const able = may("approve") && data && (data.allow.length > 0 || data.ask || data.revision > 0);
  // Based on what is shown: a change that another person has made meanwhile is seen first.
  const change = (lists) => attempt(() => post(path, { ...lists, expect: data.revision }), ({ closed }) => `Changed${closed ? `; ${plural(closed, "connection")} closed` : ""}`).finally(retry);
  // Only request lines contain a slash. Those that refuse begin with a word of their own.
  const add = (list) => host.trim() && change({ [host.includes("/") ? "http" : list]: [host.includes("/") && list === "deny" ? `deny ${host.trim()}` : host.trim()] }).then((went) => went && setHost(""));
  return (
    <>
      <Failure error={error} retry={retry} />
      {data && data.allow.length + data.deny.length === 0 && <Empty title="No hosts"><p>{able ? "No host is listed." : "The session was made without a network."}</p></Empty>}
      <ul class="files" aria-label="Hosts">
        {data && ["allow", "deny", "http"].flatMap((list) => data[list].map((line) => (
          <li key={`${list} ${line}`}>
            <span class={`kind ${list === "deny" ? "limit" : "host"}`}>{{ allow: "Allowed", deny: "Denied", http: "Request" }[list]}</span> <code><Marked text={line} /></code>
            {able && <button type="button" class="link bad" aria-label={`Remove ${line}`} onClick={() => setRemoving(line)}>×</button>}
          </li>
        )))}
      </ul>
      {data && <p class="note">Other hosts: {data.ask ? "a person is asked" : "refused"}. Branches share these lists.</p>}
      {able && (
        <form onSubmit={(event) => { event.preventDefault(); add("allow"); }}>
          <label>Host, or request<input type="text" maxLength={300} placeholder="example.com, *.example.com:8443, GET example.com/**" value={host} onInput={(event) => setHost(event.currentTarget.value)} /></label>
          <div class="dialog-buttons"><Button kind="bad" onClick={() => add("deny")}>Deny</Button><Button type="submit" kind="solid">Allow</Button></div>
        </form>
      )}
      {removing && <Confirm title={`Remove ${removing}?`} text="Connections that the lists no longer allow are closed." action="Remove" onYes={() => change({ remove: [removing] })} onClose={() => setRemoving(null)} />}
    </>
  );
}
