"""Pydantic AI: `CellblockWorkspace` is the workspace of an agent, and `repl_toolset` offers a Python session."""

from __future__ import annotations

import posixpath
import secrets
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_ai.messages import WorkspaceRef
from pydantic_ai.toolsets import FunctionToolset
from pydantic_ai.workspaces import (
    CommandResult,
    FileEntry,
    SupportsCommands,
    SupportsFilesystem,
    SupportsRealpath,
    WorkspaceBackend,
    WorkspaceOutputLimitError,
    WorkspaceTimeoutError,
    WorkspaceUnavailableError,
)

from cellblock.adapters.adapter_session import AsyncSession
from cellblock.errors import StateError
from cellblock.fronts.executor.executor import CodeExecutor
from cellblock.model.files import FileInfo

_PROVIDER = "cellblock"
_environments: weakref.WeakValueDictionary[str, AsyncSession] = weakref.WeakValueDictionary()
"""The sessions of this program, which a ref can name."""


class CellblockWorkspace(WorkspaceBackend, SupportsCommands, SupportsFilesystem, SupportsRealpath):
    """A workspace: ``await agent.run(…, workspace=CellblockWorkspace())``.

    Commands run next to the session's kernel; files are accessed as the session's user. A run never ends the session: call
    `close`.
    """

    def __init__(self, executor: CodeExecutor | None = None, *, ref: WorkspaceRef | None = None, **options: Any) -> None:
        """Set up. The workspace's own session starts with the first operation.

        Args:
            executor: A started executor, which the caller stops.
            ref: The ref of an existing workspace of this program.
            options: The arguments of `CodeExecutor` for a new executor. Without `working_dir`, it works in an empty
                directory of its own.

        Raises:
            InvalidInputError: An option is invalid.
        """
        self._ref = ref
        self._session = AsyncSession(executor, options) if ref is None else _environments.get(ref.id)

    @property
    def ref(self) -> WorkspaceRef | None:
        """The workspace's ref, once it has started."""
        return self._ref

    async def executor(self) -> CodeExecutor:
        """Return the started session: its cells are a REPL in the same workspace.

        Raises:
            WorkspaceUnavailableError: The session has ended.
        """
        if self._session is None:
            raise WorkspaceUnavailableError(
                f"{self._ref} is not a workspace of this program, or its session has ended: create a new one"
            )
        try:
            executor = await self._session.executor()
        except StateError as error:
            raise WorkspaceUnavailableError(str(error)) from error
        if self._ref is None:
            self._ref = WorkspaceRef(provider=_PROVIDER, id=secrets.token_hex(8))
            _environments[self._ref.id] = self._session
        return executor

    async def close(self) -> None:
        """End the session, if the workspace owns it. The operation is idempotent."""
        if self._session is not None:
            await self._session.close()

    async def working_dir(self) -> str:
        """Return the directory in which commands start."""
        return str((await self.executor()).session.workspace)

    async def run(
        self,
        command: str | Sequence[str],
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> CommandResult:
        """Run a program, or with `shell` a shell command. Detached processes continue."""
        if isinstance(command, str) != shell:
            raise TypeError("a string needs shell=True, and a sequence shell=False")
        executor = await self.executor()
        try:
            result = await executor.exec(command, env=env, timeout=timeout, stop="group")
        except StateError as error:
            raise WorkspaceUnavailableError(str(error)) from error
        if result.status == "timeout":
            raise WorkspaceTimeoutError(f"the command was stopped after {timeout} s", stdout=result.out, stderr=result.err)
        if result.status in ("cancelled", "unknown") or result.exit_code is None:
            raise WorkspaceUnavailableError(f"the command has no result: {result.reason}")
        if result.truncated:
            limit = len(result.stdout) + len(result.stderr)
            raise WorkspaceOutputLimitError("too much output", limit=limit, stdout=result.out, stderr=result.err)
        return CommandResult(exit_code=result.exit_code, stdout=result.out, stderr=result.err)

    async def read_bytes(self, path: str) -> bytes:
        """Read a file."""
        return await (await self.executor()).fs.read_bytes(path)

    async def write_bytes(self, path: str, data: bytes) -> None:
        """Write a file, following a link, and create missing parent directories."""
        await (await self.executor()).fs.write_bytes(path, data)

    async def stat(self, path: str) -> FileEntry:
        """Describe a path; links are followed."""
        return _entry(path, await (await self.executor()).fs.stat(path))

    async def list_dir(self, path: str) -> Sequence[FileEntry]:
        """List a directory."""
        return [_entry(info.path, info) for info in await (await self.executor()).fs.list(path)]

    async def make_dir(self, path: str) -> None:
        """Create a directory and its parents."""
        await (await self.executor()).fs.mkdir(path, parents=True, exist_ok=True)

    async def remove(self, path: str) -> None:
        """Remove a file or a directory, but never the workspace or its parents."""
        fs = (await self.executor()).fs
        parent, name = posixpath.split(posixpath.normpath(path))
        real = posixpath.join(await fs.realpath(parent), name)
        if posixpath.commonpath([real, working := await self.working_dir()]) == real:
            raise ValueError(f"{path} is the workspace {working}, or one of its parents: name a path inside the workspace")
        await fs.remove(path, recursive=True)

    async def exists(self, path: str) -> bool:
        """Return whether a path exists."""
        return await (await self.executor()).fs.exists(path)

    async def realpath(self, path: str) -> str:
        """Return the path with all links resolved."""
        return await (await self.executor()).fs.realpath(path)


def _entry(path: str, info: FileInfo) -> FileEntry:
    is_dir = info.kind == "directory"
    return FileEntry(name=posixpath.basename(path), path=path, is_dir=is_dir, size=None if is_dir else info.size)


def repl_toolset(session: CodeExecutor | CellblockWorkspace) -> FunctionToolset[Any]:
    """Return a toolset with the tool ``run_python``: cells of a session, in which variables persist.

    Args:
        session: A started executor, or a workspace, so that cells and commands share files.
    """

    async def run_python(code: str) -> str:
        """Run Python in an IPython session and return what it shows. Variables, imports and functions persist.

        Args:
            code: The code. The value of its last expression is shown; magics, !commands and top-level await work.
        """
        executor = await session.executor() if isinstance(session, CellblockWorkspace) else session
        return await executor.for_model(await executor.execute(code, check=False))

    return FunctionToolset([run_python])
