"""What is around a sandbox while it is attacked: a home, a workspace, processes and servers, all of the benchmark's own."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.escape.servers import OpenProxy, serve
from cellblock.walls.linux.syscall_numbers import BY_MACHINE

MARK = "planted-by-the-attack"
_METADATA, _RESOLVER = "169.254.169.254", "192.0.2.53"
_SECRETS = ("home", "dotenv", "environment", "descriptor", "victim", "held", "socket", "abstract", "shm", "segment", "tcp")
_VICTIM = """
import ctypes, os, signal, sys, time
secret = ctypes.create_string_buffer(os.environ["VICTIM"].encode())
held = os.open(sys.argv[1], os.O_RDONLY)
signal.signal(signal.SIGUSR1, lambda *_: open(sys.argv[2], "w").write(sys.argv[3]))
print(ctypes.addressof(secret), held, flush=True)
while True: time.sleep(60)
"""


class World:
    """A place for one attack, of which nothing is left afterwards.

    Attributes:
        top: Its directory.
        home: The home directory, with a secret.
        workspace: The directory of the sandbox: a git repository.
        dotenv: Whether it has a ``.env``.
        secrets: The secrets that only an escape can find, by name.
        given: What the attack is told.
        proxy: An open proxy, for the run without a sandbox: it proves that the attacks on proxies are real.
        datagrams: What was sent to it.
        descriptors: What is left open to the processes that start the sandbox.
        typed: Whether the attack typed into the terminal.
    """

    def __init__(self, *, dotenv: bool = False) -> None:
        """Choose the places and secrets.

        Args:
            dotenv: Whether the workspace has a ``.env``. Not every sandbox starts then.
        """
        self.top = Path(tempfile.mkdtemp(prefix="escape-", dir="/var/tmp"))
        self.home, self.workspace = self.top / "home", self.top / "work" / "workspace"
        self.secrets = {name: f"canary:{name}:{secrets.token_hex(8)}" for name in _SECRETS}
        self.dotenv = dotenv
        self.given: dict[str, Any] = {}
        self.proxy = OpenProxy()
        self.datagrams: list[bytes] = []
        self.descriptors: tuple[int, ...] = ()
        self.typed = False
        self._open = contextlib.ExitStack()

    def __enter__(self) -> World:
        """Make files, servers and processes."""
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, self.top, ignore_errors=True)
            self._make_files()
            self._start(stack)
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """End and remove everything."""
        self._open.close()

    def has_mark(self, path: str) -> bool:
        """Return whether a file has what attacks write."""
        try:
            return MARK in (self.top / path).read_text(errors="replace")
        except OSError:
            return False

    def _make_files(self) -> None:
        for directory in (self.home / ".ssh", self.workspace, self.top / "outside", self.top / "run"):
            directory.mkdir(parents=True)
        (self.home / "secret.txt").write_text(self.secrets["home"])
        (self.home / ".bashrc").write_text("# the user's\n")
        (self.top / "held").write_text(self.secrets["held"])
        (self.top / "descriptor").write_text(self.secrets["descriptor"])
        for repository in (self.workspace, self.workspace / "vendor"):
            subprocess.run(["git", "init", "-q", str(repository)], check=True)
        if self.dotenv:
            (self.workspace / ".env").write_text(f"KEY={self.secrets['dotenv']}\n")
        for packages in (self.top / "outside" / "venv", self.workspace / ".venv"):
            (packages / "lib" / "python3" / "site-packages").mkdir(parents=True)

    def _start(self, stack: contextlib.ExitStack) -> None:
        victim = subprocess.Popen(
            [sys.executable, "-c", _VICTIM, str(self.top / "held"), str(self.top / "signalled"), MARK],
            env={**os.environ, "VICTIM": self.secrets["victim"]},
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(victim.wait)
        stack.callback(victim.kill)
        assert victim.stdout is not None
        stack.callback(victim.stdout.close)
        address, held = map(int, victim.stdout.readline().split())
        abstract = f"escape-{secrets.token_hex(8)}"
        agent = str(self.top / "run" / "agent.sock")
        self._serve(stack, socket.AF_UNIX, f"\0{abstract}", "abstract")
        self._serve(stack, socket.AF_UNIX, agent, "socket")
        port = self._serve(stack, socket.AF_INET6, ("::", 0), "tcp")[1]
        udp = self._receive(stack, ("0.0.0.0", 0))
        # These two are attacked only where their addresses are the benchmark's own: in a network namespace for it.
        metadata = resolver = ""
        with contextlib.suppress(OSError):
            metadata = self._serve(stack, socket.AF_INET, (_METADATA, 80), "tcp")[0]
        with contextlib.suppress(OSError):
            self._receive(stack, (_RESOLVER, 53))
            resolver = _RESOLVER
        stack.enter_context(self.proxy.running())
        descriptor = os.open(self.top / "descriptor", os.O_RDONLY)
        stack.callback(os.close, descriptor)
        folder = os.open(self.home, os.O_RDONLY | os.O_DIRECTORY)
        stack.callback(os.close, folder)
        self.given = {
            "mark": MARK,
            "home": str(self.home),
            "workspace": str(self.workspace),
            "top": str(self.top),
            "victim": {"pid": victim.pid, "address": address, "held": held},
            "abstract": abstract,
            "agent": agent,
            "addresses": ["127.0.0.1", *_own_addresses()],
            "port": port,
            "udp": udp,
            "resolver": resolver,
            "metadata": metadata,
            "shm": _shared_file(stack, self.secrets["shm"]),
            "segment": _segment(stack, self.secrets["segment"]),
            "allowed": "name.allowed.test",
            "numbers": BY_MACHINE[os.uname().machine],
        }
        self.descriptors = (descriptor, folder)

    def _serve(self, stack: contextlib.ExitStack, family: int, address: Any, secret: str) -> Any:
        listener = socket.socket(family)
        stack.callback(listener.close)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        stack.enter_context(serve(listener, self.secrets[secret].encode()))
        return listener.getsockname()

    def _receive(self, stack: contextlib.ExitStack, address: tuple[str, int]) -> int:
        """Record datagrams, and answer each as a resolver would: with its own first bytes."""
        it = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        stack.callback(it.close)
        it.bind(address)
        it.settimeout(0.02)
        ended = threading.Event()

        def receive() -> None:
            while not ended.is_set():
                with contextlib.suppress(OSError):
                    data, sender = it.recvfrom(2048)
                    self.datagrams.append(data)
                    it.sendto(data[:12], sender)

        thread = threading.Thread(target=receive)
        thread.start()
        stack.callback(thread.join)
        stack.callback(ended.set)
        port: int = it.getsockname()[1]
        return port


def _own_addresses() -> Iterator[str]:
    """Yield the address with which this machine reaches others. A datagram socket that connects sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as it, contextlib.suppress(OSError):
        it.connect(("192.0.2.1", 9))
        yield it.getsockname()[0]


def _shared_file(stack: contextlib.ExitStack, secret: str) -> str:
    handle, path = tempfile.mkstemp(prefix="escape-", dir="/dev/shm")
    stack.callback(os.unlink, path)
    os.write(handle, secret.encode())
    os.close(handle)
    return path


def _segment(stack: contextlib.ExitStack, secret: str) -> int:
    """Make a segment of System V shared memory, and return its key."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    key = secrets.randbelow(2**30) + 1
    segment = libc.shmget(key, 4096, 0o1600)
    stack.callback(libc.shmctl, segment, 0, None)
    ctypes.memmove(place := libc.shmat(segment, None, 0), secret.encode(), len(secret))
    libc.shmdt(ctypes.c_void_p(place))
    return key
