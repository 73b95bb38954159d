"""What the commands print."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import datetime
from typing import Any, Literal

from cellblock.errors import CellblockError, InvalidInputError, LaunchError
from cellblock.host import Host, Policy
from cellblock.host import doctor as doctors
from cellblock.host.checks import default_isolation
from cellblock.model import Decision
from cellblock.store.approvals import Approvals
from cellblock.terminal import printable

_HEADINGS = {
    "readable": "Readable",
    "writable": "Writable",
    "private": "Its own, and gone with it",
    "read_only": "Read-only, though in a writable directory",
    "reserved": "Not there, and cannot be made",
    "masked": "Masked",
    "reachable": "Reachable on the network",
    "unreachable": "Never reachable",
}
_ALWAYS = {
    "unreachable": ("this machine, private networks, clouds' metadata services, unless the policy names the address itself",)
}
_NOT_IN_LANDLOCK = ("read_only", "reserved", "masked", "unreachable")
_MAX_SHOWN = 200  # characters of a call's arguments
_BYTES = ("memory", "tmp", "file_size", "packages")
_TEMPLATE = """\
// What a session's sandbox allows: CodeExecutor(sandbox_config="sandbox.json"). Lines that begin with // are comments.
{
  "filesystem": {
    // Everything else can be read. Keep what your program would not show to a stranger out of sight.
    "denyRead": ["~"],
    // What of it can be read all the same.
    "allowRead": ["."],
    // Nothing else can be written.
    "allowWrite": ["."],
    // What of it cannot be written all the same.
    "denyWrite": []
  },
  "network": {
    // Hosts such as "pypi.org", "*.example.org" or "example.org:8443"; nothing else can be reached.
    "allowedDomains": [],
    "deniedDomains": []
  },
  "resources": {
    // Bytes of memory, and how many processes.
    "memory": 4294967296,
    "processes": 512
  }
}
"""


def doctor(*, as_json: bool) -> int:
    """Print what this machine can do; return 1 where something needed is missing."""
    found = asyncio.run(doctors.report())
    if as_json:
        print(json.dumps(found, indent=2))
        return 0 if found["ok"] else 1
    color = sys.stdout.isatty()
    for check in found["checks"]:
        mark = "ok" if check["ok"] else "MISSING" if check["needed"] else "note"
        print(f"{_paint(f'{mark:8}', mark, color)} {check['name']:18} {printable(check['found'])}")
        if not check["ok"]:
            print(f"{'':8} {'':18} → {printable(check['remedy'])}")
    print()
    if found["isolate"] != "native" and not found["session"]["ok"]:
        print("The native sandbox, which promises more, is not possible here:\n")
    _session(found["session"], found["isolate"], color)
    print(_verdict(found))
    return 0 if found["ok"] else 1


def _verdict(found: dict[str, Any]) -> str:
    """Return whether sessions start here, in a sentence."""
    isolate, works = found["isolate"], {check["name"] for check in found["checks"] if check["ok"]}
    if found["sandbox"]:
        return "Kernels run in a sandbox here" + ("." if isolate == "native" else f", with isolate={isolate!r}.")
    said = f"No kernel starts here with isolate={isolate!r}, which is what programs get that choose nothing else."
    if isolate == "native" and "landlock sandbox" in works:
        return f"{said} isolate='landlock' works; to choose it: export CELLBLOCK_ISOLATE=landlock"
    return said


def _session(found: dict[str, Any], isolate: str, color: bool) -> None:
    """Print how far a session came, why it failed, and the ways out."""
    if found["ok"]:
        return
    marks = {"ok": "ok", "failed": "MISSING", "not reached": "note"}
    for step in found["steps"]:
        state = step["state"]
        print(f"{_paint(f'{state:12}', marks[state], color)} {step['what']}")
        if state == "failed":
            print(f"{'':12} → {printable(found['said'])}")
    print(f"\nLikely cause: {printable(found['cause'] or found['error'])}.")
    ways = [way for way in found["ways"] if way["line"] != f"export CELLBLOCK_ISOLATE={isolate}"]
    if ways:
        print("Ways out:")
    for way in ways:
        print(f"- {way['what']}:\n    {printable(way['line'])}")
    print()


def policy(config: str | None, workspace: str | None, *, as_json: bool) -> int:
    """Print what a policy comes to."""
    wanted = Policy() if config is None else Policy.load(config)
    isolate: Literal["native", "landlock"] = "landlock" if default_isolation() == "landlock" else "native"
    found = doctors.explain_policy(wanted, workspace, isolate)
    found["starts"], found["trouble"] = (trouble := asyncio.run(_trouble(wanted, workspace, isolate))) is None, trouble
    if as_json:
        print(json.dumps(found, indent=2))
        return 0 if trouble is None else 1
    if isolate == "landlock":
        print("With isolate='landlock' (CELLBLOCK_ISOLATE), nothing in a writable directory is protected or masked.")
    for key, heading in _HEADINGS.items():
        if isolate == "landlock" and key in _NOT_IN_LANDLOCK:
            continue
        print(f"{heading}:")
        for line in [*found[key], *_ALWAYS.get(key, ())] or ["nothing"]:
            print(f"  {_name(line)}")
    print("Limits:")
    for name, value in found["limits"].items():
        shown = f"{value >> 20:,} MiB" if name in _BYTES else f"{value:,}"
        print(f"  {name.replace('_', ' '):12} {shown}")
    if found["weaker_proc"]:
        print("Weaker /proc: where the kernel allows no other, the session sees the processes around this program.")
    if trouble is not None:
        print(f"No session can start with this policy: {_name(trouble)}")
    return 0 if trouble is None else 1


async def _trouble(wanted: Policy, workspace: str | None, isolate: Literal["native", "landlock"]) -> str | None:
    """Start a session with a policy; return in one line why that cannot be, or None."""
    try:
        async with Host(policy=wanted, isolate=isolate, launch="spawn") as host, host.session(working_dir=workspace):
            return None
    except CellblockError as error:
        said = str(error).strip().splitlines()
        hidden = " (is something that it needs in denyRead?)" if isinstance(error, LaunchError) and len(said) > 1 else ""
        return said[-1] + hidden


def new_policy(file: str) -> int:
    """Write a configuration with comments, which `policy` accepts."""
    try:
        with open(file, "x", encoding="utf-8") as new:
            new.write(_TEMPLATE)
    except FileExistsError:
        raise InvalidInputError(f"{file} exists already; name another file, or remove it first") from None
    except OSError as error:
        raise InvalidInputError(f"{file} cannot be written: {error.strerror}") from error
    print(f"{printable(file)} is written. See what it comes to: cellblock policy show {printable(file)}")
    return 0


def approvals(count: int, session: str | None, *, as_json: bool) -> int:
    """Print the last decisions, the newest last, as a log has them."""
    with Approvals() as trail:
        decisions = trail.last(count, session=session)[::-1]
    if as_json:
        print(json.dumps([_as_data(decision) for decision in decisions], indent=2))
        return 0
    if not decisions:
        print("No decision is on record." if session is None else f"No decision of session {printable(session)} is on record.")
    for decision in decisions:
        at = datetime.fromtimestamp(decision.at).astimezone().isoformat(sep=" ", timespec="seconds")
        call = f"{decision.server}.{decision.tool} {decision.payload.decode(errors='replace')}"
        shown = call if len(call) <= _MAX_SHOWN else f"{call[:_MAX_SHOWN]}…"
        by = f"{decision.by}: {decision.reason}" if decision.reason else decision.by
        print(printable(f"{at}  {decision.session}  {decision.outcome:5}  {shown}  ({by})", lines=False))
    return 0


def _name(text: str) -> str:
    """Return a name as it is printed: a session may have made it."""
    return printable(text, lines=False)


def _as_data(decision: Decision) -> dict[str, object]:
    names = ("at", "session", "kind", "server", "tool", "outcome", "by", "reason")
    arguments = decision.payload.decode(errors="replace")  # text, because of long ones only the beginning is kept
    return {name: getattr(decision, name) for name in names} | {"arguments": arguments}


def _paint(text: str, mark: str, color: bool) -> str:
    codes = {"ok": 32, "MISSING": 31, "note": 33}
    return f"\x1b[{codes[mark]}m{text}\x1b[0m" if color else text
