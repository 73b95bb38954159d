"""The commands sh and processes: programs that run in addition to a session's kernel."""

from __future__ import annotations

import errno
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from typing import Annotated, Any

import typer

from cellblock.common.terminal import printable
from cellblock.errors import CellblockError, InvalidInputError, ProcessError
from cellblock.fronts.cli.arguments import RUN, SESSIONS, Json, Session, makes_sessions, pair
from cellblock.fronts.cli.daemon_access import ask, call_in_session, connect, connected
from cellblock.fronts.cli.execute import make, milliseconds
from cellblock.fronts.cli.output import Columns, finish, finish_list
from cellblock.fronts.cli.problems import TIMED_OUT, UNAVAILABLE, say
from cellblock.model.programs import ExecResult, ProcessOutput
from cellblock.operations.base import Request
from cellblock.operations.programs import (
    Processes,
    ReadProcess,
    ResizeProcess,
    SignalProcess,
    Spawn,
    StopProcess,
    WriteProcess,
)
from cellblock.service.daemon.daemon_connection import SessionConnection

_MISSING, _NOT_EXECUTED = 127, 126
"""Exit statuses of shells for a program that is not there, and one that cannot be executed."""

_PIECE = 32 * 1024
_WAIT = 2000
"""Milliseconds that the daemon waits for output before it answers without output. A signal that comes right before a
system call is noticed then."""

_LEAVE = 3
"""Presses of Ctrl-C that leave a program that does not stop."""


def add_to(app: typer.Typer) -> None:
    """Add these commands to the program's."""
    app.command("sh", rich_help_panel=RUN, context_settings={"ignore_unknown_options": True})(sh)
    app.command("processes", rich_help_panel=SESSIONS)(processes)


@makes_sessions
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
        bool, typer.Option("--detach", "-d", help="Run it in the background and print its id; see 'cellblock processes'.")
    ] = False,
    *,
    options: dict[str, Any],
    as_json: Json = False,
) -> int:
    """Run a program, or a shell, beside a session's kernel and exit with its status.

    The session is created if it does not exist. The options from --workspace to --option apply to a new session.
    """
    command = command or []
    terminal = not detach and sys.stdin.isatty() and sys.stdout.isatty()
    if not command and not terminal:
        raise InvalidInputError(f"name a program: cellblock sh {session} -- PROGRAM ARGS; without one, a terminal is needed")
    variables: dict[str, str | None] = dict(pair("--env", one) for one in env or [])
    if terminal:
        variables.setdefault("TERM", os.environ.get("TERM", "xterm"))
    if detach and timeout is not None:
        raise InvalidInputError("a program that is detached has no time limit: give --detach or --timeout, not both")
    limit = None if timeout is None else milliseconds(timeout) / 1000
    with connected() as connection:
        if options:
            make(connection, session, options)
        try:
            started = call_in_session(
                connection, session, _request(session, command, cwd, variables, terminal=terminal, detach=detach)
            )
        except ProcessError as error:
            say(f"cellblock: {error}")
            return _MISSING if error.errno in (errno.ENOENT, errno.ENOTDIR) else _NOT_EXECUTED
        if detach:
            return finish(started, started["id"], as_json)
        run = _Run(connection, session, started["id"], terminal=terminal)
        return run.follow(limit)


def _request(
    session: str, command: list[str], cwd: str, variables: dict[str, str | None], *, terminal: bool, detach: bool
) -> Spawn:
    """Return the request for a program; without a command, for a shell."""
    rows, columns = _size() if terminal else (0, 0)
    return Spawn(
        session,
        tuple(command or ["/bin/sh", "-c", "exec $(command -v bash || echo /bin/sh)"]),
        cwd,
        variables,
        stdin=not detach,
        rows=rows,
        columns=columns,
        keep="tail" if detach else "all",
        bound=not detach,
    )


def processes(
    session: Session,
    stop: Annotated[str | None, typer.Option("--stop", metavar="ID", help="Stop this program and its subprocesses.")] = None,
    as_json: Json = False,
) -> int:
    """List the programs beside a session's kernel, or stop one."""
    if stop is not None:
        ended = ask(StopProcess(session, stop))
        return finish(ended, f"{stop}: {ended['status']}", as_json)
    columns: Columns = {
        "id": "id",
        "pid": "pid",
        "state": lambda one: "running" if one["running"] else f"ended: {one['exit_code']}",
        "left": lambda one: len(one["left"]) or "",
        "label": "label",
        "program": lambda one: printable(shlex.join(one["command"]), lines=False)[:60],
    }
    empty = "no programs run beside this session's kernel"
    return finish_list("processes", ask(Processes(session)), columns, as_json, empty=empty)


class _Run:
    """A program of this command, connected to the terminal: output, input, window size, and signals.

    Each direction has its own connection, so a program that does not read delays only its input.
    """

    def __init__(self, control: SessionConnection, session: str, process: str, *, terminal: bool) -> None:
        """Start to forward.

        Args:
            control: The connection that the program is bound to.
            session: The session.
            process: The program's id.
            terminal: Whether the program has a terminal.
        """
        self._control = control
        self._session = session
        self._process = process
        self._terminal = terminal
        self._interrupts = 0

    def follow(self, seconds: float | None) -> int:
        """Forward everything until the program ends; return the exit status."""
        deadline = None if seconds is None else time.monotonic() + seconds
        with closing(connect()) as connection, self._signals(), _raw(sys.stdin.fileno()) if self._terminal else nullcontext():
            threading.Thread(target=self._feed, daemon=True).start()
            result, timed_out = self._carry(connection, deadline)
        if timed_out:
            say("cellblock: it was stopped at its time limit")
            return TIMED_OUT
        if result.exit_code is None or (result.status == "cancelled" and not self._interrupts):
            say(f"cellblock: {result.reason}")
        return UNAVAILABLE if result.exit_code is None else result.exit_code

    def _carry(self, connection: SessionConnection, deadline: float | None) -> tuple[ExecResult, bool]:
        """Forward output until the program ends; return the result, and whether it reached the time limit."""
        position, timed_out = 0, False
        while True:
            wait = _WAIT
            if deadline is not None:
                wait = max(min(round(1000 * (deadline - time.monotonic())), _WAIT), 0)
            output = ProcessOutput.from_dict(connection.call(ReadProcess(self._session, self._process, position, wait)))
            for piece in output.pieces:
                to = sys.stdout.buffer if piece.stream == "stdout" else sys.stderr.buffer
                to.write(piece.data)
                to.flush()
            position = output.position
            if output.result is not None:
                return output.result, timed_out
            if deadline is not None and time.monotonic() >= deadline:
                deadline, timed_out = None, True
                _in_thread(self._tell, StopProcess(self._session, self._process))

    def _feed(self) -> None:
        """Forward standard input to the program, in a thread."""
        with suppress(CellblockError, OSError, ValueError), closing(connect()) as connection:  # until one of the two has ended
            source = sys.stdin.fileno()
            while True:
                data = os.read(source, _PIECE)
                if not connection.call(WriteProcess(self._session, self._process, end=not data), data) or not data:
                    return

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Forward Ctrl-C and changes of the window size. The second Ctrl-C stops the program and its child processes."""
        handlers: dict[int, Callable[[int, object], None]] = {signal.SIGINT: self._interrupted}
        if self._terminal:  # the terminal's mode must be restored when this command is ended
            handlers = {signal.SIGWINCH: self._resized, signal.SIGTERM: _leave, signal.SIGHUP: _leave}
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _interrupted(self, _number: int, _frame: object) -> None:
        self._interrupts += 1
        if self._interrupts >= _LEAVE:
            raise KeyboardInterrupt
        first = SignalProcess(self._session, self._process, signal.SIGINT)
        _in_thread(self._tell, first if self._interrupts == 1 else StopProcess(self._session, self._process))

    def _resized(self, _number: int, _frame: object) -> None:
        _in_thread(self._tell, ResizeProcess(self._session, self._process, *_size()))

    def _tell(self, request: Request[Any]) -> None:
        with suppress(CellblockError):  # the program has ended
            self._control.call(request)


def _leave(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def _in_thread(do: Callable[..., object], *arguments: object) -> None:
    """Run a function that signal handlers must not wait for."""
    threading.Thread(target=do, args=arguments, daemon=True).start()


def _size() -> tuple[int, int]:
    columns, rows = os.get_terminal_size()
    return rows or 24, columns or 80


@contextmanager
def _raw(descriptor: int) -> Iterator[None]:
    """Pass each key to the program, which has a terminal of its own."""
    import termios
    import tty

    before = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor, termios.TCSADRAIN)  # already typed input is not lost
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
