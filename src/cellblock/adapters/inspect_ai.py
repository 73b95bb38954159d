"""Inspect: the sandbox ``cellblock`` for evaluations, with a session for each sample.

The entry point ``inspect_ai`` of this package registers it: ``Task(…, sandbox="cellblock")``. Solvers and scorers run their
programs next to the session's kernel. A scorer can therefore trust ``sandbox().exec``, even if the sample's code has
patched its interpreter.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pwd
from pathlib import Path
from typing import Any

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel, ConfigDict

from cellblock.adapters.adapter_session import AsyncSession
from cellblock.fronts.executor.executor import CodeExecutor


class CellblockConfig(BaseModel):
    """The arguments of `CodeExecutor` that are data: ``sandbox=SandboxEnvironmentSpec("cellblock", CellblockConfig(…))``."""

    model_config = ConfigDict(extra="allow", frozen=True)


@sandboxenv(name="cellblock")
class CellblockSandbox(SandboxEnvironment):
    """The session of one sample."""

    def __init__(self, session: AsyncSession, executor: CodeExecutor) -> None:
        """Take over a started session."""
        super().__init__()
        self.session = session
        self.executor = executor

    @classmethod
    async def sample_init(cls, task_name: str, config: Any, metadata: dict[str, str]) -> dict[str, SandboxEnvironment]:
        """Start a session. A configuration that is a path names a JSON file with the options."""
        session = AsyncSession(None, _options(config))
        async with session.closed_on_failure() as executor:
            return {"default": cls(session, executor)}

    @classmethod
    async def sample_cleanup(
        cls, task_name: str, config: Any, environments: dict[str, SandboxEnvironment], interrupted: bool
    ) -> None:
        """End the session of a sample."""
        for environment in environments.values():
            await environment.as_type(cls).session.close()

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """Parse a configuration from JSON."""
        return CellblockConfig(**config)

    @classmethod
    def default_concurrency(cls) -> int | None:
        """Return the default number of concurrent samples."""
        return 4 * (os.cpu_count() or 1)

    def default_polling_interval(self) -> float:
        """Return the seconds between two polls of a service, which are cheap here."""
        return 0.2

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,  # noqa: A002  # Inspect's name
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a program. It is never retried, because the first attempt may have had effects."""
        if user is not None and not _is_ours(user):
            raise SandboxUserUnsupportedError(f"a session has one user, so nothing can run as {user!r}")
        limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        result = await self.executor.exec(cmd, input=input, cwd=cwd, env=env, timeout=timeout, max_output=limit)
        if result.status == "timeout":
            raise TimeoutError(f"the command was stopped after {timeout} s")
        if result.errno == errno.EACCES:
            raise PermissionError(errno.EACCES, f"the command cannot be executed: {result.err}", cmd[0])
        if result.truncated:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, result.out)
        if result.status in ("cancelled", "unknown") or result.exit_code is None:
            raise SandboxUnavailableError(f"the command has no result: {result.reason}")
        return ExecResult(result.ok, result.exit_code, result.out, result.err)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a file, and create missing parent directories."""
        await self.executor.fs.write_bytes(file, contents.encode() if isinstance(contents, str) else contents)

    async def read_file(self, file: str, text: bool = True) -> Any:
        """Read a file."""
        limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        try:
            data = await self.executor.fs.read_bytes(file, max_bytes=limit)
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None) from error
            raise
        return data.decode() if text else data


def _options(config: Any) -> dict[str, Any]:
    if isinstance(config, str):
        config = CellblockConfig(**json.loads(Path(config).read_text(encoding="utf-8")))
    return {} if config is None else dict(config.model_dump())


def _is_ours(user: str) -> bool:
    """Return whether a name or number names the session's user, which is this program's user."""
    with contextlib.suppress(KeyError):
        return (int(user) if user.isdecimal() else pwd.getpwnam(user).pw_uid) == os.geteuid()
    return False
