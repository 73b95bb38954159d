"""Handlers of code's requests while a cell runs: input lines, packages, and commands."""

from __future__ import annotations

import asyncio
import contextvars
import fcntl
import functools
import inspect
import os
import secrets
import shlex
import signal
from collections.abc import AsyncIterator, Callable

from cellblock.errors import CellblockError, InvalidInputError, ProtocolError
from cellblock.host.kernels.cell import Cell, OnInput, Prompt
from cellblock.host.kernels.channel import Request
from cellblock.host.launch.kernel_spec import RunningKernel
from cellblock.model.decisions import CommandRequest
from cellblock.wire.control import Keep, Stop
from cellblock.wire.frames import MAX_BODY
from cellblock.wire.messages import Command, Decided, Ended, InputReply, InputRequest, Install, Installed, ToWorker

answering: contextvars.ContextVar[Cell | None] = contextvars.ContextVar("answering", default=None)
"""The cell for which the current task, or thread, answers a request."""

_REJECTED = "Rejected: the command was not approved"
_CUT_OFF = "cellblock was killed while this ran, so the outcome is unknown"


async def answers(kernel: RunningKernel, cell: Cell, question: Request, begins: Callable[[], None]) -> AsyncIterator[ToWorker]:
    """Yield the answers to a request.

    Args:
        kernel: The kernel that asks.
        cell: Its running cell.
        question: The request.
        begins: Called when the handler is about to begin.
    """
    answering.set(cell)
    match question:
        case InputRequest(number=number, prompt=prompt, password=password):
            yield InputReply(number, await _line(cell, Prompt(prompt, password=password)))
        case Install():
            yield await _have_installed(kernel, cell, question, begins)
        case Command():
            async for message in _have_run(kernel, cell, question, begins):
                yield message


async def _line(cell: Cell, prompt: Prompt) -> str | None:
    """Ask the caller for a line. On failure, the code gets an EOFError, and the caller the exception."""
    ask: OnInput | None = cell.on_input
    assert ask is not None
    assert cell.answerers is not None
    try:
        if inspect.iscoroutinefunction(ask):
            got = await ask(prompt)
        else:
            given = await cell.answerers.run(ask, prompt)
            got = await given if inspect.isawaitable(given) else given
        return None if got is None else _checked_line(str(got))
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise  # no one waits for the line now
        failure = InvalidInputError("on_input raised CancelledError; to give no line, return None")
        failure.__cause__ = error
        cell.fail(failure)
    except BaseException as error:  # the caller's exception, of any kind: the cell's reader gets it
        cell.fail(error)
    return None


def _checked_line(line: str) -> str:
    size = len(line.encode(errors="replace"))
    if size > MAX_BODY:
        raise InvalidInputError(f"on_input returned a line of {size:,} bytes, over the limit of {MAX_BODY:,}")
    return line


async def _have_installed(kernel: RunningKernel, cell: Cell, question: Install, begins: Callable[[], None]) -> Installed:
    number = question.number
    # pip runs code of packages, which can start programs.
    request = CommandRequest("shell", f"%pip install {shlex.join(question.arguments)}", cwd=kernel.wanted.setup.cwd)
    if kernel.wanted.on_command is not None and (refusal := await _refusal(kernel, cell, request)) is not None:
        return Installed(number, 0, refusal)
    begins()
    try:
        return Installed(number, await kernel.wanted.installer(kernel, question))
    except CellblockError as error:
        return Installed(number, 0, str(error))


async def _have_run(
    kernel: RunningKernel, cell: Cell, command: Command, begins: Callable[[], None]
) -> AsyncIterator[ToWorker]:
    """Get a decision on a command. Run it here if the worker cannot."""
    changes = {name: value if equals else None for name, equals, value in (text.partition("=") for text in command.changes)}
    request = CommandRequest(command.tool, command.text, command.program, command.cwd, changes)
    if (request.tool == "shell_magic") == bool(request.program):
        refusal = await _refusal(kernel, cell, request)
    else:  # not from a genuine worker: the decider could confuse a program with a command line
        refusal = "a script needs the program that runs it, and a single command needs none"
    if refusal is None and kernel.wanted.forbid_programs:
        place = _new_file(kernel) if command.keep != "nothing" else None
        begins()
        try:
            _begin(kernel, request, command.keep, place)
        except ProtocolError:
            refusal = "the command is too large: put it in a file"
        except OSError as error:
            refusal = f"the command cannot be passed on: {error.strerror}"
        else:
            yield Decided(command.number)
            yield Ended(command.number, await kernel.control.finish(), place)
            return
    yield Decided(command.number, refusal)


async def recovered(kernel: RunningKernel, question: Request, *, decided: bool) -> AsyncIterator[ToWorker]:
    """Yield the answers to a request that a killed host had begun to handle.

    Args:
        kernel: The kernel that asked.
        question: The request.
        decided: Whether the code was told that its command may run.
    """
    if isinstance(question, Install):
        yield Installed(question.number, 0, f"{_CUT_OFF}: run the cell again")
        return
    if not decided:
        yield Decided(question.number, f"{_CUT_OFF}: it may have run")
        return
    await kernel.control.command(Stop())
    yield Ended(question.number, signal.SIGKILL, None)


async def _refusal(kernel: RunningKernel, cell: Cell, request: CommandRequest) -> str | None:
    """Get a decision on a command. Return why it may not run. Only a plain True allows it."""
    decide = kernel.wanted.on_command
    if cell.trusted:
        return None
    if decide is None:
        return "Rejected: this session has no approver for commands"
    try:
        allowed = await decide(request)
    except Exception as error:
        cell.fail(error)  # raised to the caller at the end of the cell
        return "Rejected: the approval function failed"
    if cell.reason is not None:
        return "Rejected: the cell is being stopped"
    if allowed is True:
        return None
    return f"Rejected: {allowed}" if isinstance(allowed, str) else _REJECTED


def _begin(kernel: RunningKernel, request: CommandRequest, keep: Keep, place: str | None) -> None:
    """Start exactly the command that was shown for approval, even if the worker has sent other data."""
    begin = functools.partial(kernel.control.begin, cwd=request.cwd, changes=request.environment, keep=keep, place=place)
    if request.tool == "shell":
        shell = kernel.wanted.setup.env.get("SHELL", "/bin/sh")
        begin([shell, "-c", request.command])
        return
    # A sealed memory file, not a pipe: its content cannot change between decision and execution.
    script = os.memfd_create("script", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with os.fdopen(os.dup(script), "wb") as file:
            file.write(request.command.encode())
        os.lseek(script, 0, os.SEEK_SET)
        fcntl.fcntl(
            script, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        )
        begin(request.program, stdin=script)
    finally:
        os.close(script)


def _new_file(kernel: RunningKernel) -> str:
    """Return an unguessable path for an output file, in the session's own temporary directory."""
    own = kernel.wanted.tier.private_directories
    directory = kernel.wanted.setup.env.get("TMPDIR", "/tmp") if own else "/tmp"
    return f"{directory}/.output-{secrets.token_hex(8)}"
