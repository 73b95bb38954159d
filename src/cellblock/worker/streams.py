"""sys.stdout and sys.stderr of a kernel, which write to its outbox."""

from __future__ import annotations

import codecs
import io
import os
import subprocess
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from cellblock.worker.outbox import DESCRIPTORS, Outbox, StreamName
from cellblock.worker.replaced import replace


def replace_streams(outbox: Outbox) -> None:
    """Replace Python's own streams by streams that write to an outbox."""
    sys.stdout, sys.stderr = OutStream(outbox, "stdout"), OutStream(outbox, "stderr")


def restore_streams() -> None:
    """Restore Python's own streams."""
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__


class OutStream(io.TextIOBase):
    """The type of `sys.stdout` and `sys.stderr` in a kernel."""

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
        """The name, in the format of Python's own streams."""
        return f"<{self._stream}>"

    @property
    def mode(self) -> str:
        """The mode, as in Python's own streams."""
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
        """Make pending text visible."""
        self._outbox.flush_soon()

    def fileno(self) -> int:
        """Return the descriptor for subprocesses, which the host reads as well."""
        return DESCRIPTORS[self._stream]

    def isatty(self) -> bool:
        """Return False: a kernel has no terminal."""
        return False

    def writable(self) -> bool:
        return True

    def reconfigure(self, **_options: object) -> None:
        """Accept any change that scripts request. There is nothing to change."""

    def close(self) -> None:
        """Stay open: a kernel that cannot print would be useless."""


class _BinaryOut(io.RawIOBase):
    """``sys.stdout.buffer``: bytes, decoded as UTF-8, in order with the text."""

    def __init__(self, stream: OutStream) -> None:
        super().__init__()
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, data: object) -> int:
        raw = bytes(data)  # type: ignore[call-overload]  # anything with a buffer
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
    """Send pending text before `os.write`, before new processes start, and before anything that ends this process at once."""

    def keep_behind(owner: ModuleType | type, name: str) -> None:
        function = getattr(owner, name)

        def call(*args: Any, **options: Any) -> Any:
            if name != "write" or args[:1] in ((1,), (2,)):
                outbox.let_host_catch_up()
            return function(*args, **options)

        replace(owner, name, call)

    # If this process is killed, pending text is lost, too.
    for name in ("write", "system", "posix_spawn", "posix_spawnp", "_exit", "abort", "kill", "killpg"):
        keep_behind(os, name)
    keep_behind(subprocess.Popen, "__init__")
