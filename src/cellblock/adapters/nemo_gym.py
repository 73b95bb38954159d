"""NeMo Gym: the sandbox provider ``cellblock``, whose sandboxes are sessions.

The entry point ``nemo_gym.sandbox_providers`` of this package registers it: ``AsyncSandbox({"cellblock": {}}, spec)``.
"""

from __future__ import annotations

import asyncio
import os
import pwd
from pathlib import Path
from typing import Any

from nemo_gym.sandbox.providers.base import (
    SandboxCreateError,
    SandboxExecResult,
    SandboxHandle,
    SandboxSpec,
    SandboxStatus,
)

from cellblock.adapters.adapter_session import AsyncSession
from cellblock.errors import CellblockError
from cellblock.fronts.executor.executor import CodeExecutor

_NEVER_RAN = -1
_RESOURCES = ("cpu", "memory_mib", "disk_gib", "gpu", "gpu_type")


class _Sandbox:
    """A session, with the settings of its specification."""

    def __init__(self, session: AsyncSession, executor: CodeExecutor, spec: SandboxSpec) -> None:
        self.session = session
        self.executor = executor
        self.env = dict(spec.env)
        self.closing: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        self.timer = loop.call_later(spec.ttl_s, self.close) if spec.ttl_s is not None else None

    def close(self) -> asyncio.Task[None]:
        if self.timer is not None:
            self.timer.cancel()
        if self.closing is None or (self.closing.done() and (self.closing.cancelled() or self.closing.exception())):
            self.closing = asyncio.create_task(self.session.close())
        return self.closing


class CellblockProvider:
    """A provider of sandboxes, each a session in an empty directory of its own."""

    name = "cellblock"

    def __init__(self, **options: Any) -> None:
        """Set up without starting.

        Args:
            options: The arguments of `CodeExecutor` for each session.

        Raises:
            InvalidInputError: An option is invalid.
        """
        AsyncSession(None, options)  # validates the options
        self._options = options

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        """Start a session. `provider_options` of the specification override the provider's options.

        Raises:
            SandboxCreateError: The session could not be started in time, or the specification requests an unsupported
                feature.
        """
        _check(spec)
        try:
            session = AsyncSession(None, {**self._options, **spec.provider_options})
            async with asyncio.timeout(spec.ready_timeout_s), session.closed_on_failure() as executor:
                if spec.workdir:
                    await executor.fs.mkdir(spec.workdir, parents=True, exist_ok=True)
                sandbox = _Sandbox(session, executor, spec)
        except (CellblockError, OSError) as error:  # also a TimeoutError
            raise SandboxCreateError(f"no session could be made: {str(error) or 'it took too long'}") from error
        return SandboxHandle(executor.session_id, self.name, sandbox)

    async def exec(
        self,
        handle: SandboxHandle,
        command: str,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_s: float | None = None,
        user: str | int | None = None,
    ) -> SandboxExecResult:
        """Run a shell command next to the kernel."""
        if user is not None and not _is_ours(user):
            raise ValueError(f"a session has one user, so nothing can run as {user!r}")
        try:
            sandbox = handle.raw
            done = await sandbox.executor.exec(command, cwd=cwd, env={**sandbox.env, **(env or {})}, timeout=timeout_s)
        except CellblockError as error:
            return SandboxExecResult(None, str(error), _NEVER_RAN, "sandbox")
        if done.status == "timeout":
            return SandboxExecResult(done.out, f"{done.err}{done.reason}", 124, "timeout")
        if done.status in ("cancelled", "unknown") or done.exit_code is None:
            return SandboxExecResult(done.out, f"{done.err}{done.reason}", _NEVER_RAN, "sandbox")
        return SandboxExecResult(done.out, done.err, done.exit_code)

    async def upload_file(self, handle: SandboxHandle, source_path: Path, target_path: str) -> None:
        """Copy a local file to the sandbox, and create missing parent directories."""
        await handle.raw.executor.fs.write_bytes(target_path, await asyncio.to_thread(Path(source_path).read_bytes))

    async def download_file(self, handle: SandboxHandle, source_path: str, target_path: Path) -> None:
        """Copy a file of the sandbox to a local file."""
        data = await handle.raw.executor.fs.read_bytes(source_path)
        await asyncio.to_thread(Path(target_path).parent.mkdir, parents=True, exist_ok=True)
        await asyncio.to_thread(Path(target_path).write_bytes, data)

    async def status(self, handle: SandboxHandle) -> SandboxStatus:
        """Return whether the session is running."""
        try:
            return SandboxStatus.RUNNING if handle.raw.executor.session else SandboxStatus.STOPPED
        except CellblockError:
            return SandboxStatus.STOPPED

    async def close(self, handle: SandboxHandle) -> None:
        """End the session. The operation is idempotent."""
        await asyncio.shield(handle.raw.close())

    async def aclose(self) -> None:
        """Do nothing: `Sandbox.stop` calls this as well, and other sandboxes of the provider continue."""


def _check(spec: SandboxSpec) -> None:
    asked = [name for name in ("image", "entrypoint", "ports") if getattr(spec, name, None)]
    asked += [name for name in _RESOURCES if getattr(spec.resources, name) is not None]
    if asked:
        raise SandboxCreateError(f"sessions do not support these fields of the specification, remove them: {', '.join(asked)}")
    if os.path.isabs(spec.workdir or ""):
        raise SandboxCreateError(f"workdir must be relative to the session's directory, not {spec.workdir}")


def _is_ours(user: str | int) -> bool:
    return str(user) in (str(os.geteuid()), pwd.getpwuid(os.geteuid()).pw_name)
