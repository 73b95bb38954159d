"""Runs one cell from pieces of complete statements, while a model is still writing the rest."""

from __future__ import annotations

import ast
import json
from typing import Any

from IPython.core.getipython import get_ipython


async def run() -> None:
    """Run the pieces from the host as one cell: its number, its output, its value, its history."""
    shell: Any = get_ipython()
    lines, text, failed = 0, "", False
    while True:
        piece = json.loads(shell.line())
        text += piece["code"]
        if piece["last"]:
            _remember(shell, text)
        if failed:  # nothing runs after that, but the cell ends with its text
            if piece["last"]:
                return
            continue
        name = shell.compile.cache(text, shell.execution_count, raw_code=text)
        tree = ast.parse(piece["code"], filename=name)
        ast.increment_lineno(tree, lines)
        lines = text.count("\n")
        for transformer in shell.ast_transformers:
            tree = transformer.visit(tree)
        failed = await shell.run_ast_nodes(
            tree.body,
            name,
            interactivity="last_expr" if piece["last"] else "none",
            compiler=shell.compile,
            result=shell.displayhook.exec_result,
        )
        if piece["last"]:
            return


def _remember(shell: Any, text: str) -> None:
    """Put the text into IPython's history, in place of the cell that runs it."""
    history = shell.history_manager
    for kept in (history.input_hist_raw, history.input_hist_parsed):
        kept[-1] = text
    history._i00 = text  # noqa: SLF001  # what `_i` is after the next cell: there is no public name
    shell.user_ns[f"_i{shell.execution_count}"] = text
