"""Terminals for the OpenAI Agents SDK: programs with interactive input and output."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
from agents.sandbox.session.pty_types import (
    PTY_PROCESSES_MAX,
    PtyExecUpdate,
    allocate_pty_process_id,
    clamp_pty_yield_time_ms,
    resolve_pty_write_yield_time_ms,
    truncate_text_by_tokens,
)

from cellblock.fronts.executor.executor import CodeExecutor
from cellblock.host.programs.process import Process


class TerminalSession(BaseSandboxSession):
    """The terminals of a sandbox.

    Attributes:
        executor: The session of cellblock.
    """

    executor: CodeExecutor
    _terminals: dict[int, tuple[Process, int]]

    async def environment(self) -> dict[str, str]:
        """Return the variables of the manifest."""
        return dict(await self.state.manifest.environment.resolve())

    def supports_pty(self) -> bool:
        """Return True: programs may have terminals."""
        return True

    async def pty_exec_start(
        self,
        *command: str | Path,
        timeout: float | None = None,
        shell: bool | list[str] = True,
        user: Any = None,
        tty: bool = False,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        """Start a program, and return its output of the first seconds."""
        argv = self._prepare_exec_command(*command, shell=shell, user=user)
        pty = (24, 80) if tty else None
        process = await self.executor.spawn(argv, env=await self.environment(), pty=pty, stdin=not tty, label="agents")
        number = allocate_pty_process_id({*self._terminals})
        if len(self._terminals) >= PTY_PROCESSES_MAX:
            oldest = next(iter(self._terminals))
            await self._terminals.pop(oldest)[0].stop()
        self._terminals[number] = (process, 0)
        wait = clamp_pty_yield_time_ms(10_000 if yield_time_s is None else int(yield_time_s * 1000))
        return await self._update(number, wait, max_output_tokens)

    async def pty_write_stdin(
        self, *, session_id: int, chars: str, yield_time_s: float | None = None, max_output_tokens: int | None = None
    ) -> PtyExecUpdate:
        """Write input, and return the program's following output."""
        process, _position = self._resolve_pty_session_entry(pty_processes=self._terminals, session_id=session_id)
        if chars:
            await process.write(chars)
        wait = 250 if yield_time_s is None else int(yield_time_s * 1000)
        wait = resolve_pty_write_yield_time_ms(yield_time_ms=wait, input_empty=not chars)
        return await self._update(session_id, wait, max_output_tokens)

    async def _update(self, number: int, wait_ms: int, max_output_tokens: int | None) -> PtyExecUpdate:
        process, position = self._terminals[number]
        output = bytearray()
        try:
            async with asyncio.timeout(wait_ms / 1000):
                while pieces := await process.read(position):
                    for piece in pieces:
                        output += piece.data
                        position = piece.offset + len(piece.data)
        except TimeoutError:
            pass
        self._terminals[number] = (process, position)
        ended = process.poll()
        if ended is not None:
            del self._terminals[number]
        text, tokens = truncate_text_by_tokens(output.decode("utf-8", "replace"), max_output_tokens)
        return PtyExecUpdate(None if ended else number, text.encode(), ended.exit_code if ended else None, tokens)

    async def pty_terminate_all(self) -> None:
        """Stop all programs that were started with `pty_exec_start`."""
        terminals, self._terminals = self._terminals, {}
        await asyncio.gather(*(process.stop() for process, _position in terminals.values()))
