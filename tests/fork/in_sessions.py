"""Tries libraries in sessions: a cell uses one, the session makes a checkpoint and goes back to it, and a cell uses it again.

    PYTHONPATH=tests python -m fork.in_sessions docs/checkpoints.md     all; what came of it becomes the table in the page

It runs in the virtual environment that has the libraries.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cellblock import CheckpointError, Host
from fork.libraries import LIBRARIES
from fork.trying import installed, surprise, verdict

BEGIN, END = "<!-- libraries: written by make libraries -->", "<!-- end of libraries -->"

_DEADLINE = 60
_OURS = "[cellblock] "


async def answer(host: Host, name: str) -> dict[str, Any]:
    """Try a library in a session, and return what came of it, as `trying.verdict` does."""
    library, found = LIBRARIES[name], {"library": name, "version": installed(name)}
    with tempfile.TemporaryDirectory() as directory:
        async with host.session(working_dir=directory, recovery="none") as session:
            used = await session.execute(f"in_copy = False\n{library.use}", timeout=_DEADLINE)
            if not used.ok:
                return {**found, "outcome": "fails", "error": (used.text or "")[-2000:]}
            try:
                checkpoint = await session.checkpoint()
            except CheckpointError as error:
                return {**found, "outcome": "refused", "reason": str(error)}
            original = await session.execute(library.again, timeout=_DEADLINE)
            await session.restore(checkpoint)
            result = await session.execute(f"in_copy = True\n{library.again}", timeout=_DEADLINE)
            await checkpoint.drop()
    told = [line.removeprefix(_OURS) for line in result.stderr.splitlines() if line.startswith(_OURS)]
    works, wrong = result.ok and result.return_value == "True", result.ok
    return {
        **found,
        "outcome": "works" if works else "wrong" if wrong else "hangs or dies" if result.status == "timeout" else "fails",
        "told": told,
        "original": original.ok and original.return_value == "True",
        **({} if works else {"errors": (result.text or "")[-2000:]}),
    }


def row(answer: dict[str, Any]) -> str:
    """Return the row of a library that was tried."""
    library, outcome = LIBRARIES[answer["library"]], answer["outcome"]
    words = {"works": library.remark or "works", "refused": "none is made", "wrong": "wrong results", "fails": "fails"}
    return f"| {answer['library']} | {answer['version']} | {words.get(outcome, 'hangs')} |"


async def try_all(names: Iterable[str]) -> list[dict[str, Any]]:
    """Try libraries, one after the other, in one sandbox each."""
    answers = []
    async with Host() as host:
        for name in names:
            own_loop = name.startswith("asyncio")  # which a cell, which runs in a loop, cannot have
            answers.append(await asyncio.to_thread(verdict, name) if own_loop else await answer(host, name))
            print(row(answers[-1]), flush=True)
    return answers


def write_table(page: Path, answers: list[dict[str, Any]]) -> None:
    """Replace the table in a page."""
    head, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    rows = ["| what was used | version | in a copy |", "|---|---|---|", *map(row, answers)]
    page.write_text("\n".join([f"{head}{BEGIN}", *rows, END]) + rest.partition(END)[2], encoding="utf-8")


def main() -> int:
    """Try all, write the table, and tell what was a surprise."""
    if missing := [name for name in LIBRARIES if installed(name) is None]:
        print(f"not installed: {', '.join(missing)}", file=sys.stderr)
        return 1
    answers = asyncio.run(try_all(LIBRARIES))
    write_table(Path(sys.argv[1]), answers)
    surprises = [difference for answer in answers if (difference := surprise(answer))]
    print(*surprises, sep="\n", file=sys.stderr)
    return bool(surprises)


if __name__ == "__main__":
    raise SystemExit(main())
