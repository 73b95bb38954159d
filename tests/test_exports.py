"""The public names: there, documented, and loaded when they are used rather than before."""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import cellblock
from cellblock import host

NAMES: list[str] = cellblock.__all__  # type: ignore[attr-defined]  # the stub lists the names themselves

ALIASES = {"ExecutionResult": "CodeExecutionResult", "KernelRecord": "SessionRecord"}
"""Names that KernelBox and ipybox have, and what we call the same."""


def modules_after(code: str) -> set[str]:
    """Return the modules that a fresh interpreter has loaded after some code, beside those it starts with."""
    script = f"import sys, json; before = set(sys.modules)\n{code}\nprint(json.dumps(sorted(set(sys.modules) - before)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_the_stub_lists_names_as_they_are_loaded() -> None:
    stub = ast.parse(Path(cellblock.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    declared = [
        (node.module, one.name, one.asname) for node in stub.body if isinstance(node, ast.ImportFrom) for one in node.names
    ]
    assert [*NAMES, "__version__"] == [*sorted({name for _, name, _ in declared} - {"__version__"}), "__version__"]
    for module, name, exported in declared:
        assert name == exported
        assert getattr(cellblock, name) is getattr(import_module(str(module)), name)


def test_names_of_hosts_are_declared_for_type_checkers_as_they_are_loaded() -> None:
    imports = [node for node in ast.walk(ast.parse(inspect.getsource(host))) if isinstance(node, ast.ImportFrom)]
    declared = {
        one.asname: getattr(import_module(str(node.module)), one.name) for node in imports for one in node.names if one.asname
    }
    assert declared == {name: getattr(host, name) for name in host.__all__}


def test_public_names_are_there_and_documented() -> None:
    undocumented = []
    for name in NAMES:
        value = getattr(cellblock, name)
        assert value.__name__ == ALIASES.get(name, name)
        assert value.__module__.startswith("cellblock.")
        methods = inspect.getmembers(value, inspect.isfunction) if inspect.isclass(value) else []
        public = [(f"{name}.{member}", method) for member, method in methods if not member.startswith("_")]
        ours = [(path, method) for path, method in public if method.__module__.startswith("cellblock")]
        undocumented += [path for path, one in [(name, value), *ours] if not inspect.getdoc(one)]
    assert undocumented == []


def test_every_error_of_ours_is_public() -> None:
    from cellblock import errors

    ours = {name: kind for name, kind in vars(errors).items() if inspect.isclass(kind) and kind.__module__ == errors.__name__}
    raised = {name for name, kind in ours.items() if issubclass(kind, BaseException)}
    assert raised <= set(NAMES)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'cellblock' has no attribute 'Hots'"):
        cellblock.Hots  # type: ignore[attr-defined]  # noqa: B018  # reading it is the test


@pytest.mark.slow
def test_everything_public_is_listed_before_it_is_loaded_and_after() -> None:
    script = (
        "import cellblock; before = dir(cellblock); [getattr(cellblock, name) for name in cellblock.__all__]; "
        "after = dir(cellblock); assert set(cellblock.__all__) <= set(before) & set(after); "
        "assert len(after) == len(set(after)), 'twice'; assert '__version__' in after"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_importing_the_package_loads_next_to_nothing() -> None:
    loaded = modules_after("import cellblock")
    assert {name for name in loaded if name.startswith("cellblock")} == {"cellblock"}
    assert not loaded & {"asyncio", "IPython", "numpy", "dataclasses", "socket", "json", "subprocess", "importlib.metadata"}
    assert len(loaded) < 20


def test_using_the_executor_loads_neither_ipython_nor_a_server() -> None:
    loaded = {name.partition(".")[0] for name in modules_after("from cellblock import CodeExecutor, Host")}
    heavy = {
        "IPython",
        "traitlets",
        "numpy",
        "pandas",
        "matplotlib",
        "fastapi",
        "uvicorn",
        "pydantic",
        "mcp",
        "datamodel_code_generator",
    }
    assert not loaded & heavy


def test_the_first_executor_starts_a_zygote_before_it_loads_what_a_session_needs() -> None:
    script = """
import asyncio, json, os, sys
from cellblock import CodeExecutor

def tell(event, _arguments):
    if event == "subprocess.Popen":
        print(json.dumps(sorted(sys.modules)), flush=True)
        os._exit(0)  # before the zygote starts: nothing is left

async def main():
    async with CodeExecutor(sandbox=False):
        pass

sys.addaudithook(tell)
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    (loaded,) = map(set, map(json.loads, done.stdout.splitlines()))
    assert "cellblock.host.host" in loaded
    assert (
        not {
            "cellblock.service.session.services",
            "cellblock.host.session",
            "cellblock.host.kernels.kernel",
            "cellblock.wire.messages",
        }
        & loaded
    )


def test_an_error_can_be_had_without_the_engine() -> None:
    loaded = modules_after("from cellblock import InvalidInputError")
    assert {name for name in loaded if name.startswith("cellblock")} == {"cellblock", "cellblock.errors"}


def test_the_package_is_typed() -> None:
    from importlib.resources import files

    assert files("cellblock").joinpath("py.typed").is_file()
