"""Processes and what they share."""

from __future__ import annotations

import array
import ctypes
import fcntl
import os
import random
import resource
import signal
import socket
import sys
import time
from typing import Any

from bench.escape.prelude import call, first, libc, read, said
from bench.escape.suite import attack, planted
from bench.escape.world import World


@attack("read another process's environment", "https://man7.org/linux/man-pages/man5/proc_pid_environ.5.html", secret="victim")
def environment_of_a_process(given: dict[str, Any]) -> object:
    return read(f"/proc/{given['victim']['pid']}/environ")


@attack("read its memory (/proc/PID/mem)", "https://man7.org/linux/man-pages/man5/proc_pid_mem.5.html", secret="victim")
def memory_file(given: dict[str, Any]) -> object:
    with open(f"/proc/{given['victim']['pid']}/mem", "rb", 0) as file:
        file.seek(given["victim"]["address"])
        return file.read(100).decode(errors="replace")


@attack("read its memory (process_vm_readv)", "https://man7.org/linux/man-pages/man2/process_vm_readv.2.html", secret="victim")
def memory_call(given: dict[str, Any]) -> object:
    found = ctypes.create_string_buffer(100)
    here = array.array("L", [ctypes.addressof(found), 100]).tobytes()
    there = array.array("L", [given["victim"]["address"], 100]).tobytes()
    call(given["numbers"]["process_vm_readv"], given["victim"]["pid"], here, 1, there, 1, 0)
    return found.raw.decode(errors="replace")


@attack("trace it", "https://man7.org/linux/man-pages/man2/ptrace.2.html")
def trace(given: dict[str, Any]) -> object:
    call(given["numbers"]["ptrace"], 0x4206, given["victim"]["pid"], 0, 0)  # PTRACE_SEIZE, which stops nothing
    return f"traces {given['victim']['pid']}"


@attack("take a descriptor from it", "https://man7.org/linux/man-pages/man2/pidfd_getfd.2.html", secret="held")
def take_descriptor(given: dict[str, Any]) -> object:
    taken = call(given["numbers"]["pidfd_getfd"], os.pidfd_open(given["victim"]["pid"]), given["victim"]["held"], 0)
    return os.pread(taken, 100, 0).decode()


@attack("send it a signal", "https://man7.org/linux/man-pages/man2/kill.2.html", proof=planted("signalled"))
def send_signal(given: dict[str, Any]) -> object:
    os.kill(given["victim"]["pid"], signal.SIGUSR1)
    time.sleep(0.3)
    return f"signalled {given['victim']['pid']}"


@attack(
    "change its limits",
    "https://man7.org/linux/man-pages/man2/prlimit.2.html",
    proof=lambda world: resource.prlimit(world.given["victim"]["pid"], resource.RLIMIT_NOFILE)[0] == 99,
)
def limits(given: dict[str, Any]) -> object:
    _, most = resource.prlimit(given["victim"]["pid"], resource.RLIMIT_NOFILE)
    resource.prlimit(given["victim"]["pid"], resource.RLIMIT_NOFILE, (99, most))
    return "changed"


@attack("connect to an abstract socket", "https://nvd.nist.gov/vuln/detail/CVE-2020-15257", secret="abstract")
def abstract_socket(given: dict[str, Any]) -> object:
    with socket.socket(socket.AF_UNIX) as it:
        it.connect("\0" + given["abstract"])
        return said(it)


@attack("connect to a socket outside the workspace", "https://docs.docker.com/engine/security/", secret="socket")
def local_socket(given: dict[str, Any]) -> object:
    with socket.socket(socket.AF_UNIX) as it:
        it.connect(given["agent"])
        return said(it)


@attack("read shared memory (/dev/shm)", "https://man7.org/linux/man-pages/man7/shm_overview.7.html", secret="shm")
def shared_file(given: dict[str, Any]) -> object:
    return read(given["shm"])


@attack("read shared memory (System V)", "https://man7.org/linux/man-pages/man2/shmget.2.html", secret="segment")
def shared_segment(given: dict[str, Any]) -> object:
    libc.shmat.restype = ctypes.c_void_p
    segment = libc.shmget(given["segment"], 0, 0)
    if segment == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    place = libc.shmat(segment, None, 0o10000)
    if place == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return ctypes.string_at(place, 100).decode(errors="replace")


def _still_writes(world: World) -> bool:
    """Return whether a process that should have ended goes on."""
    path = world.workspace / "alive"
    if not path.exists():
        return False
    before = path.read_text()
    time.sleep(1)
    return path.read_text() != before


@attack("survive the end of the sandbox", "https://attack.mitre.org/techniques/T1543/", proof=_still_writes)
def outlive(given: dict[str, Any]) -> object:
    if os.fork() == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                for number in range(3):  # so that nobody waits for it
                    os.close(number)
                for number in range(40):
                    with open(f"{given['workspace']}/alive", "w") as file:
                        file.write(str(number))
                    time.sleep(0.2)
        finally:
            os._exit(0)
    time.sleep(0.3)
    return "left a process"


@attack(
    "type into the terminal that starts it (TIOCSTI)",
    "https://nvd.nist.gov/vuln/detail/CVE-2017-5226",
    proof=lambda world: world.typed,
)
def type_ahead(given: dict[str, Any]) -> object:
    def into(terminal: int) -> str:
        for letter in given["mark"] + "\n":
            fcntl.ioctl(terminal, 0x5412, letter.encode())
        return "typed"

    return first(lambda path: into(os.open(path, os.O_RDWR)), ("/dev/tty", "/proc/self/fd/0"))


@attack("two sessions have the same random numbers", "https://nvd.nist.gov/vuln/detail/CVE-2019-1549", sessions=2)
def random_state(given: dict[str, Any]) -> object:
    return f"{random.getrandbits(64)}"


@attack(
    "two sessions have the same hash seed", "https://docs.python.org/3/reference/datamodel.html#object.__hash__", sessions=2
)
def hash_seed(given: dict[str, Any]) -> object:
    return f"{sys.flags.hash_randomization} {hash('cellblock')}"
