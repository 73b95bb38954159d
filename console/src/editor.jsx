// The editor for the next cell. It lives in a shadow root, where its styles are no <style> elements, which the policy forbids.
import { acceptCompletion, autocompletion, bracketMatching, closeBrackets, closeBracketsKeymap, completionKeymap, defaultKeymap, drawSelection, EditorState, EditorView, HighlightStyle, history, historyKeymap, indentOnInput, indentUnit, indentWithTab, keymap, placeholder, Prec, python, syntaxHighlighting, tags, useEffect, useRef } from "./libraries.js";
import { post, segment } from "./api.js";

const look = EditorView.theme({
  "&": { color: "var(--ink)", backgroundColor: "transparent", fontSize: "13px" },
  "&.cm-focused": { outline: "none" },
  ".cm-content": { fontFamily: "var(--mono)", padding: "8px 0", caretColor: "var(--ink)" },
  ".cm-line": { padding: "0 12px" },
  ".cm-scroller": { lineHeight: "20px", maxHeight: "40vh" },
  ".cm-cursor": { borderLeftColor: "var(--ink)" },
  ".cm-placeholder": { color: "var(--quiet)" },
  "&.cm-focused .cm-selectionBackground, .cm-selectionBackground": { backgroundColor: "var(--selection) !important" },
  ".cm-tooltip": { background: "var(--raised)", border: "1px solid var(--line)", borderRadius: "6px", overflow: "hidden" },
  ".cm-tooltip-autocomplete ul li": { fontFamily: "var(--mono)", fontSize: "12px", color: "var(--ink)" },
  ".cm-tooltip-autocomplete ul li[aria-selected]": { background: "var(--accent)", color: "var(--on-accent)" },
  ".cm-matchingBracket": { backgroundColor: "var(--selection)" },
});

const colours = HighlightStyle.define([
  { tag: [tags.keyword, tags.operatorKeyword, tags.modifier, tags.controlKeyword, tags.definitionKeyword, tags.moduleKeyword], color: "var(--code-keyword)" },
  { tag: [tags.string, tags.special(tags.string)], color: "var(--code-string)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--code-number)" },
  { tag: tags.comment, color: "var(--quiet)", fontStyle: "italic" },
  { tag: [tags.function(tags.definition(tags.variableName)), tags.className], color: "var(--code-name)" },
]);

/** An editor that runs what is written in it. `control` gets {focus, set}. */
export function Editor({ session, onRun, control }) {
  const box = useRef();
  const run = useRef(onRun);
  run.current = onRun;
  useEffect(() => {
    const root = box.current.shadowRoot ?? box.current.attachShadow({ mode: "open" });
    const submit = (view) => {
      const code = view.state.doc.toString();
      if (!code.trim()) return true;
      run.current(code).then((went) => went && view.dispatch({ changes: { from: 0, to: view.state.doc.length } }));
      return true;
    };
    const complete = async (context) => {
      if (!context.explicit && !context.matchBefore(/\.\w*$/)) return null;
      const code = context.state.doc.toString();
      try {
        // Python counts characters, JavaScript counts UTF-16 units.
        const cursor = [...code.slice(0, context.pos)].length;
        const found = await post(`/sessions/${segment(session)}/complete`, { code, cursor });
        const at = (index) => [...code].slice(0, index).join("").length;
        return { from: at(found.start), to: at(found.end), options: found.matches.slice(0, 200).map((label) => ({ label })), validFor: /^[\w.]*$/ };
      } catch {
        return null;
      }
    };
    const view = new EditorView({
      parent: root,
      root,
      state: EditorState.create({
        extensions: [
          Prec.highest(keymap.of([
            { key: "Shift-Enter", run: submit }, { key: "Mod-Enter", run: submit },
            { key: "Tab", run: acceptCompletion },
            { key: "Escape", run: (editor) => { if (editor.dom.querySelector(".cm-tooltip")) return false; editor.contentDOM.blur(); return true; } },
          ])),
          history(), drawSelection(), indentOnInput(), bracketMatching(), closeBrackets(), python(), indentUnit.of("    "),
          autocompletion({ override: [complete], icons: false }), syntaxHighlighting(colours), look,
          placeholder("Write a cell; Shift-Enter runs it"), EditorView.lineWrapping,
          EditorView.contentAttributes.of({ "aria-label": "Code of the next cell" }),
          keymap.of([...closeBracketsKeymap, ...defaultKeymap, ...historyKeymap, ...completionKeymap, indentWithTab]),
        ],
      }),
    });
    control.current = { focus: () => view.focus(), run: () => submit(view) };
    return () => view.destroy();
  }, [session]);
  return <div class="editor" ref={box} />;
}
