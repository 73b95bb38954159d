"""sys.stdout and sys.stderr of a kernel: what is written to them goes to its outbox."""

from __future__ import annotations

import codecs
import functools
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

from cellblock.worker.outbox import DESCRIPTORS, Outbox, StreamName

_P = ParamSpec("_P")
_T = TypeVar("_T")


def replace_streams(outbox: Outbox) -> None:
    """Put streams that write to an outbox in place of Python's own.

    Args:
        outbox: What is written goes through this one.
    """
    sys.stdout, sys.stderr = OutStream(outbox, "stdout"), OutStream(outbox, "stderr")


def restore_streams() -> None:
    """Give Python's own streams back."""
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__


class OutStream(io.TextIOBase):
    """What `sys.stdout` and `sys.stderr` are in a kernel."""

    errors = "backslashreplace"
    line_buffering = True

    def __init__(self, outbox: Outbox, name: StreamName) -> None:
        super().__init__()
        self._outbox = outbox
        self._stream: StreamName = name
        self.write = outbox.writer(name)  # type: ignore[method-assign]  # see there
        self.buffer = _BinaryOut(self)

    @property
    def name(self) -> str:
        """The name, as Python's own streams have it."""
        return f"<{self._stream}>"

    @property
    def mode(self) -> str:
        """The mode, as Python's own streams have it."""
        return "w"

    @property
    def encoding(self) -> str:  # type: ignore[override]  # TextIOBase declares an attribute
        """Always UTF-8."""
        return "utf-8"

    def writelines(self, lines: Iterable[str]) -> None:  # type: ignore[override]  # the base takes any buffer
        """Write several strings."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Make what was written visible."""
        self._outbox.flush_soon()

    def fileno(self) -> int:
        """The descriptor that subprocesses write to; the host hears it as well."""
        return DESCRIPTORS[self._stream]

    def isatty(self) -> bool:
        """A kernel has no terminal."""
        return False

    def writable(self) -> bool:
        """It can be written to."""
        return True

    def reconfigure(self, **_options: object) -> None:
        """Accept what scripts ask of their stdout; there is nothing to change."""

    def close(self) -> None:
        """Stay open: a kernel that cannot print is of no use to anybody."""


class _BinaryOut(io.RawIOBase):
    """``sys.stdout.buffer``: bytes, read as UTF-8, in order with the text."""

    def __init__(self, stream: OutStream) -> None:
        super().__init__()
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, data: object) -> int:
        raw = bytes(data)  # type: ignore[call-overload]  # whatever has a buffer
        self._stream.write(self._decoder.decode(raw))
        return len(raw)

    def flush(self) -> None:
        if not self._stream.closed:
            self._stream.flush()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._stream.fileno()

    def close(self) -> None:
        pass


def keep_order(outbox: Outbox) -> None:
    """Have what is written to descriptors by `os.write` and by new processes stand behind what was printed before it.

    Likewise for what ends this process at once: all that was printed before it is heard.

    Args:
        outbox: What is printed goes through this one.
    """

    def behind(function: Callable[_P, _T], concerns: Callable[_P, bool]) -> Callable[_P, _T]:
        @functools.wraps(function)
        def call(*args: _P.args, **options: _P.kwargs) -> _T:
            if concerns(*args, **options):
                outbox.let_host_catch_up()
            return function(*args, **options)

        return call

    def always(*_args: object, **_options: object) -> bool:
        return True

    os.write = behind(os.write, lambda descriptor, *_: descriptor in (1, 2))
    os.system = behind(os.system, always)
    os.posix_spawn = behind(os.posix_spawn, always)
    os.posix_spawnp = behind(os.posix_spawnp, always)
    # If this process is killed, what is pending is lost, too.
    os._exit = behind(os._exit, always)
    os.abort = behind(os.abort, always)
    os.kill = behind(os.kill, always)
    os.killpg = behind(os.killpg, always)
    subprocess.Popen.__init__ = behind(subprocess.Popen.__init__, always)  # type: ignore[assignment, method-assign]
