"""Programs that run in addition to the kernels of named sessions."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cellblock.fronts.functions.connection import ask, call
from cellblock.model.programs import MAX_OUTPUT, ExecResult, Keep, ProcessInfo, ProcessOutput, Scope
from cellblock.operations.asking import as_bytes, exec_of, read_of, spawn_of, stop_of
from cellblock.operations.data import process_of, session_of
from cellblock.operations.programs import Processes, ResizeProcess, SignalProcess, WriteProcess

if TYPE_CHECKING:
    from cellblock.model.sessions import SessionRecord


def exec_process(
    kernel: SessionRecord | str,
    command: Sequence[str] | str,
    *,
    cwd: str | os.PathLike[str] = "",
    env: Mapping[str, str | None] | None = None,
    input: bytes | str = b"",  # noqa: A002  # the name that `subprocess.run` has
    timeout: float | None = 120.0,
    merge: bool = False,
    log: str = "",
    max_output: int = MAX_OUTPUT,
    stop: Scope = "tree",
) -> ExecResult:
    """Run a program in addition to a session's kernel, as `Session.exec` does.

    Args:
        kernel: The session's record, name or id.
        command: The program and its arguments; a text is a command for ``sh -c``.
        cwd: The working directory in the session; the workspace by default.
        env: Variables to set, or to remove (None).
        input: Data for standard input.
        timeout: Limit in seconds; None for no limit.
        merge: Whether standard error goes into standard output.
        log: A file in the session that gets all output instead.
        max_output: The maximum number of bytes to keep of each stream.
        stop: The processes to stop at the time limit.

    Raises:
        NotFoundError: The session does not exist.
        CellblockError: As for `Session.exec`.
    """
    request = exec_of(kernel, command, cwd, env, timeout, merge, log, max_output, stop)
    return ExecResult.from_dict(call(request, as_bytes(input, "input")))


def spawn_process(
    kernel: SessionRecord | str,
    command: Sequence[str] | str,
    *,
    cwd: str | os.PathLike[str] = "",
    env: Mapping[str, str | None] | None = None,
    stdin: bool = False,
    pty: tuple[int, int] | None = None,
    merge: bool = False,
    log: str = "",
    keep: Keep = "tail",
    label: str = "",
) -> ProcessInfo:
    """Start a program in addition to a session's kernel, as `Session.spawn` does. It runs until it or its session ends.

    By default, unread output is dropped when buffers are full, so that the program does not wait for a reader.

    Raises:
        NotFoundError: The session does not exist.
        CellblockError: As for `Session.spawn`.
    """
    return ask(spawn_of(kernel, command, cwd, env, stdin, pty, merge, log, keep, label))


def processes(kernel: SessionRecord | str) -> list[ProcessInfo]:
    """Return the programs of a session, oldest first: running ones, and the last ones that ended.

    Raises:
        NotFoundError: The session does not exist.
    """
    return ask(Processes(session_of(kernel)))


def read_process(kernel: SessionRecord | str, process: ProcessInfo | str, since: int = 0, wait: float = 0.0) -> ProcessOutput:
    """Return a program's output from a position on, and its outcome if it has ended.

    Args:
        kernel: The session's record, name or id.
        process: The program, or its id.
        since: The position: the number of bytes of earlier output.
        wait: Seconds to wait for output, or for the end; 30 at most.

    Raises:
        NotFoundError: The session or the program does not exist.
    """
    return ask(read_of(kernel, process, since, wait))


def write_process(kernel: SessionRecord | str, process: ProcessInfo | str, data: bytes | str, *, end: bool = False) -> bool:
    """Write to a program's standard input or terminal; return whether the program still reads.

    Args:
        kernel: The session's record, name or id.
        process: The program, or its id.
        data: The bytes.
        end: Whether to close standard input afterwards.

    Raises:
        NotFoundError: The session or the program does not exist.
    """
    return call(WriteProcess(session_of(kernel), process_of(process), end), as_bytes(data, "data"))


def signal_process(kernel: SessionRecord | str, process: ProcessInfo | str, number: int, scope: Scope = "group") -> None:
    """Send a signal to a program, as `Process.signal` does.

    Raises:
        NotFoundError: The session or the program does not exist.
    """
    ask(SignalProcess(session_of(kernel), process_of(process), number, scope))


def resize_process(kernel: SessionRecord | str, process: ProcessInfo | str, rows: int, columns: int) -> None:
    """Change the size of a program's terminal.

    Raises:
        NotFoundError: The session or the program does not exist.
    """
    ask(ResizeProcess(session_of(kernel), process_of(process), rows, columns))


def stop_process(
    kernel: SessionRecord | str, process: ProcessInfo | str, grace: float = 0.5, *, scope: Scope = "tree"
) -> ExecResult:
    """Stop a program and all processes that it started, as `Process.stop` does.

    Raises:
        NotFoundError: The session or the program does not exist.
    """
    return ask(stop_of(kernel, process, grace, scope))
