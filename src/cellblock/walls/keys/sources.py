"""Reads the values of secrets from their sources, on the trusted side."""

from __future__ import annotations

import asyncio
import configparser
import importlib
import importlib.util
import os
import shlex
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cellblock.common import config
from cellblock.common.secret import Secret
from cellblock.errors import InvalidInputError
from cellblock.walls.keys.sigv4 import VALUE

_COMMAND_SECONDS = 10
_MOST = 16 * 1024
_LEAST = 8
"""The shortest value in bytes: a shorter one could not be told from other text in responses."""
_SERVICE = "cellblock"
"""The service of entries in the keyring from `store`."""


def entries() -> dict[str, Secret]:
    """Return the secrets that ``secrets.toml`` beside the settings file declares, by name; empty without that file.

    Raises:
        InvalidInputError: The file is invalid, or others can write to it.
    """
    path = config.settings_file().with_name("secrets.toml")
    try:
        found = os.stat(path)
        data = config.parse_toml(config.read_file(path, 128 * 1024))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInputError(f"{path} cannot be read: {error}") from error
    if found.st_uid not in (os.geteuid(), 0) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InvalidInputError(f"{path} can be changed by other users: it names programs to run. Run 'chmod 600' on it")
    return {name: Secret.from_dict(name, value) for name, value in data.items()}


def completed(name: str, declared: Mapping[str, Any], known: Mapping[str, Secret]) -> Secret:
    """Return a secret with its source: its own, its entry's, the variable of that name, or the keyring's entry from `store`.

    Args:
        name: The secret's name.
        declared: Its declaration, from `parse_secrets`.
        known: From `entries`.
    """
    secret = Secret.from_dict(name, declared)
    if secret.source:
        return secret
    found = {"source": _default_source(name)} if name not in known or not known[name].source else {}
    entry = known[name].to_dict() if name in known else {}
    return Secret.from_dict(name, found | entry | secret.to_dict())


def _default_source(name: str) -> str:
    stored = name not in config.environment() and importlib.util.find_spec("keyring") is not None
    return f"keyring:{_SERVICE}/{name}" if stored else f"env:{name}"


def store(name: str, value: str) -> None:
    """Store the value of a secret in the keyring, where `completed` finds it by its name.

    Args:
        name: The secret's name.
        value: The value; a final newline is removed.

    Raises:
        InvalidInputError: The value is unsuitable, or this machine has no keyring. The message does not contain the value.
    """
    value = _checked(name, value, "standard input")
    try:
        _keyring().set_password(_SERVICE, name, value)
    except Exception as error:  # backends are plugins and raise any kind
        why = str(error) if isinstance(error, ValueError) else f"the keyring failed ({type(error).__name__}): is it locked?"
        raise InvalidInputError(
            f"secret {name} cannot be stored: {why}. Without a keyring, name a file: --secret {name}=file:PATH@HOST"
        ) from None


async def read_value(name: str, secret: Secret) -> str:
    """Read the value of a secret.

    Raises:
        InvalidInputError: The value is missing, or unsuitable. The message does not contain it.
    """
    try:
        value = await asyncio.to_thread(_read, secret.source)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        why = "it took too long" if isinstance(error, subprocess.TimeoutExpired) else str(error)
        raise InvalidInputError(f"secret {name} cannot be read from {_shown(secret.source)}: {why}") from None
    value = _checked(name, value, _shown(secret.source))
    if secret.sigv4 and not VALUE.fullmatch(value):
        raise InvalidInputError(
            f"the value of secret {name} from {_shown(secret.source)} is no key of AWS: it must be ID:KEY or ID:KEY:TOKEN"
        )
    return value


def _checked(name: str, value: str, where: str) -> str:
    """Return a value without a final newline.

    Raises:
        InvalidInputError: It is unsuitable.
    """
    value = value.removesuffix("\n").removesuffix("\r")
    if not value.isascii() or not value.isprintable() or not _LEAST <= len(value) <= _MOST:
        raise InvalidInputError(
            f"the value of secret {name} from {where} cannot be used: it must have {_LEAST} to {_MOST:,} "
            "printable ASCII characters, on one line"
        )
    return value


def _shown(source: str) -> str:
    """Return a source for messages. Arguments of programs may be private."""
    return source.split(" ", 1)[0]


def _read(source: str) -> str:
    kind, _, rest = source.partition(":")
    match kind:
        case "env":
            value = config.environment().get(rest)
            if value is None:
                raise ValueError(
                    "this variable is not set for the process that runs the session; for a named session, that is the daemon, "
                    "which has the environment of the command that started it"
                )
            return value
        case "file":
            return config.read_file(Path(rest).expanduser(), _MOST + 2).decode()
        case "aws":
            return _aws_key(rest)
        case "op":
            return _output(["op", "read", "--no-newline", source])
        case "keyring":
            return _from_keyring(*rest.partition("/")[::2])
        case _:
            return _output(shlex.split(rest))


def _output(command: list[str]) -> str:
    if not command:
        raise ValueError("the command is empty")
    # Neither its errors: programs show what they were given.
    done = subprocess.run(  # a command of the user's own settings, without a shell
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=_COMMAND_SECONDS,
        check=False,
    )
    if done.returncode:
        raise ValueError(f"the program ended with status {done.returncode}")
    return done.stdout.decode()


def _aws_key(profile: str) -> str:
    """Return the key of a profile as one value (`sigv4.VALUE`); without a profile, the key of the variables.

    Raises:
        ValueError: It is missing.
    """
    environment = config.environment()
    names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
    if profile:
        path = Path(environment.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials").expanduser()
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(config.read_file(path, 1024 * 1024).decode())
        except configparser.Error:  # its message repeats lines
            raise ValueError(f"{path} cannot be parsed") from None
        if not parser.has_section(profile):
            raise ValueError(f"{path} has no profile {profile!r}")
        found = {name: parser.get(profile, name, fallback="") for name in names}
    else:
        found = {name: environment.get(name.upper(), "") for name in names}
    if not (found[names[0]] and found[names[1]]):
        where = f"the profile {profile!r} has no key" if profile else "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set"
        raise ValueError(f"{where}; for other credentials, use command: with a program that prints ID:KEY:TOKEN")
    return ":".join(value for value in found.values() if value)


def _from_keyring(service: str, user: str) -> str:
    keyring = _keyring()
    try:
        value: str | None = keyring.get_password(service, user)
    except Exception as error:  # backends are plugins and raise any kind
        raise ValueError(f"the keyring failed ({type(error).__name__}): is it locked?") from None
    if value is None:
        hint = f": run 'cellblock secret set {user}', or set the variable {user}" if service == _SERVICE else ""
        raise ValueError(f"the keyring has no such entry{hint}")
    return value


def _keyring() -> Any:
    """Return the package ``keyring``.

    Raises:
        ValueError: It is not installed, or has no backend that protects entries.
    """
    try:
        keyring: Any = importlib.import_module("keyring")  # not a dependency
    except ImportError:
        raise ValueError("the package keyring is missing: pip install keyring") from None
    if keyring.get_keyring().priority < 1:
        raise ValueError(
            "this machine has no keyring that protects entries: start GNOME Keyring or KWallet, or install another backend of "
            "the package keyring"
        )
    return keyring
