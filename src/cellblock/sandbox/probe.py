"""What this machine supports, found out by trying, before anything is started."""

from __future__ import annotations

import errno
import functools
import os
import platform
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

from cellblock.sandbox import abi, seccomp
from cellblock.sandbox.paths import topmost
from cellblock.sandbox.syscall import call, unshare

_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "nix", "gnu")

# Of /etc only what programs need to work. The rest holds keys, passwords and the names of everything else.
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
    """What a plan depends on.

    Attributes:
        machine: The architecture.
        uid: The user outside.
        gid: The group outside.
        system: Directories of the system at the top of the file system, with what they link to, or None.
        etc: What of /etc exists and may be seen, with where it really lies.
        home: The user's home directory outside.
    """

    machine: str
    uid: int
    gid: int
    system: tuple[tuple[str, str | None], ...]
    etc: tuple[tuple[str, str], ...]
    home: str


def look() -> Facts:
    """Return what a plan depends on."""
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
    """Return the directories that this process's interpreter, its installed packages and cellblock lie in.

    No session may write there, whichever interpreter it has itself: this process runs what lies in them.
    """
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    found = {sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(os.path.realpath(sys.executable)), package}
    found |= {path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")}
    return topmost(map(os.path.realpath, found))


def interpreter_directories() -> tuple[str, ...]:
    """Return the directories that this interpreter, its packages and cellblock lie in, without symbolic links."""
    found = {*own_directories(), *(path for path in sys.path if path and os.path.isdir(path))}
    return topmost(map(os.path.realpath, found))


_missing_here: tuple[str, ...] | None = None


def missing() -> tuple[str, ...]:
    """Return what the native sandbox needs and this machine does not give, each with a way out. Nothing: it works.

    It is tried once in each process: trying costs a fork, and what a kernel can do does not change.
    """
    global _missing_here  # a cache
    if _missing_here is None:
        _missing_here = tuple(_missing())
    return _missing_here


def _system() -> list[tuple[str, str | None]]:
    found: list[tuple[str, str | None]] = []
    for name in _SYSTEM:
        path = f"/{name}"
        if os.path.islink(path):
            found.append((path, os.readlink(path)))
        elif os.path.isdir(path):
            found.append((path, None))
    return found


def _missing() -> list[str]:
    if sys.platform != "linux":
        return ["the native sandbox needs Linux: use isolate='srt' on macOS"]
    if not seccomp.supported(platform.machine()):
        return [f"there is no system-call policy for {platform.machine()}: use isolate='srt'"]
    missing: list[str] = []
    outcome = _try_namespaces()
    if outcome == errno.ENOSYS:
        missing.append("the kernel is older than Linux 5.12 (mount_setattr): update it, or use isolate='srt'")
    elif outcome:
        missing.append(f"user namespaces are forbidden ({os.strerror(outcome)}): {_why_forbidden()}")
    return missing


def _try_namespaces() -> int:
    """Make a user and a mount namespace in a child; return 0, or the errno of what failed."""
    child = os.fork()
    if child == 0:
        code = 255
        try:
            unshare(abi.CLONE_NEWUSER | abi.CLONE_NEWNS)
            private = struct.pack("QQQQ", 0, 0, abi.MS_PRIVATE, 0)  # what the sandbox does first
            call("mount_setattr", abi.AT_FDCWD, b"/", abi.AT_RECURSIVE, private, len(private))
            code = 0
        except OSError as error:
            code = error.errno or 255
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _why_forbidden() -> str:
    for path, forbidding, way in (
        (
            "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "AppArmor restricts them: as root, 'sysctl kernel.apparmor_restrict_unprivileged_userns=0', or give this "
            "interpreter an AppArmor profile with 'userns,'",
        ),
        ("/proc/sys/kernel/unprivileged_userns_clone", "0", "as root, 'sysctl kernel.unprivileged_userns_clone=1'"),
        ("/proc/sys/user/max_user_namespaces", "0", "as root, 'sysctl user.max_user_namespaces=10000'"),
    ):
        try:
            if Path(path).read_text().strip() == forbidding:
                return way
        except OSError:
            continue
    return (
        "a container's own filter, mostly: run it with '--security-opt seccomp=unconfined --security-opt apparmor=unconfined "
        "--security-opt systempaths=unconfined', or run cellblock outside of it, or say sandbox=False and let the container "
        "be the sandbox"
    )
