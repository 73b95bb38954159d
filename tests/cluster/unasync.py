"""Makes `SyncRayHosts` and `SyncClusterSession` from their asynchronous twins: ``python tests/cluster/unasync.py [--check]``.

The words of asyncio go, and a few names have another one. What is made is checked in: editors and mypy read it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

CLUSTER = Path(__file__).parents[2] / "src" / "cellblock" / "cluster"
MADE = {"hosts.py": "sync_hosts.py", "session.py": "sync_session.py"}

_FIRST = [
    (r'"""(`\w+`: .*?|One session of a cluster), for asyncio', r'"""\1, for plain synchronous Python'),
]
_REPLACED = [
    (
        r"await asyncio\.to_thread\(open_link, self\._address, self\._patience, self\._options\)",
        "open_connection(self._address, self._patience, self._options)",
    ),
    (r"import open_link\b", "import open_connection"),
    (r"from cellblock\.cluster\.opening import open_connection", "from cellblock.cluster.connection import open_connection"),
    (r"from cellblock\.cluster\.link import ClusterLink", "from cellblock.cluster.connection import ClusterConnection"),
    (r"\bClusterLink\b", "ClusterConnection"),
    (r"self\.link\.director\.asked\(", "self.link.link.director.ask("),
    (
        r"            closing = asyncio\.ensure_future\(session\.close\(\)\)\n            await asyncio\.wait\(\[closing\]\)\n"
        r"            if not closing\.cancelled\(\) and .*? not _is_gone\(error\):\n"
        r"                raise error\n",
        "            with suppress(LookupError):  # there is no such session any more\n                session.close()\n",
    ),
    (r"\n\ndef _is_gone.*?LookupError\)\n", ""),
    (r"It belongs to one event loop\.", "Threads may share it."),
    (r"\bRayHosts\b", "SyncRayHosts"),
    (r"\bClusterSession\b", "SyncClusterSession"),
    (r"cellblock\.cluster\.session import", "cellblock.cluster.sync_session import"),
    (r"AsyncGenerator\[([\w.]+), None\]", r"Generator[\1, None, None]"),
    (r"AsyncGenerator, AsyncIterable", "Generator, Iterable"),
    (r"AsyncGenerator", "Generator"),
    (r"AsyncIterable", "Iterable"),
    (
        r"            async for event in events:\n                yield event\n\n    async def attach",
        "            yield from events\n\n    async def attach",
    ),
    (r"except asyncio\.CancelledError:", "except KeyboardInterrupt:"),
    (r"asyncio\.shield\((.*)\)", r"\1"),
    (r"asyncio\.sleep", "time.sleep"),
    (r"import asyncio\n", "import time\n"),
    (r"from contextlib import asynccontextmanager", "from contextlib import contextmanager, suppress"),
    (r"asynccontextmanager", "contextmanager"),
    (r"``async with``", "``with``"),
    (r"\baclosing\b", "closing"),
    (r"\b__a(enter|exit)__\b", r"__\1__"),
    (r"\basync (def|for|with)\b", r"\1"),
    (r"\bawait ", ""),
]
"""What is replaced by what, in this order, in both files together."""


def made(source: str, name: str) -> str:
    """Return the synchronous twin of an asynchronous module, formatted."""
    for pattern, text in _FIRST:
        source = re.sub(pattern, text, source, count=1)
    source = source.replace('"""', '"""', 1)
    for pattern, text in _REPLACED:
        source = re.sub(pattern, text, source, flags=re.DOTALL if "_is_gone.*" in pattern else 0)
    note = f"# Made from {name} by tests/cluster/unasync.py: do not edit it.\n"
    source = source.replace("\nfrom __future__", f"\n{note}\nfrom __future__", 1)
    for how in (["check", "--select", "I,SIM117,F401", "--fix-only"], ["format"]):
        ruff = [sys.executable, "-m", "ruff", *how, "--quiet", "--stdin-filename", str(CLUSTER / MADE[name]), "-"]
        source = subprocess.run(ruff, input=source, capture_output=True, text=True, check=True).stdout
    return source


if __name__ == "__main__":
    for source, twin in MADE.items():
        text = made((CLUSTER / source).read_text(encoding="utf-8"), source)
        if "--check" not in sys.argv:
            (CLUSTER / twin).write_text(text, encoding="utf-8")
        elif (CLUSTER / twin).read_text(encoding="utf-8") != text:
            sys.exit(f"{twin} is not what {source} makes: run python {sys.argv[0]}")
