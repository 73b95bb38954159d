"""What code in a kernel asks the host: lines for `input()`, and packages. It gets an answer or an error, never a hang."""

from __future__ import annotations

import builtins
import getpass
import importlib
import threading
from collections.abc import Callable
from typing import Any

from IPython.core.error import StdinNotImplementedError, UsageError

from cellblock.wire.messages import InputReply, InputRequest, Install, Installed, Message
from cellblock.worker.channel import Channel
from cellblock.worker.streams import Outbox


class Asker:
    """Asks the host for lines of input and for packages while a cell runs.

    Attributes:
        allowed: Whether somebody answers during this cell.
    """

    def __init__(self, channel: Channel, outbox: Outbox, put_back: Callable[[Message], None]) -> None:
        self.allowed = False
        self._channel = channel
        self._outbox = outbox
        self._put_back = put_back
        self._number = 0

    def take_places(self) -> None:
        """Take the places of `input` and `getpass`."""
        builtins.input = self._input
        getpass.getpass = self._getpass

    def _input(self, prompt: object = "", /) -> str:
        return self._ask(str(prompt), password=False)

    def _getpass(self, prompt: str = "Password: ", stream: Any = None, **_options: Any) -> str:
        return self._ask(prompt, password=True)

    def _ask(self, prompt: str, password: bool) -> str:
        if not self.allowed or self._outbox.forked or threading.current_thread() is not threading.main_thread():
            raise StdinNotImplementedError(
                "nobody answers input() here: set the value in the code, or pass on_input= to execute() or stream()"
            )
        self._number += 1
        self._outbox.write("stdout", prompt)
        self._outbox.send(InputRequest(self._number, prompt[:4000], password))
        reply = self._wait()
        answer = reply.text if isinstance(reply, InputReply) else None
        if answer is None:
            raise EOFError("the caller gave no answer to input()")
        self._outbox.write("stdout", ("*" * 8 if password else answer) + "\n")
        return answer

    def install(self, arguments: list[str]) -> None:
        """Have the host install packages for this session.

        Args:
            arguments: pip's, behind ``install``.

        Raises:
            UsageError: They cannot be installed, or pip says no.
        """
        if self._outbox.forked or threading.current_thread() is not threading.main_thread():
            raise UsageError("packages are installed by the kernel's main thread only")
        self._number += 1
        self._outbox.send(Install(self._number, tuple(arguments)))
        reply = self._wait()
        if not isinstance(reply, Installed):
            raise UsageError("the host is gone")
        if reply.refusal is not None:
            raise UsageError(reply.refusal)
        importlib.invalidate_caches()
        if reply.status:
            raise UsageError(f"pip ended with status {reply.status}")

    def _wait(self) -> InputReply | Installed | None:
        while True:
            messages = self._channel.receive(wait=True)
            if messages is None:
                return None
            for message in messages:
                if not isinstance(message, (InputReply, Installed)):
                    self._put_back(message)
                elif message.number == self._number:
                    return message
