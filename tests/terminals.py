"""A program in a pseudo-terminal, as a person uses it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

PATIENCE = 30.0
_TAKEN_BACK = re.compile(r"[^\n]*\r\x1b\[K")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\[?[0-9;?]*$")


class Screen:
    """The person's end of a terminal.

    Attributes:
        raw: All that the program has written.
        process: The program.
    """

    def __init__(self, descriptor: int, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.raw = ""
        self._descriptor = descriptor
        self._seen = 0

    @property
    def text(self) -> str:
        """What the program has written, without lines that it took back, and what moves the cursor or changes colours."""
        return _CONTROL.sub("", _TAKEN_BACK.sub("", self.raw))

    @property
    def echoes(self) -> bool:
        """Whether the terminal shows what is typed."""
        return bool(termios.tcgetattr(self._descriptor)[3] & termios.ECHO)

    def type(self, text: str) -> None:
        """Type something, and not Enter."""
        os.write(self._descriptor, text.encode())

    def enter(self, line: str = "") -> None:
        """Type a line."""
        self.type(line + "\r")

    def wait_for(self, text: str) -> str:
        """Wait until a text has come, after what was waited for before; return what stands before it."""
        deadline = time.monotonic() + PATIENCE
        while (found := (shown := self.text).find(text, self._seen)) < 0:
            assert time.monotonic() < deadline, f"{text!r} did not come; the screen has {self.text[self._seen :]!r}"
            if not self._read(deadline):
                raise AssertionError(f"the program has ended without {text!r}: {self.text[self._seen :]!r}")
        before, self._seen = shown[self._seen : found], found + len(text)
        return before

    def end(self) -> int:
        """Wait for the program's end; return its exit status."""
        deadline = time.monotonic() + PATIENCE
        while self._read(deadline):
            assert time.monotonic() < deadline, self.text
        return self.process.wait(PATIENCE)

    def _read(self, deadline: float) -> bool:
        readable, _, _ = select.select([self._descriptor], [], [], max(0.0, deadline - time.monotonic()))
        if not readable:
            return True
        try:
            data = os.read(self._descriptor, 65536)
        except OSError:
            return False  # nobody has the other end any more
        self.raw += data.decode("utf-8", "replace")
        return bool(data)


@contextmanager
def terminal(*command: str, columns: int = 100, **environment: str) -> Iterator[Screen]:
    """Run a program in a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    # The size of another terminal, which pytest-xdist puts there, would count for more than that of this one.
    inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env={**inherited, "TERM": "xterm", "NO_COLOR": "1", "PROMPT_TOOLKIT_NO_CPR": "1", **environment},
        preexec_fn=_take_terminal,
    )
    os.close(theirs)
    try:
        yield Screen(ours, process)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def cellblock(*arguments: str) -> Sequence[str]:
    """Return the command line of our program."""
    return (sys.executable, "-m", "cellblock", *arguments)
