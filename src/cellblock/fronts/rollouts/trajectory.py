"""The trajectory of a rollout: its events, as JSON lines."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cellblock.errors import StoreError
from cellblock.host.kernels.cells import SessionWatcher
from cellblock.model import CodeExecutionResult
from cellblock.model.programs import ExecResult

MAX_TEXT = 100_000
"""Characters of a text that an event keeps, from its beginning and its end."""


class Trajectory(SessionWatcher):
    """The events of one rollout, oldest first: dicts of JSON data.

    Each has ``event``, ``at`` (seconds since 1970) and ``seconds`` (since the rollout began):

    - ``begin``: ``key``, ``labels``, ``seed``, ``boot`` (seconds that the session took)
    - ``cell``: ``code``, ``status``, ``output``, ``error``, ``duration_ms``, ``calls`` (allowed tools, commands and hosts)
    - ``program``: ``command``, ``status``, ``exit_code``, ``stdout``, ``stderr``, ``duration_ms``
    - ``files``: ``written`` and ``removed``, since the previous event of this kind
    - ``note``: fields that the program added
    - ``end``: ``status``, ``reason``
    """

    def __init__(self) -> None:
        """Start without events."""
        self.events: list[dict[str, Any]] = []
        self.calls_since: Callable[[float], list[str]] = lambda _since: []
        """Returns the outside calls that were allowed since a time (`time.monotonic`); of a session without tools, none."""
        self._began = time.monotonic()
        self._looked = self._began

    def add(self, event: str, **fields: Any) -> None:
        """Add an event."""
        now = time.monotonic()
        self.events.append({"event": event, "at": time.time(), "seconds": round(now - self._began, 6), **fields})

    def note(self, **fields: Any) -> None:
        """Add an event of your own, such as a reward; its fields are JSON data."""
        self.add("note", **fields)

    def cell_ended(self, code: str, result: CodeExecutionResult) -> None:
        """Add a ``cell`` event (`SessionWatcher`)."""
        calls, self._looked = self.calls_since(self._looked), time.monotonic()
        self.add(
            "cell",
            code=_cut(code),
            status=result.status,
            output=_cut(result.text or ""),
            error=None if result.error is None else {"name": result.error.ename, "value": _cut(result.error.evalue)},
            duration_ms=result.duration_ms,
            calls=calls,
        )

    def program_ended(self, command: Sequence[str], result: ExecResult) -> None:
        """Add a ``program`` event (`SessionWatcher`)."""
        self.add(
            "program",
            command=[_cut(part) for part in command],
            status=result.status,
            exit_code=result.exit_code,
            stdout=_cut(result.out),
            stderr=_cut(result.err),
            duration_ms=result.duration_ms,
        )

    def lines(self) -> Iterator[str]:
        """Yield the events as JSON, one per line."""
        for event in self.events:
            yield json.dumps(event, ensure_ascii=False, default=str) + "\n"

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Append the events to a file of JSON lines; return its path.

        Raises:
            StoreError: The file cannot be written.
        """
        try:
            with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
                file.writelines(self.lines())
        except OSError as error:
            raise StoreError(f"the trajectory cannot be written to {os.fspath(path)}: {error.strerror}") from error
        return Path(path)


def _cut(text: str) -> str:
    if len(text) <= MAX_TEXT:
        return text
    half = MAX_TEXT // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters are left out here …]\n{text[-half:]}"


Files = Mapping[str, tuple[int, float]]
"""The files of a workspace: their paths, sizes and times."""


def changes(before: Files, after: Files) -> dict[str, list[str]]:
    """Return which files were written and removed."""
    written = sorted(path for path, about in after.items() if before.get(path) != about)
    return {"written": written, "removed": sorted(before.keys() - after.keys())}
