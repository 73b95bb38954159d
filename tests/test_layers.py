"""Who may import whom: the districts of the house, and the rooms inside each.

Every import counts, also one within a function (it is made late, but it is made) and one under TYPE_CHECKING: a module that
names a type of another layer knows of that layer, and moves when it moves, whether or not it loads it.
"""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from cellblock.host.launch import launcher
from cellblock.launch.zygote import boot
from sources import PACKAGE, nodes

TESTS = Path(__file__).parent
ARCHITECTURE = PACKAGE.parents[1] / "docs" / "architecture.md"

DISTRICTS: dict[str, set[str]] = {
    # What all of it speaks of. Standard library only, as are wire, operations and worker.
    "errors": {"model"},
    "model": {"errors"},
    "common": {"errors"},
    "wire": {"errors", "model"},
    # What can be asked of sessions, declared once for whoever asks and whoever answers.
    "operations": {"errors", "model", "wire"},
    # Where code runs, among hostile neighbours.
    "worker": {"errors", "model", "wire"},
    # What contains it.
    "walls": {"common", "errors", "model", "wire"},
    # Small trusted programs between the code and the host.
    "launch": {"errors", "walls/linux", "walls/sandbox", "wire", "worker"},
    # The trusted side. It starts zygotes and keepers by command line: never zygote, never keeper, never worker.
    "host": {"common", "errors", "launch/custody", "launch/leftovers", "model", "walls", "wire"},
    "tools": {"common", "errors", "model", "walls/egress", "walls/proxy", "walls/sandbox", "wire"},
    "service": {"common", "errors", "host", "launch/custody", "model", "operations", "tools", "wire"},
    # Sessions on other machines.
    "cluster": {"common", "errors", "launch/custody", "model", "operations", "service/daemon", "wire"},
    "fronts": {"cluster", "common", "errors", "host", "model", "operations", "service", "tools", "wire"},
    # What agent frameworks use sessions by, and names of other packages: users import these, so their places do not change.
    "adapters": {"common", "errors", "fronts/executor", "host/place", "host/programs", "model"},
    "compat": {"__init__", "errors", "service/settings"},
    # The public names and commands, whose places do not change.
    "__init__": {"common", "errors", "fronts", "host", "model", "tools", "walls"},
    "__main__": {"fronts/cli"},
    "daemon": {"service/daemon"},
    "jupyter": {"fronts/jupyter"},
    "kernel_mgr": {"fronts/kernel_mgr"},
}
"""District → the districts, or rooms of these, that it may know beside itself. Each stands below those that know it."""

ROOMS: dict[str, set[str]] = {
    "wire/values": set(),
    "worker/forks": {"worker"},
    "worker/values": {"worker"},
    "walls/linux": set(),
    "walls/sandbox": {"walls/linux"},
    "walls/egress": {"walls/sandbox"},
    "walls/keys": {"walls/egress", "walls/linux"},
    "walls/proxy": {"walls/egress", "walls/keys", "walls/sandbox"},
    "walls/packages": set(),
    "launch/leftovers": set(),
    "launch/custody": set(),  # started by path: it imports nothing of the package, and its client errors only
    "launch/init": {"launch/leftovers"},
    "launch/keeper": {"launch/init"},
    "launch/zygote": {"launch/init", "launch/leftovers"},
    # What lies below the sessions.
    "host/closing": set(),
    "host/descriptors": set(),
    "host/distrusted": set(),
    "host/environment": {"host/distrusted"},
    "host/place": set(),
    "host/launch_failures": set(),
    "host/snapshots": set(),
    "host/telemetry": set(),
    "host/checks": {"host/launch_failures"},
    "host/files": set(),
    "host/output": {"host/files"},
    "host/launch": {"host/checks", "host/descriptors", "host/launch_failures", "host/output"},
    "host/options": {"host/checks", "host/environment", "host/launch", "host/output"},
    "host/kernels": {
        "host/checks",
        "host/closing",
        "host/descriptors",
        "host/launch",
        "host/launch_failures",
        "host/options",
        "host/output",
        "host/telemetry",
    },
    "host/environments": {"host/environment", "host/files", "host/kernels", "host/launch"},
    "host/clones": {"host/environments", "host/files", "host/launch", "host/options", "host/place"},
    "host/exchange": {"host/kernels"},
    "host/explanations": {"host/files", "host/kernels"},
    "host/programs": {"host/checks", "host/descriptors", "host/kernels", "host/telemetry"},
    "host/checkpoints": {
        "host/checks",
        "host/clones",
        "host/closing",
        "host/exchange",
        "host/files",
        "host/kernels",
        "host/launch",
        "host/options",
        "host/place",
        "host/snapshots",
    },
    "host/survival": {
        "host/checkpoints",
        "host/clones",
        "host/descriptors",
        "host/kernels",
        "host/launch",
        "host/launch_failures",
        "host/output",
        "host/place",
        "host/snapshots",
    },
    "tools/calling": set(),
    "tools/approvals": set(),
    "tools/mcp": {"tools/approvals", "tools/calling"},
    "tools/registry": {"tools/mcp"},
    "tools/serving": {"tools/approvals", "tools/calling", "tools/mcp", "tools/registry"},
    "tools/apigen": {"tools/calling", "tools/mcp", "tools/registry"},
    "service/settings": set(),
    "service/session": set(),
    "service/store": set(),
    "service/named": {"service/session", "service/store"},
    "service/daemon": {"service/named", "service/settings", "service/store"},
    "fronts/given_options": set(),
    "fronts/problems": set(),
    "fronts/where": set(),
    "fronts/functions": {"fronts/given_options", "fronts/where"},
    "fronts/client": {"fronts/problems"},
    "fronts/jupyter": set(),
    "fronts/gateway": {"fronts/jupyter", "fronts/problems", "fronts/where"},
    "fronts/e2b": {"fronts/gateway", "fronts/jupyter", "fronts/problems", "fronts/where"},
    "fronts/kernel_mgr": {"fronts/gateway", "fronts/jupyter"},
    "fronts/executor": {"fronts/gateway", "fronts/kernel_mgr"},
    "fronts/rollouts": {"fronts/executor"},
    "fronts/mcp_server": {"fronts/gateway", "fronts/where"},
    "fronts/cli": {
        "fronts/client",
        "fronts/e2b",
        "fronts/executor",
        "fronts/functions",
        "fronts/gateway",
        "fronts/given_options",
        "fronts/jupyter",
        "fronts/mcp_server",
        "fronts/where",
    },
}
"""Room → the rooms of its district that it may know. What stands in a district itself may know all of its rooms."""

ALONE: dict[str, set[str]] = {
    # Code in a session, and whatever makes a tool of it, loads no more of cellblock.
    "tools/calling": {"errors", "model"},
    # What speaks the protocols of the network knows no sessions.
    "walls/egress": {"common", "errors", "walls/linux"},
    "walls/proxy": {"common", "errors"},
    "walls/packages": {"common"},
    "walls/linux": {"errors", "wire"},
    "launch/custody": {"errors"},
    "launch/leftovers": set(),
    "fronts/client": {"common", "errors", "host", "model", "operations"},
    "fronts/functions": {"common", "errors", "model", "operations", "service/daemon", "service/settings"},
    "fronts/jupyter": {"common", "errors", "model", "operations", "service/daemon", "wire"},
    "fronts/executor": {"common", "errors", "host", "model", "service/named", "service/session", "tools/approvals"},
}
"""Room → all that it may know outside of its district, if that is less than its district may."""

TESTED_IN: dict[str, str] = {
    # What a system call means by its arguments: by calls that are answered.
    "launch/init/caller": "launch/init/test_supervisor.py",
    # The proxy with a connection, and secrets with clients in a session.
    "walls/egress/exchange": "walls/egress/test_proxy.py",
    "walls/egress/serving": "walls/keys/test_judged.py",
    "walls/keys/fill": "walls/keys/test_opened.py",
    "walls/egress/scan": "walls/keys/test_opened.py",
    "walls/keys/session_keys": "host/test_secrets.py",
    "walls/keys/template_process": "host/test_secrets.py",
    "walls/keys/turnkey": "walls/keys/test_opened.py",
    # What several modules do together for `session.files`, attacked while they work.
    "host/files/info": "host/files/test_workspace_files.py",
    "host/files/steps": "host/files/test_transfer.py",
    # What a kernel, its process and its session do together: it takes a kernel to see it.
    "fronts/mcp_server/deciding": "fronts/mcp_server/test_program_runs.py",
    "model/checkpoints": "host/checkpoints/test_diff.py",
    "launch/init/making": "launch/init/test_init.py",
    # What is mounted in a session, and when.
    "launch/init/blocking": "host/test_placeholders.py",
    "walls/sandbox/mounts": "escape/test_files.py",
    "walls/linux/targets": "escape/test_files.py",
    "host/survival/launchers": "host/survival/test_keeping.py",
    "host/survival/remains": "host/survival/test_keeping.py",
    "launch/init/seats": "host/checkpoints/test_checkpoints.py",
    "host/kernels/requests": "worker/test_commands.py",
    "host/session_host": "host/test_host.py",
    "host/launch/spawner": "host/launch/test_launcher.py",
    "worker/values/loading": "host/test_saving.py",
    "worker/pickling": "host/test_saving.py",
    "worker/values/saved_values": "host/test_saving.py",
    "fronts/executor/executor_options": "fronts/executor/test_executor.py",
    "service/session/running": "fronts/executor/test_executor.py",
    # A program and its streams, in every kind of sandbox.
    # Each step, attacked.
    "host/environments/sandbox": "escape/test_packages.py",
    "walls/packages/fetch": "walls/packages/test_mirror.py",
    "host/programs/process": "host/programs/test_background_programs.py",
    "host/programs/stdin": "host/programs/test_background_programs.py",
    "model/programs": "host/programs/test_background_programs.py",
    "fronts/rollouts/trajectory": "fronts/rollouts/test_pool.py",
    # Both ends of a cell that is still being written.
    "host/holding": "host/test_eager.py",
    "worker/eager": "host/test_eager.py",
    # What is one with the process that it runs in: a kernel's, a zygote's or a server's.
    "launch/custody/custodian_client": "launch/custody/test_custodian.py",
    "launch/init/worker": "launch/init/test_init.py",
    "worker/environment_packages": "host/environments/test_trust.py",
    "launch/keeper/keeper": "tools/mcp/test_stdio.py",
    "launch/keeper/sandboxed": "escape/test_servers.py",
    "worker/display": "conformance/test_output.py",
    "worker/values/exchange": "host/test_exchange.py",
    "worker/gate": "conformance/test_signals.py",
    "worker/other_kernel": "service/named/test_kernel_types.py",
    "worker/main": "conformance/test_language.py",
    "worker/editor_answers": "worker/test_completer.py",
    "worker/shell": "conformance/test_language.py",
    # Both ends of the daemon's socket, and what is behind it.
    "service/daemon/main": "service/daemon/test_shutdown.py",
    "common/loop_thread": "fronts/executor/test_sync.py",
    "service/settings/sources": "service/test_settings.py",
    "service/daemon/daemon_connection": "fronts/functions/test_sync.py",
    "service/daemon/client_connection": "service/daemon/test_floods.py",
    "service/daemon/execution_handlers": "service/daemon/test_daemon_state.py",
    "service/daemon/listening": "service/daemon/test_shutdown.py",
    "fronts/functions/connection": "fronts/functions/test_sync.py",
    "operations/base_client": "fronts/functions/test_sync.py",
    "operations/async_base_client": "fronts/client/test_calls.py",
    "fronts/functions/session_functions": "fronts/functions/test_sync.py",
    "service/daemon/starting": "service/daemon/test_shutdown.py",
    "service/named/executions": "service/named/test_submissions.py",
    "service/named/session": "service/named/test_named_sessions.py",
    # What takes a gateway to see.
    "fronts/gateway/embedded": "fronts/kernel_mgr/test_server.py",
    "fronts/jupyter/main": "fronts/jupyter/test_zeromq.py",
    "fronts/jupyter/execution": "fronts/gateway/test_jupyter.py",
    "fronts/jupyter/kernel": "fronts/gateway/test_jupyter.py",
    "fronts/jupyter/kernels": "fronts/gateway/test_jupyter.py",
    "fronts/jupyter/request_handlers": "fronts/gateway/test_jupyter.py",
    "fronts/client/async_client": "fronts/client/test_client.py",
    "fronts/client/transport": "fronts/client/test_client.py",
    "fronts/gateway/app": "fronts/gateway/test_guard.py",
    "service/daemon/link": "fronts/gateway/test_events.py",
    "fronts/gateway/forwarding": "fronts/gateway/test_ports.py",
    # Both ends of a cluster's connections, and what is between: it takes nodes to see.
    "cluster/director": "cluster/test_faults.py",
    "cluster/emptying": "cluster/test_moving.py",
    "cluster/ray_nodes": "cluster/test_faults.py",
    "cluster/reaching": "cluster/test_conformance.py",
    "cluster/renewal": "cluster/test_directors.py",
    "service/named/moving": "cluster/test_moving.py",
    "cluster/director_calls": "cluster/test_faults.py",
    "cluster/host_actor": "cluster/test_faults.py",
    "cluster/local": "cluster/test_conformance.py",
    "cluster/node": "cluster/test_faults.py",
    "cluster/routing": "cluster/test_conformance.py",
    "cluster/session": "cluster/test_hosts.py",
    "fronts/where": "cluster/test_fronts.py",
    # What a client of the server sees of all of it.
    "fronts/mcp_server/clients": "fronts/mcp_server/test_server.py",
    "fronts/mcp_server/places": "fronts/mcp_server/test_server.py",
    # What only an attack from inside of a sandbox tells: the whole of it is right, or it is not.
    "walls/sandbox/confine": "escape/test_mutations.py",
    "walls/linux/mount_api": "escape/test_mutations.py",
    "walls/linux/syscall": "escape/test_system_calls.py",
    # What only the framework's own agents and suites tell: `make frameworks`.
    "adapters/code_sandboxes": "frameworks/suite_code_sandboxes.py",
    "adapters/code_sandboxes_results": "frameworks/suite_code_sandboxes.py",
    "adapters/deepagents": "frameworks/suite_deepagents.py",
    "adapters/dspy": "frameworks/suite_dspy.py",
    "adapters/google_adk": "frameworks/suite_google_adk.py",
    "adapters/inspect_ai": "frameworks/suite_inspect_ai.py",
    "adapters/nemo_gym": "frameworks/suite_nemo_gym.py",
    "adapters/openai_agents": "frameworks/suite_openai_agents.py",
    "adapters/openai_terminals": "frameworks/suite_openai_agents.py",
    "adapters/pydantic_ai": "frameworks/suite_pydantic_ai.py",
    "adapters/smolagents": "frameworks/suite_smolagents.py",
    "adapters/strands": "frameworks/suite_strands.py",
    "adapters/verifiers": "frameworks/suite_verifiers.py",
    "adapters/verifiers_processes": "frameworks/suite_verifiers.py",
    # One half of something whose other half is what its tests are named after.
    "fronts/cli/arguments": "fronts/cli/test_session_commands.py",
    "fronts/cli/daemon_access": "fronts/cli/test_session_commands.py",
}
"""Module → the tests of it, if it has none of its own name."""

_DECISIONS = (ast.If, ast.IfExp, ast.BoolOp, ast.Match, ast.Try, ast.While)
SUITES = dict.fromkeys(("worker", "launch", "walls", "host"), ("conformance", "escape"))
"""Room → tests of whole sessions, sorted by what these do and not by rooms"""

_FEW = 3
"""As many decisions a module may have without tests of its own name."""

_WEB = {"httptools", "websockets"}
OTHERS: dict[str, set[str]] = {
    "common": {"fsspec", "h11", "opentelemetry"},  # the last if the program has loaded it
    "adapters": {
        "PIL",
        "agents",
        "code_sandboxes",
        "deepagents",
        "dspy",
        "google",
        "inspect_ai",
        "nemo_gym",
        "pydantic",
        "pydantic_ai",
        "pydantic_core",
        "smolagents",
        "strands",
        "verifiers",
    },
    "worker": {"IPython", "cloudpickle", "e2b_charts", "comm", "jupyter_client", "matplotlib_inline", "traitlets", "zmq"},
    "walls/egress": {"h11", "idna"},
    "walls/proxy": {"h11"},
    "fronts/kernel_mgr": {"websockets"},
    "walls/sandbox": {"yaml"},  # if installed
    "walls/keys": {"cryptography", "h11", "keyring"},  # keyring if installed
    "walls/packages": {"h11", "pip"},  # of pip, which index it has where nobody says another
    "tools/mcp": {
        "anyio",
        "httpcore2",
        "httpx2",
        "keyring",
        "mcp",
        "mcp_types",
        "pydantic",
        "pydantic_core",
    },  # keyring if installed
    "tools/serving": _WEB | {"pydantic", "starlette"},  # of starlette, its types
    "tools/calling": {"pydantic"},  # what generated modules are made of: the session's interpreter has it, or they say so
    "tools/apigen": {"pydantic_core"},
    "service/named": {"pydantic"},  # which checks what clients send
    "fronts/client": {"httpx2"},
    "fronts/jupyter": {"zmq"},
    "fronts/e2b": {"pydantic", "starlette"},
    "fronts/gateway": {"anyio", "fastapi", "fastapi_offline", "h11", "pydantic", "starlette", "uvicorn", "websockets"},
    "service/settings": {"pydantic", "pydantic_settings"},
    "cluster": {"cryptography", "ray"},
    "fronts/mcp_server": {"anyio", "mcp", "mcp_types", "pydantic", "starlette", "uvicorn"},
    "fronts/cli": {"IPython", "prompt_toolkit", "pygments", "rich", "typer"},
}
"""Room → what it may import that is neither ours nor Python's."""


def room_of(path: Path, package: Path) -> str:
    """Return the room that a module belongs to."""
    return room_named([part.removesuffix(".py") for part in path.relative_to(package).parts])


def room_named(parts: Sequence[str]) -> str:
    """Return the room of a name below the package, given in parts; the district if it stands in no room of it."""
    return inner if (inner := "/".join(parts[:2])) in ROOMS else parts[0]


def may_know(room: str, target: str) -> bool:
    """Whether a room may import of another one."""
    district = room.partition("/")[0]
    if target.partition("/")[0] == district:
        return target == room or room == district or target in ROOMS[room]
    known = ALONE.get(room, DISTRICTS.get(district, set()))
    return any(target == one or target.startswith(f"{one}/") for one in known)


def _name(called: ast.expr) -> str:
    """Return the last part of the name of what is called; empty if it has none."""
    return called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""


def imported(path: Path, package: Path) -> Iterator[tuple[int, str]]:
    """Yield every module that a file imports, anywhere in it, as line and absolute name."""
    here = ["cellblock", *path.relative_to(package).parent.parts]
    for node in nodes(path, ast.Import, ast.ImportFrom, ast.Call):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from cellblock import host` names a district, and so might every other name that is imported from the package.
            for alias in node.names:
                full = f"{module}.{alias.name}"
                is_room = module == "cellblock" or full.removeprefix("cellblock.").replace(".", "/") in ROOMS
                yield node.lineno, full if is_room else module
        elif isinstance(node, ast.Call) and _name(node.func).endswith(("import_module", "__import__")):
            # A name that is put together at run time is not looked at: `cellblock.__getattr__`, and modules to preload.
            yield from (
                (node.lineno, arg.value) for arg in node.args[:1] if isinstance(arg, ast.Constant) and type(arg.value) is str
            )


def violations(package: Path) -> list[str]:
    """Return what is imported under a package that may not be."""
    found = []
    for path in sorted(package.rglob("*.py")):
        room = room_of(path, package)
        district = room.partition("/")[0]
        for line, name in imported(path, package):
            first, _, rest = name.partition(".")
            if first == "cellblock":
                target = room_named(rest.split(".")) if rest else "__init__"
                # A name that is no district is one of the public API.
                allowed = may_know(room, target if target.partition("/")[0] in DISTRICTS else "__init__")
            else:
                allowed = (
                    first in sys.stdlib_module_names or first in OTHERS.get(room, ()) or first in OTHERS.get(district, ())
                )
            if not allowed:
                found.append(f"{path.relative_to(package)}:{line}: {room} may not import {name}")
    return found


def test_nobody_imports_what_it_may_not_know() -> None:
    assert violations(PACKAGE) == []


def test_every_module_belongs_to_a_district() -> None:
    assert {room_of(path, PACKAGE).partition("/")[0] for path in PACKAGE.rglob("*.py")} == set(DISTRICTS)


def test_the_tables_name_what_exists() -> None:
    exist = {
        str(path.relative_to(PACKAGE).with_suffix("")) for path in PACKAGE.rglob("*") if path.suffix == ".py" or path.is_dir()
    }
    named = {*ROOMS, *ALONE, *OTHERS}.union(*DISTRICTS.values(), *ROOMS.values(), *ALONE.values())
    assert named - exist == set()
    assert set(ALONE) <= set(ROOMS)


def test_few_modules_have_the_same_name() -> None:
    """A reader who opens files by their names finds the right one. Fronts and handlers say what they are: `file_routes`."""
    names = Counter(path.stem for path in PACKAGE.rglob("*.py") if path.stem != "__init__")
    assert {name: count for name, count in names.items() if count > 3} == {}


def test_the_ground_floor_has_at_most_twelve_rooms() -> None:
    named_by_users = {"adapters", "compat", "kernel_mgr"}
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert named_by_users < rooms
    assert len(rooms - named_by_users) <= 12


@pytest.mark.parametrize("table", [DISTRICTS, ROOMS], ids=["districts", "rooms"])
def test_nothing_knows_what_knows_it(table: dict[str, set[str]]) -> None:
    """Except for errors and results, which name each other's types."""
    for one, known in table.items():
        below, todo = set(known), [*known]
        while todo:
            fresh = table.get(todo.pop(), set()) - below
            below |= fresh
            todo += fresh
        assert one not in below or one in ("errors", "model")


def test_no_modules_know_each_other() -> None:
    known: dict[str, set[str]] = {}
    for module, using in users().items():
        for user in using:
            known.setdefault(user, set()).add(module)
    known["host/kernels/family"].remove("host/kernels/kernel")  # a type: a kernel has a family, which counts its kernels
    graphlib.TopologicalSorter(known).prepare()


@pytest.mark.parametrize(
    ("module", "code", "complaint"),
    [
        ("wire/frames.py", "import IPython", "wire may not import IPython"),
        ("errors.py", "from .host.session import Session", "errors may not import cellblock.host.session"),
        ("worker/main.py", "import pydantic.fields", "worker may not import pydantic.fields"),
        ("worker/deep/er.py", "from ...host import kernel", "worker may not import cellblock.host"),
        (
            "launch/zygote/fork_server.py",
            "from cellblock.host.launch.launcher import Launcher",
            "launch/zygote may not import cellblock.host.launch.launcher",
        ),
        ("host/host.py", "from ..launch.zygote import boot", "host may not import cellblock.launch.zygote"),
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
        ("host/host.py", "import importlib\nimportlib.import_module('mcp.types')", "host may not import mcp.types"),
        ("tools/calling/runner.py", "from cellblock.host import Session", "tools/calling may not import cellblock.host"),
        ("fronts/mcp_server/rest.py", "import fastapi", "fronts/mcp_server may not import fastapi"),
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
        ("fronts/gateway/rest.py", "from fastapi import FastAPI"),
        ("fronts/cli/main.py", "from cellblock.common.version import __version__"),
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


def test_the_table_for_contributors_names_what_exists() -> None:
    text = (ARCHITECTURE.parents[1] / "CONTRIBUTING.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ") and "`" in line]
    named = {name for row in rows for name in re.findall(r"`([\w/]+(?:\.py|/))`", row.partition(" | ")[2])}
    assert len(named) > len(rows)
    assert {name for name in named if not (PACKAGE / name).exists()} == set()
    rooms = {path.parent.relative_to(PACKAGE).parts[0] for path in PACKAGE.rglob("*/__init__.py")}
    assert rooms - {name.partition("/")[0] for name in named} == set(), "say in the table when to look there"


def test_adapters_are_thin() -> None:
    """An adapter says what a framework calls what; what it would have to do beyond that belongs below."""
    for path in (PACKAGE / "adapters").glob("*.py"):
        strings = [node.value for node in nodes(path, ast.Expr) if isinstance(node.value, ast.Constant)]
        documented = {line for node in strings for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
        lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        code = [
            line for number, line in lines if line.strip() and not line.lstrip().startswith("#") and number not in documented
        ]
        assert len(code) <= 120, path.name


def decisions(path: Path) -> int:
    """Return how often a module decides something, beside what is imported for types only."""
    types_only = {node for node in nodes(path, ast.If) if ast.unparse(node.test) == "TYPE_CHECKING"}
    return sum(node not in types_only for node in nodes(path, *_DECISIONS))


@functools.cache
def users() -> dict[str, set[str]]:
    """Return the modules that import each module. Those that only pass names on are not counted."""
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in nodes(path, ast.ImportFrom) if path.stem != "__init__" else ():
            if (node.module or "").startswith("cellblock"):
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
