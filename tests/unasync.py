"""Makes modules for plain synchronous Python from their twins for asyncio: ``python tests/unasync.py [--check]``.

The words of asyncio go, and a few names have another one. What is made is checked in: editors and mypy read it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parents[1] / "src" / "cellblock"

_WORDS = (
    (r"AsyncGenerator\[([\w.]+), None\]", r"Generator[\1, None, None]"),
    (r"\bAsyncIterable\b", "Iterable"),
    (r"import asyncio\n", "import time\n"),
    (r"asyncio\.sleep", "time.sleep"),
    (r"\baclosing\b", "closing"),
    (r"\b__a(enter|exit)__\b", r"__\1__"),
    (r"\basync (def|for|with)\b", r"\1"),
    (r"\bawait ", ""),
)


class Twins(NamedTuple):
    """Modules that are rewritten in the same way.

    Attributes:
        folder: Their folder in the package.
        modules: The modules for asyncio, and what is made of each.
        replaced: What is replaced by what, in this order, before `_WORDS`. Each pattern is found in one of them
            at least.
    """

    folder: str
    modules: Mapping[str, str]
    replaced: Sequence[tuple[str, str]]

    def made(self) -> dict[Path, str]:
        """Return the text of what is made, formatted, by its path.

        Raises:
            LookupError: Nothing is like what is to be replaced.
        """
        folder = PACKAGE / self.folder
        texts = {name: (folder / source).read_text(encoding="utf-8") for source, name in self.modules.items()}
        for pattern, text in (*self.replaced, *_WORDS):
            found = {name: re.subn(pattern, text, source) for name, source in texts.items()}
            if (pattern, text) in self.replaced and not any(count for _, count in found.values()):
                raise LookupError(f"there is nothing like {pattern} in {', '.join(self.modules)}: drop it from the list")
            texts = {name: replaced for name, (replaced, _) in found.items()}
        for source, name in self.modules.items():
            note = f"\n# Made from {source} by tests/unasync.py: do not edit it.\n\nfrom __future__"
            texts[name] = texts[name].replace("\nfrom __future__", note, 1)
        return {folder / name: _formatted(text, folder / name) for name, text in texts.items()}


def _formatted(source: str, path: Path) -> str:
    for how in (["check", "--select", "I,SIM117,F401", "--fix-only"], ["format"]):
        ruff = [sys.executable, "-m", "ruff", *how, "--quiet", "--stdin-filename", str(path), "-"]
        source = subprocess.run(ruff, input=source, capture_output=True, text=True, check=True).stdout
    return source


_BASE = r"\bAsyncBaseClient\b", "BaseClient"
_BASE_MODULE = r"\basync_base_client\b", "base_client"

TWINS = (
    Twins(
        "operations",
        {"async_base_client.py": "base_client.py"},
        (
            (r", for asyncio: (.*?)\. .* by tests/unasync\.py\.", r", for plain synchronous Python: \1."),
            _BASE,
        ),
    ),
    Twins(
        "fronts/client",
        {"async_client.py": "client.py"},
        (
            (r"client for asyncio\. .* by tests/unasync\.py\.", "client for plain synchronous Python."),
            (r", as coroutines\. It belongs to one event loop\.", ". Threads may share it."),
            (r"Awaitable\[(str \| None)\]", r"\1"),
            (r"AsyncGenerator, AsyncIterable, Awaitable, Callable", "Callable, Generator, Iterable"),
            (r"\bAsyncClient\b", "Client"),
            _BASE,
            _BASE_MODULE,
            (r"\basync_pieces\b", "pieces"),
            (r"\ba(read|close|iter_lines|iter_bytes)\(", r"\1("),
        ),
    ),
)


if __name__ == "__main__":
    for twins in TWINS:
        for path, text in twins.made().items():
            if "--check" not in sys.argv:
                path.write_text(text, encoding="utf-8")
            elif path.read_text(encoding="utf-8") != text:
                sys.exit(f"{path} is not what is made of its twin: run python {sys.argv[0]}")
