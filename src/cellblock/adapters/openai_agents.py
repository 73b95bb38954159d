"""OpenAI Agents SDK: `CellblockSandboxClient` creates sandboxes for `SandboxAgent`, with terminals."""

from __future__ import annotations

import io
import weakref
from pathlib import Path
from typing import Any, Literal

from agents.sandbox import Manifest
from agents.sandbox.errors import (
    ExecTimeoutError,
    ExecTransportError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
)
from agents.sandbox.session import BaseSandboxClient, BaseSandboxClientOptions, SandboxSession, SandboxSessionState
from agents.sandbox.session.tar_workspace import shell_tar_exclude_args
from agents.sandbox.snapshot import resolve_snapshot
from agents.sandbox.types import ExecResult

from cellblock.adapters.adapter_session import AsyncSession
from cellblock.adapters.openai_terminals import TerminalSession
from cellblock.errors import CellblockError
from cellblock.fronts.executor.executor import CodeExecutor

_MAX_ARCHIVE = 1 << 30
_ANY_ROOT = Manifest.model_fields["root"].default
_sandboxes: weakref.WeakValueDictionary[str, CellblockSandbox] = weakref.WeakValueDictionary()
"""The sandboxes of this program, which a state can be resumed in, by their ids."""


class CellblockState(SandboxSessionState):
    """The identity of a sandbox. In another program, a resumed sandbox starts with the snapshot of the workspace."""

    type: Literal["cellblock"] = "cellblock"


class CellblockOptions(BaseSandboxClientOptions):
    """The arguments of `CodeExecutor` for the sandboxes of one run, instead of the client's."""

    type: Literal["cellblock"] = "cellblock"
    options: dict[str, Any] = {}  # noqa: RUF012  # a field of pydantic's


class CellblockSandbox(TerminalSession):
    """A sandbox: a session of cellblock."""

    def __init__(self, state: CellblockState, session: AsyncSession, executor: CodeExecutor) -> None:
        """Take over a started session."""
        self.state = state
        self.session = session
        self.executor = executor
        self._terminals = {}
        _sandboxes[str(state.session_id)] = self

    async def running(self) -> bool:
        """Return whether the session is running."""
        try:
            return bool(self.executor.session)
        except CellblockError:
            return False

    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> ExecResult:
        try:
            result = await self.executor.exec([*map(str, command)], timeout=timeout, env=await self.environment())
        except CellblockError as error:
            raise ExecTransportError(command=command, cause=error) from error
        if result.status == "timeout":
            raise ExecTimeoutError(command=command, timeout_s=timeout)
        if result.status in ("cancelled", "unknown") or result.exit_code is None:
            raise ExecTransportError(command=command, message=result.reason)
        return ExecResult(stdout=result.stdout, stderr=result.stderr, exit_code=result.exit_code)

    async def read(self, path: Path, *, user: object = None) -> io.IOBase:
        _check_user(user)
        try:
            return io.BytesIO(await self.executor.fs.read_bytes(await self._validate_path_access(path)))
        except FileNotFoundError as error:
            raise WorkspaceReadNotFoundError(path=path, cause=error) from error

    async def write(self, path: Path, data: io.IOBase, *, user: object = None) -> None:
        """Write a file, and create missing parent directories."""
        _check_user(user)
        content = data.read()
        content = content.encode() if isinstance(content, str) else content
        await self.executor.fs.write_bytes(await self._validate_path_access(path, for_write=True), content)

    async def persist_workspace(self) -> io.IOBase:
        """Return the workspace as a tar archive, created by programs in the sandbox."""
        root = self.state.manifest.root
        excluded = " ".join(shell_tar_exclude_args(self._persist_workspace_skip_relpaths()))
        done = await self.executor.exec(f"tar -cf - {excluded} .", cwd=root, timeout=None, max_output=_MAX_ARCHIVE)
        if not done.ok or done.truncated:
            raise WorkspaceArchiveReadError(path=Path(root), context={"reason": done.err or "too large"})
        return io.BytesIO(done.stdout)

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        """Extract a tar archive into the workspace, in the sandbox."""
        root = self.state.manifest.root
        done = await self.executor.exec(["tar", "-xf", "-"], cwd=root, timeout=None, input=data.read())
        if not done.ok:
            raise WorkspaceArchiveWriteError(path=Path(root), context={"reason": done.err})


class CellblockSandboxClient(BaseSandboxClient[CellblockOptions | None]):
    """A factory of sandboxes: ``RunConfig(sandbox=SandboxRunConfig(client=CellblockSandboxClient()))``."""

    backend_id = "cellblock"
    supports_default_options = True

    def __init__(self, **options: Any) -> None:
        """Set up without starting.

        Args:
            options: The arguments of `CodeExecutor` for each session.

        Raises:
            InvalidInputError: An option is invalid.
        """
        AsyncSession(None, options)  # validates the options
        self._options = options
        self._dependencies = None

    async def create(
        self, *, snapshot: Any = None, manifest: Manifest | None = None, options: CellblockOptions | None = None
    ) -> SandboxSession:
        """Start a session. It ends with `delete`."""
        manifest = self._validate_manifest_for_create(Manifest() if manifest is None else manifest)
        given = {**self._options, **(options.options if options else {})}
        if manifest.root != _ANY_ROOT:
            given["working_dir"] = manifest.root
        session = AsyncSession(None, given)
        async with session.closed_on_failure() as executor:
            manifest = manifest.model_copy(update={"root": str(executor.session.workspace)}, deep=True)
            state = CellblockState(manifest=manifest, snapshot=resolve_snapshot(snapshot, executor.session_id))
            return self._wrap_session(CellblockSandbox(state, session, executor))

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """End a session."""
        await session._inner.session.close()  # noqa: SLF001  # where the SDK's own clients find theirs
        return session

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """Continue a sandbox of this program, or create one from its snapshot."""
        inner = _sandboxes.get(str(state.session_id))
        if inner is not None and await inner.running():
            return self._wrap_session(inner)
        session = AsyncSession(None, self._options)
        async with session.closed_on_failure() as executor:
            manifest = state.manifest.model_copy(update={"root": str(executor.session.workspace)}, deep=True)
            renewed = state.model_copy(update={"manifest": manifest, "workspace_root_ready": False})
            return self._wrap_session(CellblockSandbox(renewed, session, executor))

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        """Parse a state from JSON."""
        return self._deserialize_session_state_payload(payload, CellblockState)


def _check_user(user: object) -> None:
    if user is not None:
        raise NotImplementedError("a session has one user: nothing can be read or written as another")
