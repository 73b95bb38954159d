"""`input()` and `getpass()` in a kernel: a question to the host, or an immediate error. Never a hang."""

from __future__ import annotations

import builtins
import getpass
import threading
from collections.abc import Callable
from typing import Any

from IPython.core.error import StdinNotImplementedError

from cellblock.wire.messages import InputReply, InputRequest, Message
from cellblock.worker.channel import Channel
from cellblock.worker.streams import Outbox


class Asker:
    """Asks the host for lines of input while a cell runs.

    Attributes:
        allowed: Whether somebody answers during this cell.
    """

    def __init__(self, channel: Channel, outbox: Outbox, put_back: Callable[[Message], None]) -> None:
        self.allowed = False
        self._channel = channel
        self._outbox = outbox
        self._put_back = put_back
        self._number = 0

    def install(self) -> None:
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
        answer = self._wait()
        if answer is None:
            raise EOFError("the caller gave no answer to input()")
        self._outbox.write("stdout", ("*" * 8 if password else answer) + "\n")
        return answer

    def _wait(self) -> str | None:
        while True:
            messages = self._channel.receive(wait=True)
            if messages is None:
                return None
            for message in messages:
                if not isinstance(message, InputReply):
                    self._put_back(message)
                elif message.number == self._number:
                    return message.text
