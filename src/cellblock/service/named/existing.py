"""Comparison of the options that a caller chose with the options of a session that exists already."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from cellblock.common.environments import PackageSet
from cellblock.common.sandbox_options import NAMES, SandboxOptions
from cellblock.errors import InvalidInputError, shown
from cellblock.host import Host
from cellblock.service.named.json_options import Options, read_options, with_real_paths

_PATHS = ("working_dir", "images_dir", "spill_dir")
_HIDDEN = ("kernel_env", "rules", "sandbox_config", "secrets", "startup_code")
"""Options whose values can be long, or secret."""
_DEFAULT = object()


@dataclass(frozen=True, slots=True)
class Given:
    """The options of a session.

    Attributes:
        data: The options as JSON data.
        read: The parsed options.
        host: The host of the session.
    """

    data: Mapping[str, Any]
    read: Options
    host: Host


def check_existing(name: str, existing: Given, chosen: Collection[str], data: Mapping[str, Any]) -> None:
    """Check that an existing session has the options that a caller chose.

    Args:
        name: The session's name.
        existing: The options of the session.
        chosen: The names of the options that the caller chose; the others in `data` are defaults.
        data: The caller's options.

    Raises:
        InvalidInputError: An option differs or is invalid. The message names it.
    """
    real = with_real_paths(data)
    # The caller's directory is where a new session would work. It has no influence on an existing one.
    real = {option: value for option, value in real.items() if option != "current_dir" or option in chosen}
    wanted = Given(real, read_options(real, existing.host), existing.host)
    found = [
        _difference(option, _shown(option, existing), _shown(option, wanted))
        for option in dict.fromkeys(chosen)
        if not _same(option, existing, wanted)
    ]
    if found:
        raise InvalidInputError(
            f"session {name!r} exists with other options: {'; '.join(found)}. A session keeps the options that it was made "
            "with: leave these out, choose another name, or end the session first"
        )


def _same(option: str, existing: Given, wanted: Given) -> bool:
    if option == "durable" and wanted.data[option] is True:  # with any interval
        return bool(existing.read.named.durable)
    return bool(_value(option, existing) == _value(option, wanted))


def _difference(option: str, has: object, wanted: object) -> str:
    if option in _HIDDEN:
        return f"{option} differs"
    if has == wanted:  # the name stands for other packages now
        return f"{shown(has)} had other packages when the session was made"
    return f"{option} is {'the default' if has is _DEFAULT else shown(has)}, not {shown(wanted)}"


def _shown(option: str, given: Given) -> object:
    if option in (*_PATHS, "isolate"):
        return _value(option, given)
    if option == "environment" and isinstance(packages := _value(option, given), PackageSet):
        return packages.title
    return given.data.get(option, _DEFAULT)


def _value(option: str, given: Given) -> Any:
    """Return the effect of an option, which is the same for different spellings."""
    read, named = given.read, given.read.named
    match option:
        case "memory":
            return (read.session.policy or given.host.defaults.policy).resources.memory
        case "read" | "write":
            return {os.path.realpath(path) for path in _sandbox(given).paths(option)}
        case "hosts" | "allow_hosts":
            options = _sandbox(given)
            return {*options.hosts, *options.allow_hosts}
        case "http" | "devices":
            return {*getattr(_sandbox(given), option)}
        case "sandbox":
            return read.session.isolate != "none"
        case "durable":
            return named.durable if isinstance(named.durable, str) else named.saved_every
        case "save_every":
            return named.saved_every or named.save_every
        case "idle_timeout":
            return named.idle_timeout or None
        case "limits":
            return read.session.limits
        case "rules" | "sandbox_config" | "python":
            return given.data.get(option)
    owner = next(part for part in (named, read.session, read.services) if hasattr(part, option))
    value = getattr(owner, option)
    if option in _PATHS:
        return None if value is None else os.path.realpath(value)
    return tuple(value) if isinstance(value, list) else value


def _sandbox(given: Given) -> SandboxOptions:
    return SandboxOptions(**{name: given.data[name] for name in NAMES if name in given.data})
