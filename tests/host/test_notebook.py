"""`Session.export`: notebooks that Jupyter opens, with all that the cells have shown."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from cellblock import Host, InvalidInputError, Limits, OutputItem, Session
from cellblock.host.notebook import notebook, script
from cellblock.model import CodeExecutionResult, ErrorInfo, HistoryEntry, KeptResult


def read(text: str) -> list[dict[str, Any]]:
    """Return the cells of a notebook."""
    found: dict[str, Any] = json.loads(text)
    assert (found["nbformat"], found["nbformat_minor"]) == (4, 5)
    assert found["metadata"]["kernelspec"]["name"] == "python3"
    return list(found["cells"])


async def test_a_notebook_has_the_cells_and_what_they_showed(session: Session, tmp_path: Path) -> None:
    await session.execute("print('é'); x = 1\nx")
    await session.execute("from IPython.display import JSON, Image, display\ndisplay(JSON({'a': [1]}))")
    await session.execute("display(Image(data=b'\\x89PNG\\r\\n\\x1a\\n', format='png'), metadata={'k': 1})\n1 / 0")
    await session.execute("while True: pass", timeout=0.2)
    assert await session.export(tmp_path / "s.ipynb") == tmp_path / "s.ipynb"
    first, second, third, fourth = read((tmp_path / "s.ipynb").read_text())
    assert (first["source"], first["execution_count"], first["metadata"]) == ("print('é'); x = 1\nx", 1, {})
    assert first["outputs"] == [
        {"output_type": "stream", "name": "stdout", "text": "é\n"},
        {"output_type": "execute_result", "execution_count": 1, "metadata": {}, "data": {"text/plain": "1"}},
    ]
    assert second["outputs"][0]["data"]["application/json"] == {"a": [1]}
    assert third["outputs"][0]["data"]["image/png"] == "iVBORw0KGgo="
    assert (third["outputs"][1]["ename"], third["outputs"][1]["evalue"]) == ("ZeroDivisionError", "division by zero")
    assert "1 / 0" in "\n".join(third["outputs"][1]["traceback"])
    assert third["metadata"]["cellblock"] == {"status": "error"}
    assert fourth["metadata"]["cellblock"] == {"status": "timeout", "recovery": "interrupted"}
    assert fourth["outputs"][-1]["ename"] == "TimeoutError"


async def test_what_is_no_longer_kept_is_said(host: Host, tmp_path: Path) -> None:
    async with host.session(limits=Limits(history=10_000)) as session:
        await session.execute("print('a' * 5000)")
        await session.execute("print('b' * 2000)")
        await session.export(tmp_path / "s.ipynb")
        first, second = read((tmp_path / "s.ipynb").read_text())
        assert "no longer stored" in first["outputs"][0]["text"]
        assert "bbb" in second["outputs"][0]["text"]
        assert [entry.result is None for entry in session.history()] == [True, False]


async def test_a_script_runs_without_the_magics(session: Session, tmp_path: Path) -> None:
    await session.execute("%time x = 1\n!true\ny = 2")
    await session.execute("%%bash\ntrue")
    await session.export(tmp_path / "s.py")
    text = (tmp_path / "s.py").read_text()
    assert text == "# %%\n# %time x = 1\n# !true\ny = 2\n\n# %%\n# %%bash\n# true\n\n"
    compile(text, "s.py", "exec")


async def test_a_name_that_says_nothing_is_refused(session: Session, tmp_path: Path) -> None:
    for name in ("s", "s.html", "s.ipynb/"):
        if name.endswith("/"):
            (tmp_path / name).mkdir()
        with pytest.raises(InvalidInputError, match=r"must end with|is a directory"):
            await session.export(tmp_path / name)
    assert os.listdir(tmp_path) == ["s.ipynb"]


def entry(*outputs: OutputItem, error: ErrorInfo | None = None) -> HistoryEntry:
    return HistoryEntry("x", "success", None, kept=KeptResult(CodeExecutionResult(outputs=[*outputs], error=error)))


OUTPUTS: list[tuple[OutputItem, object]] = [
    (OutputItem("display_data", data={"application/json": "{"}), "{"),
    (OutputItem("display_data", data={"application/json": "[NaN]"}), "[NaN]"),
    (OutputItem("display_data", data={"application/json": "[" * 10_000}), "[" * 10_000),
    (OutputItem("display_data", data={"application/json": " [1]\n"}), [1]),
    (OutputItem("update_display_data", data={'a"/\n\\': "</script>"}), "</script>"),
    (OutputItem("execute_result", data={"x/y": b"\0"}, metadata={"a": {"b": [None]}}), "AA=="),
]


@pytest.mark.parametrize(("output", "kept"), OUTPUTS)
def test_whatever_a_cell_shows_the_notebook_is_valid(output: OutputItem, kept: object) -> None:
    (cell,) = read("".join(notebook([entry(output)])))
    assert [*cell["outputs"][0]["data"].values()] == [kept]


def test_errors_that_did_not_end_a_cell_and_surrogates_are_written_too() -> None:
    shown = OutputItem("error", text="Traceback\nValueError: bad: worse")
    (cell,) = read("".join(notebook([entry(shown, OutputItem("stream", text="\ud800"))])))
    assert (cell["outputs"][0]["ename"], cell["outputs"][0]["evalue"]) == ("ValueError", "bad: worse")
    assert cell["outputs"][1]["name"] == "stdout"
    assert read("".join(notebook([]))) == []
    assert "".join(script([])) == ""


async def test_a_state_that_was_left_is_marked(session: Session, tmp_path: Path) -> None:
    await session.execute("x = 1")
    checkpoint = await session.checkpoint()
    await session.execute("x = 2")
    await session.restore(checkpoint)
    await checkpoint.drop()
    await session.execute("x")
    await session.export(tmp_path / "s.ipynb")
    cells = read((tmp_path / "s.ipynb").read_text())
    assert [cell["metadata"] for cell in cells] == [{}, {"cellblock": {"abandoned": True}}, {}]
    await session.export(tmp_path / "s.py")
    assert (tmp_path / "s.py").read_text() == "# %%\nx = 1\n\n# %%\nx\n\n"


@pytest.mark.clients
def test_jupyter_takes_what_is_written() -> None:
    import nbformat

    error = entry(OutputItem("error", text="E: 1"), OutputItem("stream", text="x"), error=ErrorInfo("E", "1"))
    text = "".join(notebook([error, HistoryEntry("y", "died", 3), *(entry(output) for output, _ in OUTPUTS)]))
    library: Any = nbformat  # without types, and not there when types are checked
    library.validate(library.reads(text, as_version=4))
