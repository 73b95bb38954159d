"""Holds descriptors and starts processes for one client at a time, so that both outlive it.

Usage: custodian.py DIRECTORY PATIENCE READY. Started by path, without the package; it imports only small modules of the
standard library. It listens on a Unix socket in DIRECTORY, which only its user can enter. If no client is connected for
PATIENCE seconds, it ends. Kernels and zygotes watch this process and end with it. It never reads from the held descriptors.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import select
import signal
import socket
import stat
import struct
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

SOCKET = "custodian.sock"
_LOCK = "custodian.lock"
LISTEN = signal.SIGUSR1
"""The signal that makes a custodian listen again."""

MAX_DATA = 64 * 1024
"""Maximum bytes of one entry."""

MAX_FDS = 64
"""Maximum descriptors of one entry."""

_MAX_ANSWERS = 64
"""Answers that may wait for a client before its requests are read again: each holds copies of descriptors."""

_MAX_ENTRIES = 20_000
_MAX_HEAD = 160 * 1024  # the head of a message; a command line is the longest
_STATUS = struct.Struct("!i")
_INTEGER = struct.calcsize("i")
_MSG_CMSG_CLOEXEC = 0x40000000  # Linux's; no started process may inherit what is held
_PR_SET_CHILD_SUBREAPER = 36
_RESET = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)


class Message(NamedTuple):
    """A datagram: a JSON object, raw data, and descriptors."""

    head: dict[str, Any]
    data: bytes
    fds: list[int]


def send(sock: socket.socket, head: dict[str, Any], data: bytes = b"", fds: Sequence[int] = ()) -> None:
    parts = [json.dumps({**head, "fds": len(fds)}).encode(), b"\n", data]
    if fds:
        socket.send_fds(sock, parts, fds)
    else:
        sock.sendmsg(parts)


def receive(sock: socket.socket) -> Message | None:
    """Receive one message; None at the end of the connection.

    Raises:
        BlockingIOError: There is no message.
        OSError, ValueError, KeyError, TypeError: It is invalid, or lacks some of its descriptors. Received ones are closed.
    """
    # Not `socket.recv_fds`, which drops its flags in Python 3.11.
    space = socket.CMSG_LEN(MAX_FDS * _INTEGER)
    data, ancillary, _, _ = sock.recvmsg(_MAX_HEAD + MAX_DATA, space, _MSG_CMSG_CLOEXEC)
    arrived = b"".join(part[: len(part) // _INTEGER * _INTEGER] for _, _, part in ancillary)
    fds = [*memoryview(arrived).cast("i")]
    if not data and not fds:
        return None
    try:
        line, _, rest = data.partition(b"\n")
        head = _parsed(line)
        if head["fds"] != len(fds):
            raise OSError(
                24, f"{len(fds)} of {head['fds']} descriptors arrived: this process has reached its limit of open files"
            )
    except (OSError, ValueError, KeyError, TypeError):
        close_all(fds)
        raise
    return Message(head, rest, fds)


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        head: dict[str, Any] = json.loads(line)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    return head


def close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


def exit_status(data: bytes) -> int:
    """Return the wait status that was recorded when a process ended."""
    return int(_STATUS.unpack(data)[0])


class _Custodian:
    """The event loop of a custodian."""

    def __init__(self, place: int, lock: int, patience: float) -> None:
        self._place = place
        self._listener = _listen(place)
        self._patience = patience
        self._client: socket.socket | None = None
        self._alone_since = time.monotonic()
        self._entries: dict[str, tuple[bytes, list[int]]] = {}
        self._answers: deque[Message] = deque()
        """Answers that the client has not taken yet. Their descriptors are copies."""
        self._children: dict[int, int] = {}
        """pid → the descriptor to which its wait status is written."""
        self._wake, writer = os.pipe()
        for fd in (self._wake, writer):
            os.set_blocking(fd, False)
        for number in (signal.SIGCHLD, signal.SIGTERM, LISTEN):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)  # for `_ask_to_listen`

    def run(self) -> NoReturn:
        while True:
            watched: list[Any] = [self._wake, self._listener]
            timeout = None
            if self._client is not None:
                if not self._crowded:
                    watched.append(self._client)
            else:
                timeout = self._alone_since + self._patience - time.monotonic()
                if timeout <= 0:
                    os._exit(0)
            poll = select.poll()
            for item in watched:
                poll.register(item, select.POLLIN)
            if self._client is not None and self._answers:
                poll.register(self._client, select.POLLOUT if self._crowded else select.POLLIN | select.POLLOUT)
            ready = {fd for fd, _ in poll.poll(None if timeout is None else timeout * 1000)}
            if self._wake in ready:
                signals = os.read(self._wake, 4096)
                if signal.SIGTERM in signals:
                    os._exit(0)
                if LISTEN in signals:
                    self._listen_again()
                self._reap()
            self._flush()
            self._serve()  # all requests of an earlier client are handled before another one is accepted
            if self._listener.fileno() in ready:
                self._accept()

    def _listen_again(self) -> None:
        """Listen at the path of the socket again, for example after a cleaner removed it."""
        with contextlib.suppress(OSError):
            listener = _listen(self._place)
            self._listener.close()
            self._listener = listener

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            return
        client.setblocking(False)
        _, user, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        refusal = None if user == os.geteuid() else "it serves another user"
        if self._client is not None:
            refusal = "busy"
        with contextlib.suppress(OSError), _pidfd(os.getpid()) as own:
            send(client, {"error": refusal, "pid": os.getpid()}, fds=() if refusal else [own])
        if refusal is None:
            self._client = client
        else:
            client.close()

    def _serve(self) -> None:
        """Handle the client's requests."""
        while self._client is not None and not self._crowded:
            number = None
            try:
                message = receive(self._client)
                if message is None:
                    self._drop_client()
                    return
                number = message.head.get("n")
                try:
                    self._obey(message)
                finally:
                    close_all(message.fds)  # those that were not taken
            except BlockingIOError:
                return
            except ConnectionResetError:
                continue  # it ended with unread answers; its earlier requests are still to be read
            except Exception as error:  # of any kind: every kernel would end with this process
                self._answer({"n": number, "error": str(error) or repr(error)})

    @property
    def _crowded(self) -> bool:
        return len(self._answers) >= _MAX_ANSWERS

    def _drop_client(self) -> None:
        assert self._client is not None
        self._client.close()
        self._client = None
        while self._answers:
            close_all(self._answers.popleft().fds)
        self._alone_since = time.monotonic()

    def _obey(self, message: Message) -> None:
        head = message.head
        match head["op"]:
            case "put":
                self._put(head["key"], message)
                self._answer({"n": head["n"]})
            case "remove":
                self._remove(head["key"])
                self._answer({"n": head["n"]})
            case "list":
                for key, (data, fds) in self._entries.items():
                    self._answer({"key": key}, data, [os.dup(fd) for fd in fds])
                self._answer({"n": head["n"]})
            case "start":
                self._start(head, message.fds)
            case "end":
                os._exit(0)
            case _:
                raise ValueError(f"there is no operation {head['op']!r}")

    def _put(self, key: str, message: Message) -> None:
        if len(message.data) > MAX_DATA or len(self._entries) >= _MAX_ENTRIES:
            raise ValueError("the entry is too large" if len(message.data) > MAX_DATA else "there are too many entries")
        self._remove(key)
        self._entries[key] = message.data, [*message.fds]
        message.fds.clear()

    def _remove(self, key: str) -> None:
        _, fds = self._entries.pop(key, (b"", []))
        close_all(fds)

    def _start(self, head: dict[str, Any], fds: list[int]) -> None:
        stdin, out, status = fds
        try:
            actions = [(os.POSIX_SPAWN_DUP2, source, place) for source, place in ((stdin, 0), (out, 1), (out, 2))]
            argv = head["argv"]
            pid = os.posix_spawn(argv[0], argv, {}, file_actions=actions, setsid=True, setsigdef=_RESET)
        except OSError as error:
            self._answer({"n": head["n"], "error": error.strerror, "code": error.errno})
            return
        fds.remove(status)
        self._children[pid] = status
        self._answer({"n": head["n"], "pid": pid}, fds=[os.pidfd_open(pid)])

    def _answer(self, head: dict[str, Any], data: bytes = b"", fds: Sequence[int] = ()) -> None:
        """Send an answer as soon as the client has room for it, then close `fds`."""
        self._answers.append(Message(head, data, [*fds]))
        self._flush()

    def _flush(self) -> None:
        while self._client is not None and self._answers:
            answer = self._answers[0]
            try:
                send(self._client, *answer)
            except BlockingIOError:
                return
            except OSError:
                pass  # the client has ended, as the reader is about to see
            close_all(self._answers.popleft().fds)

    def _reap(self) -> None:
        """Reap children that have ended, including orphans of a killed zygote.

        The loop of `processes.reap`, which cannot be imported here.
        """
        orphans = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                break
            orphans |= status != 0 or pid not in self._children
            if (place := self._children.pop(pid, None)) is not None:
                with contextlib.suppress(OSError):
                    os.write(place, _STATUS.pack(status))
                os.close(place)
        if orphans:
            for pid in _children() - self._children.keys():
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def _pidfd(pid: int) -> Iterator[int]:
    fd = os.pidfd_open(pid)
    try:
        yield fd
    finally:
        os.close(fd)


def _children() -> set[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return set(map(int, file.read().split()))
    except OSError:
        return set()


def open_directory(path: str) -> int:
    """Open the directory of the socket.

    Raises:
        OSError: It cannot be opened, or other users can enter it.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not _is_private(os.fstat(fd)):
        os.close(fd)
        raise PermissionError(1, "it must belong to this user and have the mode 0700", path)
    return fd


def _is_private(found: os.stat_result) -> bool:
    """Return whether only this user can enter a directory."""
    return found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077


def address(directory: int) -> str:
    """Return a short address of the socket, however long the path of the directory is."""
    return f"/proc/self/fd/{directory}/{SOCKET}"


def main(directory: str, patience: float, ready: int) -> NoReturn:
    """Run a custodian. `ready` is closed when clients can connect."""
    os.chdir("/")
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    place = open_directory(directory)
    lock = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=place)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:  # another one serves this directory, and its socket was not found
        _ask_to_listen(lock)
        os._exit(0)
    if os.fork():
        os._exit(0)  # the client is not this process's parent, and need not wait for it
    custodian = _Custodian(place, lock, patience)
    os.close(ready)
    custodian.run()


def _ask_to_listen(lock: int) -> None:
    """Make the custodian that holds a lock listen again."""
    with contextlib.suppress(OSError, ValueError):
        pid = int(os.pread(lock, 20, 0))
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            if os.fsencode(os.path.basename(__file__)) in file.read():  # the id may belong to a custodian that ended long ago
                os.kill(pid, LISTEN)


def _listen(place: int) -> socket.socket:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(SOCKET, dir_fd=place)  # of a killed custodian
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(address(place))
        listener.listen(8)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
