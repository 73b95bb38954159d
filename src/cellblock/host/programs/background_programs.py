"""The background programs of one session, started by its init in its sandbox, never by its kernel."""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
import os
import socket
import tempfile
from collections.abc import AsyncIterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Any

from cellblock.common import config
from cellblock.common.tasks import despite_cancellation
from cellblock.common.telemetry import MAX_TEXT, Step
from cellblock.common.timeouts import check_timeout
from cellblock.errors import InvalidInputError, KernelDiedError, NotFoundError, ProcessError, ProtocolError, StateError, shown
from cellblock.host.kernels.kernel_slot import KernelObserver, KernelSlot
from cellblock.host.programs.output import Kept
from cellblock.host.programs.process import Process, check_scope
from cellblock.host.telemetry import SessionTrace
from cellblock.model.programs import (
    MAX_OUTPUT,
    ExecResult,
    Input,
    Keep,
    OnOutput,
    ProcessInfo,
    ProgramStream,
    Scope,
    as_command,
    check_size,
    passable,
)
from cellblock.wire.datagrams import encode_control
from cellblock.wire.program_messages import MAX_SPECIFICATION, SPECIFICATION, Specification

if TYPE_CHECKING:
    from cellblock.host.kernels.cells import Cells, SessionWatcher
    from cellblock.host.kernels.kernel import Kernel

EXEC_TIMEOUT = 120.0
MAX_PROGRAMS = 64
"""Programs of one session at a time."""
_REMEMBERED = 64
"""Programs that have ended and can still be asked how."""
_MOMENT, _MOMENTS = 0.001, 5000
"""Seconds between attempts to send to an init that is busy, and how many there are."""


class Programs(KernelObserver):
    """The background programs of one session.

    Attributes:
        watchers: Observers of ended programs.
    """

    def __init__(
        self,
        name: str,
        kernels: KernelSlot,
        cells: Cells,
        trace: SessionTrace,
    ) -> None:
        """Start without programs.

        Args:
            name: The session's name in messages.
            kernels: Its kernels, whose init starts the programs.
            cells: Its cells, which know whether it runs.
            trace: The session's spans.
        """
        self._trace = trace
        self._name = name
        self._kernels = kernels
        self._cells = cells
        self._numbers = itertools.count(1)
        self._running: dict[str, Process] = {}
        self._ended: dict[str, Process] = {}
        self._hidden: set[Process] = set()
        self.watchers: list[SessionWatcher] = []
        self._waiting = 0
        kernels.observe(self)

    # -- for users -----------------------------------------------------------------------------------------------------

    async def exec(
        self,
        command: Sequence[str] | str,
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str | None] | None = None,
        input: Input | None = None,  # noqa: A002  # the name that `subprocess.run` has
        timeout: float | None = EXEC_TIMEOUT,
        merge: bool = False,
        log: str | None = None,
        on_output: OnOutput | None = None,
        max_output: int = MAX_OUTPUT,
        stop: Scope = "tree",
    ) -> ExecResult:
        """Run a program in the session's sandbox, and return how it ended and its output.

        The session's init starts the program, not the kernel. The session's code cannot trace it, read its memory or
        descriptors, or answer for it. It has the same files, network, limits and user. It is not a cell: it is not in the
        history, and `undo` does not revert it. Up to 64 programs run at once, in parallel with cells (docs/programs.md).

        Args:
            command: The program and its arguments. A string is a command for ``sh -c``.
            cwd: Working directory in the session, relative to the workspace, which is the default.
            env: Variables to set, or to remove (None), in the session's initial environment. Changes of `os.environ` in cells
                do not apply.
            input: Data for standard input; by default it is empty.
            timeout: Time limit in seconds; None for no limit.
            merge: Whether to merge standard error into standard output, in the order of writing.
            log: A file in the session to which all output is appended instead.
            on_output: Called with each piece of output, and awaited if it returns an awaitable. The program waits meanwhile.
            max_output: Maximum number of bytes to keep of each stream, from its beginning and its end. The program may print
                more.
            stop: The processes to stop on timeout or cancellation: all child processes (``tree``), or the process ``group``,
                so that processes that left the group continue.

        Returns:
            The result, whether the program succeeded or failed. It arrives when the program itself has ended. `left` lists its
            background processes, which continue.

        Raises:
            InvalidInputError: An argument is invalid.
            StateError: The session is not started, closed, or already has 64 programs.
            LaunchError: The kernel had died, and no new kernel could be started.
        """
        check_timeout(timeout)
        check_scope(stop)
        if not isinstance(max_output, int) or max_output < 0:
            raise InvalidInputError(f"max_output must be a number of bytes, not {max_output!r}")
        given = _checked_input(input)
        with self._step(command, metric="gen_ai.execute_tool.duration", labels=(("gen_ai.tool.name", "exec"),)) as step:
            process = await self._start(
                command, cwd=cwd, env=env, stdin=given is not None, pty=None, merge=merge, log=log, keep="all", label=""
            )
            result = await _to_end(process, _Collected(process, max_output, on_output), given, timeout, stop)
            if result.exit_code is not None:
                step.set("process.exit.code", result.exit_code)
            if result.status != "exited":
                step.fail(result.status)
        self._tell(process, result)
        return result

    async def spawn(
        self,
        command: Sequence[str] | str,
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str | None] | None = None,
        stdin: bool = False,
        pty: tuple[int, int] | None = None,
        merge: bool = False,
        log: str | None = None,
        keep: Keep = "all",
        label: str = "",
    ) -> Process:
        """Start a background program in the session's sandbox, and return once it runs.

        Args:
            command: As for `exec`.
            cwd: As for `exec`.
            env: As for `exec`.
            stdin: Whether `Process.write` writes to standard input. Otherwise it is empty.
            pty: Rows and columns of a terminal that replaces the standard streams.
            merge: As for `exec`.
            log: As for `exec`.
            keep: How unread output is handled: with ``all``, the program waits at 1 MiB; with ``tail``, the oldest is dropped.
            label: A text for `processes`.

        Raises:
            ProcessError: The program could not be started.
            InvalidInputError, StateError, LaunchError: As for `exec`.
        """
        if not isinstance(stdin, bool):
            raise InvalidInputError(
                f"stdin must be True or False, not {stdin!r}; pass the program's input as exec(…, input=…)"
            )
        if keep not in ("all", "tail"):
            raise InvalidInputError(f"keep must be 'all' or 'tail', not {keep!r}")
        if not isinstance(label, str):
            raise InvalidInputError(f"label must be a string, not {label!r}")
        size = None if pty is None else check_size(pty)
        if size is not None and log is not None:
            raise InvalidInputError("a program with a terminal has no log: pass pty or log, not both")
        with self._step(command):  # until it runs: it may run for days, and outlive this process's exporter
            process = await self._start(
                command, cwd=cwd, env=env, stdin=stdin, pty=size, merge=merge, log=log, keep=keep, label=label
            )
            try:
                await process.begun()
            except BaseException:  # cancellation: nothing else owns it
                await despite_cancellation(asyncio.create_task(process.end("cancelled", "its caller was cancelled")))
                raise
        if (ended := process.poll()) is not None and ended.status == "not_started":
            raise ProcessError(ended.reason, ended.errno or 0)
        if self.watchers:
            process.when_ended(functools.partial(self._tell, process))
        return process

    def processes(self) -> list[ProcessInfo]:
        """Return the session's programs, oldest first: running ones, and the last ended ones."""
        known = {**self._ended, **self._running}
        return [known[name].info for name in sorted(known, key=lambda name: int(name[1:]))]

    def process(self, id: str) -> Process:  # noqa: A002  # as in `ProcessInfo`
        """Return a program of the session by its id.

        Raises:
            NotFoundError: The id is unknown, or the program ended long ago.
        """
        found = self._running.get(id) or self._ended.get(id)
        if found is None:
            raise NotFoundError(f"{self._name} has no process {shown(id)}: {', '.join(self._running) or 'none'} run now")
        return found

    # -- for the session -----------------------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Number of running programs."""
        return len(self._running)

    def _step(self, command: Sequence[str] | str, **options: Any) -> Step:
        attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "exec", "gen_ai.tool.type": "function"}
        if config.records_content():
            shown = command if isinstance(command, str) else " ".join(map(str, command))
            attributes["process.command_line"] = shown[:MAX_TEXT]
        return self._trace.operation("execute_tool exec", attributes, **options)

    def _tell(self, process: Process, result: ExecResult) -> None:
        for watcher in self.watchers:
            watcher.program_ended(process.info.command, result)

    async def helper(self) -> Process:
        """Start the helper for files. It is not listed among the session's programs."""
        return await self._begin(_specification((), stdin=True), ("files",), "all", "", hidden=True)

    async def end_all(self, why: str) -> None:
        """End all programs and their child processes. Idempotent."""
        ending = [process for process in [*self._running.values(), *self._hidden] if not process.gone]
        await asyncio.gather(*(process.end("cancelled", why, 0.0) for process in ending))

    def end_programs(self, why: str) -> bool:
        """Kill all programs of a session that needs their memory, without waiting. Return whether there were any."""
        for process in self._running.values():
            process.kill(f"{self._name} is {why}")
        return bool(self._running)

    # -- starting ------------------------------------------------------------------------------------------------------

    async def _start(
        self,
        command: Sequence[str] | str,
        *,
        cwd: str | os.PathLike[str] | None,
        env: Mapping[str, str | None] | None,
        stdin: bool,
        pty: tuple[int, int] | None,
        merge: bool,
        log: str | None,
        keep: Keep,
        label: str,
    ) -> Process:
        argv = as_command(command)
        wanted = _specification(
            argv,
            cwd=None if cwd is None else _text("cwd", os.fspath(cwd)),
            env=_checked_env(env),
            stdin=stdin and pty is None,
            terminal=pty,
            merged=merge,
            log=None if log is None else _text("log", os.fspath(log)),
        )
        self._cells.check_running()
        if len(self._running) + self._waiting >= MAX_PROGRAMS:
            raise StateError(
                f"{self._name} runs {MAX_PROGRAMS} programs already: wait for one of them, or stop one (session.processes())"
            )
        return await self._begin(wanted, argv, keep, label)

    async def _begin(self, wanted: bytes, argv: tuple[str, ...], keep: Keep, label: str, *, hidden: bool = False) -> Process:
        self._waiting += 1
        try:
            for _ in range(_MOMENTS):
                kernel = await self._kernels.live()
                self._cells.check_running()
                try:
                    await kernel.wake()
                    return self._launch(kernel, wanted, argv, keep, label, hidden=hidden)
                except BlockingIOError:
                    await asyncio.sleep(_MOMENT)
                except KernelDiedError:  # just now: the next attempt gets the next one
                    await kernel.settle()
            raise StateError(f"{self._name} cannot start programs now: its init does not answer")
        finally:
            self._waiting -= 1

    def _launch(
        self, kernel: Kernel, wanted: bytes, argv: tuple[str, ...], keep: Keep, label: str, *, hidden: bool
    ) -> Process:
        """Ask init to start a program. Without an await: everything created here has an owner on return."""
        specification = SPECIFICATION.decode(wanted)
        family = kernel.family
        with ExitStack() as theirs, ExitStack() as undo:
            connection, their_connection = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            connection.setblocking(False)
            theirs.callback(their_connection.close)
            undo.callback(connection.close)
            file = theirs.enter_context(_file(wanted))
            given = [their_connection.fileno(), file.fileno()]
            stdin: int | None = None
            outputs: list[int] = []
            if specification.stdin:
                reader, stdin = _pipe(theirs, undo, ours=1)
                os.set_blocking(stdin, False)
                given.append(reader)
            if specification.terminal is None and specification.log is None:
                for _ in range(1 if specification.merged else 2):
                    reader, writer = _pipe(theirs, undo, ours=0)
                    outputs.append(reader)
                    given.append(writer)
            family.execute(kernel.control, given, opened=specification.terminal is not None or not specification.argv)
            undo.pop_all()

        def on_gone(process: Process) -> None:
            family.program_ended()
            self._hidden.discard(process)
            if self._running.pop(process.id, None) is not None:
                self._ended[process.id] = process
                while len(self._ended) > _REMEMBERED:
                    del self._ended[next(iter(self._ended))]

        terminal = specification.terminal is not None
        number = 0 if hidden else next(self._numbers)
        process = Process(number, argv, label, keep, connection, outputs, stdin, on_gone, terminal=terminal)
        if hidden:
            self._hidden.add(process)
        else:
            self._running[process.id] = process
        return process


def _pipe(theirs: ExitStack, undo: ExitStack, *, ours: int) -> tuple[int, int]:
    """Create a pipe with one end for the host."""
    ends = os.pipe()
    undo.callback(os.close, ends[ours])
    theirs.callback(os.close, ends[1 - ours])
    return ends


def _file(content: bytes) -> IO[bytes]:
    """Return an unnamed file for a content that may be too long for a message."""
    if hasattr(os, "memfd_create"):
        file: IO[bytes] = os.fdopen(os.memfd_create("program", os.MFD_CLOEXEC), "w+b", buffering=0)
    else:
        file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # the caller closes it
    try:
        file.write(content)
    except BaseException:
        file.close()
        raise
    return file


# -- arguments -----------------------------------------------------------------------------------------------------------


def _text(what: str, value: object) -> str:
    if not isinstance(value, str) or not value or not passable(value):
        raise InvalidInputError(f"{what} must be a string without NUL characters and lone surrogates, not {shown(value)}")
    return value


def _checked_env(env: Mapping[str, str | None] | None) -> dict[str, str | None]:
    if env is None:
        return {}
    if not isinstance(env, Mapping):
        raise InvalidInputError(f"env must be a dict of variables, not {shown(env)}")
    for name, value in env.items():
        if not isinstance(name, str) or not name or "=" in name or not passable(name):
            raise InvalidInputError(f"env has a variable with an invalid name: {shown(name)}")
        if value is not None and (not isinstance(value, str) or not passable(value)):
            raise InvalidInputError(f"env[{name!r}] must be a string without NUL characters, or None, not {shown(value)}")
    return dict(env)


def _checked_input(given: Input | None) -> AsyncIterable[bytes] | bytes | None:
    if isinstance(given, str):
        return given.encode()
    if given is None or isinstance(given, bytes | AsyncIterable):
        return given
    if isinstance(given, bytearray | memoryview):
        return bytes(given)
    raise InvalidInputError(f"input must be bytes, text, or an async iterable of bytes, not {type(given).__name__}")


def _specification(argv: tuple[str, ...], **fields: Any) -> bytes:
    """Encode the specification of a program.

    Raises:
        InvalidInputError: It is too long.
    """
    values: dict[str, Any] = {
        "cwd": None, "env": {}, "terminal": None, "stdin": False, "merged": False, "log": None, **fields
    }  # fmt: skip
    try:
        return encode_control(Specification(argv, **values), MAX_SPECIFICATION)
    except ProtocolError:
        raise InvalidInputError(
            f"the command and its variables are longer than {MAX_SPECIFICATION:,} bytes: pass the data as input, or in a file"
        ) from None


# -- running -------------------------------------------------------------------------------------------------------------


class _Collected:
    """The part of a program's output that its result keeps."""

    def __init__(self, process: Process, limit: int, on_output: OnOutput | None) -> None:
        self.on_output = on_output
        self._process = process
        self._position = 0
        self._kept: dict[ProgramStream, Kept] = {"stdout": Kept(limit), "stderr": Kept(limit)}

    async def collect(self) -> None:
        """Collect output until the program has ended."""
        while pieces := await self._process.read(self._position):
            for piece in pieces:
                self._position = piece.offset + len(piece.data)
                self._kept[piece.stream].add(piece.data)
                if self.on_output is not None and inspect.isawaitable(waiting := self.on_output(piece)):
                    await waiting

    def with_output(self, result: ExecResult) -> ExecResult:
        """Return the result with the collected output."""
        out, err = self._kept["stdout"], self._kept["stderr"]
        truncated = bool(out.dropped or err.dropped)
        return replace(result, stdout=out.content(), stderr=err.content(), truncated=truncated)


async def _to_end(
    process: Process, collected: _Collected, given: AsyncIterable[bytes] | bytes | None, timeout: float | None, stop: Scope
) -> ExecResult:
    """Feed a program its input, and return how it ended, with its output. End it if the caller is cancelled."""
    feeding = None if given is None else asyncio.create_task(_feed(process, given))
    try:
        try:
            async with asyncio.timeout(timeout) as limit:
                await collected.collect()
                result = await process.wait()
        except TimeoutError:
            if not limit.expired():
                raise
            collected.on_output = None
            await process.end("timeout", f"stopped after {timeout:g} s", scope=stop)
            await collected.collect()
            result = await process.wait()
    except BaseException:  # includes cancellation, and exceptions of `on_output`
        await despite_cancellation(asyncio.create_task(process.end("cancelled", "its caller was cancelled", scope=stop)))
        raise
    finally:
        if feeding is not None:
            feeding.cancel()
    return collected.with_output(result)


async def _feed(process: Process, given: AsyncIterable[bytes] | bytes) -> None:
    """Write a program's input, then close it."""
    try:
        if isinstance(given, bytes):
            await process.write(given)
        else:
            async for part in given:
                await process.write(part)
    except BrokenPipeError:
        return  # it does not read the rest, like `head`
    finally:
        process.close_stdin()
