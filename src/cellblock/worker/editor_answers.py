"""Answers questions between cells: completions, descriptions of names, changed variables."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from IPython.core.completer import provisionalcompleter, rectify_completions
from IPython.utils.tokenutil import token_at_cursor

from cellblock.wire.fields import PIECE
from cellblock.wire.messages import Changed, Changes, Complete, Completed, Inspect, Inspected
from cellblock.worker import comms
from cellblock.worker.loop import Interrupter
from cellblock.worker.shell import Shell
from cellblock.worker.values.changes import Variables

_MAX_MATCHES = 1000
_MAX_LINE = 5000
"""Maximum length of a line before the cursor. IPython completes 10,000 characters in half a second, 20,000 in two."""
_NOTHING: dict[type, Changed | Completed | Inspected] = {
    Changes: Changed(),
    Complete: Completed((), 0, 0),
    Inspect: Inspected(None),
}


class Questions:
    """Answers questions about the session's variables while no cell runs."""

    def __init__(self, shell: Shell, interrupter: Interrupter) -> None:
        """Store the arguments.

        Args:
            shell: The shell with the variables.
            interrupter: Lets a SIGINT end the methods of objects.
        """
        self._shell = shell
        self._interrupter = interrupter
        self._variables = Variables()
        self._told = False

    def answer(self, question: Changes | Complete | Inspect) -> Changed | Completed | Inspected:
        """Return the answer; an empty one if the code or a signal prevents it."""
        try:
            match question:
                case Changes():
                    return self._changed()
                case Complete():
                    return self._complete(question.code, question.cursor)
                case Inspect():
                    return Inspected(self._inspect(question.code, question.cursor, question.detail))
        except BaseException:  # a signal handler raised at the very beginning or end
            return _NOTHING[type(question)]

    def changed(self) -> Changed | None:
        """Return the changes by the last cell, if the host has ever asked for changes."""
        return self._changed() if self._told else None

    def _changed(self) -> Changed:
        self._told = True
        try:
            return self._variables.changed(self._shell.user_ns, self._shell.user_ns_hidden)
        except Exception:
            return Changed()  # the code can replace even these

    def _complete(self, code: str, cursor: int) -> Completed:
        cursor = min(cursor, len(code))
        if cursor - code.rfind("\n", 0, cursor) > _MAX_LINE:
            return Completed((), cursor, cursor)
        try:
            with provisionalcompleter(), _silence(), self._interrupter.query():
                found = list(rectify_completions(code, self._shell.Completer.completions(code, cursor)))
        except (Exception, KeyboardInterrupt):
            found = []  # completing runs the objects' own __dir__ and __getattr__
        matches = tuple(dict.fromkeys(item.text[:1000] for item in found[:_MAX_MATCHES]))
        if not matches:
            return Completed((), cursor, cursor)
        return Completed(matches, max(found[0].start, 0), max(found[0].end, 0))

    def _inspect(self, code: str, cursor: int, detail: int) -> str | None:
        cursor = min(cursor, len(code))
        try:
            with _silence(), self._interrupter.query():
                if comms.other is None:
                    bundle = self._shell.object_inspect_mime(token_at_cursor(code, cursor), detail_level=detail)
                else:  # a session of another language
                    asked = {"code": code, "cursor_pos": cursor, "detail_level": detail}
                    bundle = comms.other("inspect", asked).get("data", {})
        except (Exception, KeyboardInterrupt):
            return None  # no such name, or an object that cannot be inspected
        text = bundle.get("text/plain")
        return text[: PIECE // 4] if isinstance(text, str) else None


@contextmanager
def _silence() -> Iterator[None]:
    """Suppress exceptions that are not the user's: exceptions of inspected objects, and of an interrupt.

    IPython's completer shows every exception in its parts, even an interrupt. They would appear in the output of the next
    cell.
    """
    hooks = sys.excepthook, sys.unraisablehook
    sys.excepthook, sys.unraisablehook = _ignore, _ignore
    try:
        yield
    finally:
        sys.excepthook, sys.unraisablehook = hooks


def _ignore(*_: object) -> None:
    return None
