"""Strands Agents: `CellblockSandbox` runs an agent's commands next to a session's kernel, and its Python in the session."""

from __future__ import annotations

import asyncio
import codecs
import posixpath
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from strands.sandbox.base import Sandbox
from strands.sandbox.errors import SandboxTimeoutError
from strands.sandbox.types import ExecutionResult, FileInfo, OutputFile, StreamChunk
from strands.vended_tools.file_editor import make_file_editor
from strands.vended_tools.shell import make_shell

from cellblock.adapters.adapter_session import AsyncSession
from cellblock.fronts.executor.executor import CodeExecutor
from cellblock.host.programs.process import Process
from cellblock.model import CodeExecutionChunk, CodeExecutionResult
from cellblock.model.blocks import PICTURES, pictures

_PYTHON = ("python", "python3")


class CellblockSandbox(Sandbox):
    """A sandbox: ``Agent(model, sandbox=CellblockSandbox())``, with a shell and an editor for files as tools."""

    def __init__(self, executor: CodeExecutor | None = None, **options: Any) -> None:
        """Set up. The sandbox's own session starts with the first operation.

        Args:
            executor: A started executor, which the caller stops.
            options: The arguments of `CodeExecutor` for a new executor. Without `working_dir`, it works in an empty
                directory of its own.

        Raises:
            InvalidInputError: An option is invalid.
        """
        self._session = AsyncSession(executor, options)

    def get_tools(self) -> list[Any]:
        """Return the agent's tools, named as in other sandboxes."""
        return [make_file_editor(sandbox=self, name="sandbox_file_editor"), make_shell(sandbox=self, name="sandbox_shell")]

    async def execute_streaming(
        self, command: str, *, timeout: float | None = None, cwd: str | None = None, env: Any = None, **_more: Any
    ) -> AsyncGenerator[StreamChunk | ExecutionResult, None]:
        """Run a shell command; yield its output as it arrives, and finally its result."""
        executor = await self._session.executor()
        async with aclosing(_followed(await executor.spawn(command, cwd=cwd, env=env), timeout)) as events:
            async for event in events:
                yield event

    async def execute_code_streaming(
        self, code: str, language: str, *, timeout: float | None = None, cwd: str | None = None, env: Any = None, **_more: Any
    ) -> AsyncGenerator[StreamChunk | ExecutionResult, None]:
        """Run Python in the session, where variables persist. With `cwd` or `env`, or in another `language`, run a program."""
        executor = await self._session.executor()
        if language in _PYTHON and cwd is None and env is None:
            events: Any = _cell(executor, code, timeout)
        else:
            process = await executor.spawn([language], cwd=cwd, env=env, stdin=True)
            await process.write(code)
            process.close_stdin()
            events = _followed(process, timeout)
        async with aclosing(events):
            async for event in events:
                yield event

    async def read_file(self, path: str, **_more: Any) -> bytes:
        return await (await self._session.executor()).fs.read_bytes(path)

    async def write_file(self, path: str, content: bytes, **_more: Any) -> None:
        """Write a file, and create missing parent directories."""
        await (await self._session.executor()).fs.write_bytes(path, content)

    async def remove_file(self, path: str, **_more: Any) -> None:
        await (await self._session.executor()).fs.remove(path)

    async def list_files(self, path: str, **_more: Any) -> list[FileInfo]:
        """List a directory."""
        found = await (await self._session.executor()).fs.list(path)
        return [FileInfo(posixpath.basename(one.path), one.kind == "directory", one.size) for one in found]

    async def close(self) -> None:
        """End the session, if the sandbox owns it. The operation is idempotent."""
        await self._session.close()


async def _followed(process: Process, timeout: float | None) -> AsyncGenerator[StreamChunk | ExecutionResult, None]:
    """Yield the output of a program, and stop the program when the generator ends."""
    decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}
    said = {"stdout": "", "stderr": ""}
    limit = asyncio.get_running_loop().time() + timeout if timeout is not None else None
    position = 0
    try:
        while True:
            try:
                async with asyncio.timeout_at(limit):
                    pieces = await process.read(position)
            except TimeoutError:
                raise SandboxTimeoutError(timeout, said["stdout"], said["stderr"]) from None
            for piece in pieces:
                position = piece.offset + len(piece.data)
                if text := decoders[piece.stream].decode(piece.data):
                    said[piece.stream] += text
                    yield StreamChunk(text, piece.stream)
            if not pieces:
                break
        ended = await process.wait()
        yield ExecutionResult(-1 if ended.exit_code is None else ended.exit_code, said["stdout"], said["stderr"])
    finally:
        await process.stop()


async def _cell(
    executor: CodeExecutor, code: str, timeout: float | None
) -> AsyncGenerator[StreamChunk | ExecutionResult, None]:
    async with aclosing(executor.stream(code, timeout, True, check=False)) as events:
        async for event in events:
            if isinstance(event, CodeExecutionChunk):
                yield StreamChunk(event.text, event.name or "stdout")
            elif isinstance(event, CodeExecutionResult):
                if event.status == "timeout":
                    raise SandboxTimeoutError(timeout, event.output, event.stderr)
                yield _converted(event)


def _converted(result: CodeExecutionResult) -> ExecutionResult:
    shown = enumerate(pictures(result.outputs), 1)
    files = [OutputFile(f"image-{number}.{PICTURES[mime]}", data, mime) for number, (mime, data) in shown]
    if result.error is None:
        return ExecutionResult(0, "\n".join(filter(None, [result.output, result.return_value])), result.stderr, files)
    return ExecutionResult(1, result.output, "\n".join([result.stderr, *result.error.traceback]).lstrip(), files)
