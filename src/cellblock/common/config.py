"""The environment variables and files that configure cellblock. Only this module reads them."""

from __future__ import annotations

import functools
import os
import re
import stat
from collections import ChainMap
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

from cellblock.errors import InvalidInputError, shown

_T = TypeVar("_T")

SandboxName = Literal["native", "landlock", "srt"]
"""The names of the sandboxes (`cellblock.walls.sandbox.tiers`)."""

Isolate = Literal[SandboxName, "none"]
"""How kernels can be isolated: in a sandbox, or not at all."""

PROGRAM_VARIABLES = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER")
"""The variables that every MCP server gets from the host's environment: the same variables as in the SDK, without secrets."""

ENVIRONMENT_LIMIT = 20 * 2**30
"""Size of the store of packages in bytes, above which unused ones are removed."""

AGE = r"^(|[0-9]{1,4} (hour|day|week)s?)$"
"""The pattern of the minimum age of packages."""

_SECONDS = {"hour": 3600.0, "day": 86400.0, "week": 7 * 86400.0}
_MAX_DOTENV = 64 * 1024
_MAX_SETTINGS = 64 * 1024
_MAX_TOML = 128 * 1024
_MAX_MARKS = 10_000
"""Maximum keys, items, dots and lines of TOML together: `tomllib` takes up to 9 µs for each."""
_MAX_DOTS = 200
"""Maximum dots in one line of TOML: ``tomllib`` takes 23 seconds for a dotted key of 30,000 parts."""

_LINE = re.compile(r"^[ \t]*(?:export[ \t]+)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*(?P<value>[^\r\n]*)", re.MULTILINE)


def environment() -> Mapping[str, str]:
    """Return this process's environment, for settings of pip and references of MCP servers."""
    return os.environ


def server_environment() -> Mapping[str, str]:
    """Return the variables for ``${NAME}`` in parameters of MCP servers: this process's environment, then ``.env``.

    The file is read on each call. It cannot set `PROGRAM_VARIABLES`.
    """
    path = variables_file()
    given = _kept[path] if path in _kept else _dotenv(path)
    return ChainMap(os.environ, {name: value for name, value in given.items() if name not in PROGRAM_VARIABLES})


def variables_file() -> Path:
    """Return the ``.env`` of the current directory, the project's root. No sandbox may change or create it."""
    return Path.cwd() / ".env"


def keep_variables() -> None:
    """Read ``.env`` for the last time, before a session starts in a sandbox that cannot prevent its creation."""
    with suppress(FileNotFoundError):  # the current directory was removed
        path = variables_file()
        _kept.setdefault(path, _dotenv(path))


_kept: dict[Path, dict[str, str]] = {}


def read_file(path: Path, most: int, flags: int = 0) -> bytes:
    """Read an untrusted file. Refuse pipes and devices, which might never end.

    Args:
        path: The file.
        most: Maximum size in bytes.
        flags: More flags for open().

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


def parse_toml(data: bytes) -> dict[str, Any]:
    """Parse untrusted TOML within limits: `tomllib` is slow, and takes quadratic time for the dots of a line.

    Raises:
        ValueError: It is not TOML in UTF-8, or exceeds a limit.
        RecursionError: It is nested too deeply.
    """
    import tomllib  # rarely used

    if len(data) > _MAX_TOML:
        raise ValueError(f"it has more than {_MAX_TOML:,} bytes of TOML")
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.count(b".") > _MAX_DOTS:
            raise ValueError(f"line {number} has more than {_MAX_DOTS} dots")
    if sum(data.count(mark) for mark in (b",", b"[", b"=", b".", b"\n")) > _MAX_MARKS:
        raise ValueError(f"it has more than {_MAX_MARKS:,} keys, items, dots and lines")
    return tomllib.loads(data.decode())


def _dotenv(path: Path) -> dict[str, str]:
    try:
        text = read_file(path, _MAX_DOTENV, os.O_NOFOLLOW).decode("utf-8", "replace")
    except (OSError, ValueError):
        return {}  # no readable file: a missing variable is reported when it is looked up
    return {match["name"]: _unquoted(match["value"]) for match in _LINE.finditer(text)}


def _unquoted(value: str) -> str:
    if len(value) >= 2 and value[0] in "'\"" and (end := value.find(value[0], 1)) > 0:
        return value[1:end]
    return value.partition(" #")[0].strip()


def isolation() -> str:
    """Return the default isolation of sessions (``CELLBLOCK_ISOLATE``), or None."""
    return os.environ.get("CELLBLOCK_ISOLATE", "")


def records_content() -> bool:
    """Return whether spans contain code, arguments and output, by OpenTelemetry's variable for generative AI."""
    value = os.environ.get("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "")
    return value.strip().upper() in ("SPAN_ONLY", "SPAN_AND_EVENT", "TRUE")


def trace_context() -> dict[str, str]:
    """Return the caller's trace context: ``TRACEPARENT`` and ``TRACESTATE``."""
    return {name.lower(): value for name in ("TRACEPARENT", "TRACESTATE") if (value := os.environ.get(name))}


def names_service() -> bool:
    """Return whether OpenTelemetry's variables name the service."""
    return "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")


def telemetry_exporters() -> dict[str, list[str]] | None:
    """Return the exporters to add to those in OpenTelemetry's variables; None for no SDK.

    An endpoint is enough: signals without an exporter use it. OTLP uses HTTP, unless the variables say gRPC.
    """
    given = {name: value for name, value in os.environ.items() if name.startswith("OTEL_") and value.strip()}
    named = {signal: f"OTEL_{signal.upper()}S_EXPORTER" for signal in ("trace", "metric", "log")}
    if given.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    if not any(
        name in named.values() or (name.startswith("OTEL_EXPORTER_OTLP_") and name.endswith("ENDPOINT")) for name in given
    ):
        return None
    otlp = "otlp_proto_grpc" if given.get("OTEL_EXPORTER_OTLP_PROTOCOL", "").strip() == "grpc" else "otlp_proto_http"
    reached = "OTEL_EXPORTER_OTLP_ENDPOINT" in given
    return {
        f"{signal}_exporter_names": [otlp]
        for signal, variable in named.items()
        if variable not in given and (reached or f"OTEL_EXPORTER_OTLP_{signal.upper()}S_ENDPOINT" in given)
    }


def while_unchanged(function: Callable[[], _T]) -> Callable[[], _T]:
    """Cache a function of the environment until the environment changes.

    Each call of a named session needs settings and paths. Computing them took 30 µs of its millisecond.
    """
    known: list[tuple[dict[Any, Any], _T]] = []

    @functools.wraps(function)
    def wrapped() -> _T:
        # Comparing the dict in `os.environ` takes a microsecond. Its own methods take one for each variable.
        data: dict[Any, Any] | None = getattr(os.environ, "_data", None)
        if data is None:
            return function()
        if not known or known[0][0] != data:
            known[:] = [(dict(data), function())]
        return known[0][1]

    return wrapped


@while_unchanged
def state_directory() -> Path:
    """Return the directory of persistent state, whether or not it exists.

    ``$CELLBLOCK_HOME`` or ``$KERNELBOX_HOME``, or ``cellblock`` in ``$XDG_STATE_HOME``, or ``~/.local/state/cellblock``.

    Raises:
        InvalidInputError: The variable has a relative path.
    """
    if own := _absolute("CELLBLOCK_HOME") or _absolute("KERNELBOX_HOME"):
        return _path(own)
    return _path(_base("XDG_STATE_HOME", ".local/state"), "cellblock")


def trash_limits() -> tuple[float, int]:
    """Return the maximum age in days and the maximum total size in bytes of the trash of sessions.

    ``CELLBLOCK_TRASH_DAYS`` and ``CELLBLOCK_TRASH_BYTES``. Values other than positive numbers are ignored.
    """
    given = (os.environ.get(name, "") for name in ("CELLBLOCK_TRASH_DAYS", "CELLBLOCK_TRASH_BYTES"))
    days, size = (float(text) if re.fullmatch(r"[0-9]{1,15}(\.[0-9]{1,9})?", text) else 0.0 for text in given)
    return min(days, 3650.0) or 7.0, int(size) or 8 * 2**30


def settings_file() -> Path:
    """Return the path of the settings file, whether or not it exists. No session may write to its directory.

    ``$CELLBLOCK_CONFIG``, or ``cellblock/config.toml`` in ``$XDG_CONFIG_HOME``, or ``~/.config/cellblock/config.toml``.

    Raises:
        InvalidInputError: The variable has a relative path.
    """
    if own := _absolute("CELLBLOCK_CONFIG"):
        return _path(own)
    return _path(_base("XDG_CONFIG_HOME", ".config"), "cellblock/config.toml")


def settings_content(path: Path) -> dict[str, Any]:
    """Return the unchecked content of the settings file; empty if it does not exist.

    Raises:
        InvalidInputError: It cannot be read, or others can write to it.
    """
    try:
        _check_owner(path)
        return parse_toml(read_file(path, _MAX_SETTINGS))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInputError(f"the settings in {path} cannot be read: {error}") from None


def _check_owner(path: Path) -> None:
    """Check that only this user and root can write to the file.

    Raises:
        ValueError: Others can.
    """
    found = path.stat()
    if found.st_uid not in (0, os.geteuid()):
        raise ValueError("it belongs to another user")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ValueError(f"it is writable by other users: chmod go-w {path}")


def environment_limit() -> int:
    """Return the setting ``environment_limit``: the maximum size of the store of packages in bytes.

    Raises:
        InvalidInputError: It is not a number of bytes, or the settings file cannot be read.
    """
    return int(_setting("environment_limit", r"[0-9]{1,15}", "bytes, such as 21474836480") or ENVIRONMENT_LIMIT)


def environment_newest() -> float:
    """Return the setting ``environment_newest``: the minimum age of packages of the index in seconds, 0 for any.

    Raises:
        InvalidInputError: It is not an age, or the settings file cannot be read.
    """
    count, _, unit = _setting("environment_newest", AGE, "an age such as '7 days'").partition(" ")
    return int(count) * _SECONDS[unit.removesuffix("s")] if count else 0.0


def _setting(name: str, pattern: str, meaning: str) -> str:
    """Return a setting that concerns every program of the user. The package of the other settings is a layer above."""
    variables = (f"{prefix}_{name.upper()}" for prefix in ("CELLBLOCK", "KERNELBOX"))
    source = next((variable for variable in variables if os.environ.get(variable)), "")
    value = os.environ[source] if source else settings_content(settings_file()).get(name, "")
    if isinstance(value, bool) or ((text := str(value)) and not re.fullmatch(pattern, text, re.ASCII)):
        raise InvalidInputError(f"{name} in {source or settings_file()} must be {meaning}, not {shown(value)}")
    return text


def _base(variable: str, default: str) -> str:
    return _absolute(variable) or os.path.join(_absolute("HOME") or os.path.expanduser("~"), default)


def _absolute(variable: str) -> str:
    """Return the path in a variable; empty if none.

    Raises:
        InvalidInputError: It is relative. Ignoring it would use the daemon and the settings that it was meant to replace.
    """
    path = os.environ.get(variable, "")
    if path and not os.path.isabs(path):
        raise InvalidInputError(f"{variable} must be an absolute path, not {path[:200]!r}")
    return path


@functools.lru_cache(maxsize=16)
def _path(*parts: str) -> Path:
    return Path(*parts)  # every call of a named session needs these, and parsing is the slowest step


def set_variables(prefixes: tuple[str, ...]) -> dict[str, str]:
    """Return the non-empty variables with one of these prefixes."""
    # Names first, and as bytes: decoding the whole environment takes 30 µs.
    encoded = tuple(map(os.fsencode, prefixes))
    names = [os.fsdecode(name) for name in os.environb if name.startswith(encoded)]
    return {name: value for name in names if (value := os.environ.get(name))}
