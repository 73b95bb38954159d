"""Makes `Client`, for plain synchronous Python, from `AsyncClient`: ``python tests/fronts/client/unasync.py [--check]``.

The words of asyncio go, and a few names have another one. What is made is checked in: editors and mypy read it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

CLIENTS = Path(__file__).parents[3] / "src" / "cellblock" / "fronts" / "client"
SOURCE, MADE = CLIENTS / "async_client.py", CLIENTS / "client.py"

_REPLACED = [
    (
        r'""".*?"""\n',
        '"""`Client`: a gateway\'s client for plain synchronous Python. Made from `async_client`: do not edit it."""\n',
    ),
    (r", as coroutines\. It belongs to one event loop\.", ". Threads may share it."),
    (r"AsyncGenerator\[(\w+), None\]", r"Generator[\1, None, None]"),
    (r"Awaitable\[(str \| None)\]", r"\1"),
    (r"AsyncGenerator, AsyncIterable, Awaitable, Callable", "Callable, Generator, Iterable"),
    (r"import asyncio\n", "import time\n"),
    (r"asyncio\.sleep", "time.sleep"),
    (r"\bAsync(Client|Iterable)\b", r"\1"),
    (r"\basync_pieces\b", "pieces"),
    (r"\baclosing\b", "closing"),
    (r"\ba(read|close|iter_lines|iter_bytes)\(", r"\1("),
    (r"\b__a(enter|exit)__\b", r"__\1__"),
    (r"\basync (def|for|with)\b", r"\1"),
    (r"\bawait ", ""),
]
"""What is replaced by what, in this order."""


def made(source: str) -> str:
    """Return the synchronous twin of an asynchronous module, formatted."""
    for number, (pattern, text) in enumerate(_REPLACED):
        source, count = re.subn(pattern, text, source, count=1 if number == 0 else 0)
        if not count:
            raise LookupError(f"there is nothing like {pattern} in {SOURCE}: drop it from the list")
    for how in (["check", "--select", "I,SIM117", "--fix-only"], ["format"]):
        ruff = [sys.executable, "-m", "ruff", *how, "--quiet", "--stdin-filename", str(MADE), "-"]
        source = subprocess.run(ruff, input=source, capture_output=True, text=True, check=True).stdout
    return source


if __name__ == "__main__":
    text = made(SOURCE.read_text(encoding="utf-8"))
    if "--check" not in sys.argv:
        MADE.write_text(text, encoding="utf-8")
    elif MADE.read_text(encoding="utf-8") != text:
        sys.exit(f"{MADE} is not what {SOURCE} makes: run python {sys.argv[0]}")
