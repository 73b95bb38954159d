// Keys for what can be done. They do nothing while somebody types.
import { useEffect, useRef } from "./libraries.js";

const TYPED = "input, textarea, select, [contenteditable], .editor";

export const HELP = [
  ["j k", "down, up"],
  ["Enter", "open"],
  ["a", "allow what is selected, once"],
  ["s", "allow exactly this, for the session"],
  ["r", "refuse, with a reason"],
  ["x", "select several"],
  ["/", "filter"],
  ["e", "write a cell"],
  ["u", "undo the last cell"],
  ["i", "interrupt"],
  ["1 … 6", "sessions, approvals, permissions, refusals, figures, search"],
  ["Esc", "back"],
  ["?", "this list"],
];

export const isTyping = (event) => event.composedPath().some((one) => one instanceof Element && one.matches(TYPED));

/** Call functions for keys while a component is shown. A key is as `KeyboardEvent.key` has it. */
export function useKeys(keys) {
  const now = useRef(keys);
  now.current = keys;
  useEffect(() => {
    const take = (event) => {
      if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
      if (document.querySelector("dialog[open]")) return;
      const typing = isTyping(event);
      if (typing && event.key !== "Escape") return;
      if (event.key === "Enter" && event.composedPath()[0].closest?.("button, a, summary")) return;
      const call = now.current[event.key];
      if (!call) return;
      event.preventDefault();
      call(event);
    };
    document.addEventListener("keydown", take);
    return () => document.removeEventListener("keydown", take);
  }, []);
}
