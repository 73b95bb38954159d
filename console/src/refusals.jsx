// What code wanted, and did not get.
import { segment } from "./api.js";
import { age } from "./format.js";
import { live, useLive } from "./live.js";
import { Command, Empty } from "./parts.jsx";
import { Marked } from "./text.jsx";

const KINDS = { host: "Host", call: "Call", file: "File", limit: "Limit" };

export function Refusals() {
  useLive();
  const newest = [...live.refusals].reverse();
  return (
    <section class="view" aria-label="Refusals">
      <header class="bar"><h1>Refusals</h1><p class="note">Hosts, calls and files that were refused, and limits that were hit, since the daemon started.</p></header>
      {live.known && newest.length === 0 && <Empty title="Nothing was refused"><p>For example, a session without network that tries to reach a host appears here:</p><Command>cellblock exec hosts "import urllib.request as u; u.urlopen('http://example.org')" --allow-host example.com</Command></Empty>}
      <ul class="plain-list">
        {newest.map((one) => (
          <li key={one.id} class="refusal">
            <span class={`kind ${one.kind}`}>{KINDS[one.kind]}</span>
            <div>
              <code class="wanted"><Marked text={one.what} /></code>
              <p><Marked text={one.why} /></p>
              {one.remedy && <details><summary>Allow this</summary><p>{one.kind === "host" ? "Run this, or use the session's Network tab:" : "It takes a setting of the session, which whoever makes it chooses:"}</p><Command>{one.remedy}</Command></details>}
            </div>
            <span class="quiet"><a href={`#/session/${segment(one.session)}`}><Marked text={one.session_name} /></a> · {age(one.at)} ago</span>
          </li>
        ))}
      </ul>
    </section>
  );
}
