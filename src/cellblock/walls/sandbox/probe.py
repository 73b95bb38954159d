"""Determines what this machine supports by trial, before anything is started."""

from __future__ import annotations

import errno
import functools
import os
import platform
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

from cellblock.walls.linux import abi, seccomp
from cellblock.walls.linux.syscall import call, unshare
from cellblock.walls.sandbox.paths import topmost
from cellblock.walls.sandbox.steps import Failure, failure_of

_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "nix", "gnu")

# Only the parts of /etc that programs need. The rest contains keys, passwords and the names of everything else.
_ETC = (
    "alternatives",
    "bash.bashrc",
    "ca-certificates.conf",
    "crypto-policies",
    "debian_version",
    "fonts",
    "ImageMagick-6",
    "ImageMagick-7",
    "inputrc",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "magic",
    "mime.types",
    "OpenCL",
    "openssl",
    "os-release",
    "pki/ca-trust",
    "pki/tls/cert.pem",
    "pki/tls/certs",
    "pki/tls/openssl.cnf",
    "protocols",
    "services",
    "ssl/cert.pem",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
)


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts for a plan.

    Attributes:
        machine: The architecture.
        uid: The user outside.
        gid: The group outside.
        system: System directories at the top of the file system, with the targets of links, or None.
        etc: Existing visible paths in /etc, with their real paths.
        home: The user's home directory outside.
    """

    machine: str
    uid: int
    gid: int
    system: tuple[tuple[str, str | None], ...]
    etc: tuple[tuple[str, str], ...]
    home: str


def look() -> Facts:
    """Return the facts for a plan."""
    return Facts(
        machine=platform.machine(),
        uid=os.geteuid(),
        gid=os.getegid(),
        system=tuple(_system()),
        etc=tuple((f"/etc/{name}", os.path.realpath(f"/etc/{name}")) for name in _ETC if os.path.exists(f"/etc/{name}")),
        home=os.path.expanduser("~"),
    )


@functools.cache
def own_directories() -> tuple[str, ...]:
    """Return the directories of this process's interpreter, its installed packages and cellblock.

    No session may write there, with any interpreter, because this process runs the code in them.
    """
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    found = {sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(os.path.realpath(sys.executable)), package}
    found |= {path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")}
    return topmost(map(os.path.realpath, found))


def interpreter_directories() -> tuple[str, ...]:
    """Return the directories of this interpreter, its packages and cellblock, without symbolic links."""
    found = {*own_directories(), *(path for path in sys.path if path and os.path.isdir(path))}
    return topmost(map(os.path.realpath, found))


_forbidden_here: Failure | Literal["not tried"] | None = "not tried"


def forbidden() -> Failure | None:
    """Return why this process cannot create the first namespaces of a native sandbox; None if it can.

    It costs a fork and is only a first check: `cellblock doctor` creates a complete session. The result is cached, because a
    kernel's abilities do not change.
    """
    global _forbidden_here  # a cache
    if _forbidden_here == "not tried":
        found = _try_namespaces()
        if found is not None and found.step == "process":
            return found  # there was no room for a child, which may be temporary
        _forbidden_here = found
    return _forbidden_here


def unsupported() -> str | None:
    """Return why there is no native sandbox for this kind of machine; None if there is one."""
    if sys.platform != "linux":
        return "the native sandbox needs Linux: use isolate='srt' on macOS"
    if not seccomp.supported(platform.machine()):
        return f"there is no system-call policy for {platform.machine()}: use isolate='srt'"
    return None


def _system() -> list[tuple[str, str | None]]:
    found: list[tuple[str, str | None]] = []
    for name in _SYSTEM:
        path = f"/{name}"
        if os.path.islink(path):
            found.append((path, os.readlink(path)))
        elif os.path.isdir(path):
            found.append((path, None))
    return found


def _try_namespaces() -> Failure | None:
    """Create a user and a mount namespace in a child. Return the failure, if any."""
    try:
        child = os.fork()
    except OSError as error:
        return failure_of(error, "process")
    if child == 0:
        make_namespaces()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == errno.EINVAL:
        # The child has threads: some libraries restart theirs in each child, such as OpenTelemetry's exporters.
        code = _try_in_fresh_process()
    return Failure("user namespace", code, os.strerror(code)) if code else None


def make_namespaces() -> NoReturn:
    """End this process with status 0 if it can create a user and a mount namespace, else with the error's number."""
    code = 255
    try:
        unshare(abi.CLONE_NEWUSER | abi.CLONE_NEWNS)
        private = struct.pack("QQQQ", 0, 0, abi.MS_PRIVATE, 0)  # the sandbox's first step
        call("mount_setattr", abi.AT_FDCWD, b"/", abi.AT_RECURSIVE, private, len(private))
        code = 0
    except OSError as error:
        code = error.errno or 255
    finally:
        os._exit(code)


def _try_in_fresh_process() -> int:
    """Return the exit status of a new interpreter that creates the namespaces, which takes longer."""
    place = str(Path(__file__).parents[3])
    code = f"import sys; sys.path.insert(0, {place!r}); from {__name__} import make_namespaces; make_namespaces()"
    try:
        return subprocess.run([sys.executable, "-I", "-c", code], stdin=subprocess.DEVNULL, check=False).returncode
    except OSError as error:
        return error.errno or 255
