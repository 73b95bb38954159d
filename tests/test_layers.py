"""Who may import whom: the house as the design draws it.

Every import counts, also one within a function (it is made late, but it is made) and one under TYPE_CHECKING: a module that
names a type of another layer knows of that layer, and moves when it moves, whether or not it loads it.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from cellblock.host.launch import launcher
from cellblock.launch.zygote import boot

PACKAGE = Path(__file__).parents[1] / "src" / "cellblock"
TESTS = Path(__file__).parent
ARCHITECTURE = PACKAGE.parents[1] / "docs" / "architecture.md"

_TOOLS = {"approvals", "tools/apigen", "tools/calling", "tools/mcp", "tools/serving"}
_FRONT = {"config", "errors", "host", "model", "store", "terminal"} | _TOOLS

LAYERS: dict[str, set[str]] = {
    # Standard library only.
    "errors": {"model"},
    "model": {"errors"},
    "wire": {"errors", "model"},
    # What can be asked of sessions, declared once for whoever asks and whoever answers.
    "operations": {"errors", "model", "wire"},
    "config": {"errors", "model"},
    "terminal": set(),
    "telemetry": {"config", "errors", "model"},
    # What both sides of a session carry values with.
    "exchange": {"errors"},
    "leftovers": set(),
    "threads": set(),
    "turns": set(),
    # Inside the sandbox.
    "worker": {"errors", "exchange", "model", "wire"},
    "sandbox": {"config", "errors", "model", "wire"},  # of config, how a file that somebody else made is read
    "init": {"errors", "leftovers", "sandbox", "wire", "worker"},
    "keeper": {"errors", "init", "sandbox", "wire"},
    "zygote": {"errors", "init", "leftovers", "sandbox", "wire", "worker"},
    "tools": {"tools/calling"},
    "tools/calling": {"errors", "model"},
    # What host and custodian share; the custodian is started by path, and imports nothing of the package.
    "custody": {"errors"},
    # The trusted side. It starts zygotes and keepers by command line: never zygote, never keeper, never worker.
    # The design does not list config; where packages come from is a setting, and config is where settings are read.
    # What lies below the sessions has rows of its own. Whoever may know `host` may know these.
    "host/closing": set(),
    "host/descriptors": set(),
    "host/distrusted": {"config", "errors", "sandbox"},
    "host/environment": {"errors", "host/distrusted", "sandbox", "wire"},
    "host/place": {"leftovers", "threads", "wire"},
    "host/launch_failures": {"errors", "sandbox", "wire"},
    "host/checks": {"config", "errors", "host/launch_failures", "model", "sandbox", "wire"},
    "host/files": {"errors", "sandbox"},
    "host/output": {"errors", "host/files", "model", "wire"},
    "host/launch": {
        "errors",
        "host/checks",
        "host/descriptors",
        "host/launch_failures",
        "host/output",
        "leftovers",
        "model",
        "sandbox",
        "wire",
    },
    "host/options": {"egress", "errors", "host/checks", "host/environment", "host/launch", "host/output", "sandbox"},
    "host/kernels": {
        "errors",
        "host/checks",
        "host/closing",
        "host/descriptors",
        "host/launch",
        "host/launch_failures",
        "host/options",
        "host/output",
        "model",
        "sandbox",
        "telemetry",
        "threads",
        "wire",
    },
    "host/exchange": {"errors", "exchange", "host/kernels", "model", "wire"},
    "host/checkpoints": {
        "config",
        "errors",
        "host/checks",
        "host/closing",
        "host/exchange",
        "host/files",
        "host/kernels",
        "host/launch",
        "host/options",
        "host/place",
        "leftovers",
        "model",
        "sandbox",
        "snapshots",
        "threads",
        "wire",
    },
    "host/survival": {
        "custody",
        "errors",
        "host/checkpoints",
        "host/descriptors",
        "host/kernels",
        "host/launch",
        "host/launch_failures",
        "host/output",
        "host/place",
        "model",
        "sandbox",
        "snapshots",
        "wire",
    },
    "host": {
        "config",
        "custody",
        "egress",
        "errors",
        "host/checkpoints",
        "host/checks",
        "host/closing",
        "host/distrusted",
        "host/environment",
        "host/exchange",
        "host/files",
        "host/kernels",
        "host/launch",
        "host/launch_failures",
        "host/options",
        "host/output",
        "host/place",
        "host/survival",
        "exchange",
        "leftovers",
        "model",
        "packages",
        "sandbox",
        "snapshots",
        "telemetry",
        "whole_file",
        "wire",
    },
    "packages": set(),
    # The files of a session's checkpoints; of sandbox, what stands in the place of a protected name.
    "snapshots": {"errors", "leftovers", "model", "sandbox"},
    "egress": {"errors", "sandbox", "threads", "turns"},
    "approvals": {"config", "errors", "model"},
    "store": {
        "approvals",
        "config",
        "errors",
        "model",
        "threads",
        "tools/mcp",
        "wire",
    },  # of tools/mcp, what the parameters of a server are
    "tools/mcp": {"approvals", "config", "egress", "errors", "model", "sandbox", "tools/calling", "wire"},
    "tools/serving": {"approvals", "config", "errors", "model", "store", "tools/calling", "tools/mcp"},
    "tools/apigen": {"config", "errors", "model", "store", "tools/calling", "tools/mcp"},
    # Named sessions and their executions, for whatever serves them.
    "named": {
        "approvals",
        "errors",
        "host",
        "model",
        "options",
        "running",
        "session_policy",
        "store",
        "threads",
        "turns",
        "wire",
    },
    # Both ends of the socket: the client's needs the standard library, `wire` and `model` only.
    "daemon": {
        "config",
        "custody",
        "errors",
        "host",
        "loop_thread",
        "model",
        "named",
        "operations",
        "settings",
        "store",
        "threads",
        "turns",
        "wire",
    },
    # The fronts.
    "executor": _FRONT
    | {
        "executor_options",
        "gateway",
        "kernel_mgr",
        "listening",
        "named",
        "options",
        "running",
        "signatures",
    },
    "executor_options": {"approvals", "errors", "host", "options", "session_policy", "tool_directories"},
    "signatures": set(),
    "whole_file": set(),
    # What a front runs its sessions with.
    "listening": {"approvals", "host", "model"},
    "running": {"errors", "host", "options", "services"},
    # What joins hosts, tools and the store for a front.
    "services": _FRONT | {"options", "session_policy", "tool_directories"},
    "options": {"approvals", "errors", "tool_directories"},
    # What the arguments of a front mean for a session.
    "session_policy": {"errors", "host"},
    "tool_directories": {"errors"},
    "loop_thread": {"errors"},
    "settings": {"config", "errors"},
    "given_options": set(),
    "sync": {"config", "daemon", "errors", "given_options", "model", "operations", "settings"},
    "sync_executor": {"executor_options", "approvals", "errors", "executor", "host", "loop_thread", "model", "signatures"},
    # What the gateway and its clients call an error.
    "problems": {"errors"},
    "client": {"errors", "host", "model", "problems", "whole_file"},  # of host, what is known of a file
    # The Jupyter protocol, for whatever carries it.
    "jupyter": {"daemon", "errors", "model", "operations", "whole_file", "wire"},
    # Of wire, how the daemon packs results: they are sent on as they are.
    "gateway": _FRONT | {"daemon", "jupyter", "named", "operations", "running", "problems", "settings", "wire"},
    "kernel_mgr": {
        "config",
        "daemon",
        "errors",
        "gateway",
        "host",
        "jupyter",
        "loop_thread",
        "named",
        "running",
        "tools/calling",
    },
    "mcp_server": _FRONT | {"named"},
    "cli": _FRONT
    | {
        "daemon",
        "executor",
        "gateway",
        "given_options",
        "jupyter",
        "mcp_server",
        "operations",
        "settings",
        "sync",
        "whole_file",
    },
    "__main__": {"cli"},
    # The public API: re-exports, lazily.
    "__init__": {
        "client",
        "errors",
        "executor",
        "host",
        "kernel_mgr",
        "model",
        "sandbox",
        "store",
        "sync",
        "sync_executor",
        "terminal",
    }
    | _TOOLS,
}
"""Layer → the layers that it may know, beside itself. A room of tools is a layer of its own, and so is one of host."""

TESTED_IN: dict[str, str] = {
    # Checkpoints and branches of named sessions, through the daemon.
    "fronts/functions/states": "service/daemon/test_checkpoints.py",
    # What a system call means by its arguments: by calls that are answered.
    "launch/init/caller": "launch/init/test_supervisor.py",
    # What several modules do together for `session.files`, attacked while they work.
    "host/files/info": "host/files/test_files.py",
    "host/files/steps": "host/files/test_transfer.py",
    # What a kernel, its process and its session do together: it takes a kernel to see it.
    "model/checkpoints": "host/checkpoints/test_diff.py",
    "launch/init/making": "launch/init/test_init.py",
    "host/host_kernels": "host/test_host.py",
    "host/survival/launchers": "host/survival/test_keeping.py",
    "host/survival/recovery": "host/survival/test_recording.py",
    "host/survival/remains": "host/survival/test_keeping.py",
    "host/survival/states": "host/survival/test_takeover.py",
    "host/survival/taped_channel": "host/survival/test_recording.py",
    "launch/init/seats": "host/checkpoints/test_checkpoints.py",
    "host/checkpoints/resuming": "host/checkpoints/test_checkpoints.py",
    "host/kernels/cell_events": "host/kernels/test_cell.py",
    "host/kernels/cell_result": "host/kernels/test_cell.py",
    "host/kernels/kernel_output": "host/kernels/test_kernel.py",
    "host/kernels/requests": "worker/test_commands.py",
    "host/launch/control": "host/kernels/test_kernel.py",
    "host/launch/spawner": "host/launch/test_launcher.py",
    "worker/values/loading": "host/test_saving.py",
    "worker/pickling": "host/test_saving.py",
    "worker/values/saving": "host/test_saving.py",
    "executor_options": "fronts/executor/test_executor.py",
    "running": "fronts/executor/test_executor.py",
    # What is one with the process that it runs in: a kernel's, a zygote's or a server's.
    "launch/custody/client": "launch/custody/test_custodian.py",
    "launch/init/worker": "launch/init/test_init.py",
    "launch/keeper/keeper": "tools/mcp/test_stdio.py",
    "launch/keeper/sandboxed": "escape/test_servers.py",
    "worker/display": "conformance/test_output.py",
    "worker/values/exchange": "host/test_exchange.py",
    "worker/gate": "conformance/test_signals.py",
    "worker/other_kernel": "service/named/test_kernel_types.py",
    "worker/main": "conformance/test_language.py",
    "worker/questions": "worker/test_completer.py",
    "worker/shell": "conformance/test_language.py",
    # Both ends of the daemon's socket, and what is behind it.
    "service/daemon/main": "service/daemon/test_life.py",
    "loop_thread": "fronts/executor/test_sync.py",
    "service/settings/sources": "service/test_settings.py",
    "service/daemon/connection": "fronts/functions/test_sync.py",
    "service/daemon/client": "service/daemon/test_floods.py",
    "service/daemon/executions": "service/daemon/test_server.py",
    "fronts/functions/arguments": "fronts/functions/test_sync.py",
    "fronts/functions/connection": "fronts/functions/test_sync.py",
    "fronts/functions/sessions": "fronts/functions/test_sync.py",
    "service/daemon/starting": "service/daemon/test_life.py",
    "service/named/executions": "service/named/test_submissions.py",
    "service/named/session": "service/named/test_sessions.py",
    # What takes a gateway to see.
    "fronts/gateway/embedded": "fronts/kernel_mgr/test_server.py",
    "fronts/jupyter/main": "fronts/jupyter/test_zeromq.py",
    "fronts/jupyter/execution": "fronts/gateway/test_jupyter.py",
    "fronts/jupyter/kernel": "fronts/gateway/test_jupyter.py",
    "fronts/jupyter/kernels": "fronts/gateway/test_jupyter.py",
    "fronts/jupyter/questions": "fronts/gateway/test_jupyter.py",
    "fronts/client/async_client": "fronts/client/test_client.py",
    "fronts/client/calls": "fronts/client/test_client.py",
    "fronts/client/transport": "fronts/client/test_client.py",
    "fronts/gateway/app": "fronts/gateway/test_guard.py",
    "fronts/gateway/answers": "fronts/gateway/test_guard.py",
    "fronts/gateway/link": "fronts/gateway/test_events.py",
    # What a client of the server sees of all of it.
    "fronts/mcp_server/clients": "fronts/mcp_server/test_server.py",
    # What only an attack from inside of a sandbox tells: the whole of it is right, or it is not.
    "walls/sandbox/confine": "escape/test_mutations.py",
    "walls/linux/mount_api": "escape/test_mutations.py",
    "walls/sandbox/namespaces": "escape/test_processes.py",
    "walls/linux/syscall": "escape/test_system_calls.py",
    # One half of something whose other half is what its tests are named after.
    "fronts/cli/arguments": "fronts/cli/test_sessions.py",
    "fronts/cli/client": "fronts/cli/test_sessions.py",
    "tools/calling/typed": "tools/apigen/test_render.py",
}
"""Module → the tests of it, if it has none of its own name."""

_DECISIONS = (ast.If, ast.IfExp, ast.BoolOp, ast.Match, ast.Try, ast.While)
SUITES = dict.fromkeys(("worker", "init", "keeper", "sandbox", "egress", "host"), ("conformance", "escape"))
"""Room → tests of whole sessions, sorted by what these do and not by rooms"""

_FEW = 3
"""As many decisions a module may have without tests of its own name."""

_WEB = {"httptools", "websockets"}
OTHERS: dict[str, set[str]] = {
    "worker": {"IPython", "cloudpickle", "comm", "jupyter_client", "matplotlib_inline", "traitlets", "zmq"},
    "egress": {"h11", "idna"},
    "kernel_mgr": {"websockets"},
    "packages": {"pip"},  # of pip, which index it has where nobody says another
    "tools/mcp": {"anyio", "httpcore2", "httpx2", "mcp", "mcp_types", "pydantic", "pydantic_core"},
    "tools/serving": _WEB | {"pydantic", "starlette"},  # of starlette, its types
    "tools/calling": {"pydantic"},  # what generated modules are made of: the session's interpreter has it, or they say so
    "tools/apigen": {"pydantic_core"},
    "named": {"pydantic"},  # which checks what clients send
    "client": {"httpx2"},
    "jupyter": {"zmq"},
    "gateway": {"anyio", "fastapi", "fastapi_offline", "pydantic", "starlette", "uvicorn", "websockets"},
    "settings": {"pydantic", "pydantic_settings"},
    "mcp_server": {"anyio", "mcp", "mcp_types", "pydantic", "starlette", "uvicorn"},
    "cli": {"IPython", "prompt_toolkit", "pygments", "rich", "typer"},
}
"""Layer → what it may import that is neither ours nor Python's."""


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
    """Nothing is started here, so that there is nothing to watch."""


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    """Return everything in a file, read once."""
    return [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]


def layer_of(path: Path, package: Path) -> str:
    """Return the layer that a module belongs to."""
    return layer_named([part.removesuffix(".py") for part in path.relative_to(package).parts])


def layer_named(parts: Sequence[str]) -> str:
    """Return the layer of a name below the package, given in parts."""
    two = "/".join(parts[:2])
    return two if two in LAYERS or (parts[0] == "tools" and parts[1:2] != ["__init__"]) else parts[0]


def imported(path: Path, package: Path) -> Iterator[tuple[int, str]]:
    """Yield every module that a file imports, anywhere in it, as line and absolute name."""
    here = ["cellblock", *path.relative_to(package).parent.parts]
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from cellblock import host` names a layer, and so might every other name that is imported from the package.
            for alias in node.names:
                name = f"{module}.{alias.name}"
                names_layer = module == "cellblock" or name.removeprefix("cellblock.").replace(".", "/") in LAYERS
                yield node.lineno, name if names_layer else module
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            # A name that is put together at run time is not looked at: `cellblock.__getattr__`, and modules to preload.
            yield from (
                (node.lineno, arg.value) for arg in node.args[:1] if isinstance(arg, ast.Constant) and type(arg.value) is str
            )


def violations(package: Path) -> list[str]:
    """Return what is imported under a package that may not be."""
    found = []
    for path in sorted(package.rglob("*.py")):
        layer = layer_of(path, package)
        for line, name in imported(path, package):
            first, _, rest = name.partition(".")
            if name == "cellblock.__version__":
                allowed = True  # a fact about all of it
            elif first == "cellblock":
                target = layer_named(rest.split(".")) if rest else "__init__"
                # A name that is no layer is one of the public API.
                known = LAYERS.get(layer, set())
                allowed = target == layer or (target if target in LAYERS else "__init__") in known
                allowed = allowed or (target.startswith("host/") and "host" in known)
            else:
                allowed = first in sys.stdlib_module_names or first in OTHERS.get(layer, ())
            if not allowed:
                found.append(f"{path.relative_to(package)}:{line}: {layer} may not import {name}")
    return found


def test_nobody_imports_what_it_may_not_know() -> None:
    assert violations(PACKAGE) == []


def test_every_module_belongs_to_a_layer() -> None:
    assert {layer_of(path, PACKAGE) for path in PACKAGE.rglob("*.py")} <= set(LAYERS)


def test_layers_know_only_layers() -> None:
    assert set().union(*LAYERS.values()) <= set(LAYERS)
    assert set(OTHERS) <= set(LAYERS)


def test_no_layer_knows_one_that_knows_it() -> None:
    """Except for errors and results, which name each other's types."""
    for layer, known in LAYERS.items():
        below, todo = set(known), [*known]
        while todo:
            fresh = LAYERS[todo.pop()] - below
            below |= fresh
            todo += fresh
        assert layer not in below or layer in ("errors", "model")


def circle_of(start: str, known: Mapping[str, set[str]]) -> set[str]:
    """Return the modules that a module knows, directly or not, and that know it likewise."""

    def reached(first: str, of: Mapping[str, set[str]]) -> set[str]:
        found, todo = set[str](), [first]
        while todo:
            fresh = of.get(todo.pop(), set()) - found
            found |= fresh
            todo += fresh
        return found

    return reached(start, known) & reached(start, users())


def test_no_more_than_two_modules_of_the_host_know_each_other() -> None:
    known: dict[str, set[str]] = {}
    for module, using in users().items():
        for user in using:
            known.setdefault(user, set()).add(module)
    circles = {frozenset(circle_of(module, known)) for module in known if module.startswith("host/")}
    assert [sorted(circle) for circle in circles if len(circle) > 2] == []


@pytest.mark.parametrize(
    ("module", "code", "complaint"),
    [
        ("wire/frames.py", "import IPython", "wire may not import IPython"),
        ("wire/frames.py", "from cellblock.host import Host", "wire may not import cellblock.host"),
        ("model.py", "import numpy as np", "model may not import numpy"),
        ("errors.py", "from .host.session import Session", "errors may not import cellblock.host.session"),
        ("worker/main.py", "from cellblock.launch.zygote import server", "worker may not import cellblock.launch.zygote"),
        ("worker/main.py", "import pydantic.fields", "worker may not import pydantic.fields"),
        ("worker/deep/er.py", "from ...host import kernel", "worker may not import cellblock.host"),
        (
            "launch/zygote/server.py",
            "from cellblock.host.launch.launcher import Launcher",
            "zygote may not import cellblock.host.launch.launcher",
        ),
        (
            "host/host.py",
            "from cellblock.launch.zygote.boot import EXIT_TOO_OLD",
            "host may not import cellblock.launch.zygote.boot",
        ),
        ("host/host.py", "from ..zygote import boot", "host may not import cellblock.launch.zygote"),
        ("host/host.py", "from .. import worker", "host may not import cellblock.worker"),
        ("host/host.py", "from cellblock import worker", "host may not import cellblock.worker"),
        ("host/host.py", "from cellblock import CodeExecutor", "host may not import cellblock.CodeExecutor"),
        ("host/host.py", "import cellblock", "host may not import cellblock"),
        ("host/host.py", "def f():\n    import cellblock.worker.main", "host may not import cellblock.worker.main"),
        (
            "host/host.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from cellblock.worker.main import Worker",
            "host may not import cellblock.worker.main",
        ),
        ("host/host.py", "try:\n    pass\nexcept ImportError:\n    import fastapi", "host may not import fastapi"),
        ("host/launch/control.py", "from cellblock.host import Host", "host/launch may not import cellblock.host"),
        (
            "host/kernels/kernel.py",
            "from cellblock.host.survival.tape import Tape",
            "host/kernels may not import cellblock.host.survival.tape",
        ),
        ("host/host.py", "__import__('cellblock.worker')", "host may not import cellblock.worker"),
        ("host/host.py", "import importlib\nimportlib.import_module('mcp.types')", "host may not import mcp.types"),
        ("tools/calling/runner.py", "from cellblock.host import Session", "tools/calling may not import cellblock.host"),
        (
            "fronts/executor/executor.py",
            "from cellblock.wire.messages import Execute",
            "executor may not import cellblock.wire.messages",
        ),
        ("gateway/rest.py", "from cellblock.launch.zygote import server", "gateway may not import cellblock.launch.zygote"),
        ("mcp_server.py", "import fastapi", "mcp_server may not import fastapi"),
        ("cli/main.py", "from cellblock.worker import main", "cli may not import cellblock.worker"),
        ("newcomer.py", "from cellblock.errors import CellblockError", "newcomer may not import cellblock.errors"),
    ],
)
def test_what_is_forbidden_is_found(tmp_path: Path, module: str, code: str, complaint: str) -> None:
    path = tmp_path / module
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"from __future__ import annotations\nimport os.path\n{code}\n", encoding="utf-8")
    (found,) = violations(tmp_path)
    assert found.endswith(complaint)
    assert found.startswith(f"{module}:")


@pytest.mark.parametrize(
    ("module", "code"),
    [
        (
            "host/session.py",
            "from cellblock.host.kernels.kernel import Kernel\nfrom . import cell\nfrom ..wire import messages",
        ),
        ("worker/shell.py", "from IPython.core import magic\nfrom traitlets.config import Config"),
        ("launch/init/init.py", "from cellblock.worker.main import Worker"),
        ("fronts/executor/executor.py", "from cellblock.host import Host"),
        ("gateway/rest.py", "from fastapi import FastAPI"),
        ("cli/main.py", "from cellblock import __version__"),
        ("__init__.py", "from cellblock.fronts.executor.executor import CodeExecutor"),
    ],
)
def test_what_is_allowed_is_not_found(tmp_path: Path, module: str, code: str) -> None:
    path = tmp_path / module
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(code, encoding="utf-8")
    assert violations(tmp_path) == []


def test_the_host_knows_the_exit_code_that_it_may_not_import() -> None:
    assert launcher._EXIT_TOO_OLD == boot.EXIT_TOO_OLD


def test_the_page_about_the_architecture_names_every_module() -> None:
    room, named = "", set()
    for line in ARCHITECTURE.read_text().splitlines():
        if heading := re.match(r"### `(.+)/`", line):
            room = heading[1].removeprefix("cellblock").rstrip("/")
        elif row := re.match(r"\| `(\w+)` \| \S", line):
            named.add(f"{room}/{row[1]}".lstrip("/"))
    modules = {str(path.relative_to(PACKAGE).with_suffix("")) for path in PACKAGE.rglob("*.py")}
    wanted = {name for name in modules if name == "__init__" or not name.endswith("/__init__")}
    assert named - wanted == set(), f"{ARCHITECTURE.name} names modules that do not exist: take their rows out"
    assert wanted - named == set(), f"{ARCHITECTURE.name} leaves modules out: add a row for each to the table of its directory"


def test_the_table_for_contributors_names_what_exists() -> None:
    text = (ARCHITECTURE.parents[1] / "CONTRIBUTING.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ") and "`" in line]
    named = {name for row in rows for name in re.findall(r"`([\w/]+(?:\.py|/))`", row.partition(" | ")[2])}
    assert len(named) > len(rows)
    assert {name for name in named if not (PACKAGE / name).exists()} == set()


def decisions(path: Path) -> int:
    """Return how often a module decides something, beside what is imported for types only."""
    types_only = {node for node in nodes(path) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"}
    return sum(isinstance(node, _DECISIONS) for node in nodes(path) if node not in types_only)


@functools.cache
def users() -> dict[str, set[str]]:
    """Return the modules that import each module. Those that only pass names on are not counted."""
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in nodes(path) if path.stem != "__init__" else ():
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cellblock"):
                for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                    below = (name or "").replace(".", "/").removeprefix("cellblock/")
                    found.setdefault(below, set()).add(str(path.relative_to(PACKAGE).with_suffix("")))
    return found


def has_tests(module: str, seen: Sequence[str] = ()) -> bool:
    """Whether there are tests of a module's own name: in its place, or in a suite that runs for all kinds of sessions.

    A module that one other module alone uses is a part of that one, and is tested with it.
    """
    room, _, name = module.rpartition("/")
    if any((TESTS / place / f"test_{name}.py").exists() for place in (room, *SUITES.get(room.split("/")[0], ()))):
        return True
    using = users().get(module, set())
    return len(using) == 1 and not using & {*seen} and has_tests(next(iter(using)), (*seen, module))


def test_a_module_that_decides_something_has_tests_of_its_own_name() -> None:
    modules = {
        str(path.relative_to(PACKAGE).with_suffix("")): path for path in PACKAGE.rglob("*.py") if path.stem != "__init__"
    }
    without = {name for name, path in modules.items() if decisions(path) > _FEW and not has_tests(name)}
    assert without - set(TESTED_IN) == set(), "write tests/ROOM/test_MODULE.py for each"
    assert set(TESTED_IN) - without == set(), (
        "these have tests of their own name, decide little, or are gone: take their rows out"
    )
    assert {test for test in TESTED_IN.values() if not (TESTS / test).exists()} == set()
