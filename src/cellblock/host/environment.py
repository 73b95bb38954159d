"""A kernel's interpreter, environment and directory, independent of the host's environment."""

from __future__ import annotations

import functools
import json
import os
import pwd
import re
import shlex
import shutil
import stat
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from cellblock.errors import InterpreterError, InvalidInputError, LaunchError
from cellblock.host import distrusted
from cellblock.walls.sandbox.paths import is_inside
from cellblock.wire.datagrams import MAX_CONTROL

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ENTERED = stat.S_IRUSR | stat.S_IXUSR
_MODULE = re.compile(r"[A-Za-z_]\w*+(\.[A-Za-z_]\w*+)*+", re.ASCII)
_MAX_ENVIRONMENT = MAX_CONTROL * 3 // 4


def find_interpreter(python: str | os.PathLike[str] | None) -> str:
    """Return the path of the kernels' interpreter.

    Args:
        python: A path to an interpreter, the directory of a virtual environment, a command on the PATH such as ``python3.12``,
            or None for the running interpreter.

    Raises:
        InterpreterError: The interpreter does not exist.
    """
    if python is None:
        if not sys.executable:
            raise InterpreterError("this program does not know its interpreter: pass python=/path/to/python")
        return _straight(Path(sys.executable))
    path = Path(python).expanduser()
    if path.is_dir():
        path = path / "bin" / "python"
    elif len(path.parts) == 1 and (found := shutil.which(str(path), path=_SYSTEM_PATH)):
        path = Path(found)
    if not path.is_file() or not os.access(path, os.X_OK):
        raise InterpreterError(
            f"there is no Python interpreter at {path}: pass the path of one, or of a virtual environment that has IPython"
        )
    return _straight(path)


def _straight(path: Path) -> str:
    """Return an interpreter's absolute path without ``..``, whose intermediate directories may be missing in a sandbox.

    The path is not resolved further: in a virtual environment the interpreter is a link, and the link's location matters.
    """
    return os.path.join(os.path.realpath(path.parent), path.name) if ".." in path.parts else str(path.absolute())


def check_modules(names: Iterable[str]) -> tuple[str, ...]:
    """Validate the names of modules to preload, and return them in order.

    Raises:
        InvalidInputError: A name is invalid.
    """
    if isinstance(names, str):
        raise InvalidInputError(f"preload must be a sequence of module names: preload=({names!r},)")
    modules = tuple(dict.fromkeys(names))
    for name in modules:
        if not isinstance(name, str) or not _MODULE.fullmatch(name):
            raise InvalidInputError(f"preload: {name!r} is not the name of a module")
    return modules


def kernel_environment(interpreter: str, extra: Mapping[str, str], home: str | None = None) -> dict[str, str]:
    """Return a kernel's complete environment: a small base and the caller's variables.

    Args:
        interpreter: The interpreter's path, whose directory comes first on the PATH.
        extra: The caller's variables, which override the base.
        home: The home directory in a sandbox, where the user's own is hidden; None for the user's own.

    Raises:
        InvalidInputError: A name or value is invalid in an environment, or the environment is too large.
    """
    user = _user(os.getuid())
    binaries = Path(interpreter).parent
    base = {
        "PATH": f"{binaries}:{_SYSTEM_PATH}",
        "HOME": home or (user.pw_dir if user else "/"),
        "USER": "user" if home else user.pw_name if user else str(os.getuid()),
        "SHELL": "/bin/bash" if Path("/bin/bash").exists() else "/bin/sh",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        # Python programs then print at once without a terminal, and lose no output when killed.
        "PYTHONUNBUFFERED": "1",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        # Figures as JSON: the default would send all of plotly.js, 4 MB, with the first figure.
        "PLOTLY_RENDERER": "plotly_mimetype",
        # Otherwise `git status` writes to the index, and its cell cannot be undone.
        "GIT_OPTIONAL_LOCKS": "0",
    }
    if (binaries.parent / "pyvenv.cfg").is_file():
        base["VIRTUAL_ENV"] = str(binaries.parent)
    for name, value in extra.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidInputError(f"kernel_env: {name!r} and its value must be strings")
        if not name or "=" in name or "\0" in name + value:
            raise InvalidInputError(f"kernel_env: {name!r} or its value cannot be in an environment (NUL, or = in a name)")
        try:
            base[name] = value
            (name + value).encode()
        except UnicodeEncodeError:
            raise InvalidInputError(f"kernel_env: {name!r} or its value contains a lone surrogate") from None
    size = len(json.dumps(base))  # as it is sent: JSON escapes control characters and emoji
    if size > _MAX_ENVIRONMENT:
        raise InvalidInputError(f"kernel_env: {size} bytes are over the limit of {_MAX_ENVIRONMENT}; pass a file instead")
    return base


def current_directory() -> str:
    """Return this program's current directory without symbolic links.

    Raises:
        InvalidInputError: The directory was removed.
    """
    try:
        return os.path.realpath(os.getcwd())
    except FileNotFoundError:
        raise InvalidInputError("this program's current directory was removed: change to another one") from None


def check_directory(name: str, path: str | os.PathLike[str]) -> Path:
    """Return a directory's absolute path.

    Args:
        name: The caller's name for it, for the error.
        path: The directory.

    Raises:
        InvalidInputError: It does not exist, is not a directory, or cannot be entered, or a session may have created a link in
            its path.
    """
    given = Path(path).expanduser()
    distrusted.check_links(name, str(given))
    directory = given.resolve()
    if not directory.is_dir():
        why = "is a file, not a directory" if directory.is_file() else "is not a directory; create it first"
        raise InvalidInputError(f"{name}: {directory} {why}")
    if not os.access(directory, os.X_OK):
        raise InvalidInputError(f"{name}: {directory} cannot be entered by this user")
    return directory


def check_still_usable(directory: str) -> None:
    """Check that a kernel can start in a session's directory, which may have changed.

    Raises:
        LaunchError: It cannot.
    """
    try:
        found = os.stat(directory)
    except OSError as error:
        raise LaunchError(
            f"no kernel can start in {directory}: {error.strerror}. Restore the directory, then try again"
        ) from error
    if not stat.S_ISDIR(found.st_mode):
        raise LaunchError(f"no kernel can start in {directory}, which is not a directory. Restore it, then try again")
    # In a sandbox, root has no extra permissions.
    if found.st_uid == os.geteuid() and found.st_mode & _ENTERED != _ENTERED:
        raise LaunchError(
            f"no kernel can start in {directory}, because its mode is {stat.S_IMODE(found.st_mode):03o}: a cell or another "
            f"program changed it. Run 'chmod u+rwx {shlex.quote(directory)}', then try again"
        )


def check_writable(name: str, path: str | os.PathLike[str], shared: Iterable[str] = ()) -> Path:
    """Return the absolute path of a directory that can be written or created.

    The caller's links are resolved here, once. A link in a directory that sessions can write is rejected, because a session
    may have created it.

    Args:
        name: The caller's name for it, for the error.
        path: The directory.
        shared: Real paths of the directories that sessions can write.

    Raises:
        InvalidInputError: It can be neither written nor created.
    """
    nearest = directory = resolve_directory(path, shared)
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if not nearest.is_dir():
        raise InvalidInputError(f"{name}: {nearest} is not a directory")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InvalidInputError(f"{name}: {nearest} cannot be written to by this user; choose another directory")
    return directory


def resolve_directory(path: str | os.PathLike[str], shared: Iterable[str] = ()) -> Path:
    """Return the absolute path of a directory that may be missing. Links are resolved as by `check_writable`.

    Raises:
        InvalidInputError: A link is in a directory that sessions can write.
    """
    return _resolved(Path(path).expanduser().absolute(), [place for place in shared if place != "/"])


def _resolved(path: Path, shared: Sequence[str]) -> Path:
    for above in reversed((path, *path.parents)):
        real = os.path.realpath(above)
        below = os.path.normpath(path.relative_to(above))
        if below.split("/")[0] != ".." and any(is_inside(real, place) for place in shared):
            return Path(real, below)
    return Path(os.path.realpath(path))


_known_user = functools.cache(pwd.getpwuid)  # no cache of missing users: the database may be on the network


def _user(uid: int) -> pwd.struct_passwd | None:
    """Return a user's entry in the user database; None if missing, as in many containers."""
    try:
        return _known_user(uid)
    except KeyError:
        return None
