"""Exceptions that are shown: those that end a cell, and those that do not."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import FrameType

import pytest

from cellblock import CodeExecutionChunk, CodeExecutionResult, Session
from cellblock.worker.shell import _modules_remembered

SHOWN = {
    "a value that cannot be shown": ("class A:\n    def __repr__(self): raise ValueError('x')\nA()", "ValueError: x"),
    "a page that cannot be made": (
        "class B:\n    def _repr_html_(self): raise ValueError('y')\nprint(1); B()",
        "ValueError: y",
    ),
    "a script": ("%run failing.py", "ZeroDivisionError: division by zero"),
    "the last traceback": ("%tb", "NameError: name 'missing' is not defined"),
    "a cell in a cell": ("get_ipython().run_cell('1 / 0')", "ZeroDivisionError: division by zero"),
    "a captured cell": ("%%capture\n1 / 0", "ZeroDivisionError: division by zero"),
}


async def test_what_does_not_end_the_cell_is_an_output_of_its_own(session: Session, tmp_path: Path) -> None:
    """It stands where it was shown, and among the chunks."""
    (tmp_path / "failing.py").write_text("1 / 0\n")
    for code, last in SHOWN.values():
        await session.execute(f"import os; os.chdir({str(tmp_path)!r})\nmissing")
        result = await session.execute(code)
        (first,) = [item for item in result.outputs if item.kind == "error"]
        assert str(first.text).rstrip().endswith(last)
        assert "Traceback (most recent call last)" in str(first.text)
        assert str(first.text).strip("\n") in str(result.text)
        assert (result.stderr, first.data) == ("", {})
        assert result.ok == (code == "%tb")
        assert (None if result.error is None else "\n".join(result.error.traceback)) == (None if result.ok else first.text)
        assert str(result.text).count(last) == 1
    # It stands where it was shown and among the chunks.
    code = "get_ipython().run_cell('1 / 0')\nprint('after')\nraise KeyError('end')"
    *chunks, last_event = [event async for event in session.stream(code)]
    assert isinstance(last_event, CodeExecutionResult)
    result = last_event
    assert [item.kind for item in result.outputs] == ["error", "stream", "error"]
    assert result.error is not None
    assert result.error.ename == "KeyError"
    assert [chunk.name for chunk in chunks if isinstance(chunk, CodeExecutionChunk)] == [None, "stdout"]
    # An error after a cell in a cell ends the outer one.
    result = await session.execute("get_ipython().run_cell('1')\n%tb\nopen('/nowhere')")
    assert result.error is not None
    assert result.error.ename == "FileNotFoundError"


def test_the_module_of_a_frame_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A traceback of 20,000 frames of one function would otherwise take longer than a cell may take to end."""
    asked: list[object] = []
    original = inspect.getmodule

    def getmodule(thing: object, name: str | None = None) -> object:
        asked.append(thing)
        return original(thing, name)

    monkeypatch.setattr(inspect, "getmodule", getmodule)
    frames: list[FrameType] = []

    def call(depth: int) -> None:
        frame = inspect.currentframe()
        assert frame is not None
        frames.append(frame)
        if depth:
            call(depth - 1)

    call(50)
    with _modules_remembered():
        assert {inspect.getmodule(frame) for frame in frames} == {inspect.getmodule(call)}
    assert len([thing for thing in asked if isinstance(thing, FrameType)]) == 1
