"""Sources that are not transformed are those that IPython would leave alone."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from IPython.core.inputtransformer2 import TransformerManager

from cellblock.worker.transformers import _SPECIAL, Transformers

SPACE = [
    " ",
    "  ",
    "    ",
    "\t",
    "\n",
    "\n\n",
    "\r\n",
    "\r",
    "\f",
    "\v",
    "\x1c",
    "\x1f",
    "\x85",
    "\xa0",
    "\u2028",
    "\u3000",
    "\\\n",
]
ESCAPES = ["%", "%%", "%time", "!", "!!", "ls", "?", "??", "/", ",", ";", "x = %who", "x = !ls", "/f 1", ",f a", ";f a", "x?"]
PROMPTS = [">>>", ">>> ", "...", "... ", "   ...: ", "In [1]: ", "[nav] In [2]: ", "[ins]"]
BRACKETS = ["[", "]", "(", ")", "{", "}", '"""', "'''", '"', "'", "#", "# "]
PYTHON = ["x", "=", "def f():", "if x:", "return", "pass", "lambda: 0", "await f()", "f'{x}'", "é", "\0", ":", "."]
PIECES = st.sampled_from([*SPACE, *ESCAPES, *PROMPTS, *BRACKETS, *PYTHON])


IPYTHON: Any = TransformerManager
"""As what it is in some releases of IPython: without types."""
OURS: Any = Transformers


def outcome(manager: Any, source: str) -> str:
    try:
        return str(manager.transform_cell(source))
    except Exception as error:
        return repr(error)


def check(source: str) -> None:
    """Check that a source becomes what IPython makes of it.

    One that is indented wrongly makes IPython's tokenizer raise, and is left to Python's compiler, which names the right line.
    """
    theirs = outcome(IPYTHON(), source)
    if theirs.startswith("IndentationError") and outcome(OURS(), source) != theirs:
        with pytest.raises((SyntaxError, ValueError)):
            compile(outcome(OURS(), source), "", "exec")
    else:
        assert outcome(OURS(), source) == theirs


@pytest.mark.slow
@settings(max_examples=600)
@given(st.lists(PIECES, max_size=14).map("".join))
@example("x\n    x\n  x")
def test_any_source_becomes_what_ipython_makes_of_it(source: str) -> None:
    check(source)


@pytest.mark.slow
def test_the_sources_of_this_project_become_what_ipython_makes_of_them() -> None:
    for path in sorted((Path(__file__).parents[2] / "src").rglob("*.py"))[::10]:
        source = path.read_text()
        for text in (source, *source.split("\n\n")):
            check(text)


def test_what_is_plain_takes_no_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TransformerManager, "transform_cell", lambda _self, _cell: pytest.fail("IPython was asked"))
    source = "def f(x):\n    return x\n\n\nf(2)"
    assert OURS().transform_cell(source) == source + "\n"


@pytest.mark.parametrize("kind", ["cleanup_transforms", "line_transforms"])
def test_a_transformation_that_somebody_added_counts(kind: str) -> None:
    transformers = OURS()
    getattr(transformers, kind).append(lambda lines: [line.upper() for line in lines])
    assert transformers.transform_cell("x = 1") == "X = 1\n"


@pytest.mark.parametrize("text", ["x = 1\n", "\n", "    x\n", " ", "\t\n x"])
def test_looking_at_a_long_source_takes_no_longer_than_its_size(text: str) -> None:
    began = time.process_time()
    _SPECIAL.search(f"x\n{text * 200_000}x")
    assert time.process_time() - began < 5  # a tenth of a second; minutes, if it grew with the square
