"""Import what was generated, with a runner in place of the real one that keeps what it was asked."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

_STUB = """
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from pydantic import BaseModel
P = TypeVar("P")
R = TypeVar("R")
class ParamsModel(BaseModel):
    def __init_subclass__(cls, nullable: tuple[str, ...] = (), **options: Any) -> None: ...
class ResultModel(BaseModel): ...
class _Call:
    def __call__(self, tool: str, params: BaseModel, returns: type[R], kind: type[BaseModel]) -> R: ...
def caller(server: str) -> _Call: ...
def twin(run: Callable[[P], R]) -> Callable[[P], Coroutine[Any, Any, R]]: ...
"""


class FakeRunner:
    """Answers every call with `answer`."""

    calls: list[tuple[str, str, Any]]
    answer: Any = None

    def __init__(self, server_name: str) -> None:
        self.server_name = server_name

    def run_sync(self, tool_name: str, tool_args: dict[str, Any]) -> Any:
        FakeRunner.calls.append((self.server_name, tool_name, tool_args))
        return FakeRunner.answer

    async def run(self, tool_name: str, tool_args: dict[str, Any]) -> Any:
        return self.run_sync(tool_name, tool_args)


@contextmanager
def importable(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeRunner]]:
    """Make the packages in a directory importable, as ``NAME_OF_DIRECTORY.server.tool``."""
    runner: Any = ModuleType("cellblock.tools.calling.runner")
    runner.ToolRunner = FakeRunner
    FakeRunner.calls, FakeRunner.answer = [], None
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "cellblock.tools.calling.runner", runner)
        patch.syspath_prepend(root.parent)
        patch.setattr(sys, "dont_write_bytecode", True)
        importlib.invalidate_caches()
        try:
            yield FakeRunner
        finally:
            for name in [name for name in sys.modules if name.partition(".")[0] == root.name]:
                del sys.modules[name]


CACHE = Path(__file__).parents[3] / ".mypy_cache" / "generated"
"""What mypy knows of others' packages, which takes it half a minute to find out."""


def check_types(root: Path) -> None:
    """Run mypy over the packages of a directory, with the types of what they are made of alone."""
    stubs = root.parent / "stubs"
    for name, text in (
        ("__init__", ""),
        ("tools/__init__", ""),
        ("tools/calling/__init__", ""),
        ("tools/calling/typed", _STUB),
    ):
        path = stubs / "cellblock" / f"{name}.pyi"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root.parent / "mypy.ini").write_text(f"[mypy]\nstrict = true\nmypy_path = {stubs}:{root.parent}\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", CACHE, "-p", root.name],
        cwd=root.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
