"""Creates the result of a cell from its output and ending, and keeps the last results of a session."""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from cellblock.host.kernels import advice
from cellblock.host.kernels.exit_status import Death, Restored
from cellblock.host.output.collect import Collector
from cellblock.host.output.spill import save_images
from cellblock.model import (
    STATE_LOST,
    CodeExecutionResult,
    ErrorInfo,
    KeptResult,
    OutputItem,
    Recovery,
    Status,
)
from cellblock.wire.messages import Reply

_NAMES = {"timeout": "TimeoutError", "interrupted": "KeyboardInterrupt"}
_REASONS = {"timeout": "The cell was stopped at its deadline", "interrupted": "The cell was interrupted"}
_RUNGS = {
    "interrupted": "by an interrupt",
    "interrupted_twice": "by a second interrupt",
    "killed_children": "by killing the processes that it had started",
}


@dataclass(frozen=True, slots=True)
class Rights:
    """The permissions of a kernel that results explain.

    Attributes:
        memory: Memory limit in bytes, if any.
        installs: Whether the kernel may install packages.
        sandboxed: Whether the kernel is in a sandbox.
        offline: Why the kernel has no network; empty if it has one.
    """

    memory: int | None = None
    installs: bool = True
    sandboxed: bool = False
    offline: str = ""


NO_LIMITS = Rights()

_OVERHEAD = 1000  # memory of a result in addition to its text and values


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a cell.

    Attributes:
        ending: The worker's reply, or how the kernel died.
        collector: The collected output.
        took: Duration in seconds.
        reason: Why the cell was stopped, if it was.
        recovery: The strongest means that was needed to stop it.
        goes_on_from: The state that the session restores if the kernel died with the cell; None for a fresh kernel.
        afterwards: A sentence about the session's next step, if the cell was stopped for it; else empty.
        after_death: The recovery to report for the previous kernel, if its death is unreported.
        rights: The kernel's permissions.
        not_undoable: Why the cell cannot be undone; empty if it can.
        says_so: Whether the output says that the cell cannot be undone.
    """

    ending: Reply | Death
    collector: Collector
    took: float
    reason: Status | None
    recovery: Recovery | None
    goes_on_from: Restored | None
    afterwards: str
    after_death: Recovery | None
    rights: Rights
    not_undoable: str = ""
    says_so: bool = False


def make_result(outcome: Outcome, images_dir: Path) -> CodeExecutionResult:
    """Create the result of a cell whose output is complete.

    Args:
        outcome: The cell's outcome.
        images_dir: Directory for images.
    """
    ending, collector = outcome.ending, outcome.collector
    images: list[Path] = []
    items = collector.items()
    if collector.has_displays:
        images, failures = save_images(items, images_dir)
        for failure in failures:
            collector.note(failure)
        items = collector.items() if failures else items
    printed = "".join(item.text or "" for item in items if item.kind == "stream") if outcome.rights.sandboxed else ""
    if printed and (why := advice.on_output(printed, outcome.rights.offline)):
        collector.note(f"[cellblock] {why}")
        items = collector.items()
    if outcome.says_so:
        collector.notes.append(f"[cellblock] This cell cannot be undone: {outcome.not_undoable}.")
        items = collector.items()
    error, status = _error(outcome)
    if error is not None:
        shown = OutputItem("error", text="\n".join(error.traceback) or f"{error.ename}: {error.evalue}")
        # An error that did not end the cell was already shown with the worker's text.
        told = "\n".join(ending.traceback) if isinstance(ending, Reply) else shown.text
        there = [number for number, item in enumerate(items) if item.kind == "error" and item.text in (told, shown.text)]
        if there:
            items[there[-1]] = shown
        else:
            items.insert(_place(items, ending.later if isinstance(ending, Reply) else 0), shown)
    values = [item.text for item in items if item.kind == "execute_result"]
    return CodeExecutionResult(
        text=readable(items),
        images=images,
        status=status,
        output="".join(item.text or "" for item in items if item.name == "stdout"),
        stderr="".join(item.text or "" for item in items if item.name == "stderr"),
        return_value=values[-1] if values else None,
        error=error,
        execution_count=ending.execution_count if isinstance(ending, Reply) else None,
        duration_ms=round(outcome.took * 1000),
        outputs=items,
        truncated=collector.truncated,
        recovery=_recovery(outcome),
        spilled=collector.spilled,
        exit_status=ending.exit_status if isinstance(ending, Death) and status == "died" else None,
        not_undoable=outcome.not_undoable,
    )


def _recovery(outcome: Outcome) -> Recovery | None:
    ending = outcome.ending
    if isinstance(ending, Death) and outcome.goes_on_from is not None:
        return "restored_earlier" if outcome.goes_on_from.lost else "restored"
    return "restarted" if isinstance(ending, Death) else outcome.after_death or outcome.recovery


def _error(outcome: Outcome) -> tuple[ErrorInfo | None, Status]:
    ending = outcome.ending
    if isinstance(ending, Death):
        lost = outcome.afterwards or (STATE_LOST if outcome.goes_on_from is None else outcome.goes_on_from.sentence)
        if outcome.reason is None:
            return ErrorInfo("KernelDied", f"The kernel died: {ending.cause}. {lost}"), "died"
        return ErrorInfo(_NAMES[outcome.reason], f"{_REASONS[outcome.reason]}: its kernel was killed. {lost}"), outcome.reason
    if outcome.reason is not None:
        name = _NAMES[outcome.reason]
        how = _RUNGS[outcome.recovery or "interrupted"]
        told = f"{_REASONS[outcome.reason]} ({how}). {outcome.afterwards or 'Variables are kept.'}"
        return ErrorInfo(name, told, _retell(ending.traceback, "KeyboardInterrupt", name, told)), outcome.reason
    if ending.ename is not None and ending.ename.endswith("MemoryError") and outcome.rights.memory is not None:
        most = outcome.rights.memory
        limit = f"out of memory: the session may use {most >> 20:,} MiB; {advice.more_memory(most)}"
        told = f"{ending.evalue} ({limit})" if ending.evalue else limit
        return ErrorInfo(ending.ename, told, _retell(ending.traceback, ending.ename, ending.ename, told)), "error"
    if ending.ename is not None and (how := _advice(outcome, ending)):
        told = f"{ending.evalue} ({how})"
        return ErrorInfo(ending.ename, told, _retell(ending.traceback, ending.ename, ending.ename, told)), "error"
    if ending.ename is not None:
        return ErrorInfo(ending.ename, ending.evalue, list(ending.traceback)), "error"
    return None, "success"


def _advice(outcome: Outcome, ending: Reply) -> str:
    how = advice.on_missing_module(ending.ename, ending.evalue, installs=outcome.rights.installs)
    return how or (advice.on_kept_name(ending.ename, ending.evalue) if outcome.rights.sandboxed else "")


def _place(items: list[OutputItem], later: int) -> int:
    """Return the index for an error: before the last `later` displayed values."""
    place = len(items)
    for number in range(len(items) - 1, -1, -1):
        if not later:
            break
        if items[number].kind == "display_data":
            place, later = number, later - 1
    return place


def _retell(traceback: tuple[str, ...], before: str, name: str, told: str) -> list[str]:
    """Return a traceback with another text for its exception.

    Args:
        traceback: Its parts, from IPython.
        before: The exception's name in it. If it ends with another name, the new text is appended.
        name: The replacement name.
        told: The new text.
    """
    parts = list(traceback)
    if parts and parts[-1].startswith(f"{before}:"):
        parts.pop()
        parts = [name + part[len(before) :] if part.startswith(f"{before} ") else part for part in parts]
    return [*parts, f"{name}: {told}"]


def readable(items: list[OutputItem]) -> str | None:
    """Return outputs as plain text, without surrounding empty lines; None for no outputs."""
    text: list[str] = []
    for item in items:
        if not item.text:
            continue
        # Streams continue where they stopped. A displayed value or a traceback starts on a new line.
        if item.kind != "stream" and text and not text[-1].endswith("\n"):
            text.append("\n")
        text.append(item.text)
        if item.kind != "stream":
            text.append("\n")
    if not text:
        return None
    if any("\r" in piece for piece in text):
        text = [overwrite("".join(text))]
    return _joined(text)


def _joined(text: list[str]) -> str:
    """Join text without surrounding empty lines and trailing space. Strip first, as two copies may not fit into memory."""
    for place, piece in enumerate(text):
        text[place] = piece.lstrip("\n")
        if text[place]:
            break
    for place in range(len(text) - 1, -1, -1):
        text[place] = text[place].rstrip()
        if text[place]:
            break
    return "".join([piece for piece in text if piece])  # with one piece, join returns it without a copy


def overwrite(text: str) -> str:
    """Return text as a terminal shows it: a carriage return moves to the start of the line, as in progress bars."""
    return "\n".join(_overwritten(line) if "\r" in line else line for line in text.replace("\r\n", "\n").split("\n"))


def _overwritten(line: str) -> str:
    """Return the visible part of a line. The last piece that reaches a column wins, so start with the last one."""
    shown: list[str] = []
    width, end = 0, len(line)
    while end >= 0:
        start = line.rfind("\r", 0, end) + 1
        if end - start > width:
            shown.append(line[start + width : end])
            width = end - start
        end = start - 1
    return "".join(shown)


class KeptResults:
    """The last results of a session."""

    def __init__(self, limit: int) -> None:
        """Start without results.

        Args:
            limit: Memory limit of all results, in bytes.
        """
        self._room = limit
        self._kept: deque[tuple[KeptResult, int]] = deque()

    def keep(self, result: CodeExecutionResult) -> KeptResult:
        """Store a result, and drop the oldest ones to make room."""
        kept, size = KeptResult(result), _size(result)
        self._kept.append((kept, size))
        self._room -= size
        while self._room < 0:
            oldest, size = self._kept.popleft()
            oldest.result = None
            self._room += size
        return kept


def _size(result: CodeExecutionResult) -> int:
    size = _OVERHEAD + sum(map(sys.getsizeof, (result.text, result.output, result.stderr)))
    for item in result.outputs:
        size += _OVERHEAD + sum(map(sys.getsizeof, (item.text, *item.data.values())))
    return size
