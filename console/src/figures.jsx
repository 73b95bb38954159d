// A few minutes of figures.
import { attempt, Button, Empty, VirtualList } from "./parts.jsx";
import { fetched } from "./api.js";
import { count, size, span } from "./format.js";
import { live, useLive } from "./live.js";
import { Marked } from "./text.jsx";
import { segment } from "./api.js";

const WIDTH = 300;
const HEIGHT = 64;

export function Figures() {
  useLive();
  const samples = live.samples;
  const rates = samples.slice(1).map((one, place) => ({ at: one.at, value: Math.max(one.cells - samples[place].cells, 0) / Math.max(one.at - samples[place].at, 0.1) }));
  const failures = samples.slice(1).map((one, place) => ({ at: one.at, value: Math.max(one.failures - samples[place].failures, 0) }));
  const last = samples.at(-1);
  const largest = [...live.sessions.values()].filter((one) => one.memory).sort((a, b) => b.memory - a.memory);
  const series = (name) => samples.map((one) => ({ at: one.at, value: one[name] }));
  const open = () => attempt(async () => {
    const url = URL.createObjectURL(new Blob([await (await fetched("/metrics")).text()], { type: "text/plain" }));
    window.open(url, "_blank", "noopener");
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
  });
  return (
    <section class="view" aria-label="Figures">
      <header class="bar"><h1>Figures</h1><p class="note">The last minutes, every two seconds.</p><Button onClick={open}>Prometheus' text</Button></header>
      {!last && live.known && <Empty title="No figures yet"><p>They are taken while there are sessions.</p></Empty>}
      {last && (
        <div class="figures">
          <Chart title="Cells a second" now={(rates.at(-1)?.value ?? 0).toFixed(1)} points={rates} />
          <Chart title="Failed cells" now={count(last.failures)} note="since the daemon started" points={failures} />
          <Chart title="Sessions" now={count(last.sessions)} points={series("sessions")} />
          <Chart title="Running" now={count(last.running)} note={last.waiting ? `${count(last.waiting)} wait` : ""} points={series("running")} />
          <Chart title="Start of a session" now={last.start_ms ? `${last.start_ms.toFixed(0)} ms` : "–"} points={series("start_ms")} format={(value) => `${value.toFixed(0)} ms`} />
          <Chart title="Memory" now={last.memory ? size(last.memory) : "–"} points={series("memory")} format={size} />
          <Chart title="Checkpoints" now={count(last.checkpoints)} points={series("checkpoints")} />
        </div>
      )}
      {largest.length > 0 && (
        <>
          <h2 class="above">Memory by session</h2>
          <VirtualList items={largest} rowHeight={32} role="list" label="Memory by session" className="bars" render={(one) => (
            <div key={one.kernel_id} role="listitem" class="memory-row">
              <a href={`#/session/${segment(one.kernel_id)}`}><Marked text={one.name} /></a>
              <span class="track"><span style={{ width: `${(one.memory / largest[0].memory) * 100}%` }} /></span>
              <span class="right">{size(one.memory)}</span>
            </div>
          )} />
        </>
      )}
    </section>
  );
}

const decimal = (value) => (Number.isInteger(value) ? count(value) : value.toFixed(1));

function Chart({ title, now, note = "", points, format = decimal }) {
  const highest = Math.max(...points.map((one) => one.value), 0);
  const most = Math.max(highest, 1e-9);
  const [first, last] = [points[0]?.at ?? 0, points.at(-1)?.at ?? 1];
  const at = (one) => [((one.at - first) / Math.max(last - first, 1)) * WIDTH, HEIGHT - 2 - (one.value / most) * (HEIGHT - 6)];
  const path = points.map((one, place) => `${place ? "L" : "M"}${at(one).map((value) => value.toFixed(1)).join(" ")}`).join("");
  return (
    <figure class="chart">
      <figcaption><span>{title}</span><b>{now}</b>{note && <span class="quiet">{note}</span>}</figcaption>
      <div class="axis" aria-hidden="true"><span>{highest > 0 ? format(highest) : "0"}</span></div>
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={`${title} over the last minutes; now ${now}`}>
        {path && <path class="area" d={`${path}L${WIDTH} ${HEIGHT}L0 ${HEIGHT}Z`} />}
        {path && <path class="curve" d={path} />}
      </svg>
      <div class="axis" aria-hidden="true"><span>{points.length > 1 ? `0 · ${span(last - first)} ago` : "0"}</span><span>now</span></div>
    </figure>
  );
}
