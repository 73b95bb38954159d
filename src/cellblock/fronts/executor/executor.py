"""`CodeExecutor`: the async interface, compatible with ipybox."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import warnings
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import fields, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Never, Self, Unpack, overload

from cellblock.common.extras import require_extra
from cellblock.errors import CodeExecutionError, ExecutionTimeoutError, FilesError, StateError, did_you_mean
from cellblock.fronts.executor.executor_options import AS_MADE, DEFAULT_LEVEL, AsMade, ExecutorOptions
from cellblock.fronts.executor.signatures import takes
from cellblock.host.checks import DEFAULT_TIMEOUT
from cellblock.host.closing import AsyncOnly
from cellblock.host.options import check_names
from cellblock.model import MODEL_CHARS, overflow
from cellblock.service.session.running import RunningSession
from cellblock.service.session.service_options import SessionOrigin

# Few imports: the modules for sessions are imported while the first zygote warms up (`Host.begin`).
if TYPE_CHECKING:
    import socket

    from cellblock.fronts.executor.listening import OnResult, OnText
    from cellblock.fronts.gateway.embedded import EmbeddedGateway
    from cellblock.fronts.gateway.exposed import Exposed
    from cellblock.host import Session
    from cellblock.host.checkpoints.checkpoint import Beginning, Checkpoint
    from cellblock.host.eager import Eager
    from cellblock.host.files import Files
    from cellblock.host.kernels.cell import OnInput
    from cellblock.host.programs.process import Process
    from cellblock.host.programs.program_files import SessionFiles
    from cellblock.model import CodeExecutionChunk, CodeExecutionResult
    from cellblock.model.checkpoints import Changes, FilesMode, FileVersions, ForkKeywords, StateChanges, TrashEntry, Undone
    from cellblock.model.clones import Applied, CloneChanges, Fetched
    from cellblock.model.network import SessionNetwork
    from cellblock.model.programs import ExecKeywords, ExecResult, Processes, ProcessInfo, SpawnKeywords
    from cellblock.model.saving import LoadReport, SaveReport
    from cellblock.model.variables import Variable
    from cellblock.service.session.functions import Functions, OfferedFunctions
    from cellblock.service.session.services import SessionServices
    from cellblock.tools.approvals.request import ApprovalRequest

_log = logging.getLogger("cellblock")

_NOBODY = (
    "execute() cannot ask for approval: run the code with stream(), which yields the requests, or add a rule that allows this "
    "(docs/approvals.md)"
)

_LOOP_ENDED = (
    "the executor belongs to the event loop that started it, and its session has ended with that loop: start and use it "
    "within one asyncio.run(), or stop() it and start() it again. A SyncCodeExecutor needs no event loop"
)


class CodeExecutor(AsyncOnly):
    """An executor of Python code in an IPython kernel, in which variables, imports and definitions persist.

    An async context manager. Executors of one event loop share a host, so that the second one starts in milliseconds::

        async with CodeExecutor() as executor:
            result = await executor.execute("print('hello world')")
            assert result.text == "hello world"

    Attributes:
        session_id: The session's id in the audit record (docs/approvals.md).
        beginning: The checkpoint from which the next `start` begins; None for a fresh kernel.
    """

    _sync_twin = "SyncCodeExecutor"

    @takes(ExecutorOptions.__init__)
    def __init__(self, *args: Any, **keywords: Any) -> None:
        """Configure an executor without starting it. No port is opened unless one is given.

        The arguments are the attributes of `ExecutorOptions` and `SandboxOptions`.

        Raises:
            InvalidInputError: An argument is invalid.
        """
        check_names(keywords, [item.name for item in fields(ExecutorOptions)])
        options = ExecutorOptions(*args, **keywords)
        self._service_options = options.services()
        self._options = options.session()
        if options.log_level != DEFAULT_LEVEL or _log.level == logging.NOTSET:
            _log.setLevel(options.log_level)
        self.tool_server_host = options.tool_server_host
        self.tool_server_port = options.tool_server_port
        self.kernel_gateway_host = options.kernel_gateway_host
        self.kernel_gateway_port = options.kernel_gateway_port
        self.approval_timeout = options.approval_timeout
        self.connect_timeout = options.connect_timeout
        self.kernel_init_timeout = options.kernel_init_timeout
        self.timeout = options.timeout
        self._asks = options.asks
        self.session_id = secrets.token_hex(8)
        self._given_host = options.host
        self._run: RunningSession | None = None
        self._gateway: EmbeddedGateway | None = None
        self._exposed: Exposed | None = None
        self._offered: dict[str, OfferedFunctions] = {}
        self._stopped = False
        self._adopted_by = ""
        self.beginning: Beginning | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def tool_server_token(self) -> str:
        """The token for `tool_server_port`: ``ToolRunner(name, port=…, token=…)``.

        Raises:
            StateError: The executor is not started, or stopped.
        """
        if (run := self._run) is None or run.services is None:
            raise StateError("the executor is not running: its tool server has a token only while it runs")
        return run.services.secret

    @property
    def kernel_gateway_token(self) -> str:
        """The token for Jupyter clients of `kernel_gateway_port`. `KernelClient` finds it.

        Raises:
            StateError: The executor has no gateway, or is not running.
        """
        if self._gateway is None:
            raise StateError("the executor has no gateway: pass kernel_gateway_port, and start it")
        return self._gateway.token

    @property
    def session(self) -> Session:
        """The underlying session, for features that the executor does not offer: completion, inspection, history.

        Raises:
            StateError: The executor is not started, or stopped.
        """
        if (run := self._run) is None or not run.started or run.session is None:
            raise StateError(self._why_not(run))
        if run.loop.is_closed():
            raise StateError(_LOOP_ENDED)
        return run.session

    def _why_not(self, run: RunningSession | None) -> str:
        """Return why there is no session."""
        if self._adopted_by:
            return (
                f"the executor was adopted by executor {self._adopted_by}, which continues from its state: use that one; "
                "start() gives this one a fresh kernel"
            )
        if self._stopped or (run is not None and run.closing):
            return "the executor is stopped; start() it again or make a new one"
        return "the executor is not started: use 'async with' ('with' for a SyncCodeExecutor), or start() it first"

    @property
    def files(self) -> Files:
        """Access to the files of the kernel's directory (docs/files.md).

        Raises:
            StateError: The executor is not started, or stopped.
        """
        return self.session.files

    async def for_model(self, result: CodeExecutionResult, max_chars: int = MODEL_CHARS) -> str:
        """Return a result as one text for a language model, and store the part that does not fit.

        The text is from `CodeExecutionResult.for_model`. Omitted output is written to a file of the kernel's directory,
        which the text names: ``read outputs/cell-7-….txt``. If the file cannot be written, the text names none.

        Args:
            result: A result of this executor.
            max_chars: The maximum length of the text in characters.

        Raises:
            InvalidInputError, StateError: `max_chars` is not positive; the executor is not started, or stopped.
        """
        text, rest = overflow.for_model(result, secrets.token_hex(4), max_chars)
        if rest is None:
            return text
        try:
            await self.files.write(rest.path, rest.data)
        except FilesError:
            return rest.without
        return text

    async def install(self, *requirements: str, timeout: float | None = 600) -> CodeExecutionResult:
        """Install packages for this executor's kernels, as ``%pip install`` in a cell does.

        Args:
            requirements: The packages to install, such as ``"polars>=1"``.
            timeout: Limit in seconds.

        Returns:
            The result, with pip's output.

        Raises:
            CodeExecutionError, ExecutionTimeoutError: The installation failed or took too long.
            InvalidInputError, StateError: No package is given; the executor is not started, or stopped.
        """
        return _judge(await self.session.install(*requirements, timeout=timeout), timeout)

    def eager(self, *, timeout: float | None = AS_MADE, on_input: OnInput | None = None) -> Eager:
        """Run a cell while a model is still writing it, as `Session.eager` does. A failure is returned as a result, too."""
        return self.session.eager(timeout=self.timeout if timeout is AS_MADE else timeout, on_input=on_input)

    def offer(self, functions: Functions, server: str = "program") -> str:
        """Let the code call functions of this program, with arguments and results that are JSON data.

        Each call is decided like a call of an MCP server's tool. Rules, approvals and the audit record use the names of the
        server and the function. Coroutine functions run in the event loop, other functions in a thread each. Each call runs
        in a copy of the current context::

            await executor.execute(executor.offer({"price_of": price_of}))
            await executor.execute("price_of('tea')")

        Args:
            functions: The functions by name. They replace earlier functions of the same server.
            server: The functions' common server name in rules and the audit record.

        Returns:
            Code that defines the functions, for a cell. The definitions are lost with the kernel's other variables.

        Raises:
            InvalidInputError: The name of a server or function is invalid, or an object is not callable.
        """
        from cellblock.service.session.functions import caller, check_functions, definitions

        check_functions(server, functions)
        self._offered[server] = caller(dict(functions))
        if (run := self._run) is not None and run.services is not None:
            run.services.offer(server, self._offered[server])
        return definitions(server, functions)

    # -- programs beside the kernel ---------------------------------------------------------------------------------------

    async def exec(self, command: Sequence[str] | str, **how: Unpack[ExecKeywords]) -> ExecResult:
        """Run a program in the sandbox, independent of the kernel, which can neither trace it nor fake its output.

        The arguments and the result are the same as for `Session.exec` (docs/programs.md).
        """
        return await self.session.exec(command, **how)

    async def spawn(self, command: Sequence[str] | str, **how: Unpack[SpawnKeywords]) -> Process:
        """Start a program in the sandbox, independent of the kernel, as `Session.spawn` does."""
        return await self.session.spawn(command, **how)

    async def connect(self, port: int) -> socket.socket:
        """Connect to a server of the code by TCP, as `Session.connect` does."""
        return await self.session.connect(port)

    async def expose(self, port: int, *, bare: bool = False) -> str:
        """Return a URL at which a browser on this machine shows the page of a server of the code.

        The URL works once, within two minutes, and the page until the executor stops.

        Args:
            port: The server's port.
            bare: Whether to show the page without a frame, so that it can load from other servers and navigate.

        Raises:
            NotFoundError: Nothing listens at the port.
            UnsupportedError: The extra serve is not installed; or the session has no network of its own: it needs
                ``isolate="native"``.
        """
        require_extra("serve", "pages of ports")
        from cellblock.fronts.gateway.exposed import Exposed
        from cellblock.fronts.gateway.forwarding import direct_connection
        from cellblock.fronts.gateway.ports import check_listens

        session = self.session
        check_listens(port, await session.ports(), "the session")
        if self._exposed is None:
            self._exposed = Exposed(lambda _, port: direct_connection(session, port))
        return await self._exposed.open("", port, bare=bare)

    async def ports(self) -> list[int]:
        """Return the ports of the code's servers, as `Session.ports` does."""
        return await self.session.ports()

    def processes(self) -> list[ProcessInfo]:
        """Return the programs started by `exec` and `spawn`, as `Session.processes` does."""
        return self.session.processes()

    def process(self, id: str) -> Process:  # noqa: A002  # as in `ProcessInfo`
        """Return a program by its id, as `Session.process` does."""
        return self.session.process(id)

    @property
    def fs(self) -> SessionFiles:
        """Access to files as code and programs see them: any path, links followed, with their rights (docs/programs.md).

        Raises:
            StateError: The executor is not started, or stopped.
        """
        return self.session.fs

    # -- the state of the session -----------------------------------------------------------------------------------------

    async def put(self, name: str, value: object) -> None:
        """Set a variable of the kernel, as `Session.put` does."""
        await self.session.put(name, value)

    async def get(self, name: str, *, unpickle: bool = False) -> Any:
        """Return the value of a variable of the kernel, as `Session.get` does."""
        return await self.session.get(name, unpickle=unpickle)

    async def variables(self) -> list[Variable]:
        """Return the variables of the kernel, as `Session.variables` does."""
        return await self.session.variables()

    async def save(
        self, path: str | os.PathLike[str], *, workspace: bool = False, timeout: float | None = DEFAULT_TIMEOUT
    ) -> SaveReport:
        """Save the kernel's state to a file, as `Session.save` does."""
        return await self.session.save(path, workspace=workspace, timeout=timeout)

    async def load(
        self, path: str | os.PathLike[str], *, workspace: bool = False, timeout: float | None = DEFAULT_TIMEOUT
    ) -> LoadReport:
        """Load a saved session into a fresh kernel, as `Session.load` does."""
        return await self.session.load(path, workspace=workspace, timeout=timeout)

    async def export(self, path: str | os.PathLike[str]) -> Path:
        """Write the cells and their output as a notebook or a script, as `Session.export` does."""
        return await self.session.export(path)

    async def checkpoint(self, name: str = "", *, files: FilesMode = "shared") -> Checkpoint:
        """Create a checkpoint of the current state, as `Session.checkpoint` does."""
        return await self.session.checkpoint(name, files=files)

    def checkpoints(self) -> list[Checkpoint]:
        """Return the checkpoints, oldest first, as `Session.checkpoints` does."""
        return self.session.checkpoints()

    async def restore(self, checkpoint: Checkpoint | str, *, processes: Processes = "keep") -> Changes:
        """Restore a checkpoint, given by object or name, as `Session.restore` does."""
        return await self.session.restore(checkpoint, processes=processes)

    async def undo(self, count: int = 1, *, partial: bool = False, processes: Processes = "keep") -> Undone:
        """Undo the last cells, as `Session.undo` does."""
        return await self.session.undo(count, partial=partial, processes=processes)

    async def redo(self) -> Undone:
        """Revert the last undo, until the next cell begins, as `Session.redo` does."""
        return await self.session.redo()

    async def trash(self) -> list[TrashEntry]:
        """Return files that undo, redo, restore and adopt replaced or removed, as `Session.trash` does."""
        return await self.session.trash()

    @property
    def network(self) -> SessionNetwork:
        """The hosts that the code can reach, as `Session.network`."""
        return self.session.network

    async def change_network(
        self,
        *,
        allow: Sequence[str] = (),
        deny: Sequence[str] = (),
        http: Sequence[str] = (),
        remove: Sequence[str] = (),
        expect: int | None = None,
    ) -> SessionNetwork:
        """Change the hosts and requests that the code can reach, as `Session.change_network` does."""
        return await self.session.change_network(allow=allow, deny=deny, http=http, remove=remove, expect=expect)

    async def restore_trash(self, path: str = "", entry: str = "") -> Changes:
        """Copy files back from the trash, as `Session.restore_trash` does."""
        return await self.session.restore_trash(path, entry)

    async def clone_diff(self) -> CloneChanges:
        """Return the changes in the session's clone, as `Session.clone_diff` does."""
        return await self.session.clone_diff()

    async def clone_fetch(self) -> Fetched:
        """Fetch the commits of the session's clone, as `Session.clone_fetch` does."""
        return await self.session.clone_fetch()

    async def clone_apply(self, *, three_way: bool = False, allow_protected: bool = False) -> Applied:
        """Apply the changes of the session's clone to the working copy, as `Session.clone_apply` does."""
        return await self.session.clone_apply(three_way=three_way, allow_protected=allow_protected)

    async def diff(self, checkpoint: Checkpoint | str, until: Checkpoint | str | None = None) -> StateChanges:
        """Return the changes since a checkpoint, given by object or name, as `Session.diff` does."""
        return await self.session.diff(checkpoint, until)

    async def file_versions(
        self, path: str, checkpoint: Checkpoint | str, until: Checkpoint | str | None = None
    ) -> FileVersions:
        """Return a file at a checkpoint and at a later state, as `Session.file_versions` does."""
        return await self.session.file_versions(path, checkpoint, until)

    @overload
    async def fork(
        self, n: int = ..., *, return_exceptions: Literal[False] = ..., **how: Unpack[ForkKeywords]
    ) -> list[CodeExecutor]: ...
    @overload
    async def fork(
        self, n: int = ..., *, return_exceptions: Literal[True], **how: Unpack[ForkKeywords]
    ) -> list[CodeExecutor | BaseException]: ...
    async def fork(
        self,
        n: int = 1,
        *,
        files: FilesMode | None = None,
        seeds: Sequence[int] | None = None,
        same_random_state: bool = False,
        return_exceptions: bool = False,
    ) -> list[CodeExecutor] | list[CodeExecutor | BaseException]:
        """Create executors from the current state, each with a session as created by `Session.fork`.

        Args:
            n: The number of executors.
            files: As for `Session.fork`.
            seeds: As for `Session.fork`.
            same_random_state: As for `Session.fork`.
            return_exceptions: As for `Session.fork`.

        Returns:
            The executors, started. The caller stops them.

        Raises:
            CellblockError: As for `Session.fork`.
        """
        from cellblock.host.checkpoints.forking import Branching

        branching = Branching(n, files, seeds, same_random_state, return_exceptions)
        return await branching.start(
            self.session.checkpoint_for_branches, self._branch, lambda one: one.start(), lambda one: one.stop()
        )

    def _branch(self, beginning: Beginning) -> CodeExecutor:
        assert self._run is not None
        branch = CodeExecutor(host=self._run.host, sandbox=False, images_dir=self._options.images_dir)
        branch._options, branch._service_options = self._options, self._service_options
        branch.timeout, branch._asks = self.timeout, self._asks
        branch._offered = dict(self._offered)
        branch.beginning = beginning
        return branch

    @property
    def services(self) -> SessionServices | None:
        """The services of the session; None unless the executor is running."""
        return None if self._run is None else self._run.services

    async def adopt(self, branch: CodeExecutor) -> Changes:
        """Continue from the state of another executor of the same host, and stop that executor; see `Session.adopt`."""
        changes = await self.session.adopt(branch.session)
        branch._adopted_by = self.session_id
        await branch.stop()
        return changes

    def __repr__(self) -> str:
        try:
            state = f"started in {self.session.workspace}"
        except StateError as error:
            state = "not started" if "is not started" in str(error) else "stopped"
        return f"<CodeExecutor {self.session_id} {state}>"

    async def start(self) -> None:
        """Start the kernel.

        Raises:
            StateError: The executor is already started, or was stopped meanwhile.
            InvalidInputError: A directory or another option cannot be used.
            LaunchError: The kernel cannot be started; subclasses include `InterpreterError` and `PreloadError`.
        """
        if self._run is not None:
            raise StateError(_LOOP_ENDED if self._run.loop.is_closed() else "the executor is already started")
        tool_server = None if self.tool_server_port is None else (self.tool_server_host, self.tool_server_port)
        run = self._run = RunningSession(self._given_host)
        try:
            start_from, self.beginning, self._adopted_by = self.beginning, None, ""
            await run.start(
                *(self._options, self._service_options, self.session_id, tool_server, self.kernel_init_timeout),
                origin=SessionOrigin(start_from=start_from),
            )
            assert run.services is not None
            for server, call in self._offered.items():
                run.services.offer(server, call)
            if self.kernel_gateway_port is not None:
                self._gateway = await self._serve(run, (self.kernel_gateway_host, self.kernel_gateway_port))
                self.kernel_gateway_port = self._gateway.port
        except BaseException:  # also a cancellation: everything started so far is closed
            try:
                await run.close()
            finally:
                if self._run is run:
                    self._run = None
            raise

    async def _serve(self, run: RunningSession, address: tuple[str, int]) -> EmbeddedGateway:
        from cellblock.fronts.kernel_mgr.server import serve_session  # FastAPI takes long to load
        from cellblock.service.named.json_options import NamedOptions, Options

        options = Options(self._options, self._service_options, NamedOptions())
        return await serve_session(run, options, f"executor-{self.session_id}", address)

    async def stop(self) -> None:
        """Stop running code and end the kernel. The executor can be started again.

        The operation is idempotent. Cancelling the caller does not stop it.
        """
        if (run := self._run) is None:
            return
        if self._exposed is not None:
            await self._exposed.close()
        if self._gateway is not None:
            await self._gateway.close()
        await run.close()
        if self._run is run:
            self._run, self._gateway, self._exposed, self._stopped = None, None, None, True

    def __del__(self) -> None:
        run: RunningSession | None = getattr(self, "_run", None)  # absent if the constructor raised
        if run is None or run.closing:
            return
        run.drop()  # garbage collection runs in an arbitrary thread
        # Last, because it raises if warnings are errors.
        warnings.warn("a CodeExecutor was dropped without stop(): use 'async with'", ResourceWarning, 2, source=self)

    async def reset(self) -> None:
        """Stop the running cell and continue with a fresh kernel, without variables, definitions and imports.

        MCP servers of this executor alone are stopped, and the session's permissions are deleted.

        Raises:
            StateError: The executor is not started, or stopped.
            LaunchError: No new kernel could be started.
        """
        await self.session.reset()
        if self._run is not None and self._run.services is not None:
            await self._run.services.reset()

    def cancel(self) -> asyncio.Future[bool]:
        """Stop the running cell, from any task; its result has the status ``interrupted``.

        Returns:
            An awaitable that completes when the code has stopped, with whether a cell was running.

        Raises:
            StateError: The executor is not started, or stopped.
        """
        session = self.session
        try:
            return asyncio.get_running_loop().create_task(session.interrupt())
        except RuntimeError:
            raise StateError("from another thread, use loop.call_soon_threadsafe(executor.cancel)") from None

    async def execute(
        self,
        /,
        code: str,
        timeout: float | None = AS_MADE,
        *,
        check: bool = True,
        on_input: OnInput | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        on_result: OnResult | None = None,
        **unknown: Never,
    ) -> CodeExecutionResult:
        """Execute code and return its result.

        All requests of the code, such as calls of MCP tools, **are allowed without asking**, unless a rule denies them, as
        in ipybox. An executor with ``approve="ask"`` refuses them instead; `stream` yields them.

        Args:
            code: IPython code, with magics, ``!cmd`` and top-level ``await``.
            timeout: Limit in seconds; None for no limit; by default the executor's `timeout`, or 120.
            check: Whether to raise an exception if the code fails. Otherwise the result has the outcome.
            on_input: Answers `input()`: takes the prompt, returns the line. Without it, `input()` raises an error in the
                code.
            on_stdout: Called with text written to stdout, as it arrives. All three callbacks may be coroutine functions.
            on_stderr: Called with text written to stderr, as it arrives.
            on_result: Called with each displayed value, and the value of the last expression, as an `OutputItem`. If one of
                the three callbacks raises an exception, the code is stopped, and `execute` raises the exception.
            unknown: Not supported; a `TypeError` says what to use instead.

        Returns:
            The result. If the execution was cancelled, its `text` is None and its status is ``interrupted``.

        Raises:
            CodeExecutionError: The code failed, or its kernel died. The message has the traceback, ``result`` everything
                else.
            ExecutionTimeoutError: The code was stopped at its deadline. A subclass of `CodeExecutionError` and
                `TimeoutError`.
            InvalidInputError: The code cannot be source code, or the timeout is not positive.
            StateError: The executor is not started, or stopped.
        """
        if unknown:
            raise TypeError(_not_an_argument(next(iter(unknown))))
        seconds = self.timeout if isinstance(timeout, AsMade) else timeout
        if on_stdout is None and on_stderr is None and on_result is None:
            on_notice = _refuse if self._asks else None
            result = await self.session.execute(code, timeout=seconds, on_input=on_input, on_notice=on_notice)
        else:
            from cellblock.fronts.executor.listening import Listeners

            listeners = Listeners(on_stdout, on_stderr, on_result, _refuse if self._asks else None)
            result = await listeners.run(self.session, code, timeout=seconds, on_input=on_input)
        if check:
            _judge(result, seconds)
        return replace(result, text=None) if result.status == "interrupted" else result

    async def stream(
        self,
        code: str,
        timeout: float | None = AS_MADE,
        chunks: bool = False,
        *,
        check: bool = True,
        on_input: OnInput | None = None,
    ) -> AsyncGenerator[ApprovalRequest | CodeExecutionChunk | CodeExecutionResult, None]:
        """Execute code and yield events as they happen.

        Args:
            code: As for `execute`.
            timeout: As for `execute`.
            chunks: Whether to also yield output as `CodeExecutionChunk`s.
            check: As for `execute`.
            on_input: As for `execute`.

        Yields:
            An `ApprovalRequest` for each call that waits for a decision; chunks, if requested; finally the
            `CodeExecutionResult` with the complete output. A cancelled execution ends without a result.

        Raises:
            CodeExecutionError, ExecutionTimeoutError, InvalidInputError, StateError: As for `execute`.
        """
        from cellblock.host.kernels.cell import Notice
        from cellblock.model import CodeExecutionChunk, CodeExecutionResult
        from cellblock.tools.approvals.request import ApprovalRequest

        seconds = self.timeout if isinstance(timeout, AsMade) else timeout
        async with aclosing(self.session.stream(code, timeout=seconds, chunks=chunks, on_input=on_input)) as events:
            async for event in events:
                match event:
                    case CodeExecutionResult(status="interrupted"):
                        return
                    case CodeExecutionResult():
                        yield _judge(event, seconds) if check else event
                    case CodeExecutionChunk():
                        yield event
                    case Notice(about=ApprovalRequest() as asked):
                        yield asked


def _not_an_argument(name: str) -> str:
    """Return the message about an argument that `CodeExecutor.execute` does not have."""
    if name in ("language", "lang"):
        return f"execute() has no argument {name!r}: a cell whose first line is %%bash is a script for bash"
    known = [name for name in CodeExecutor.execute.__annotations__ if name not in ("unknown", "return")]
    return f"execute() has no argument {name!r}{did_you_mean(name, known)}"


def _refuse(request: object) -> None:
    """Refuse a request, because no one can be asked."""
    from cellblock.tools.approvals.request import ApprovalRequest

    assert isinstance(request, ApprovalRequest)
    request.withdraw(_NOBODY)


def _judge(result: CodeExecutionResult, timeout: float | None) -> CodeExecutionResult:
    """Return a result, or raise the exception for its status."""
    if result.status in ("success", "interrupted") or result.error is None:
        return result
    error = result.error
    if result.status == "timeout":
        limit = f"{timeout:.2f}s" if timeout is not None and timeout >= 0.01 else f"{timeout:g}s"
        raise ExecutionTimeoutError(f"the code exceeded its timeout of {limit}. {error.evalue}", result)
    raise CodeExecutionError("\n".join(error.traceback) or f"{error.ename}: {error.evalue}", result)
