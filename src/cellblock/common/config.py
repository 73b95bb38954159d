"""The environment variables of its own process that cellblock reads. Nothing else reads them, and no kernel gets them."""

from __future__ import annotations

import functools
import os
import re
import stat
import warnings
from collections import ChainMap
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

_T = TypeVar("_T")

SandboxName = Literal["native", "landlock", "srt"]
"""What users call each kind of sandbox (`cellblock.walls.sandbox.tiers`)."""

Isolate = Literal[SandboxName, "none"]
"""How kernels can be isolated: in a sandbox, or not at all."""

PROGRAM_VARIABLES = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER")
"""What every MCP server gets of the host's environment: what the SDK gives, and no secret."""

_MAX_DOTENV = 64 * 1024
_MAX_DOTS = 200
"""In one line of TOML: what ``tomllib`` takes for a dotted key of 30,000 parts is 23 seconds."""

_LINE = re.compile(r"^[ \t]*(?:export[ \t]+)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*(?P<value>[^\r\n]*)", re.MULTILINE)


def environment() -> Mapping[str, str]:
    """Return this process's environment, for what belongs to other programs: pip's settings, what MCP servers refer to."""
    return os.environ


def server_environment() -> Mapping[str, str]:
    """Return where ``${NAME}`` in parameters of MCP servers is looked up: this process's environment, and ``.env`` below it.

    The file is read now. What every program gets of the environment (`PROGRAM_VARIABLES`) is not taken from it.
    """
    path = variables_file()
    given = _kept[path] if path in _kept else _dotenv(path)
    return ChainMap(os.environ, {name: value for name, value in given.items() if name not in PROGRAM_VARIABLES})


def variables_file() -> Path:
    """Return the ``.env`` of the current directory, the project's root. No sandbox may change or make it."""
    return Path.cwd() / ".env"


def keep_variables() -> None:
    """Read ``.env`` for the last time: a session is about to start in a sandbox that cannot keep it from making one."""
    with suppress(FileNotFoundError):  # the current directory is gone
        path = variables_file()
        _kept.setdefault(path, _dotenv(path))


_kept: dict[Path, dict[str, str]] = {}


def read_file(path: Path, most: int, flags: int = 0) -> bytes:
    """Read a file that somebody else may have put there: neither a pipe nor a device, which would never end.

    Args:
        path: The file.
        most: Bytes that it may have.
        flags: More flags to open it with.

    Raises:
        OSError: It cannot be opened or read.
        ValueError: It is too large, or not a regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is not a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(most + 1)
    finally:
        os.close(descriptor)
    if len(data) > most:
        raise ValueError(f"it has more than {most} bytes")
    return data


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML that somebody else may have written, within limits.

    Raises:
        ValueError: It is not TOML, or a line has too many dots.
        RecursionError: It is nested too deeply.
    """
    import tomllib  # late: few programs have such a file

    for number, line in enumerate(text.splitlines(), 1):
        if line.count(".") > _MAX_DOTS:
            raise ValueError(f"line {number} has more than {_MAX_DOTS} dots")
    return tomllib.loads(text)


def _dotenv(path: Path) -> dict[str, str]:
    try:
        text = read_file(path, _MAX_DOTENV, os.O_NOFOLLOW).decode("utf-8", "replace")
    except (OSError, ValueError):
        return {}  # none, or none that can be read: a missing variable is named when it is looked up
    return {match["name"]: _unquoted(match["value"]) for match in _LINE.finditer(text)}


def _unquoted(value: str) -> str:
    if len(value) >= 2 and value[0] in "'\"" and (end := value.find(value[0], 1)) > 0:
        return value[1:end]
    return value.partition(" #")[0].strip()


def isolation() -> str:
    """Return how sessions are to be isolated if the program does not say: ``CELLBLOCK_ISOLATE``, or nothing."""
    return os.environ.get("CELLBLOCK_ISOLATE", "")


def traces_code() -> bool:
    """Return whether spans are to hold the code of cells: ``CELLBLOCK_TRACE_CODE=1``."""
    return os.environ.get("CELLBLOCK_TRACE_CODE") == "1"


def while_unchanged(function: Callable[[], _T]) -> Callable[[], _T]:
    """Have a function of the environment alone called again only when the environment has changed.

    Settings and paths are asked for by each call of a named session, and working them out took 30 µs of its millisecond.
    """
    known: list[tuple[dict[Any, Any], _T]] = []

    @functools.wraps(function)
    def wrapped() -> _T:
        # To compare what lies behind `os.environ` takes a microsecond; through its own methods, one for each variable.
        data: dict[Any, Any] | None = getattr(os.environ, "_data", None)
        if data is None:
            return function()
        if not known or known[0][0] != data:
            known[:] = [(dict(data), function())]
        return known[0][1]

    return wrapped


@while_unchanged
def state_directory() -> Path:
    """Return where state that outlives a program is kept, whether or not it is there.

    ``$CELLBLOCK_HOME`` or ``$KERNELBOX_HOME``, or ``cellblock`` in ``$XDG_STATE_HOME``, or ``~/.local/state/cellblock``.
    Relative paths count as not set, as the XDG base directory specification has it. For the first two, a warning says so.
    """
    for name in ("CELLBLOCK_HOME", "KERNELBOX_HOME"):
        if os.path.isabs(own := os.environ.get(name, "")):
            return _path(own)
        if own:
            warnings.warn(f"{name} must be an absolute path: {own[:200]!r} has no effect", stacklevel=3)
    return _path(_base("XDG_STATE_HOME", ".local/state"), "cellblock")


def settings_file() -> Path:
    """Return the file of settings, whether or not it is there. No session may write to its directory.

    ``$CELLBLOCK_CONFIG``, or ``cellblock/config.toml`` in ``$XDG_CONFIG_HOME``, or ``~/.config/cellblock/config.toml``.
    """
    if os.path.isabs(own := os.environ.get("CELLBLOCK_CONFIG", "")):
        return _path(own)
    return _path(_base("XDG_CONFIG_HOME", ".config"), "cellblock/config.toml")


def _base(variable: str, default: str) -> str:
    given = os.environ.get(variable, "")
    return given if os.path.isabs(given) else os.path.join(os.path.expanduser("~"), default)


@functools.lru_cache(maxsize=16)
def _path(*parts: str) -> Path:
    return Path(*parts)  # every call of a named session asks for these, and parsing them takes longer than anything else here


def set_variables(prefixes: tuple[str, ...]) -> dict[str, str]:
    """Return the variables that begin with one of some prefixes and are not empty."""
    # Names first, and as bytes: decoding all of the environment takes 30 µs.
    encoded = tuple(map(os.fsencode, prefixes))
    names = [os.fsdecode(name) for name in os.environb if name.startswith(encoded)]
    return {name: value for name in names if (value := os.environ.get(name))}
