// What the page takes from libraries, built into a file of its own: it changes rarely, and is stored compressed.
export { acceptCompletion, autocompletion, closeBrackets, closeBracketsKeymap, completionKeymap } from "@codemirror/autocomplete";
export { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
export { python, pythonLanguage } from "@codemirror/lang-python";
export { bracketMatching, HighlightStyle, indentOnInput, indentUnit, syntaxHighlighting } from "@codemirror/language";
export { EditorState, Prec } from "@codemirror/state";
export { drawSelection, EditorView, keymap, placeholder } from "@codemirror/view";
export { classHighlighter, highlightCode, tags } from "@lezer/highlight";
export { default as Anser } from "anser";
export { structuredPatch } from "diff";
export { default as MarkdownIt } from "markdown-it";
export { render } from "preact";
export { useEffect, useLayoutEffect, useMemo, useReducer, useRef, useState } from "preact/hooks";
export { Fragment, jsx, jsxs } from "preact/jsx-runtime";
export { default as temml } from "temml";
