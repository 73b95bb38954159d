"""A status line for operations that take longer than a second."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from cellblock.common.terminal import printable

_PATIENCE = 1.0
_EVERY = 0.2
_BAR = 20


class Progress:
    """A line on standard error while an operation takes longer than a second; nothing without a terminal.

    A context manager. The line disappears when something else is printed (`hide`), and at the end.

    Attributes:
        text: The text, which may change at any time.
        find_text: Called once, in a thread, before the line is shown for the first time; returns another text.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.find_text: Callable[[], str] | None = None
        self._bar = ""
        self._begun = time.monotonic()
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._shown = False
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.hide()

    def advance(self, done: int, size: int) -> None:
        """Show a bar after the text: how many of `size` bytes are done."""
        share = min(done / size, 1.0) if size else 1.0
        self._bar = f" [{'#' * round(share * _BAR):.<{_BAR}}] {share:.0%} of {size:,} bytes"

    def hide(self) -> None:
        """Remove the line permanently."""
        self._done.set()
        with self._lock:
            if self._shown:
                self._shown = False
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()

    def _run(self) -> None:
        if self._done.wait(_PATIENCE):
            return
        before = self.text
        if (find_text := self.find_text) is not None and (found := find_text()) and self.text == before:
            self.text = found
        while True:
            with self._lock:
                if self._done.is_set():
                    return
                self._show()
            self._done.wait(_EVERY)

    @property
    def line(self) -> str:
        """What is shown now, at any length."""
        return f"{self.text}{self._bar} … {time.monotonic() - self._begun:.0f} s"

    def _show(self) -> None:
        width = _width()
        self._shown = True
        sys.stderr.write("\r\x1b[K" + printable(self.line, lines=False)[: width - 1])
        sys.stderr.flush()


def _width() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except OSError:
        return 80
