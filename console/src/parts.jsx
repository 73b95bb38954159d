// What several views are made of.
import { useEffect, useLayoutEffect, useRef, useState } from "./libraries.js";
import { Problem } from "./api.js";
import { changed } from "./live.js";

/** A list of which only what can be seen is in the page. Rows have one height. */
export function VirtualList({ items, rowHeight, render, selected = -1, label, role = "listbox", className = "" }) {
  const box = useRef();
  const [view, setView] = useState({ top: 0, height: 800 });
  useLayoutEffect(() => {
    const element = box.current;
    const look = () => setView({ top: element.scrollTop, height: element.clientHeight });
    const observer = new ResizeObserver(look);
    observer.observe(element);
    element.addEventListener("scroll", look, { passive: true });
    look();
    return () => {
      observer.disconnect();
      element.removeEventListener("scroll", look);
    };
  }, []);
  useLayoutEffect(() => {
    if (selected < 0) return;
    const element = box.current;
    const top = selected * rowHeight;
    if (top < element.scrollTop) element.scrollTop = top;
    else if (top + rowHeight > element.scrollTop + element.clientHeight) element.scrollTop = top + rowHeight - element.clientHeight;
  }, [selected, rowHeight]);
  const first = Math.max(Math.floor(view.top / rowHeight) - 6, 0);
  const last = Math.min(Math.ceil((view.top + view.height) / rowHeight) + 6, items.length);
  return (
    <div ref={box} class={`virtual ${className}`} role={role} aria-label={label} tabIndex={0}>
      <div role="presentation" style={{ height: `${items.length * rowHeight}px` }}>
        <div role="presentation" style={{ transform: `translateY(${first * rowHeight}px)` }}>
          {items.slice(first, last).map((item, place) => render(item, first + place))}
        </div>
      </div>
    </div>
  );
}

/** Whether an element has been near what can be seen: only then does it fetch what it shows. */
export function useNear(element, margin = "600px") {
  const [near, setNear] = useState(false);
  useEffect(() => {
    const observer = new IntersectionObserver((entries) => entries.some((one) => one.isIntersecting) && setNear(true), { rootMargin: margin });
    observer.observe(element.current);
    return () => observer.disconnect();
  }, []);
  return near;
}

const STILL_MS = 700;

/**
 * Protect a list of what can be decided: for a moment after it has moved under the person, keys and clicks are ignored, as they were
 * meant for what was there before. Items that come at the end move nothing, and neither does what the person has done.
 *
 * Return {still, guarded}: whether it has been still, and attributes for the element around the list.
 */
export function useStill(ids, own) {
  const state = useRef({ ids, at: -STILL_MS });
  const before = state.current.ids;
  const left = before.filter((id) => !own.has(id));
  if (left.some((id, place) => ids[place] !== id) || (!before.length && ids.length)) state.current.at = performance.now();
  state.current.ids = ids;
  const still = () => {
    const quiet = performance.now() - state.current.at >= STILL_MS;
    if (!quiet) say("The list has just moved. Look again before you decide.");
    return quiet;
  };
  const take = (event) => {
    if (event.target.closest("button, input, summary, a, form") && !still()) {
      event.stopPropagation();
      event.preventDefault();
    }
  };
  return { still, guarded: { onClickCapture: take, onSubmitCapture: take } };
}

/** Draw a component once in a second, while it shows something that runs. */
export function useSeconds(runs = true) {
  const [, again] = useState(0);
  useEffect(() => {
    if (!runs) return undefined;
    const timer = setInterval(() => again((count) => count + 1), 1000);
    return () => clearInterval(timer);
  }, [runs]);
}

export function Button({ children, kind = "", keys = "", ...rest }) {
  return (
    <button type="button" class={`button ${kind}`} {...rest}>
      {children}
      {keys && <kbd aria-hidden="true">{keys}</kbd>}
    </button>
  );
}

export function Empty({ title, children }) {
  return (
    <div class="empty">
      <p class="empty-title">{title}</p>
      <div class="empty-text">{children}</div>
    </div>
  );
}

export const Command = ({ children }) => <code class="command">{children}</code>;

export function Failure({ error, retry }) {
  if (!error) return null;
  return (
    <div class="failure" role="alert">
      <span>{error instanceof Problem ? error.message : `The console failed: ${error.message}`}</span>
      {retry && <Button onClick={retry}>Try again</Button>}
    </div>
  );
}

// -- messages at the edge of the page ------------------------------------------------------------------------------------

const messages = [];
let numbers = 0;

/** Show a message for some seconds; `action` is {label, run} of a button in it. */
export function say(text, kind = "", action = null) {
  const message = { text, kind, action, number: ++numbers };
  messages.push(message);
  messages.splice(0, messages.length - 3);
  setTimeout(() => {
    const place = messages.indexOf(message);
    if (place >= 0) messages.splice(place, 1);
    changed();
  }, kind === "bad" || action ? 10000 : 4000);
  changed();
}

/** Do something, and say what went wrong if it does; return whether it went well. */
export async function attempt(work, done = "") {
  try {
    const answer = await work();
    if (done) say(typeof done === "function" ? done(answer) : done);
    return true;
  } catch (error) {
    if (error.status !== 401) say(error.message, "bad");
    return false;
  }
}

export function Messages() {
  return (
    <div class="messages" role="status" aria-live="polite">
      {messages.map((message) => <div key={message.number} class={`message ${message.kind}`}>{message.text}{message.action && <button type="button" class="link" onClick={message.action.run}>{message.action.label}</button>}</div>)}
    </div>
  );
}

// -- a question before something that cannot be taken back ----------------------------------------------------------------

export function Dialog({ title, onClose, children }) {
  const element = useRef();
  useEffect(() => {
    const dialog = element.current;
    dialog.showModal();
    return () => dialog.close();
  }, []);
  return (
    <dialog ref={element} class="dialog" aria-label={title} onCancel={(event) => { event.preventDefault(); onClose(); }}
      onClick={(event) => event.target === element.current && onClose()}>
      <h2>{title}</h2>
      {children}
    </dialog>
  );
}

export function Confirm({ title, text, action, onYes, onClose }) {
  return (
    <Dialog title={title} onClose={onClose}>
      <p>{text}</p>
      <div class="dialog-buttons">
        <Button onClick={onClose}>Cancel</Button>
        <Button kind="bad solid" autofocus onClick={() => { onClose(); onYes(); }}>{action}</Button>
      </div>
    </Dialog>
  );
}

/** Read something from the gateway, and again when `inputs` change. */
export function useFetched(read, inputs) {
  const [state, setState] = useState({ data: null, error: null, loading: true });
  const [again, setAgain] = useState(0);
  useEffect(() => {
    const stop = new AbortController();
    setState((before) => ({ ...before, loading: true }));
    read(stop.signal).then(
      (data) => stop.signal.aborted || setState({ data, error: null, loading: false }),
      (error) => stop.signal.aborted || setState((before) => ({ data: before.data, error, loading: false })),
    );
    return () => stop.abort();
  }, [...inputs, again]);
  return { ...state, retry: () => setAgain((count) => count + 1) };
}
