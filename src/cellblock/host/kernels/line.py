"""Moves the bytes of one kernel: directly, or through a tape that outlives this process."""

from __future__ import annotations

from cellblock.host.descriptors import pending, read_some
from cellblock.host.kernels.tape import CHANNEL, STDERR, STDOUT, Tape
from cellblock.host.launch.launcher import Ends

_buffer = bytearray(256 * 1024)  # shared by all kernels of the process: its content is copied out at once


class Line:
    """The host's ends of one kernel's channel and pipes. The kernel still owns the descriptors."""

    def __init__(self, ends: Ends) -> None:
        self._socket = ends.channel
        self._outgoing = bytearray()

    def queue(self, frame: bytes) -> None:
        """Queue a frame to send."""
        self._outgoing += frame

    @property
    def sending(self) -> bool:
        """Whether something is still unsent."""
        return bool(self._outgoing)

    def drop_sending(self) -> None:
        """Drop what is unsent: the socket is closed."""
        self._outgoing.clear()

    def flush(self) -> None:
        """Send as much as possible now.

        Raises:
            BlockingIOError: The socket has no room for the rest.
            OSError: The socket is broken.
        """
        while self._outgoing:
            del self._outgoing[: self._socket.send(self._outgoing)]

    def receive(self) -> bytes:
        """Read from the channel; b"" at its end.

        Raises:
            BlockingIOError: There is nothing now.
            OSError: The socket is broken.
        """
        return bytes(memoryview(_buffer)[: self._socket.recv_into(_buffer)])

    def read_pipe(self, descriptor: int, size: int) -> bytes | None:
        """Read from a pipe; None if there is nothing now, b"" at its end."""
        return read_some(descriptor, size)

    def pending(self, descriptor: int) -> int:
        """Return how many bytes of the channel or a pipe can be read now."""
        return pending(descriptor)


class TapedLine(Line):
    """A line on which every byte is written to a tape before it is used."""

    def __init__(self, ends: Ends, tape: Tape) -> None:
        super().__init__(ends)
        self._tape = tape
        self._streams = {ends.channel.fileno(): CHANNEL, ends.stdout: STDOUT, ends.stderr: STDERR}

    def queue(self, frame: bytes) -> None:
        """See `Line`."""
        self._tape.queue(frame)

    @property
    def sending(self) -> bool:
        """See `Line`."""
        return self._tape.sending

    def drop_sending(self) -> None:
        """See `Line`."""
        self._tape.drop_sending()

    def flush(self) -> None:
        """See `Line`."""
        self._tape.flush(self._socket.fileno())

    def receive(self) -> bytes:
        """See `Line`."""
        return self._tape.receive(self._socket.fileno(), len(_buffer))

    def read_pipe(self, descriptor: int, size: int) -> bytes | None:
        """See `Line`."""
        return self._tape.read_pipe(self._streams[descriptor], descriptor, size)

    def pending(self, descriptor: int) -> int:
        """See `Line`."""
        return self._tape.unused(self._streams[descriptor]) + pending(descriptor)
