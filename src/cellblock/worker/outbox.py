"""Sends the output of a kernel, in order: text as frames, displays and answers.

A single line is sent at once. In a burst, lines are collected for up to 10 ms: a frame for each of a million lines would cost
more than the lines. A small thread then sends the rest, and ends after the burst, so that an idle kernel has one thread and
can be forked.
"""

from __future__ import annotations

import _thread
import array
import contextlib
import fcntl
import os
import signal
import termios
import time
from collections.abc import Callable
from itertools import groupby
from operator import itemgetter
from typing import Literal

from cellblock.wire.fields import PIECE
from cellblock.wire.messages import Display, Message, Stream
from cellblock.worker.channel import Channel
from cellblock.worker.gate import GATE

TICK = 0.01
"""Seconds that text of a burst may wait."""

_QUIET_TICKS = 5
_LEAVING = 1.0
"""Seconds that a thread may take to end when it has nothing more to do."""
_CATCH_UP_STEP, _CATCH_UP_LONG_STEP = 0.0001, 0.002  # seconds between two checks, at first and later
_READ_UP, _HURRIED = 0.02, 1.0  # seconds to wait, and seconds not to wait again after a wait that failed
_NONE = -1
_PIECE_CHARS = PIECE // 6  # a character takes at most six bytes: a lone surrogate is written as an escape

StreamName = Literal["stdout", "stderr"]
DESCRIPTORS: dict[StreamName, int] = {"stdout": 1, "stderr": 2}
_NAME: Callable[[tuple[StreamName, str]], StreamName] = itemgetter(0)


class Outbox:
    """Sends everything that leaves the worker, so that it stays in order."""

    def __init__(self) -> None:
        self._channel: Channel | None = None
        self._pending: list[tuple[StreamName, str]] = []
        self._pending_chars = 0
        self._room = _NONE
        """How many characters may be pending before they are checked: none, unless the ticker thread runs."""
        self._lock = _thread.RLock()
        self._flushing = False
        self._last = 0.0
        self._hurried_until = 0.0
        self._ticker: _Ticker | None = None
        self._count = array.array("i", [0])
        self._main = _thread.get_ident()
        self.forked = True
        self.parking = False
        """Whether the next fork is a copy of the worker, and not a child of the code. What its hooks print waits until it
        has a channel."""
        os.register_at_fork(before=self._before_fork, after_in_child=self.leave_parent)

    def attach(self, channel: Channel) -> None:
        """Start sending through this channel."""
        self._channel = channel
        self._main = _thread.get_ident()
        self.forked = False

    def detach(self) -> None:
        """Send all pending data, then stop sending."""
        self.settle()
        self.forked, self._channel = True, None

    def writer(self, name: StreamName) -> Callable[[str], int]:
        """Return the `write` of a stream: it takes text, and returns the text's length.

        In a burst, its few lines are all of the Python code that a `print` runs, twice, so it is a function, not a method.
        """
        append = self._pending.append

        def write(text: str) -> int:
            if not isinstance(text, str):
                raise TypeError(f"write() argument must be str, not {type(text).__name__}")
            append((name, text))
            size = len(text)
            # Racy if threads write at the same time; the next flush resets the count.
            self._pending_chars = chars = self._pending_chars + size
            if chars > self._room:
                self._look(text)
            return size

        return write

    def write(self, name: StreamName, text: str) -> None:
        """Write text to a stream on the worker's behalf."""
        self.writer(name)(text)

    def _look(self, text: str) -> None:
        """Send the pending text, if it is due after this write."""
        much = self._pending_chars > _PIECE_CHARS
        if self.forked:
            # Whole lines, because other processes write to the same descriptors.
            if much or "\n" in text:
                self._flush_descriptors()
        elif much:
            self.flush()
        # `print(x, end="")` writes an empty string last: the only sign that a print without a newline is complete.
        elif self._room == _NONE and (not text or "\n" in text or "\r" in text):
            self.flush_soon()

    def flush_soon(self) -> None:
        """Send the pending text: now, or within `TICK` seconds if something was sent just before."""
        if not self._pending or self.parking:
            return
        if self.forked:
            self._flush_descriptors()
        elif time.monotonic() - self._last >= TICK:
            self.flush()
        elif self._room == _NONE:
            self._begin_gathering()

    def _begin_gathering(self) -> None:
        in_main = _thread.get_ident() == self._main
        if in_main:
            GATE.shut += 1  # an exception from a signal handler would leave a thread that is never stopped
        try:
            self._room = _PIECE_CHARS  # before the thread starts: it may have ended when this returns
            try:
                self._ticker = _Ticker(self)
            except BaseException:
                self._room = _NONE
                raise
        finally:
            if in_main:
                GATE.open()

    def let_host_catch_up(self) -> None:
        """Wait, before a write to a descriptor that bypasses this outbox, until the host has read everything before it.

        Two sockets have no common order. Waiting here, and `Stream.behind` in the other direction, create one. The wait has no
        limit: a busy host would otherwise see the wrong order, and a host that blocks a printing cell means this write as
        well. Other threads send nothing meanwhile, or the wait might never end.
        """
        if self._channel is None or self.forked or self.parking:
            return
        self._alone(self._wait_until_read)

    def _wait_until_read(self) -> None:
        assert self._channel is not None
        self.flush()
        step = _CATCH_UP_STEP
        in_main = _thread.get_ident() == self._main
        while self._channel.unread():
            try:
                if in_main:
                    GATE.open()  # a waiting cell can be interrupted
                time.sleep(step)
            finally:
                if in_main:
                    GATE.shut += 1
            step = min(2 * step, _CATCH_UP_LONG_STEP)

    def flush(self) -> None:
        """Send the pending text now."""
        if self._channel is None or self.forked or self.parking:
            return
        self._alone(self._send_pending)

    def _send_pending(self) -> None:
        assert self._channel is not None
        # Called again by a finalizer or a signal handler that prints: the outer call sends the added text.
        if self._flushing or not self._pending:
            return
        try:
            self._flushing = True
            self._drain(self._channel)
        finally:
            self._flushing = False
            self._last = time.monotonic()

    def _alone(self, act: Callable[[], None]) -> None:
        """Run a function while no other thread sends, and no signal handler of the main thread runs.

        Take the lock before checking for pending text: the ticker thread may have taken text and not sent it yet, and the
        caller's next message must not overtake it. Shut the gate before taking the lock: since Python 3.14 a handler can run,
        and raise, between the two halves of a `with`, and the lock would never be released.
        """
        in_main = _thread.get_ident() == self._main
        if in_main:
            GATE.shut += 1
        try:
            with self._lock:
                act()
        finally:
            if in_main:
                GATE.open()

    def _flush_descriptors(self) -> None:
        """Write the pending text to descriptors 1 and 2, in a process without a channel."""
        while self._pending:
            name, text = self._pending.pop(0)
            while self._pending and self._pending[0][0] == name:
                text += self._pending.pop(0)[1]
            self._pending_chars = 0
            _write_descriptor(DESCRIPTORS[name], text)

    def _drain(self, channel: Channel) -> None:
        while self._pending:
            self._pending_chars = 0
            taken = self._pending[:]
            del self._pending[: len(taken)]  # but not what was added since
            for name, run in groupby(taken, _NAME):
                text = "".join([text for _, text in run])
                for start in range(0, len(text), _PIECE_CHARS):
                    piece = text[start : start + _PIECE_CHARS].encode("utf-8", "backslashreplace")
                    channel.send(Stream(name, piece, self.behind()))

    def send(self, message: Message) -> None:
        """Send a message after everything that was written before it."""
        if self._channel is None or self.forked:
            # A child of user code must never write frames to its parent's channel. Its displays become text.
            if isinstance(message, Display):
                self._flush_descriptors()
                text = message.data.get("text/plain", b"").decode("utf-8", "replace")
                _write_descriptor(2 if message.kind == "error" else 1, f"{text}\n")
            return
        self.flush()
        self._channel.send(message)

    def behind(self) -> bool:
        """Return whether a message that is sent now follows bytes that the host has not read from descriptors 1 and 2.

        The host first gets a moment to read them: once it knows about them, it reads everything available, even what was
        written later. If another process writes without end, this does not wait each time.
        """
        if not self._descriptors_pending():
            return False
        now = time.monotonic()
        if now < self._hurried_until:
            return True
        while self._descriptors_pending():
            if time.monotonic() - now > _READ_UP:
                self._hurried_until = now + _HURRIED
                return True
            time.sleep(_CATCH_UP_STEP)
        return False

    def _descriptors_pending(self) -> bool:
        """Return whether bytes written to descriptors 1 and 2 are still unread in their pipes.

        This costs two system calls, and keeps `os.write(1, …)` before `print` in the order of the code.
        """
        for descriptor in (1, 2):
            try:
                fcntl.ioctl(descriptor, termios.FIONREAD, self._count, True)
            except OSError:
                continue  # the code has closed or replaced it
            if self._count[0]:
                return True
        return False

    def tick(self) -> bool:
        """Send the remains of a burst, unless another thread is about to. Return whether there was anything."""
        busy = bool(self._pending)
        # Without blocking: the lock's holder may be waiting for the ticker thread, which calls this, to end.
        if self._lock.acquire(blocking=False):
            try:
                self.flush()
            finally:
                self._lock.release()
        return busy

    def last_tick(self) -> bool:
        """Send the pending text, and return to sending each text at once. Return whether that was possible."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self.look_again()
            self.flush()
        finally:
            self._lock.release()
        return True

    def look_again(self) -> None:
        """Check each text as it is written, because the ticker thread has ended."""
        self._room = _NONE

    def settle(self) -> None:
        """Send everything and end the ticker thread. Afterwards, the worker has no thread of ours."""
        if self.forked:
            return  # usually at forks of the zygote and of init, where every page that is written to is copied
        in_main = _thread.get_ident() == self._main
        if in_main:
            GATE.shut += 1
        try:
            ticker, self._ticker = self._ticker, None
            if ticker is not None:
                ticker.stop()
                self.look_again()
            self.flush()
        finally:
            if in_main:
                GATE.open()

    def _before_fork(self) -> None:
        if self.parking:
            return
        self.settle()
        self.let_host_catch_up()  # the child writes to the descriptors

    def leave_parent(self) -> None:
        """Disconnect from the parent's channel permanently, in a child that user code has forked."""
        if self.parking or (self.forked and not self._pending):
            return
        self.forked = True
        GATE.reset()
        self._pending.clear()
        self._pending_chars = 0
        if self._channel is not None:
            self._channel.close()


class _Ticker:
    """A thread that sends pending text every `TICK` seconds, until it is stopped or idle for a while."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._wake = _thread.allocate_lock()
        self._wake.acquire()
        self._done = _thread.allocate_lock()
        self._done.acquire()
        self._place = ""
        """Where /proc shows the thread. Not by its number here: the /proc of a namespace further out has others."""
        # `_thread`, because a `threading.Thread` would appear in the user's `threading.enumerate()`.
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        try:
            # Signals belong to the main thread: one delivered here would not interrupt its system call.
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            with contextlib.suppress(OSError):  # without /proc, there is no waiting until the thread has left the process
                self._place = f"/proc/{os.readlink('/proc/thread-self')}"
            quiet = 0
            while quiet < _QUIET_TICKS or not self._outbox.last_tick():
                if self._wake.acquire(timeout=TICK):
                    return  # the caller of `stop` sends the rest
                quiet = 0 if self._outbox.tick() else quiet + 1
        except BaseException:
            self._outbox.look_again()
            raise
        finally:
            self._done.release()

    def stop(self) -> None:
        """End the thread and wait for it."""
        self._wake.release()
        self._done.acquire()
        self._done.release()
        # It has left Python's code but perhaps not the process: on a busy machine, a fork would then be refused.
        deadline = time.monotonic() + _LEAVING
        while self._place and os.path.exists(self._place) and time.monotonic() < deadline:
            time.sleep(0.0001)


def _write_descriptor(descriptor: int, text: str) -> None:
    data = memoryview(text.encode("utf-8", "backslashreplace"))
    while data:
        data = data[os.write(descriptor, data) :]
