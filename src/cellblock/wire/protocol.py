"""Who may say what when: one transition table, seen from both sides.

A conversation is in one state. Each row of the table says which messages may pass in that state, who sends them, and which
state follows. Anything else is a `ProtocolError`, and the host's answer to that is to kill the worker.
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
    """Where a conversation stands."""

    STARTING = "starting"
    """The worker was made and has not said `ready`."""
    IDLE = "idle"
    """No cell runs. Background tasks of earlier cells may still write."""
    BUSY = "busy"
    """A cell runs."""
    ASKING = "asking"
    """A cell runs and waits for an answer: a line of input, the end of an installation, or leave to run a command."""
    QUERY = "query"
    """A completion or an inspection is being worked out, or a copy made."""
    CLOSED = "closed"
    """The worker was told to leave."""


_OUTPUT = ("stream", "part", "display", "clear", "comm")
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
    # An answer can cross an interrupt on its way: then nobody waits for it any more, and the worker drops it.
    for state in (State.IDLE, State.BUSY):
        table[state].update({(host, kind): state for kind in (*_ANSWERS, "ended")})
    for state, row in table.items():
        if state is not State.STARTING:
            row.update({(worker, kind): state for kind in _OUTPUT})
    return table


TRANSITIONS = _table()
"""State → (sender, message type) → next state. Threads of user code may write at any time, so output may too."""


class Conversation:
    """One side's view of one channel: bytes in, messages out, and the state that follows.

    Attributes:
        state: Where the conversation stands.
    """

    __slots__ = ("_other", "_own", "_parser", "state")

    def __init__(self, side: Side) -> None:
        self._own = side
        self._other = Side.WORKER if side is Side.HOST else Side.HOST
        self._parser = FrameParser()
        self.state = State.STARTING

    @property
    def position(self) -> int:
        """How many bytes the messages had that were received."""
        return self._parser.position

    def resume(self, state: State, position: int) -> None:
        """Go on in the middle of a conversation, between two messages.

        Args:
            state: Where it stands.
            position: How many bytes the messages had that were received.
        """
        self._parser = FrameParser()
        self._parser.position = position
        self.state = state

    def send(self, message: Message) -> bytes:
        """Return the bytes that say this, and move to the state that follows.

        Raises:
            ProtocolError: It may not be said now, or is too large; the state has not moved.
        """
        following = self._step(self._own, message)
        data = encode(message)
        self.state = following
        return data

    def receive(self, data: bytes) -> list[Message]:
        """Take bytes as they came and return the messages that are complete now, or raise: see `messages`."""
        return list(self.messages(data))

    def messages(self, data: bytes) -> Iterator[Message]:
        """Take bytes as they came and yield the messages that are complete now.

        Yields:
            Messages, in order, also those that came before a mistake.

        Raises:
            ProtocolError: The other side broke the protocol. The conversation is over.
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
