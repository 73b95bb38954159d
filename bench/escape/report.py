"""The tables of docs/escape-benchmark.md."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.escape.sandboxes import NOTHING, SANDBOXES
from bench.escape.suite import ATTACKS, Attack

_BEGIN, _END = "<!-- results -->", "<!-- end -->"
USERS = {"user": "as an ordinary user", "root": "as root"}


def write(document: Path, kept: Mapping[str, Any], parts: Mapping[str, str]) -> None:
    """Put the tables into the document."""
    head, _, rest = document.read_text().partition(_BEGIN)
    document.write_text(f"{head}{_BEGIN}\n{tables(kept, parts)}{_END}{rest.partition(_END)[2]}")


def tables(kept: Mapping[str, Any], parts: Mapping[str, str]) -> str:
    """Return the tables: the sandboxes, and each attack in each of those that are present."""
    users = [user for user in USERS if user in kept]
    said = [f"Measured {USERS[user]} on {kept[user]['date']}, {kept[user]['system']}." for user in users]
    titles = " | ".join(f"held {USERS[user]}" for user in users)
    lines = [" ".join(said), "", f"| sandbox | version | settings | {titles} |", "|---|---|---|" + "---|" * len(users)]
    for sandbox in SANDBOXES[1:]:
        version = kept[users[0]]["versions"].get(sandbox.name, "not present")
        counts = " | ".join(count(kept[user]["results"], sandbox.name) for user in users)
        lines.append(f"| {sandbox.name} | {version} | {sandbox.settings} | {counts} |")
    present = [sandbox.name for sandbox in SANDBOXES[1:] if any(sandbox.name in kept[user]["results"] for user in users)]
    for part, title in parts.items():
        lines += ["", f"| {title.lower()}: the code wants to | {' | '.join(present)} |", "|---|" + "---|" * len(present)]
        for attack in (attack for attack in ATTACKS.values() if attack.part == part):
            cells = " | ".join(cell(kept, users, name, attack) for name in present)
            lines.append(f"| [{attack.title}]({attack.source}) | {cells} |")
    return "\n".join(lines) + "\n"


def proves(results: Mapping[str, Any], attack: Attack) -> bool:
    """Return whether an attack that fails proves something: without a sandbox it succeeds."""
    return attack.sessions > 1 or results.get(NOTHING.name, {}).get(attack.name) == "escaped"


def count(results: Mapping[str, Any], name: str) -> str:
    """Return how many attacks a sandbox held, of those that prove something about it."""
    if name not in results:
        return "–"
    ends = {attack: results[name].get(attack.name) for attack in ATTACKS.values()}
    judged = [end for attack, end in ends.items() if end in ("held", "escaped") and proves(results, attack)]
    return f"{judged.count('held')} of {len(judged)}"


def cell(kept: Mapping[str, Any], users: list[str], name: str, attack: Attack) -> str:
    """Return how an attack ended in a sandbox."""
    ends = {}
    for user in users:
        results = kept[user]["results"]
        if attack.name in results.get(name, {}) and proves(results, attack):
            ends[user] = results[name][attack.name]
    judged = {user: end for user, end in ends.items() if end != "nothing"}
    if not judged:
        return "–"
    bad = [user for user, end in judged.items() if end == "escaped"]
    if not bad:
        return "held" if "held" in judged.values() else "no verdict"
    end = judged[bad[0]].replace("escaped", "reachable") if attack.reaches else judged[bad[0]]
    others = [user for user in users if name in kept[user]["results"] or not proves(kept[user]["results"], attack)]
    return f"**{end}**" if len(bad) == len(others) else f"**{end}** {USERS[bad[0]]}"
