"""Programs that run in addition to the kernel of a session, and connections to servers in the session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Annotated

from cellblock.operations.base import Limits, Request, Route

if TYPE_CHECKING:
    from cellblock.model import programs
    from cellblock.operations.data import Data

_PROCESSES = "/sessions/{session}/processes"
_PROCESS = f"{_PROCESSES}/{{process}}"
MOST_OUTPUT = 32 * 1024 * 1024
"""The most bytes of each stream that an answer keeps. As JSON, they can be seven times as many, and fit in one answer."""

_Scope = Annotated[str, Limits("program", "group", "tree")]
_Command = Annotated[tuple[str, ...], Limits(min_length=1, max_length=10_000)]


class Exec(
    Request["Data[programs.ExecResult]"],
    op="exec",
    route=Route(
        "POST", "/sessions/{session}/exec", "Run a program beside the kernel", text="input", text_default="", attended=True
    ),
):
    """Run a program in a session's sandbox beside its kernel, and return how it ended and what it printed.

    It is stopped if the connection is lost. The body (over HTTP, `input`) is its standard input.

    Attributes:
        session: The session.
        command: The program and its arguments. A shell's command line is ``["sh", "-c", "…"]``.
        cwd: Its directory; empty: the workspace, where relative paths begin.
        env: Variables to set, or to remove (null).
        timeout: Milliseconds until it is stopped; -1 for no limit.
        merge: Whether standard error goes into standard output.
        log: A file of the session that gets all output instead.
        max_output: Maximum number of bytes to keep of each stream.
        stop: The processes to stop at the time limit.
    """

    session: str
    command: _Command
    cwd: str = ""
    env: Mapping[str, str | None] = field(default_factory=dict)
    timeout: Annotated[int, Limits(ge=-1, le=2**53)] = 120_000
    merge: bool = False
    log: str = ""
    max_output: Annotated[int, Limits(ge=0, le=MOST_OUTPUT)] = 16 * 1024 * 1024
    stop: _Scope = "tree"


class Spawn(
    Request["Data[programs.ProcessInfo]"],
    op="spawn",
    route=Route("POST", _PROCESSES, "Start a program beside the kernel", without=("bound",)),
):
    """Start a program in a session's sandbox beside its kernel. It runs until it ends, is stopped, or its session ends.

    Attributes:
        session: The session.
        command: The program and its arguments.
        cwd: As for `Exec`.
        env: As for `Exec`.
        stdin: Whether it has a standard input to write to.
        rows: Rows of its terminal; 0: no terminal.
        columns: Columns of that terminal.
        merge: As for `Exec`.
        log: As for `Exec`.
        keep: How unread output is handled: all: the program waits when 1 MiB was not read; tail: the oldest is dropped.
        label: A text for the list of programs.
        bound: Whether it is stopped when the connection is lost.
    """

    session: str
    command: _Command
    cwd: str = ""
    env: Mapping[str, str | None] = field(default_factory=dict)
    stdin: bool = False
    rows: Annotated[int, Limits(ge=0, le=65_535)] = 0
    columns: Annotated[int, Limits(ge=0, le=65_535)] = 0
    merge: bool = False
    log: str = ""
    keep: Annotated[str, Limits("all", "tail")] = "tail"
    label: Annotated[str, Limits(max_length=200)] = ""
    bound: bool = False


class Processes(
    Request["list[Data[programs.ProcessInfo]]"],
    op="processes",
    repeatable=True,
    route=Route("GET", _PROCESSES, "List programs", scope="read", within="processes"),
):
    """List the programs of a session, oldest first: running programs, and the last ended ones."""

    session: str


class ReadProcess(
    Request["Data[programs.ProcessOutput]"],
    op="read process",
    repeatable=True,
    route=Route("GET", f"{_PROCESS}/output", "Read what a program prints", scope="read"),
):
    """Wait for output of a program after a position, and return the output, and how the program ended if it has.

    Attributes:
        session: The session.
        process: The program's id.
        since: The position in bytes. Earlier output counts as read.
        wait: Milliseconds to wait for output or for the end.
    """

    session: str
    process: str
    since: Annotated[int, Limits(ge=0, le=2**53)] = 0
    wait: Annotated[int, Limits(ge=0, le=30_000)] = 0


class WriteProcess(
    Request[bool],
    op="write process",
    route=Route("POST", f"{_PROCESS}/input", "Write to a program", within="done", text="data", text_default=""),
):
    """Write the body (over HTTP, `data`) to a program's standard input or terminal. Answered by whether its input is open.

    Attributes:
        session: The session.
        process: The program's id.
        end: Whether to close its standard input afterwards.
    """

    session: str
    process: str
    end: bool = False


class SignalProcess(
    Request[bool],
    op="signal process",
    route=Route("POST", f"{_PROCESS}/signal", "Send a signal to a program", within="done"),
):
    """Send a signal to a program.

    Attributes:
        session: The session.
        process: The program's id.
        number: The number of the signal.
        scope: The program alone, its process group, or its whole process tree.
    """

    session: str
    process: str
    number: Annotated[int, Limits(ge=1, le=64)]
    scope: _Scope = "group"


class ResizeProcess(
    Request[bool],
    op="resize process",
    repeatable=True,
    route=Route("POST", f"{_PROCESS}/size", "Change the size of a program's terminal", within="done"),
):
    """Change the size of a program's terminal."""

    session: str
    process: str
    rows: Annotated[int, Limits(ge=1, le=65_535)]
    columns: Annotated[int, Limits(ge=1, le=65_535)]


class StopProcess(
    Request["Data[programs.ExecResult]"],
    op="stop process",
    repeatable=True,
    route=Route("DELETE", _PROCESS, "Stop a program"),
):
    """End a program and its process tree: SIGTERM, and SIGKILL if it does not end. Answered by how it ended.

    Attributes:
        session: The session.
        process: The program's id.
        grace: Milliseconds between the two signals.
        scope: The processes to end: the program alone, its process group, or its whole process tree.
    """

    session: str
    process: str
    grace: Annotated[int, Limits(ge=0, le=60_000)] = 500
    scope: _Scope = "tree"


class Ports(
    Request[list[int]],
    op="ports",
    repeatable=True,
    route=Route("GET", "/sessions/{session}/ports", "List the ports of servers", scope="read", within="ports"),
):
    """List the TCP ports at which code and programs of a session listen. A session without its own network has none."""

    session: str


class ConnectPort(Request[bytes], op="connect port"):
    """Connect to a port of a session. Answered by the connection's id, and then by what the server sends, until it closes.

    The connection is closed when the client stops reading the answer.

    Attributes:
        session: The session.
        port: The port.
    """

    session: str
    port: int


class WritePort(Request[bool], op="write port"):
    """Write the body to a connection of `ConnectPort`. Answered by whether the server reads on.

    Attributes:
        session: The session, as in `ConnectPort`.
        connection: The connection's id.
        end: Whether the client writes no more.
    """

    session: str
    connection: str
    end: bool = False
