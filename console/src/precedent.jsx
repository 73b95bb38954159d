// What is different from the last call of the same tool that was allowed.
import { useRef } from "./libraries.js";
import { get, segment } from "./api.js";
import { differences } from "./difference.js";
import { age } from "./format.js";
import { live } from "./live.js";
import { useFetched, useNear } from "./parts.jsx";
import { Marked } from "./text.jsx";

export function Precedent({ pending }) {
  const element = useRef();
  const near = useNear(element);
  const { data } = useFetched(async (signal) => near && get(`/approvals/${segment(pending.id)}/precedents`, { signal }), [pending.id, near]);
  return <div ref={element} class="precedent">{data && <Told pending={pending} last={data.decisions[0]} />}</div>;
}

function Told({ pending, last }) {
  if (!last) return <p class="note">{pending.kind === "tool" ? "This tool was" : "Such a call was"} not allowed before.</p>;
  const name = last.session === pending.session ? "this session" : live.sessions.get(last.session)?.name ?? "a session that has ended";
  const when = <>{age(last.at)} ago in <Marked text={name} />, by <Marked text={last.by} /></>;
  const before = read(last.arguments);
  if (before === null) return <p class="note">It was allowed last {when}; its arguments were too long to be kept.</p>;
  const { rows, same, more } = differences(before, given(pending));
  if (!rows.length) return <p class="note">Exactly this was allowed last {when}.</p>;
  if (pending.kind === "shell" && program(before) !== program(given(pending))) return <p class="note">The last command that was allowed runs another program.</p>;
  return (
    <>
      <p class="note">Allowed last {when}. {same > 0 ? "What is different now:" : "Everything is different now:"}</p>
      <dl class="arguments differences" tabIndex={0} aria-label="What is different from the last call that was allowed">
        {rows.map(({ name: argument, lines }) => (
          <div key={argument}>
            <dt><Marked text={argument} /></dt>
            <dd>{lines.map((line, place) => <Line key={place} {...line} />)}</dd>
          </div>
        ))}
      </dl>
      {more > 0 && <p class="note">{more} more arguments are different.</p>}
    </>
  );
}

function Line({ kind, pieces }) {
  const Tag = kind || "p";
  return (
    <Tag class={kind ? "line-of" : "note"}>
      {kind && <span class="sign">{kind === "del" ? "−" : "+"}<span class="hidden">{kind === "del" ? " before: " : " now: "}</span></span>}
      {pieces.map(([text, differs]) => (differs ? <b><Marked text={text} /></b> : <Marked text={text} />))}
    </Tag>
  );
}

/** The program that a command runs. Commands of different programs have no differences worth reading. */
const program = ({ command }) => (typeof command === "string" ? command : "").trim().split(/\s/, 1)[0];

/** A command has its text twice: `cmd` is what ipybox calls it. */
function given({ kind, arguments: all }) {
  const { cmd, ...rest } = all;
  return kind === "shell" && "command" in all ? rest : all;
}

function read(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
