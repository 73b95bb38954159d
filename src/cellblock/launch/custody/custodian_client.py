"""A host's connection to its custodian."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cellblock.errors import CustodianError
from cellblock.launch.custody.custodian import Message, address, close_all, exit_status, open_directory, receive, send

_PROGRAM = str(Path(__file__).with_name("custodian.py"))
_START = 10.0  # seconds for a custodian to start, and for an earlier client to disconnect
_ANSWER = 10.0  # seconds that the loop waits for the start of a process
_SILENT = 60.0  # seconds that a custodian may be unresponsive, for example because the machine swaps
_MOST_UNSENT = 4096
PATIENCE = 300.0
"""Default of the seconds that a custodian waits for its next client."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a custodian.

    Attributes:
        data: Bytes.
        fds: Descriptors: copies, owned by the entry's owner.
    """

    data: bytes
    fds: list[int]


class Process:
    """A process that the custodian started, with the required methods of `subprocess.Popen`.

    Attributes:
        pid: Its id.
        descriptors: Its pidfd, and the descriptor for its exit status, for the custodian to hold.
    """

    def __init__(self, pid: int, pidfd: int, status: int) -> None:
        self.pid = pid
        self.descriptors = (pidfd, status)
        self._returncode: int | None = None
        os.set_blocking(status, False)

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        if self._returncode is None and self.descriptors:
            with suppress(BlockingIOError):
                data = os.read(self.descriptors[1], 64)
                # Without a status, the custodian has ended, and all of its processes end.
                self._returncode = os.waitstatus_to_exitcode(exit_status(data)) if data else -signal.SIGKILL
        return self._returncode

    def wait(self, timeout: float) -> int:
        """Wait for the exit code.

        Raises:
            subprocess.TimeoutExpired: The process still runs.
        """
        if self.poll() is None:
            _wait_for(self.descriptors[1], timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, if the process still runs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.descriptors[0], number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def ended(self, timeout: float) -> bool:
        """Wait for its end. Return whether it has ended."""
        if self.poll() is None:
            loop = asyncio.get_running_loop()
            ended = asyncio.Event()
            loop.add_reader(self.descriptors[1], ended.set)
            try:
                with suppress(TimeoutError):
                    await asyncio.wait_for(ended.wait(), timeout)
            finally:
                loop.remove_reader(self.descriptors[1])
        return self.poll() is not None

    async def end(self, grace: float) -> None:
        """Wait for its end, kill it after a time limit, and close its descriptors."""
        if not await self.ended(grace):
            self.kill()
            await self.ended(grace)
        self.close()

    def close(self) -> None:
        """Close its descriptors. The process continues."""
        self.poll()
        close_all(self.descriptors)
        self.descriptors = ()  # type: ignore[assignment]  # nothing more is read from it


class Custodian:
    """A connection to a custodian, which holds what kernels need to outlive this process. It accepts one client at a time.

    Attributes:
        pid: The custodian's process id.
        entries: The entries of earlier clients, for the host to take over.
        gone: Whether it has ended, and all kernels with it.
    """

    def __init__(self, sock: socket.socket, pid: int, pidfd: int) -> None:
        self._sock = sock
        self.pid = pid
        self.pidfd = pidfd
        self.gone = False
        self._on_lost: Callable[[], object] = lambda: None
        self._numbers = itertools.count(1)
        self._answers: dict[int, Message | None] = {}
        self._unsent: deque[tuple[dict[str, Any], bytes, list[int]]] = deque()
        """Messages for which the custodian had no room yet. Their descriptors are copies."""
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self.entries: dict[str, Entry] = {}

    @classmethod
    def connect(cls, directory: str | os.PathLike[str], *, patience: float = PATIENCE) -> Custodian:
        """Connect to the custodian of a directory, or start one. This blocks for about 50 ms.

        Args:
            directory: A directory of this user with the mode 0700.
            patience: Seconds that a new custodian waits for a client before it ends, and all kernels with it.

        Raises:
            CustodianError: It cannot be started or reached, or serves another process.
        """
        try:
            place = open_directory(os.fspath(directory))
        except OSError as error:
            raise CustodianError(f"{os.fspath(directory)} cannot hold the custodian's socket: {error.strerror}") from error
        try:
            return cls._connect(place, os.path.abspath(directory), patience)
        finally:
            os.close(place)

    @classmethod
    def _connect(cls, place: int, directory: str, patience: float) -> Custodian:
        deadline = time.monotonic() + _START
        while True:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            sock.settimeout(_SILENT)
            try:
                sock.connect(address(place))
                found, why = cls._greeted(sock)
                if found is not None:
                    return found
            except (FileNotFoundError, ConnectionRefusedError):
                why = _start(directory, patience)
            except TimeoutError:
                why = f"it did not answer within {_SILENT:g} s; it and the sessions still run: try again later"
            except OSError as error:
                why = error.strerror or str(error)
            sock.close()
            if time.monotonic() >= deadline:
                raise CustodianError(f"the custodian in {directory} cannot be used: {why}")
            time.sleep(0.01)  # another program may be starting it

    @classmethod
    def _greeted(cls, sock: socket.socket) -> tuple[Custodian | None, str]:
        hello = receive(sock)
        if hello is None:
            return None, "it has closed the connection"
        if hello.head["error"] is not None:
            busy = hello.head["error"] == "busy"
            return None, "another process uses it" if busy else str(hello.head["error"])
        custodian = cls(sock, hello.head["pid"], hello.fds[0])
        custodian._fetch()
        return custodian, ""

    def _fetch(self) -> None:
        number = next(self._numbers)
        send(self._sock, {"op": "list", "n": number})
        while (message := receive(self._sock)) is not None and "key" in message.head:
            self.entries[message.head["key"]] = Entry(message.data, message.fds)
        self._sock.setblocking(False)

    # -- requests ------------------------------------------------------------------------------------------------------

    def put(self, key: str, data: bytes, fds: Sequence[int]) -> asyncio.Future[None]:
        """Hold an entry, replacing an earlier one with this key. It is held even if this process is killed immediately.

        Returns:
            Done when it is held; fails with a `CustodianError`.
        """
        waiting = asyncio.get_running_loop().create_future()
        waiting.add_done_callback(_retrieved)
        number = next(self._numbers)
        self._waiting[number] = waiting
        self._listen()
        try:
            self._send({"op": "put", "key": key, "n": number}, data, fds)
        except CustodianError as error:
            del self._waiting[number]
            waiting.set_exception(error)
        return waiting

    def remove(self, key: str) -> None:
        """Stop holding an entry."""
        with suppress(CustodianError):  # then nothing is held
            self._send({"op": "remove", "key": key, "n": next(self._numbers)})

    def start(self, argv: Sequence[str], stdin: int, out: int) -> Process:
        """Start a process in its own session (setsid), without environment, as a child of the custodian.

        Raises:
            OSError: It cannot be executed.
            CustodianError: The custodian has ended.
        """
        reader, writer = os.pipe()
        number = next(self._numbers)
        self._answers[number] = None
        try:
            self._send({"op": "start", "argv": [*argv], "n": number}, fds=[stdin, out, writer])
            answer = self._answer(number)
            if "error" in answer.head:
                raise OSError(answer.head.get("code", 5), answer.head["error"])
        except BaseException:  # includes cancellation: nothing else owns this descriptor
            os.close(reader)
            raise
        finally:
            os.close(writer)
            self._answers.pop(number, None)
        return Process(answer.head["pid"], answer.fds[0], reader)

    def watch(self, on_lost: Callable[[], object]) -> None:
        """Set a callback for the end of the custodian."""
        self._on_lost = on_lost
        self._listen()

    def end(self) -> None:
        """End the custodian, and every kernel that it holds."""
        with suppress(CustodianError):
            self._send({"op": "end"})
        self.close()

    def close(self) -> None:
        """Close the connection. Entries stay for the next client, as long as the custodian waits."""
        if self._sock.fileno() < 0:
            return
        self._lost("the connection was closed")
        self._sock.close()
        os.close(self.pidfd)
        for entry in self.entries.values():
            close_all(entry.fds)
        self.entries.clear()

    # -- messages ------------------------------------------------------------------------------------------------------

    def _send(self, head: dict[str, Any], data: bytes = b"", fds: Sequence[int] = ()) -> None:
        """Send a message as soon as the custodian has room for it, as it may be unresponsive for a while."""
        if self.gone:
            raise CustodianError("the custodian has ended, and every kernel with it: restart the daemon")
        if len(self._unsent) >= _MOST_UNSENT:
            raise CustodianError(f"the custodian, process {self.pid}, does not answer; it and the sessions still run")
        self._unsent.append((head, data, [os.dup(fd) for fd in fds]))
        self._flush()

    def _flush(self) -> None:
        while self._unsent and not self.gone:
            head, data, fds = self._unsent[0]
            try:
                send(self._sock, head, data, fds)
            except BlockingIOError:
                if self._loop is not None:
                    self._loop.add_writer(self._sock.fileno(), self._flush)
                return
            except OSError as error:
                self._lost(error.strerror or str(error))
                return
            close_all(self._unsent.popleft()[2])
        if self._loop is not None and not self.gone:
            self._loop.remove_writer(self._sock.fileno())

    def _answer(self, number: int) -> Message:
        deadline = time.monotonic() + _ANSWER
        poll = select.poll()
        while not self.gone:
            if (answer := self._answers.get(number)) is not None:
                return answer
            if (left := deadline - time.monotonic()) <= 0:
                raise CustodianError(
                    f"the custodian, process {self.pid}, does not answer. It and the sessions still run: try again later"
                )
            poll.register(self._sock, select.POLLIN | (select.POLLOUT if self._unsent else 0))
            poll.poll(1000 * left)
            self._flush()
            self._read()
        raise CustodianError("the custodian has ended, and every kernel with it: restart the daemon")

    def _listen(self) -> None:
        if self._loop is None and not self.gone:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._sock.fileno(), self._read)

    def _read(self) -> None:
        """Read the available answers."""
        while not self.gone:
            try:
                message = receive(self._sock)
            except BlockingIOError:
                return
            except OSError as error:
                self._lost(error.strerror or str(error))
                return
            if message is None:
                self._lost("its connection was closed")
                return
            self._take(message)

    def _take(self, message: Message) -> None:
        number, error = message.head.get("n"), message.head.get("error")
        if number in self._answers:
            self._answers[number] = message
            return
        close_all(message.fds)  # of a process that is no longer awaited: it ends, as nothing is connected to it
        # A request that could not be read has no number: it may be any pending one.
        concerned = [*self._waiting] if number is None else [number]
        for one in concerned:
            waiting = self._waiting.pop(one, None)
            if waiting is not None and not waiting.done():
                if error is None:
                    waiting.set_result(None)
                else:
                    waiting.set_exception(CustodianError(f"the custodian cannot hold a kernel: {error}"))

    def _lost(self, why: str) -> None:
        self.gone = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._sock.fileno())
            self._loop.remove_writer(self._sock.fileno())
        while self._unsent:
            close_all(self._unsent.popleft()[2])
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(CustodianError(f"the custodian has ended, and every kernel with it: {why}"))
        self._waiting.clear()
        self._on_lost()


def _retrieved(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()  # mark as retrieved: there may be no waiter


def _start(directory: str, patience: float) -> str:
    """Start a custodian, unless another process does, and wait until it listens. Return its error output, if it failed."""
    reader, writer = os.pipe()
    errors_reader, errors_writer = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", _PROGRAM, directory, str(patience), str(writer)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors_writer,
            pass_fds=[writer],
            env={},
            start_new_session=True,
        )
    except OSError as error:
        close_all([reader, errors_reader])
        return error.strerror or str(error)
    finally:
        close_all([writer, errors_writer])
    _wait_for(reader, _START)
    os.set_blocking(errors_reader, False)
    try:
        said = os.read(errors_reader, 4096).decode(errors="replace").strip()
    except BlockingIOError:
        said = ""
    close_all([reader, errors_reader])
    with suppress(subprocess.TimeoutExpired):
        process.wait(1)  # the custodian is a fork of it
    return said.splitlines()[-1] if said else "it does not listen"


@dataclass
class Holding:
    """One entry held by the custodian.

    Attributes:
        key: Its key.
    """

    key: str
    _custodian: Custodian

    def hold(self, data: Mapping[str, Any], fds: Sequence[int]) -> asyncio.Future[None]:
        """Hold data and descriptors. The future is done when they are held."""
        return self._custodian.put(self.key, json.dumps(data).encode(), fds)

    def release(self) -> None:
        self._custodian.remove(self.key)


def _wait_for(descriptor: int, seconds: float) -> None:
    """Wait until a descriptor is readable. `select.select` fails for descriptors from 1,024 on."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    poll.poll(seconds * 1000)
