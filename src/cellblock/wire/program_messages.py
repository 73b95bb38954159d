"""Messages between the host and the watcher of a background program (docs/wire.md)."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import ClassVar, Literal, TypeAlias

from cellblock.wire.datagrams import Incoming
from cellblock.wire.record import record

Scope: TypeAlias = Literal["program", "group", "tree"]
"""Which processes a signal is for: the program; its process group; or all that it has started, in any group."""

Failed: TypeAlias = Literal["sandbox", "terminal", "cwd", "log", "program"]
"""The step at which the start of a program failed."""

MAX_SPECIFICATION = 2 * 1024 * 1024
"""The most bytes of a program's arguments and environment together: Linux has the same limit for new processes."""

LENGTHS = struct.Struct("!IQ")
"""The lengths of the head and the body of a request to the helper that works with files, or of an answer. The head is JSON."""


@record
class Specification:
    """The specification of a program.

    Attributes:
        argv: The program and its arguments; empty for the files helper.
        cwd: Its directory; None: the workspace.
        env: Variables to set or to remove (None) in the session's initial environment.
        terminal: Rows and columns of its terminal; None: it has pipes.
        stdin: Whether its standard input is attached; otherwise it is empty.
        merged: Whether one pipe takes standard output and standard error.
        log: A file of the session that gets all output instead.
    """

    op: ClassVar[str] = "program"
    argv: tuple[str, ...]
    cwd: str | None
    env: Mapping[str, str | None]
    terminal: tuple[int, ...] | None
    stdin: bool
    merged: bool
    log: str | None


# -- host → watcher ------------------------------------------------------------------------------------------------------


@record
class Signal:
    """Send a signal. When the host closes the connection, the tree gets SIGKILL."""

    op: ClassVar[str] = "signal"
    number: int
    scope: Scope


# -- watcher → host ------------------------------------------------------------------------------------------------------


@record
class Started:
    """The program runs, with this process id in the session. The other end of its terminal, if any, is attached."""

    op: ClassVar[str] = "started"
    pid: int


@record
class Unstarted:
    """The program could not be started. ``code``: the system's error number."""

    op: ClassVar[str] = "unstarted"
    code: int
    what: Failed


@record
class Ended:
    """The program has ended.

    Attributes:
        status: Its wait status.
        left: Its processes that still run. When they have ended too, the connection is closed.
    """

    op: ClassVar[str] = "ended"
    status: int
    left: tuple[int, ...]


FromWatcher: TypeAlias = Started | Unstarted | Ended

SPECIFICATION: Incoming[Specification] = Incoming(Specification)
TO_WATCHER: Incoming[Signal] = Incoming(Signal)
FROM_WATCHER: Incoming[FromWatcher] = Incoming(Started, Unstarted, Ended)
