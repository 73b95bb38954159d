"""`SyncCodeExecutor`: `CodeExecutor` for programs without an event loop."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeVar, Unpack, cast, overload

from cellblock.common import loop_thread
from cellblock.common.loop_thread import LoopThread
from cellblock.fronts.executor.executor import CodeExecutor
from cellblock.fronts.executor.options import AS_MADE
from cellblock.fronts.executor.signatures import takes
from cellblock.host.checkpoints.checkpoint import Checkpoint
from cellblock.host.files import Files
from cellblock.host.kernels.cell import OnInput
from cellblock.host.programs.files import SessionFiles
from cellblock.host.programs.process import Process
from cellblock.model import CodeExecutionChunk, CodeExecutionResult
from cellblock.model.checkpoints import Changes, FilesMode, StateChanges
from cellblock.model.programs import Processes, ProcessInfo, Scope, SpawnKeywords
from cellblock.tools.approvals.request import ApprovalRequest

_P = ParamSpec("_P")
_T = TypeVar("_T")

_END = object()


def _sync(method: Callable[Concatenate[Any, _P], Coroutine[Any, Any, _T]]) -> Callable[Concatenate[Any, _P], _T]:
    """Return the synchronous twin of a method of what a class here wraps, with the same arguments and documentation."""

    def call(self: Any, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        result: _T = self._thread.run(method(self._original, *args, **kwargs))
        return result

    functools.update_wrapper(call, method)
    return call


def _sync_iterator(
    method: Callable[Concatenate[Any, _P], AsyncGenerator[_T, None]],
) -> Callable[Concatenate[Any, _P], Iterator[_T]]:
    """Do the same for a method that yields."""

    def call(self: Any, /, *args: _P.args, **kwargs: _P.kwargs) -> Iterator[_T]:
        return _iterate(self._thread, method(self._original, *args, **kwargs))

    functools.update_wrapper(call, method)
    return call


def _iterate(thread: LoopThread, items: AsyncGenerator[_T, None]) -> Iterator[_T]:
    try:
        while (item := thread.run(anext(items, _END))) is not _END:
            yield cast("_T", item)
    finally:
        thread.run(items.aclose())


class SyncFiles:
    """The files of a session's workspace: `Files` for programs without an event loop, with the same methods and arguments."""

    def __init__(self, files: Files, thread: LoopThread) -> None:
        self._original = files
        self._thread = thread

    write = _sync(Files.write)
    read = _sync(Files.read)
    read_part = _sync(Files.read_part)
    read_text = _sync(Files.read_text)
    list = _sync(Files.list)
    stat = _sync(Files.stat)
    mkdir = _sync(Files.mkdir)
    remove = _sync(Files.remove)
    upload = _sync(Files.upload)
    download = _sync(Files.download)
    tar = _sync_iterator(Files.tar)
    untar = _sync(Files.untar)


class SyncSessionFiles:
    """Files as the session's code and programs see them: `SessionFiles` for programs without an event loop."""

    def __init__(self, files: SessionFiles, thread: LoopThread) -> None:
        self._original = files
        self._thread = thread

    read_bytes = _sync(SessionFiles.read_bytes)
    read_text = _sync(SessionFiles.read_text)
    write_bytes = _sync(SessionFiles.write_bytes)
    write_text = _sync(SessionFiles.write_text)
    stat = _sync(SessionFiles.stat)
    exists = _sync(SessionFiles.exists)
    list = _sync(SessionFiles.list)
    mkdir = _sync(SessionFiles.mkdir)
    remove = _sync(SessionFiles.remove)
    rename = _sync(SessionFiles.rename)
    realpath = _sync(SessionFiles.realpath)


class SyncProcess:
    """A program beside the kernel: `Process` for programs without an event loop. Iterate over it for its output.

    Attributes:
        id, pid, info, gone, poll: As `Process` has them.
    """

    def __init__(self, process: Process, thread: LoopThread) -> None:
        self._original = process
        self._thread = thread

    read = _sync(Process.read)
    output = _sync(Process.output)
    write = _sync(Process.write)
    stop = _sync(Process.stop)
    wait = _sync(Process.wait)
    __iter__ = _sync_iterator(Process.__aiter__)

    def close_stdin(self) -> None:
        """Close its standard input, as `Process.close_stdin` does."""
        self._thread.call(self._original.close_stdin)

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of its terminal, as `Process.resize` does."""
        self._thread.call(self._original.resize, rows, columns)

    def signal(self, number: int, scope: Scope = "group") -> None:
        """Send it a signal, as `Process.signal` does."""
        self._thread.call(self._original.signal, number, scope)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._original, name)

    def __repr__(self) -> str:
        return repr(self._original)


class SyncApprovalRequest:
    """A call that waits for a decision: `ApprovalRequest` for programs without an event loop.

    Attributes:
        server_name, tool_name, tool_args, id, kind, state, always, reason, changed: As `ApprovalRequest` has them.
    """

    def __init__(self, request: ApprovalRequest, thread: LoopThread) -> None:
        self._original = request
        self._thread = thread

    accept = _sync(ApprovalRequest.accept)
    reject = _sync(ApprovalRequest.reject)
    response = _sync(ApprovalRequest.response)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._original, name)

    def __str__(self) -> str:
        return str(self._original)

    def __repr__(self) -> str:
        return repr(self._original)


class SyncCheckpoint:
    """A `Checkpoint` for programs without an event loop.

    Attributes:
        id, name, made, execution_count, automatic, files, alive: As `Checkpoint` has them.
        original: The checkpoint.
    """

    def __init__(self, checkpoint: Checkpoint, thread: LoopThread) -> None:
        self._original = self.original = checkpoint
        self._thread = thread

    drop = _sync(Checkpoint.drop)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._original, name)

    def __repr__(self) -> str:
        return repr(self._original)


def _original(checkpoint: SyncCheckpoint | str) -> Checkpoint | str:
    """Return what a `CodeExecutor` takes for a checkpoint. It also says what cannot be one."""
    return checkpoint.original if isinstance(checkpoint, SyncCheckpoint) else checkpoint


class SyncCodeExecutor:
    """Executes Python code in an IPython kernel, as `CodeExecutor` does, and returns instead of being awaited.

    It works in scripts, threads, notebooks, and inside a running event loop, which it then blocks. All executors of a process
    share one event loop, which runs in a thread, and so the second one starts in milliseconds::

        with SyncCodeExecutor() as executor:
            result = executor.execute("print('hello world')")
            assert result.text == "hello world"

    It takes the arguments of `CodeExecutor`. Any number of threads may use it: cells run one after the other, and `cancel`
    stops the one that runs.
    """

    @takes(CodeExecutor.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._original = CodeExecutor(*args, **kwargs)
        self._thread = loop_thread.shared()

    start = _sync(CodeExecutor.start)
    stop = _sync(CodeExecutor.stop)
    reset = _sync(CodeExecutor.reset)
    execute = _sync(CodeExecutor.execute)
    for_model = _sync(CodeExecutor.for_model)
    exec = _sync(CodeExecutor.exec)
    install = _sync(CodeExecutor.install)
    put = _sync(CodeExecutor.put)
    get = _sync(CodeExecutor.get)
    undo = _sync(CodeExecutor.undo)
    variables = _sync(CodeExecutor.variables)
    save = _sync(CodeExecutor.save)
    load = _sync(CodeExecutor.load)
    export = _sync(CodeExecutor.export)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<Sync{repr(self._original).removeprefix('<')}"

    @property
    def session_id(self) -> str:
        """What the record of decisions calls the session (docs/approvals.md)."""
        return self._original.session_id

    @property
    def tool_server_token(self) -> str:
        """The token that programs need for `tool_server_port`.

        Raises:
            StateError: The executor is not started, or stopped.
        """
        return self._original.tool_server_token

    @property
    def files(self) -> SyncFiles:
        """The files of the kernel's directory, to write, read and copy (docs/files.md).

        Raises:
            StateError: The executor is not started, or stopped.
        """
        return SyncFiles(self._original.files, self._thread)

    @property
    def fs(self) -> SyncSessionFiles:
        """Files as the code and its programs see them: any path, links followed, with their rights (docs/programs.md).

        Raises:
            StateError: The executor is not started, or stopped.
        """
        return SyncSessionFiles(self._original.fs, self._thread)

    def spawn(self, command: Sequence[str] | str, **how: Unpack[SpawnKeywords]) -> SyncProcess:
        """Start a program in the sandbox beside the kernel, as `Session.spawn` does."""
        return SyncProcess(self._thread.run(self._original.spawn(command, **how)), self._thread)

    def processes(self) -> list[ProcessInfo]:
        """Return the programs beside the kernel, as `Session.processes` does."""
        return self._thread.call(self._original.processes)

    def process(self, id: str) -> SyncProcess:  # noqa: A002  # as in `ProcessInfo`
        """Return a program by its id, as `Session.process` does."""
        return SyncProcess(self._thread.call(self._original.process, id), self._thread)

    def cancel(self) -> bool:
        """Stop the running cell, from any thread; its result says ``interrupted``.

        Returns:
            Whether a cell was running. When this returns the code has stopped.

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
        """Execute code and yield what happens, as it happens, as `CodeExecutor.stream` does.

        Leaving the loop over it stops the code. Raises what `CodeExecutor.stream` raises.

        Args:
            code: As for `execute`.
            timeout: As for `execute`.
            chunks: Whether to yield output as `CodeExecutionChunk`s, too.
            check: As for `execute`.
            on_input: As for `execute`.

        Yields:
            A `SyncApprovalRequest` for each call that waits for a decision, chunks, if asked for, and last the
            `CodeExecutionResult`. A cancelled execution ends without a result.
        """
        for event in _iterate(self._thread, self._original.stream(code, timeout, chunks, check=check, on_input=on_input)):
            yield SyncApprovalRequest(event, self._thread) if isinstance(event, ApprovalRequest) else event

    def checkpoint(self, name: str = "", *, files: FilesMode = "shared") -> SyncCheckpoint:
        """Keep the state that the kernel has now, as `Session.checkpoint` does."""
        return SyncCheckpoint(self._thread.run(self._original.checkpoint(name, files=files)), self._thread)

    def checkpoints(self) -> list[SyncCheckpoint]:
        """Return the checkpoints, oldest first, as `Session.checkpoints` does."""
        return [SyncCheckpoint(checkpoint, self._thread) for checkpoint in self._original.checkpoints()]

    def restore(self, checkpoint: SyncCheckpoint | str, *, processes: Processes = "keep") -> Changes:
        """Go back to a checkpoint, or to that of a name, as `Session.restore` does."""
        return self._thread.run(self._original.restore(_original(checkpoint), processes=processes))

    def diff(self, checkpoint: SyncCheckpoint | str) -> StateChanges:
        """Return what has changed since a checkpoint, or that of a name, as `Session.diff` does."""
        return self._thread.run(self._original.diff(_original(checkpoint)))

    @overload
    def fork(
        self,
        n: int = ...,
        *,
        files: FilesMode | None = ...,
        seeds: Sequence[int] | None = ...,
        same_random_state: bool = ...,
        return_exceptions: Literal[False] = ...,
    ) -> list[SyncCodeExecutor]: ...
    @overload
    def fork(
        self,
        n: int = ...,
        *,
        files: FilesMode | None = ...,
        seeds: Sequence[int] | None = ...,
        same_random_state: bool = ...,
        return_exceptions: Literal[True],
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
        """Make executors that begin with the state that this one has now, as `CodeExecutor.fork` does."""
        how: dict[str, Any] = {"files": files, "seeds": seeds, "same_random_state": same_random_state}
        if not return_exceptions:
            return [self._of(branch) for branch in self._thread.run(self._original.fork(n, **how))]
        forked = self._thread.run(self._original.fork(n, **how, return_exceptions=True))
        return [branch if isinstance(branch, BaseException) else self._of(branch) for branch in forked]

    def _of(self, branch: CodeExecutor) -> SyncCodeExecutor:
        made = SyncCodeExecutor.__new__(SyncCodeExecutor)
        made._original, made._thread = branch, self._thread  # noqa: SLF001  # of this class
        return made

    def adopt(self, branch: SyncCodeExecutor) -> Changes:
        """Go on with the state of another executor, which is stopped by that, as `CodeExecutor.adopt` does."""
        return self._thread.run(self._original.adopt(branch._original))  # of this class
