"""The order of messages: one transition table for both sides.

A conversation is in one state. Each row of the table lists the messages that are allowed in that state, their sender, and the
next state. Everything else is a `ProtocolError`; the host then kills the worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from cellblock.errors import ProtocolError
from cellblock.wire.frames import FrameParser
from cellblock.wire.message_codec import decode, encode
from cellblock.wire.messages import Message


class Side(Enum):
    """The two ends of a channel."""

    HOST = "host"
    WORKER = "worker"


class State(Enum):
    """The state of a conversation."""

    STARTING = "starting"
    """The worker was made and has not sent `ready`."""
    IDLE = "idle"
    """No cell runs. Background tasks of earlier cells may still write."""
    BUSY = "busy"
    """A cell runs."""
    ASKING = "asking"
    """A cell runs and waits for an answer: a line of input, the end of an installation, or permission to run a command."""
    QUERY = "query"
    """The worker answers a query, such as a completion or an inspection, or makes a copy."""
    CLOSED = "closed"
    """The worker was told to leave."""


_OUTPUT = ("stream", "part", "display", "clear", "comm")
_ALWAYS = (*_OUTPUT, "idling")
_ASKS = ("input", "install", "command")
_ANSWERS = ("input_reply", "installed", "decided")
_LATE = ("ready", *_ASKS, "reply", "changed", "completed", "inspected", "parked")


def _table() -> dict[State, dict[tuple[Side, str], State]]:
    host, worker = Side.HOST, Side.WORKER
    table: dict[State, dict[tuple[Side, str], State]] = {
        State.STARTING: {(worker, "ready"): State.IDLE, (host, "shutdown"): State.CLOSED},
        State.IDLE: {
            (host, "execute"): State.BUSY,
            (host, "changes"): State.QUERY,
            (host, "complete"): State.QUERY,
            (host, "inspect"): State.QUERY,
            (host, "park"): State.QUERY,
            (host, "idle"): State.IDLE,
            (host, "continue"): State.IDLE,
            (host, "shutdown"): State.CLOSED,
        },
        State.BUSY: {
            **{(worker, kind): State.ASKING for kind in _ASKS},
            (worker, "changed"): State.BUSY,
            (worker, "reply"): State.IDLE,
            (host, "shutdown"): State.CLOSED,
        },
        # An interrupt ends the wait without an answer: then output and the reply follow at once.
        State.ASKING: {
            **{(host, kind): State.BUSY for kind in _ANSWERS},
            **{(worker, kind): State.ASKING for kind in _ASKS},
            (host, "ended"): State.ASKING,
            (worker, "changed"): State.ASKING,
            (worker, "reply"): State.IDLE,
            (host, "shutdown"): State.CLOSED,
        },
        State.QUERY: {
            (worker, "changed"): State.IDLE,
            (worker, "completed"): State.IDLE,
            (worker, "inspected"): State.IDLE,
            (worker, "parked"): State.IDLE,
            (host, "shutdown"): State.CLOSED,
        },
        State.CLOSED: {(worker, kind): State.CLOSED for kind in _LATE},
    }
    # An answer can cross an interrupt: then the worker no longer waits for it, and drops it.
    for state in (State.IDLE, State.BUSY):
        table[state].update({(host, kind): state for kind in (*_ANSWERS, "ended")})
    for state, row in table.items():
        if state is not State.STARTING:
            row.update({(worker, kind): state for kind in _ALWAYS})
    return table


TRANSITIONS = _table()
"""State → (sender, message type) → next state. Threads of user code may write at any time, so output may too."""


class Conversation:
    """One side's view of one channel: bytes in, messages out, and the state.

    Attributes:
        state: Its state.
    """

    __slots__ = ("_other", "_own", "_parser", "state")

    def __init__(self, side: Side) -> None:
        self._own = side
        self._other = Side.WORKER if side is Side.HOST else Side.HOST
        self._parser = FrameParser()
        self.state = State.STARTING

    @property
    def position(self) -> int:
        """The total bytes of the received messages."""
        return self._parser.position

    def resume(self, state: State, position: int) -> None:
        """Continue a conversation between two messages.

        Args:
            state: Its state.
            position: The total bytes of the received messages.
        """
        self._parser = FrameParser()
        self._parser.position = position
        self.state = state

    def send(self, message: Message) -> bytes:
        """Encode a message, and move to the next state.

        Raises:
            ProtocolError: It is not allowed now, or is too large; the state is unchanged.
        """
        following = self._step(self._own, message)
        data = encode(message)
        self.state = following
        return data

    def receive(self, data: bytes) -> list[Message]:
        """Add received bytes. Return the complete messages, or raise as `messages`."""
        return list(self.messages(data))

    def messages(self, data: bytes) -> Iterator[Message]:
        """Add received bytes, and yield the complete messages.

        Yields:
            Messages, in order, including those before an error.

        Raises:
            ProtocolError: The other side violated the protocol. The conversation is over.
        """
        for frame in self._parser.frames(data):
            message = decode(frame)
            self.state = self._step(self._other, message)
            yield message

    def _step(self, sender: Side, message: Message) -> State:
        following = TRANSITIONS[self.state].get((sender, message.type))
        if following is None:
            raise ProtocolError(f"the {sender.value} may not send {message.type!r} while {self.state.value}")
        return following
