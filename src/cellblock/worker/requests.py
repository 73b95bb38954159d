"""Requests lines for `input()`, packages and commands from the host. Code gets an answer or an error, and never hangs."""

from __future__ import annotations

import builtins
import contextlib
import getpass
import importlib
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from IPython.core.error import StdinNotImplementedError, UsageError

from cellblock.errors import ProtocolError
from cellblock.wire.fields import MAX_NUMBER
from cellblock.wire.messages import Command, Decided, Ended, InputReply, InputRequest, Install, Installed, Message
from cellblock.worker.channel import Channel
from cellblock.worker.outbox import Outbox
from cellblock.worker.replaced import replace

_Answer = TypeVar("_Answer", InputReply, Installed, Decided, Ended)


class Requester:
    """Sends requests to the host while a cell runs: for lines of input, packages and commands.

    Attributes:
        allowed: Whether `input()` is answered during this cell.
        echo: Whether prompts and answers are shown.
        environment: The session's initial environment, for comparison. An installation is no change by the code.
        installation: The directory of the packages that the code has installed, by its number.
    """

    def __init__(self, channel: Channel, outbox: Outbox, put_back: Callable[[Message], None]) -> None:
        self.allowed = False
        self.echo = True
        self.installation = ""
        self.environment: dict[str, str] = {}
        self._channel = channel
        self._outbox = outbox
        self._put_back = put_back
        self._number = 0
        self._heard: deque[InputReply | Installed | Decided | Ended] = deque()

    def take_places(self) -> None:
        """Replace `input` and `getpass`."""

        def ask(prompt: object = "", /) -> str:
            return self._ask(str(prompt), password=False)

        def ask_password(prompt: str = "Password: ", stream: Any = None, **_options: Any) -> str:
            return self._ask(prompt, password=True)

        replace(builtins, "input", ask)
        replace(getpass, "getpass", ask_password)

    def line(self) -> str:
        """Return a line that the host has for the cell, without showing it."""
        return self._ask("", password=True, shown=False)

    def _ask(self, prompt: str, password: bool, shown: bool = True) -> str:
        if not self.allowed or self._outbox.forked or threading.current_thread() is not threading.main_thread():
            # Models read this too, so it does not mention the caller's `on_input`.
            raise StdinNotImplementedError(
                "input() is not available, because this session has no source of input: set the value in the code instead"
            )
        self._number += 1
        if self.echo:
            self._outbox.write("stdout", prompt)
        self._outbox.send(InputRequest(self._number, prompt[:4000], password))
        reply = self._wait(self._number, InputReply)
        answer = None if reply is None else reply.text
        if answer is None:
            raise EOFError("the caller gave no answer to input()")
        if shown and self.echo:
            self._outbox.write("stdout", ("*" * 8 if password else answer) + "\n")
        return answer

    def install(self, arguments: list[str]) -> None:
        """Ask the host to install packages for this session.

        Args:
            arguments: pip's arguments after ``install``.

        Raises:
            UsageError: They cannot be installed, or pip failed.
        """
        if self._outbox.forked or threading.current_thread() is not threading.main_thread():
            raise UsageError("only the kernel's main thread can install packages")
        self._number += 1
        place, _, number = self.installation.rpartition("/")
        inode = 0
        with contextlib.suppress(FileNotFoundError):
            inode = os.stat(place).st_ino
        self._outbox.send(Install(self._number, tuple(arguments), int(number or 0), inode % MAX_NUMBER))
        reply = self._wait(self._number, Installed)
        if reply is None:
            raise UsageError("the host has ended")
        if reply.refusal is not None:
            raise UsageError(reply.refusal)
        self._see(f"{place}/{reply.installation}")
        importlib.invalidate_caches()

    def _see(self, new: str) -> None:
        """Replace the directory of installed packages, also for child processes."""
        old, self.installation = self.installation, new
        before = f"{old}/site-packages"
        at = sys.path.index(before) if before in sys.path else 1
        sys.path[at : at + (before in sys.path)] = [f"{new}/site-packages"]
        for variables in (os.environ, self.environment):
            for name in {"PATH", "PYTHONPATH"} & variables.keys():
                entries = variables[name].split(":")
                entries = [new + one.removeprefix(old) if one.startswith(f"{old}/") else one for one in entries]
                variables[name] = ":".join(entries)

    def command(self, tool: Literal["shell", "shell_magic"], text: str, **details: Any) -> int:
        """Request approval for a command.

        Args:
            tool: As in `Command`.
            text: As in `Command`.
            details: The other fields of `Command`.

        Returns:
            The request's number.

        Raises:
            PermissionError: It may not run.
            ValueError: It is too large, or is not UTF-8.
        """
        if self._outbox.forked or threading.current_thread() is not threading.main_thread():
            raise PermissionError("only the kernel's main thread can run commands that need approval")
        self._number += 1
        number = self._number
        try:
            self._outbox.send(Command(number, tool, text, **details))
        except ProtocolError as error:
            raise ValueError(f"approval of this command is not possible: {error}") from None
        reply = self._wait(number, Decided)
        if reply is None:
            raise PermissionError("the host has ended")
        if reply.refusal is not None:
            raise PermissionError(reply.refusal)
        return number

    def outcome(self, number: int) -> Ended:
        """Wait until a command that the host runs for us has ended.

        An interrupt is meant for the command, which gets it too; the host kills a command that ignores it.

        Raises:
            KeyboardInterrupt: An interrupt arrived meanwhile.
        """
        interrupted = False
        while True:
            try:
                ended = self._wait(number, Ended)
                break
            except KeyboardInterrupt:
                interrupted = True
        if ended is None:
            raise KeyboardInterrupt  # the host has ended, and everything here ends with it
        if interrupted:
            for suffix in (".out", ".err"):
                try:
                    os.unlink(f"{ended.place}{suffix}")
                except OSError:
                    continue  # the file does not exist
            raise KeyboardInterrupt
        return ended

    def _wait(self, number: int, kind: type[_Answer]) -> _Answer | None:
        """Return the answer of one kind to one request, or None if the host has ended."""
        while True:
            while self._heard:
                answer = self._heard.popleft()
                if isinstance(answer, kind) and answer.number == number:
                    return answer
            messages = self._channel.receive(wait=True)
            if messages is None:
                return None
            for message in messages:
                if isinstance(message, (InputReply, Installed, Decided, Ended)):
                    self._heard.append(message)
                else:
                    self._put_back(message)
