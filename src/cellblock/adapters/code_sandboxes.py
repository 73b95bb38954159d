"""code-sandboxes: `CellblockSandbox` is a sandbox that runs code in a session, and commands next to its kernel."""

from __future__ import annotations

import asyncio
import shlex
import time
from typing import Any

from code_sandboxes import exceptions
from code_sandboxes.base import Sandbox, marks_execution
from code_sandboxes.commands import CommandResult, SandboxCommands
from code_sandboxes.models import Context, ExecutionResult, SandboxConfig, SandboxInfo

from cellblock.adapters.adapter_session import SyncSession
from cellblock.adapters.code_sandboxes_results import converted, messages, result
from cellblock.errors import CellblockError
from cellblock.fronts.executor.sync import SyncCodeExecutor

_HOSTS = {"inherit": (), "none": (), "all": ("*",)}
_TOOLS = (
    "async def __call_tool__(tool_name, arguments, _call=call_tool):\n    return _call(tool_name, arguments)\ndel call_tool"
)


class CellblockSandbox(Sandbox):
    """A sandbox: ``with CellblockSandbox() as sandbox: sandbox.run_code("1 + 1")``."""

    def __init__(
        self, config: SandboxConfig | None = None, *, executor: SyncCodeExecutor | None = None, **options: Any
    ) -> None:
        """Set up without starting.

        Args:
            config: The configuration of code-sandboxes: timeout, directory, variables, and reachable hosts.
            executor: A started executor, which the caller stops. With it, only the timeout of `config` applies.
            options: The arguments of `CodeExecutor` for a new executor; they override `config`.

        Raises:
            SandboxConfigurationError: `config` requests an unsupported feature.
            InvalidInputError: An option is invalid.
        """
        super().__init__(config)
        if self.config.gpu or self.config.cpu_limit or self.config.memory_limit:
            raise exceptions.SandboxConfigurationError("a session has no GPU of its own; for other limits, pass policy=")
        if executor is None:
            hosts = _HOSTS.get(self.config.network_policy, self.config.allowed_hosts)
            given = {"allow_hosts": hosts, "kernel_env": self.config.env_vars, "working_dir": self.config.working_dir}
            options = {**given, **options}
        self._session = SyncSession(executor, options)
        self._commands = _Commands(self)

    @property
    def executor(self) -> SyncCodeExecutor:
        """The session.

        Raises:
            SandboxNotStartedError: The sandbox is not started, or stopped.
        """
        if not self.is_started:
            raise exceptions.SandboxNotStartedError
        return self._session.executor

    def start(self) -> None:
        """Start the session. A sandbox that was stopped cannot be started again."""
        if self.is_started:
            return
        session_id = self._session.executor.session_id
        self._default_context = Context(id="default", cwd=self.config.working_dir)
        self._info = SandboxInfo(id=session_id, variant="cellblock", created_at=time.time(), config=self.config)
        self._started = True
        self._setup_tool_caller()

    def stop(self) -> None:
        """End the session, if the sandbox owns it."""
        self._session.close()
        self.mark_stopped()

    def create_context(self, name: str | None = None) -> Context:
        """Return the only context."""
        if self._default_context is None or name not in (None, self._default_context.id):
            raise exceptions.SandboxConfigurationError(
                "a session has one context, which is called default: make another sandbox"
            )
        return self._default_context

    @marks_execution
    def run_code(
        self,
        code: str,
        language: str = "python",
        context: Context | None = None,
        on_stdout: Any = None,
        on_stderr: Any = None,
        on_result: Any = None,
        on_error: Any = None,
        envs: dict[str, str] | None = None,
        timeout: float | None = None,
    ) -> ExecutionResult:
        """Run a cell. Handlers are called one after the other, in threads."""
        executor = self._executor_for(context)
        if language != "python":
            raise ValueError(f"a session runs Python, not {language}: use commands")
        if envs:
            raise ValueError("variables for one cell are not supported: set variables of the session, or os.environ in code")
        began, heard = time.time(), {}
        for stream, handler in (("stdout", on_stdout), ("stderr", on_stderr)):
            if handler is not None:
                heard[f"on_{stream}"] = _told(handler, lambda text, error=stream == "stderr": messages(text, error))
        if on_result is not None:
            heard["on_result"] = _told(on_result, lambda item: [result(item)])
        done = executor.execute(code, timeout or self.config.timeout, check=False, **heard)
        if done.state_lost:
            self._setup_tool_caller()
        ended = converted(done, began)
        if ended.code_error is not None and on_error is not None:
            on_error(ended.code_error)
        return ended

    def _executor_for(self, context: Context | None) -> SyncCodeExecutor:
        executor = self.executor
        if context is not None and context != self._default_context:
            raise exceptions.ContextNotFoundError(context.id)
        return executor

    def _do_interrupt(self) -> bool:
        return self.executor.cancel()

    def _get_internal_variable(self, name: str, context: Context | None = None) -> Any:
        try:
            return self._executor_for(context).get(name)
        except CellblockError as error:
            raise exceptions.VariableNotFoundError(name) from error

    def _set_internal_variable(self, name: str, value: Any, context: Context | None = None) -> None:
        self._executor_for(context).put(name, value)

    def _setup_tool_caller(self) -> None:
        caller = self._tool_caller
        if caller is not None and self.is_started:
            offered = {"call_tool": lambda tool_name, arguments: asyncio.run(caller(tool_name, arguments))}
            self.executor.execute(f"{self.executor.offer(offered, 'code_sandboxes')}\n{_TOOLS}")

    def _read_file(self, path: str) -> bytes:
        return self.executor.fs.read_bytes(path)

    def _write_file(self, path: str, content: bytes) -> None:
        self.executor.fs.write_bytes(path, content)


class _Commands(SandboxCommands):
    def run(
        self, command: str, cwd: str | None = None, env: Any = None, timeout: float | None = None, shell: bool = True
    ) -> CommandResult:
        """Run a command next to the kernel, whose code cannot fake its output."""
        argv = command if shell else shlex.split(command)
        done = self._sandbox.executor.exec(argv, cwd=cwd, env=env, timeout=timeout)
        failed = done.status == "timeout" or done.exit_code is None
        said = "\n".join(filter(None, [done.err, done.reason])) if failed else done.err
        return CommandResult(-1 if failed else done.exit_code, done.out, said, done.duration_ms / 1000)


def _told(handler: Any, convert: Any) -> Any:
    """Return a function that calls a handler, in a thread in which it may use the sandbox."""

    async def tell(what: Any) -> None:
        for one in convert(what):
            await asyncio.to_thread(handler, one)

    return tell
