"""``cellblock doctor``, ``config`` and ``policy``: check this machine, show settings, explain policies."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cellblock.common.sandbox_options import SandboxOptions
from cellblock.common.terminal import printable
from cellblock.errors import CellblockError, InvalidInputError, LaunchError
from cellblock.fronts.cli.arguments import MACHINE, Json, changes_policies, new_app, path
from cellblock.fronts.cli.output import finish, finish_list, painted

if TYPE_CHECKING:
    from cellblock.host import Policy, Tier

policy = new_app("Work with sandbox policies.")

_HEADINGS = {
    "readable": "Readable",
    "writable": "Writable",
    "private": "Private, and removed when the session ends",
    "read_only": "Read-only inside a writable directory",
    "reserved": "Missing, and cannot be created: placeholders while code, background work or a server runs",
    "masked": "Masked",
    "reachable": "Reachable on the network",
    "unreachable": "Never reachable",
    "devices": "Devices",
}
_ALWAYS = {
    "unreachable": ("this machine, private networks, clouds' metadata services, unless the policy names the address itself",)
}
_NOT_WITHOUT_MOUNTS = ("read_only", "reserved", "masked", "unreachable")
_STYLES = {"ok": "green", "MISSING": "red", "note": "yellow"}
_BYTES = ("memory", "tmp", "file_size", "packages")
_TEMPLATE = """\
// What a session's sandbox allows: CodeExecutor(sandbox_config="sandbox.json"). Lines that begin with // are comments.
// What is left out keeps the default. For memory, paths and hosts alone, no file is needed: --memory, --read, --write, --host.
{
  // Whose defaults: "sandbox-runtime" shows all files except those in denyRead.
  "defaults": "cellblock",
  "filesystem": {
    // Paths that can be read, besides the system and the workspace.
    "allowRead": [],
    // Exceptions: paths inside these that cannot be read.
    "denyRead": [],
    // The only paths that can be written.
    "allowWrite": ["."],
    // Exceptions: paths inside these that cannot be written.
    "denyWrite": []
  },
  "network": {
    // The only hosts that can be reached, such as "pypi.org", "*.example.org" or "example.org:8443".
    "allowedDomains": [],
    "deniedDomains": []
  },
  "resources": {
    // Bytes of memory, and the number of processes.
    "memory": 4294967296,
    "processes": 512
  }
}
"""


def add_to(app: typer.Typer) -> None:
    """Add these commands to the program's."""
    app.command(rich_help_panel=MACHINE)(doctor)
    app.command(rich_help_panel=MACHINE)(config)
    app.add_typer(policy, name="policy", rich_help_panel=MACHINE)


def doctor(as_json: Json = False) -> int:
    """Check what works on this machine, and say how to fix the rest. Exit with 1 if sessions cannot start."""
    import asyncio

    from cellblock.host.doctor import report
    from cellblock.service.daemon import control

    found = asyncio.run(report())
    problems = control.problems()
    remedy = "'cellblock daemon status' and 'cellblock daemon logs' say more" if problems else ""
    for text in problems or ["no problem, and its records can be written"]:
        found["checks"].append({"name": "daemon", "ok": not problems, "needed": False, "found": text, "remedy": remedy})
    if as_json:
        print(json.dumps(found, indent=2))
        return 0 if found["ok"] else 1
    for check in found["checks"]:
        mark = "ok" if check["ok"] else "MISSING" if check["needed"] else "note"
        print(f"{painted(f'{mark:8}', _STYLES[mark], sys.stdout)} {check['name']:18} {printable(check['found'])}")
        if not check["ok"]:
            print(f"{'':8} {'':18} → {printable(check['remedy'])}")
    print()
    if found["isolate"] != "native" and not found["session"]["ok"]:
        print("This machine cannot run the native sandbox, which has stronger guarantees:\n")
    _session(found["session"], found["isolate"])
    print(_verdict(found))
    return 0 if found["ok"] else 1


def config(as_json: Json = False) -> int:
    """Show the settings, and where each value comes from."""
    from cellblock.service import settings

    found = [setting.to_dict() for setting in settings.explain()]
    columns = {"setting": "name", "value": "value", "from": "source", "what it means": "about"}
    return finish_list("settings", found, columns, as_json, empty="There are no settings.")


def _verdict(found: dict[str, Any]) -> str:
    """Return in a sentence whether sessions start here."""
    isolate, works = found["isolate"], {check["name"] for check in found["checks"] if check["ok"]}
    if found["sandbox"]:
        return "Kernels run in a sandbox here" + ("." if isolate == "native" else f", with isolate={isolate!r}.")
    said = f"No kernel starts here with isolate={isolate!r}, the default of programs that choose no sandbox."
    if isolate == "native" and "landlock sandbox" in works:
        return f"{said} isolate='landlock' works; to choose it: export CELLBLOCK_ISOLATE=landlock"
    return said


def _session(found: dict[str, Any], isolate: str) -> None:
    """Print how far a session started, why it failed, and how to fix it."""
    if found["ok"]:
        return
    marks = {"ok": "ok", "failed": "MISSING", "not reached": "note"}
    for step in found["steps"]:
        state = step["state"]
        print(f"{painted(f'{state:12}', _STYLES[marks[state]], sys.stdout)} {step['what']}")
        if state == "failed":
            print(f"{'':12} → {printable(found['said'])}")
    print(f"\nLikely cause: {printable(found['cause'] or found['error'])}.")
    ways = [way for way in found["ways"] if way["line"] != f"export CELLBLOCK_ISOLATE={isolate}"]
    if ways:
        print("Ways out:")
    for way in ways:
        print(f"- {way['what']}:\n    {printable(way['line'])}")
    print()


@policy.command()
@changes_policies
def show(
    config: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="A sandbox configuration (JSON); the default policy without it."),
    ] = None,
    workspace: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The session's working directory; the current one by default.", parser=path),
    ] = None,
    *,
    options: dict[str, Any],
    as_json: Json = False,
) -> int:
    """Show what a session can read, write, reach and use. Exit with 1 if no session can start."""
    import asyncio

    from cellblock.host import Policy
    from cellblock.host.doctor import explain_policy, explainable_tier
    from cellblock.host.requested_policy import as_in_ipybox, requested_policy

    tier = explainable_tier()
    given = SandboxOptions(**options).resolved()
    wanted = requested_policy(Policy() if config is None else Policy.load(config), None, given, tier) or Policy()
    warning = "" if config is None else as_in_ipybox(config)[1]
    found = explain_policy(wanted, workspace, tier)
    found["starts"], found["trouble"] = (trouble := asyncio.run(_trouble(wanted, workspace, tier))) is None, trouble
    if as_json:
        print(json.dumps(found, indent=2))
        return 0 if trouble is None else 1
    if not tier.holds_names:
        print(f"With isolate={tier.name!r} (CELLBLOCK_ISOLATE), nothing in a writable directory is protected or masked.")
    for key, heading in _HEADINGS.items():
        if not tier.holds_names and key in _NOT_WITHOUT_MOUNTS:
            continue
        print(f"{heading}:")
        for line in [*found[key], *_ALWAYS.get(key, ())] or ["nothing"]:
            print(f"  {_name(line)}")
    print("Limits:")
    for name, value in found["limits"].items():
        shown = f"{value >> 20:,} MiB" if name in _BYTES else f"{value:,}"
        print(f"  {name.replace('_', ' '):12} {shown}")
    if warning:
        print(f"With CodeExecutor(sandbox_config=…), KernelGateway and cellblock mcp: {_name(warning)}")
    if found["weaker_proc"]:
        print("Weaker /proc: if the kernel allows no other, the session sees the other processes of this container.")
    if trouble is not None:
        print(f"No session can start with this policy: {_name(trouble)}")
    return 0 if trouble is None else 1


async def _trouble(wanted: Policy, workspace: Path | None, tier: Tier) -> str | None:
    """Start a session with a policy; return why that failed in one line, or None."""
    from cellblock.host import Host

    try:
        async with Host(policy=wanted, isolate=tier.name, launch="spawn") as host, host.session(working_dir=workspace):
            return None
    except CellblockError as error:
        said = str(error).strip().splitlines()
        hidden = " (does denyRead contain a path that it needs?)" if isinstance(error, LaunchError) and len(said) > 1 else ""
        return said[-1] + hidden


@policy.command()
def init(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Where to write it.")] = "sandbox.json", as_json: Json = False
) -> int:
    """Write a configuration with comments, for you to edit."""
    try:
        with open(file, "x", encoding="utf-8") as new:
            new.write(_TEMPLATE)
    except FileExistsError:
        raise InvalidInputError(f"{file} exists already; name another file, or remove it first") from None
    except OSError as error:
        raise InvalidInputError(f"{file} cannot be written: {error.strerror}") from error
    done = f"{printable(file)} is written. To see the resulting policy: cellblock policy show {printable(file)}"
    return finish({"file": os.path.abspath(file)}, done, as_json)


def _name(text: str) -> str:
    """Make a name safe to print, because code in a session may have chosen it."""
    return printable(text, lines=False)
