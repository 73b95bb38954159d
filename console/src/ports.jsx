// The servers that the code of a session runs, with a link to the page of each.
import { useState } from "./libraries.js";
import { get, post, segment } from "./api.js";
import { Asleep, asleep } from "./asleep.jsx";
import { attempt, Button, Empty, Failure, useFetched } from "./parts.jsx";

export function Ports({ session, version }) {
  const path = `/sessions/${segment(session.kernel_id)}/ports`;
  const { data, error, retry } = useFetched((signal) => (asleep(session) ? Promise.resolve(null) : get(path, { signal })), [session.kernel_id, session.cells, session.execution, session.status, version]);
  const [links, setLinks] = useState({});
  if (asleep(session)) return <Asleep />;
  // The address works once, for two minutes: it is asked for when somebody wants it, and is a link, because browsers block tabs that open by themselves.
  const open = (port) => attempt(async () => {
    const { url } = await post(`${path}/${port}`, {});
    setLinks({ ...links, [port]: url });
  });
  return (
    <>
      <Failure error={error} retry={retry} />
      {data && data.ports.length === 0 && <Empty title="No servers"><p>Servers that the code starts appear here, at 127.0.0.1 or 0.0.0.0.</p></Empty>}
      <ul class="files" aria-label="Ports">
        {(data?.ports ?? []).map((port) => (
          <li key={port}>
            <code>{port}</code>{" "}
            {links[port]
              ? <a href={links[port]} target="_blank" rel="noopener noreferrer" onClick={() => setLinks({ ...links, [port]: undefined })}>Open the page in a new tab</a>
              : <Button onClick={() => open(port)}>Link</Button>}
          </li>
        ))}
      </ul>
      {data && data.ports.length > 0 && <p class="note">The page's scripts run in your browser, in a frame that keeps them from other tabs and servers.</p>}
    </>
  );
}
