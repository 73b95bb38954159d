"""`SyncCodeExecutor`: `CodeExecutor` for programs without an event loop."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Literal, Self, Unpack, overload

from cellblock.common import loop_thread
from cellblock.common.loop_thread import Synchronous, iterate, parts_of, synchronous, synchronous_iterator
from cellblock.fronts.executor.executor import CodeExecutor
from cellblock.fronts.executor.executor_options import AS_MADE
from cellblock.fronts.executor.signatures import takes
from cellblock.host.checkpoints.checkpoint import Checkpoint
from cellblock.host.closing import SyncOnly
from cellblock.host.eager import Eager
from cellblock.host.files import Files
from cellblock.host.kernels.cell import OnInput
from cellblock.host.programs.process import Process
from cellblock.host.programs.program_files import SessionFiles
from cellblock.model import CodeExecutionChunk, CodeExecutionResult
from cellblock.model.checkpoints import Changes, FilesMode, FileVersions, ForkKeywords, StateChanges
from cellblock.model.files import FileChange, FileInfo
from cellblock.model.network import SessionNetwork
from cellblock.model.programs import Processes, ProcessInfo, Scope, SpawnKeywords
from cellblock.service.session.functions import Functions
from cellblock.tools.approvals.request import ApprovalRequest


class _Twin(Synchronous):
    """A wrapper that also has the attributes of the wrapped object."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._original, name)

    def __str__(self) -> str:
        return str(self._original)

    def __repr__(self) -> str:
        return repr(self._original)


class SyncFiles(Synchronous):
    """The files of a session's workspace: `Files` for programs without an event loop, with the same methods."""

    write = synchronous(Files.write)
    read = synchronous(Files.read)
    read_part = synchronous(Files.read_part)
    read_text = synchronous(Files.read_text)
    list = synchronous(Files.list)
    stat = synchronous(Files.stat)
    mkdir = synchronous(Files.mkdir)
    remove = synchronous(Files.remove)
    upload = synchronous(Files.upload)
    download = synchronous(Files.download)
    tar = synchronous_iterator(Files.tar)
    untar = synchronous(Files.untar)

    def has(self, path: str) -> bool:
        """Return whether an absolute path is in the workspace."""
        return bool(self._original.has(path))


class SyncSessionFiles(Synchronous):
    """Files as the session's code and programs see them: `SessionFiles` for programs without an event loop."""

    read_bytes = synchronous(SessionFiles.read_bytes)
    read_part = synchronous(SessionFiles.read_part)
    read_text = synchronous(SessionFiles.read_text)
    write_bytes = synchronous(SessionFiles.write_bytes)
    write_text = synchronous(SessionFiles.write_text)
    stat = synchronous(SessionFiles.stat)
    exists = synchronous(SessionFiles.exists)
    list = synchronous(SessionFiles.list)
    mkdir = synchronous(SessionFiles.mkdir)
    remove = synchronous(SessionFiles.remove)
    rename = synchronous(SessionFiles.rename)
    realpath = synchronous(SessionFiles.realpath)

    def write_parts(
        self, path: str | os.PathLike[str], parts: Iterable[bytes], *, parents: bool = True, mode: int = 0o666
    ) -> FileInfo:
        """Write a file from parts, as `SessionFiles.write_parts` does. Another thread iterates over the parts."""
        found: FileInfo = self._thread.run(self._original.write_parts(path, parts_of(parts), parents=parents, mode=mode))
        return found

    @contextmanager
    def watch(self, path: str | os.PathLike[str] = ".", *, recursive: bool = False) -> Iterator[Iterator[FileChange]]:
        """Watch a directory, as `SessionFiles.watch` does: ``with session.fs.watch("data") as changes``."""
        watching = self._original.watch(path, recursive=recursive)
        changes = self._thread.run(watching.__aenter__())
        try:
            yield iterate(self._thread, changes)
        finally:
            self._thread.run(watching.__aexit__(None, None, None))


class SyncEager(Synchronous):
    """A cell that a model is still writing: `Eager` for programs without an event loop, a context manager.

    Attributes:
        text, ran: As for `Eager`.
    """

    def __enter__(self) -> Self:
        self._thread.run(self._original.__aenter__())
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._thread.run(self._original.__aexit__(kind, value, trace))

    finish = synchronous(Eager.finish)
    replace = synchronous(Eager.replace)

    def feed(self, part: str) -> None:
        """Add the model's next output, as `Eager.feed` does."""
        self._thread.call(self._original.feed, part)

    @property
    def text(self) -> str:
        """The text so far."""
        return str(self._original.text)

    @property
    def ran(self) -> str:
        """The part of the text that has run or is running."""
        return str(self._original.ran)


class SyncProcess(_Twin):
    """A program in the sandbox: `Process` for programs without an event loop. Iterate over it for its output.

    Attributes:
        id, pid, info, gone, poll: As for `Process`.
    """

    read = synchronous(Process.read)
    output = synchronous(Process.output)
    write = synchronous(Process.write)
    stop = synchronous(Process.stop)
    wait = synchronous(Process.wait)
    __iter__ = synchronous_iterator(Process.__aiter__)

    def close_stdin(self) -> None:
        """Close its standard input, as `Process.close_stdin` does."""
        self._thread.call(self._original.close_stdin)

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of its terminal, as `Process.resize` does."""
        self._thread.call(self._original.resize, rows, columns)

    def signal(self, number: int, scope: Scope = "group") -> None:
        """Send it a signal, as `Process.signal` does."""
        self._thread.call(self._original.signal, number, scope)


class SyncApprovalRequest(_Twin):
    """A call that waits for a decision: `ApprovalRequest` for programs without an event loop.

    Attributes:
        server_name, tool_name, tool_args, id, kind, state, always, reason, changed: As for `ApprovalRequest`.
    """

    accept = synchronous(ApprovalRequest.accept)
    reject = synchronous(ApprovalRequest.reject)
    response = synchronous(ApprovalRequest.response)


class SyncCheckpoint(_Twin):
    """A `Checkpoint` for programs without an event loop.

    Attributes:
        id, name, made, execution_count, automatic, files, alive: As for `Checkpoint`.
    """

    @property
    def original(self) -> Checkpoint:
        """The checkpoint."""
        checkpoint: Checkpoint = self._original
        return checkpoint

    drop = synchronous(Checkpoint.drop)


def _original(checkpoint: SyncCheckpoint | str) -> Checkpoint | str:
    """Return the argument that a `CodeExecutor` accepts as a checkpoint; raise for anything else."""
    return checkpoint.original if isinstance(checkpoint, SyncCheckpoint) else checkpoint


class SyncCodeExecutor(SyncOnly):
    """An executor of Python code in an IPython kernel, like `CodeExecutor`, with blocking calls.

    It works in scripts, threads, notebooks, and inside a running event loop, which it blocks. All executors of a process
    share one event loop in a thread, so that the second one starts in milliseconds::

        with SyncCodeExecutor() as executor:
            result = executor.execute("print('hello world')")
            assert result.text == "hello world"

    It takes the arguments of `CodeExecutor`. Any number of threads may use it: cells run one after the other, and `cancel`
    stops the running cell.
    """

    @takes(CodeExecutor.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._original = CodeExecutor(*args, **kwargs)
        self._thread = loop_thread.shared()

    start = synchronous(CodeExecutor.start)
    stop = synchronous(CodeExecutor.stop)
    reset = synchronous(CodeExecutor.reset)
    execute = synchronous(CodeExecutor.execute)
    for_model = synchronous(CodeExecutor.for_model)
    exec = synchronous(CodeExecutor.exec)
    install = synchronous(CodeExecutor.install)
    put = synchronous(CodeExecutor.put)
    get = synchronous(CodeExecutor.get)
    undo = synchronous(CodeExecutor.undo)
    redo = synchronous(CodeExecutor.redo)
    trash = synchronous(CodeExecutor.trash)
    restore_trash = synchronous(CodeExecutor.restore_trash)
    clone_diff = synchronous(CodeExecutor.clone_diff)
    clone_fetch = synchronous(CodeExecutor.clone_fetch)
    clone_apply = synchronous(CodeExecutor.clone_apply)
    change_network = synchronous(CodeExecutor.change_network)
    variables = synchronous(CodeExecutor.variables)
    save = synchronous(CodeExecutor.save)
    load = synchronous(CodeExecutor.load)
    export = synchronous(CodeExecutor.export)
    expose = synchronous(CodeExecutor.expose)
    ports = synchronous(CodeExecutor.ports)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<Sync{repr(self._original).removeprefix('<')}"

    @property
    def session_id(self) -> str:
        """The session's id in the audit record (docs/approvals.md)."""
        return self._original.session_id

    @property
    def network(self) -> SessionNetwork:
        """The hosts that the code can reach, as `Session.network`."""
        return self._original.network

    @property
    def tool_server_token(self) -> str:
        """The token for `tool_server_port`.

        Raises:
            StateError: The executor is not started, or stopped.
        """
        return self._original.tool_server_token

    @property
    def files(self) -> SyncFiles:
        """Access to the files of the kernel's directory (docs/files.md).

        Raises:
            StateError: The executor is not started, or stopped.
        """
        return SyncFiles(self._original.files, self._thread)

    def offer(self, functions: Functions, server: str = "program") -> str:
        """Let the code call functions of this program, as `CodeExecutor.offer` does."""
        return self._original.offer(functions, server)  # in this thread: the functions see its context variables

    @property
    def fs(self) -> SyncSessionFiles:
        """Access to files as code and programs see them: any path, links followed, with their rights (docs/programs.md).

        Raises:
            StateError: The executor is not started, or stopped.
        """
        return SyncSessionFiles(self._original.fs, self._thread)

    def spawn(self, command: Sequence[str] | str, **how: Unpack[SpawnKeywords]) -> SyncProcess:
        """Start a program in the sandbox, independent of the kernel, as `Session.spawn` does."""
        return SyncProcess(self._thread.run(self._original.spawn(command, **how)), self._thread)

    def eager(self, *, timeout: float | None = AS_MADE, on_input: OnInput | None = None) -> SyncEager:
        """Run a cell while a model is still writing it, as `CodeExecutor.eager` does."""
        return SyncEager(self._thread.call(lambda: self._original.eager(timeout=timeout, on_input=on_input)), self._thread)

    def connect(self, port: int) -> socket.socket:
        """Connect to a server of the code by TCP, as `Session.connect` does. The socket blocks."""
        made = self._thread.run(self._original.connect(port))
        made.setblocking(True)
        return made

    def processes(self) -> list[ProcessInfo]:
        """Return the programs started by `exec` and `spawn`, as `Session.processes` does."""
        return self._thread.call(self._original.processes)

    def process(self, id: str) -> SyncProcess:  # noqa: A002  # as in `ProcessInfo`
        """Return a program by its id, as `Session.process` does."""
        return SyncProcess(self._thread.call(self._original.process, id), self._thread)

    def cancel(self) -> bool:
        """Stop the running cell, from any thread; its result has the status ``interrupted``.

        Returns:
            Whether a cell was running. The code has stopped when this returns.

        Raises:
            StateError: The executor is not started, or stopped.
        """
        return self._thread.run(self._original.session.interrupt())

    def stream(
        self,
        code: str,
        timeout: float | None = AS_MADE,
        chunks: bool = False,
        *,
        check: bool = True,
        on_input: OnInput | None = None,
    ) -> Iterator[SyncApprovalRequest | CodeExecutionChunk | CodeExecutionResult]:
        """Execute code and yield events as they happen, as `CodeExecutor.stream` does.

        Leaving the loop stops the code. Raises as `CodeExecutor.stream`.

        Args:
            code: As for `execute`.
            timeout: As for `execute`.
            chunks: Whether to also yield output as `CodeExecutionChunk`s.
            check: As for `execute`.
            on_input: As for `execute`.

        Yields:
            A `SyncApprovalRequest` for each call that waits for a decision; chunks, if requested; finally the
            `CodeExecutionResult`. A cancelled execution ends without a result.
        """
        for event in iterate(self._thread, self._original.stream(code, timeout, chunks, check=check, on_input=on_input)):
            yield SyncApprovalRequest(event, self._thread) if isinstance(event, ApprovalRequest) else event

    def checkpoint(self, name: str = "", *, files: FilesMode = "shared") -> SyncCheckpoint:
        """Create a checkpoint of the current state, as `Session.checkpoint` does."""
        return SyncCheckpoint(self._thread.run(self._original.checkpoint(name, files=files)), self._thread)

    def checkpoints(self) -> list[SyncCheckpoint]:
        """Return the checkpoints, oldest first, as `Session.checkpoints` does."""
        return [SyncCheckpoint(checkpoint, self._thread) for checkpoint in self._original.checkpoints()]

    def restore(self, checkpoint: SyncCheckpoint | str, *, processes: Processes = "keep") -> Changes:
        """Restore a checkpoint, given by object or name, as `Session.restore` does."""
        return self._thread.run(self._original.restore(_original(checkpoint), processes=processes))

    def diff(self, checkpoint: SyncCheckpoint | str, until: SyncCheckpoint | str | None = None) -> StateChanges:
        """Return the changes since a checkpoint, given by object or name, as `Session.diff` does."""
        return self._thread.run(self._original.diff(_original(checkpoint), None if until is None else _original(until)))

    def file_versions(
        self, path: str, checkpoint: SyncCheckpoint | str, until: SyncCheckpoint | str | None = None
    ) -> FileVersions:
        """Return a file at a checkpoint and at a later state, as `Session.file_versions` does."""
        last = None if until is None else _original(until)
        return self._thread.run(self._original.file_versions(path, _original(checkpoint), last))

    @overload
    def fork(
        self, n: int = ..., *, return_exceptions: Literal[False] = ..., **how: Unpack[ForkKeywords]
    ) -> list[SyncCodeExecutor]: ...
    @overload
    def fork(
        self, n: int = ..., *, return_exceptions: Literal[True], **how: Unpack[ForkKeywords]
    ) -> list[SyncCodeExecutor | BaseException]: ...
    def fork(
        self,
        n: int = 1,
        *,
        files: FilesMode | None = None,
        seeds: Sequence[int] | None = None,
        same_random_state: bool = False,
        return_exceptions: bool = False,
    ) -> list[SyncCodeExecutor] | list[SyncCodeExecutor | BaseException]:
        """Create executors from the current state, as `CodeExecutor.fork` does."""
        how: ForkKeywords = {"files": files, "seeds": seeds, "same_random_state": same_random_state}
        if not return_exceptions:
            return [self._of(branch) for branch in self._thread.run(self._original.fork(n, **how))]
        forked = self._thread.run(self._original.fork(n, return_exceptions=True, **how))
        return [branch if isinstance(branch, BaseException) else self._of(branch) for branch in forked]

    def _of(self, branch: CodeExecutor) -> SyncCodeExecutor:
        made = SyncCodeExecutor.__new__(SyncCodeExecutor)
        made._original, made._thread = branch, self._thread  # noqa: SLF001  # of this class
        return made

    def adopt(self, branch: SyncCodeExecutor) -> Changes:
        """Continue from the state of another executor, and stop that executor, as `CodeExecutor.adopt` does."""
        return self._thread.run(self._original.adopt(branch._original))  # of this class
