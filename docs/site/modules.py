"""Prints docs/modules.md: every module of the package, by room, with the first sentence of its docstring.

python docs/site/modules.py > docs/modules.md
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "cellblock"

_HEAD = """\
# Modules

The rooms of `src/cellblock`, from the ground up, and what each of their modules does. `docs/site/modules.py` makes this page
from the first sentence of each module. [architecture.md](architecture.md) says how the rooms belong together.
"""

DISTRICTS = (
    "",
    "model",
    "common",
    "wire",
    "operations",
    "worker",
    "walls",
    "launch",
    "host",
    "tools",
    "service",
    "cluster",
    "fronts",
)
"""The districts in the order in which each may use those before it. The rest are entries: public names in fixed places."""


def page() -> str:
    """Return the page."""
    rooms: dict[str, list[Path]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        rooms.setdefault(str(path.parent.relative_to(PACKAGE)).removeprefix("."), []).append(path)
    parts = [_HEAD]
    for room in sorted(rooms, key=lambda room: (_place(room), room)):
        title = f"`{room}/`" if room else "`cellblock/`"
        parts.append(f"## {title}\n\n{_sentence(PACKAGE / room / '__init__.py')}.\n")
        rows = [f"| `{path.stem}` | {_sentence(path)} |" for path in rooms[room] if path.stem != "__init__"]
        if rows:
            parts.append("\n".join(["| module | what it does |", "|---|---|", *rows, ""]))
    return "\n".join(parts)


def _place(room: str) -> int:
    district = room.partition("/")[0]
    return DISTRICTS.index(district) if district in DISTRICTS else len(DISTRICTS)


def _sentence(path: Path) -> str:
    """Return the first sentence of a module's docstring, without its full stop."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    first = " ".join(text.partition("\n\n")[0].split())
    return re.sub(r"\|", "\\|", re.split(r"(?<=[^.]{3})\. (?=[A-Z`])", first)[0].rstrip("."))


if __name__ == "__main__":
    sys.stdout.write(page())
