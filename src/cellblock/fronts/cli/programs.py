"""The commands sh and processes: programs beside a session's kernel."""

from __future__ import annotations

import errno
import os
import select
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any

import typer

from cellblock.common.terminal import printable
from cellblock.errors import CellblockError, InvalidInputError, NotFoundError, ProcessError
from cellblock.fronts.cli.arguments import RUN, SESSIONS, Json, Option, Session, Workspace, made_options, pair
from cellblock.fronts.cli.client import connect, connected, session_options
from cellblock.fronts.cli.execute import make, milliseconds
from cellblock.fronts.cli.output import print_json, print_table, wants_json
from cellblock.fronts.cli.problems import INTERRUPTED, OK, TIMED_OUT, UNAVAILABLE, say
from cellblock.model.programs import ProcessOutput
from cellblock.operations.programs import (
    Processes,
    ReadProcess,
    ResizeProcess,
    SignalProcess,
    Spawn,
    StopProcess,
    WriteProcess,
)
from cellblock.operations.sessions import Create
from cellblock.service.daemon.connection import Connection

_MISSING, _NOT_EXECUTED = 127, 126
"""Exit statuses of shells for a program that is not there, and one that cannot be executed."""

_PIECE = 32 * 1024
_WAIT = 10_000
"""Milliseconds that the daemon waits for output before it answers that there is none."""


def add_to(app: typer.Typer) -> None:
    """Add these commands to the program's."""
    app.command("sh", rich_help_panel=RUN, context_settings={"ignore_unknown_options": True})(sh)
    app.command("processes", rich_help_panel=SESSIONS)(processes)


def sh(
    session: Session,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- PROGRAM ARGS", help="The program; by default a shell, in a terminal.")
    ] = None,
    cwd: Annotated[str, typer.Option("--cwd", metavar="DIR", help="Its directory, in the session.")] = "",
    env: Annotated[
        list[str] | None, typer.Option("--env", "-e", metavar="NAME=VALUE", help="A variable for it. Can be repeated.")
    ] = None,
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="SECONDS", help="How long it may run; no limit by default.")
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Let it run, and print its id; 'cellblock processes' shows it.")
    ] = False,
    workspace: Workspace = None,
    option: Option = None,
    as_json: Json = False,
) -> int:
    """Run a program, or a shell, beside a session's kernel and exit with its status.

    The session is made if it does not exist yet; --workspace and --option are for that.
    """
    command = command or []
    terminal = not detach and sys.stdin.isatty() and sys.stdout.isatty()
    if not command and not terminal:
        raise InvalidInputError(f"name a program: cellblock sh {session} -- PROGRAM ARGS; without one, a terminal is needed")
    rows, columns = _size() if terminal else (0, 0)
    variables: dict[str, str | None] = dict(pair("--env", one) for one in env or [])
    if terminal:
        variables.setdefault("TERM", os.environ.get("TERM", "xterm"))
    options = made_options(workspace, None, None, False, option)
    with connected() as connection:
        if options:
            make(connection, session, options)
        request = Spawn(
            session,
            tuple(command or ["/bin/sh", "-c", "exec $(command -v bash || echo /bin/sh)"]),
            cwd,
            variables,
            stdin=not detach,
            rows=rows,
            columns=columns,
            keep="tail" if detach else "all",
        )
        try:
            started = _start(connection, request)
        except ProcessError as error:
            say(f"cellblock: {error}")
            return _MISSING if error.errno in (errno.ENOENT, errno.ENOTDIR) else _NOT_EXECUTED
        if detach:
            if wants_json(as_json):
                print_json(started)
            else:
                print(started["id"])
            return OK
        run = _Run(connection, session, started["id"], terminal=terminal)
        return run.follow(None if timeout is None else milliseconds(timeout) / 1000)


def _start(connection: Connection, request: Spawn) -> dict[str, Any]:
    """Start a program, in a session that is made if it does not exist."""
    try:
        return connection.call(request)
    except NotFoundError:
        connection.call(Create(request.session, session_options()))
        return connection.call(request)


def processes(
    session: Session,
    stop: Annotated[str | None, typer.Option("--stop", metavar="ID", help="Stop this one, and all it has started.")] = None,
    as_json: Json = False,
) -> int:
    """List the programs beside a session's kernel, or stop one."""
    with connected() as connection:
        if stop is not None:
            ended = connection.call(StopProcess(session, stop))
            print_json(ended) if wants_json(as_json) else print(f"{stop}: {ended['status']}")
            return OK
        found = connection.call(Processes(session))
    if wants_json(as_json):
        print_json({"processes": found})
        return OK
    rows = [
        (
            one["id"],
            str(one["pid"]),
            "running" if one["running"] else f"ended: {one['exit_code']}",
            str(len(one["left"]) or ""),
            printable(one["label"], lines=False),
            printable(shlex.join(one["command"]), lines=False)[:60],
        )
        for one in found
    ]
    print_table(("id", "pid", "state", "left", "label", "program"), rows, empty="no programs run beside this session's kernel")
    return OK


class _Run:
    """One program that this command runs: carries its output and input, and the terminal's size and signals."""

    def __init__(self, connection: Connection, session: str, process: str, *, terminal: bool) -> None:
        self._connection = connection
        self._session = session
        self._process = process
        self._terminal = terminal
        self._other = connect()
        """For input and signals, while the first one waits for output."""
        self._ended = threading.Event()
        self._interrupts = 0

    def follow(self, seconds: float | None) -> int:
        """Carry everything until the program ends; return the exit status."""
        feeding = threading.Thread(target=self._feed, daemon=True)
        deadline = None if seconds is None else time.monotonic() + seconds
        try:
            with _raw(sys.stdin.fileno()) if self._terminal else _as_it_is(), self._sizes():
                feeding.start()
                return self._carry(deadline)
        except BrokenPipeError:  # whoever read our output has gone, like `head`
            self._other.call(StopProcess(self._session, self._process))
            raise
        finally:
            self._ended.set()
            self._other.close()

    def _carry(self, deadline: float | None) -> int:
        position, timed_out = 0, False
        while True:
            try:
                wait = _WAIT
                if deadline is not None and not timed_out:
                    wait = max(min(round(1000 * (deadline - time.monotonic())), _WAIT), 0)
                answer = self._connection.call(ReadProcess(self._session, self._process, position, wait))
                output = ProcessOutput.from_dict(answer)
                for piece in output.pieces:
                    to = sys.stdout.buffer if piece.stream == "stdout" else sys.stderr.buffer
                    to.write(piece.data)
                    to.flush()
                position = output.position
                if output.finished and not output.pieces:
                    return self._status(output, timed_out=timed_out)
                if deadline is not None and not timed_out and time.monotonic() >= deadline:
                    timed_out = True
                    self._other.call(StopProcess(self._session, self._process))
            except KeyboardInterrupt:
                self._interrupt()

    def _interrupt(self) -> None:
        """Pass Ctrl-C on; if it comes again, stop the program."""
        self._interrupts += 1
        if not self._connection.usable:
            self._connection = connect()
        if self._interrupts == 1:
            self._other.call(SignalProcess(self._session, self._process, signal.SIGINT))
        else:
            self._other.call(StopProcess(self._session, self._process))

    def _status(self, output: ProcessOutput, *, timed_out: bool) -> int:
        result = output.result
        assert result is not None
        if timed_out:
            say("cellblock: it was stopped at its time limit")
            return TIMED_OUT
        if result.exit_code is None or result.status == "cancelled":
            say(f"cellblock: {result.reason}")
        if result.exit_code is None:
            return UNAVAILABLE
        return INTERRUPTED if self._interrupts and result.signal == signal.SIGINT else result.exit_code

    def _feed(self) -> None:
        """Write what comes on standard input to the program, in a thread."""
        source = sys.stdin.fileno()
        with suppress(CellblockError, OSError, ValueError):  # it has ended, or the daemon has
            while not self._ended.is_set():
                if not select.select([source], [], [], 0.5)[0]:
                    continue
                data = os.read(source, _PIECE)
                if not self._other.call(WriteProcess(self._session, self._process, end=not data), data) or not data:
                    return

    @contextmanager
    def _sizes(self) -> Iterator[None]:
        """Tell the program when the terminal's size changes."""
        if not self._terminal:
            yield
            return

        def changed(_number: int, _frame: object) -> None:
            rows, columns = _size()
            threading.Thread(target=self._resize, args=(rows, columns), daemon=True).start()

        before = signal.signal(signal.SIGWINCH, changed)
        try:
            yield
        finally:
            signal.signal(signal.SIGWINCH, before)

    def _resize(self, rows: int, columns: int) -> None:
        with suppress(CellblockError):
            self._other.call(ResizeProcess(self._session, self._process, rows, columns))


def _size() -> tuple[int, int]:
    columns, rows = os.get_terminal_size()
    return rows or 24, columns or 80


@contextmanager
def _raw(descriptor: int) -> Iterator[None]:
    """Give each key to the program, which has a terminal of its own."""
    import termios
    import tty

    before = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


@contextmanager
def _as_it_is() -> Iterator[None]:
    yield
