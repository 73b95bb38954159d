"""What the commands print."""

from __future__ import annotations

import json
import sys

from cellblock.host import Policy
from cellblock.host import doctor as doctors
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
_BYTES = ("memory", "tmp", "file_size")


def doctor(*, as_json: bool) -> int:
    """Print what this machine can do; return 1 where something needed is missing."""
    found = doctors.report()
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
    print(
        "Kernels run in a sandbox here."
        if found["sandbox"]
        else "Kernels cannot be sandboxed here: nothing starts without it."
    )
    return 0 if found["ok"] else 1


def policy(config: str | None, workspace: str | None, *, as_json: bool) -> int:
    """Print what a policy comes to."""
    wanted = Policy() if config is None else Policy.load(config)
    found = doctors.explain_policy(wanted, workspace)
    if as_json:
        print(json.dumps(found, indent=2))
        return 0
    for key, heading in _HEADINGS.items():
        print(f"{heading}:")
        for line in found[key] or ["nothing"]:
            print(f"  {printable(line, lines=False)}")  # names, which a session may have made
    print("Limits:")
    for name, value in found["limits"].items():
        shown = f"{value >> 20:,} MiB" if name in _BYTES else f"{value:,}"
        print(f"  {name.replace('_', ' '):12} {shown}")
    return 0


def _paint(text: str, mark: str, color: bool) -> str:
    codes = {"ok": 32, "MISSING": 31, "note": 33}
    return f"\x1b[{codes[mark]}m{text}\x1b[0m" if color else text
