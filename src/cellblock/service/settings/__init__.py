"""The user's settings for all sessions, from the environment and a file.

Arguments take precedence over ``CELLBLOCK_…`` and ``KERNELBOX_…`` variables, these over the file (`config.settings_file`), and
that over the defaults. The client reads settings and sends the daemon the resulting options, so that they take effect even if
the daemon is already running. If nothing is set, this needs the standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from cellblock.common import config
from cellblock.common.config import SandboxName
from cellblock.common.declared import declared
from cellblock.errors import did_you_mean

PREFIXES = ("CELLBLOCK_", "KERNELBOX_")

_OTHER = frozenset(
    f"CELLBLOCK_{name}"
    for name in (
        # Read by `config`.
        "CONFIG",
        "HOME",
        "TRASH_BYTES",
        "TRASH_DAYS",
        # Read by `Client` and `AsyncClient`.
        "TOKEN",
        "URL",
        # Read by `cellblock mcp`.
        "MCP_PROGRAMS",
        "MCP_TOKEN",
        "MCP_WAIT",
        # Set in the environment of code in sessions.
        "APPROVAL_REQUIRED",
        "EGRESS_PORT",
        "PACKAGES",
        "TOOL_HOST",
        "TOOL_PORT",
        "TOOL_TOKEN",
    )
) | {"KERNELBOX_HOME"}
"""Known variables that are not `Settings`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The effective settings."""

    max_retries: int = declared(5, "Maximum number of attempts of execute_with_retry.", ge=1)
    execution_timeout: float = declared(120.0, "Default timeout in seconds.", gt=0)
    kernel_idle_timeout: float = declared(
        1800.0, "Seconds of idleness after which a session ends; 0: never.", ge=0, allow_inf_nan=False
    )
    output_char_limit: int = declared(10_000, "Bytes of printed text kept of a cell; 0: the limit of `Limits`.", ge=0)
    store_backend: Literal["file", "memory"] = declared(
        "file", "file: sessions live in the daemon and outlive the program; memory: they live in this process and end with it."
    )
    startup_code: str = declared("", "Code to run in a new session and after each restart.")
    kernel_type: str = declared("python3", "A Jupyter kernelspec; python3 is cellblock's own kernel.")
    isolate: Literal["", SandboxName] = declared("", "The sandbox of sessions; empty: the default of this machine.")
    max_sessions: int = declared(256, "Maximum number of sessions.")
    max_memory: int = declared(0, "MiB of memory of all sessions; above it, no new session starts; 0: no limit.")
    max_waiting: int = declared(1000, "Maximum number of queued executions of a session.")
    history_days: float = declared(
        30.0, "Days for which the daemon keeps ended executions and sessions, for searches.", gt=0, le=3650
    )
    environment_limit: int = declared(
        config.ENVIRONMENT_LIMIT, "Bytes of stored packages; above it, unused packages are removed.", ge=0
    )
    environment_newest: str = declared(
        "", "Minimum age of packages in the index, such as '7 days'; empty: any.", pattern=config.AGE
    )
    daemon_idle_timeout: float = declared(3600.0, "Seconds without kernels and clients after which the daemon ends; 0: never.")
    ray_address: str = declared("", "The Ray cluster for named sessions; empty: the daemon of this machine.")
    ray_patience: float = declared(
        60.0, "Seconds that a new session waits for room in the Ray cluster.", ge=0, allow_inf_nan=False
    )
    registry_path: str = declared("", "Ignored: the daemon stores its sessions.")
    runtime_dir: str = declared("", "Ignored: kernels have no connection files.")

    def session_options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a new session: those given, and settings for the others."""
        options: dict[str, Any] = {"idle_timeout": self.kernel_idle_timeout or None}
        if self.startup_code:
            options["startup_code"] = self.startup_code
        if self.kernel_type != "python3":
            options["kernel_type"] = self.kernel_type
        if self.isolate:
            options["isolate"] = self.isolate
        options.update(given)
        limits = options.get("limits")
        if self.output_char_limit and (limits is None or isinstance(limits, Mapping)):
            options["limits"] = {"text": self.output_char_limit, **(limits or {})}
        return options


_NAMES = frozenset(item.name for item in fields(Settings))
_DEFAULT = Settings()


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting, explained.

    Attributes:
        name: Its name in the file.
        value: Its value.
        source: Its source: the name of a variable, the path of the file, or ``default``.
        default: Its default.
        about: Its meaning.
    """

    name: str
    value: Any
    source: str
    default: Any
    about: str

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON data."""
        return {name: getattr(self, name) for name in self.__slots__}


def current() -> Settings:
    """Return the current settings.

    Raises:
        InvalidInputError: A value is wrong, or the file cannot be used.
    """
    variables, file = _given()
    if file is None and not variables:
        return _DEFAULT
    if file is None and len(variables) == 1 and (isolate := variables.get("CELLBLOCK_ISOLATE")) in get_args(SandboxName):
        return Settings(isolate=isolate)  # type: ignore[arg-type]  # one of them
    from cellblock.service.settings.sources import read

    return read(tuple(sorted(variables.items())), file)[0]


def explain() -> list[Setting]:
    """Return all settings with the sources of their values.

    Raises:
        InvalidInputError: A value is wrong, or the file cannot be used.
    """
    variables, file = _given()
    settings = _DEFAULT
    sources: dict[str, str] = {}
    if variables or file is not None:
        from cellblock.service.settings.sources import read

        settings, sources = read(tuple(sorted(variables.items())), file)
    shown = [
        Setting(
            item.name, getattr(settings, item.name), sources.get(item.name, "default"), item.default, item.metadata["about"]
        )
        for item in fields(Settings)
    ]
    homes = [name for name in ("CELLBLOCK_HOME", "KERNELBOX_HOME") if os.environ.get(name)]
    about = "The directory of the daemon's state. Can be set only as an environment variable."
    return [*shown, Setting("home", str(config.state_directory()), (homes or ["default"])[0], "", about)]


def _given() -> tuple[dict[str, str], tuple[str, int, int] | None]:
    """Return the variables with names of settings or similar ones, and the file's path, time and size, if it exists."""
    variables, path = _environment()
    try:
        found = os.stat(path)
    except OSError:
        return variables, None
    return variables, (path, found.st_mtime_ns, found.st_size)


@config.while_unchanged
def _environment() -> tuple[dict[str, str], str]:
    variables = {name: value for name, value in config.set_variables(PREFIXES).items() if name not in _OTHER}
    return variables, str(config.settings_file())


def nearest(name: str) -> str:
    """Return what to add to a message about an unknown name: the setting that was probably meant."""
    return did_you_mean(name, _NAMES) or f"; the settings are {', '.join(sorted(_NAMES))}"
