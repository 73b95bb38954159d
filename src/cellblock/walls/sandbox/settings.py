"""Reads settings: a file of JSON with comments, and the values of its objects, with errors that name the key."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sized
from pathlib import Path
from typing import Any

from cellblock.errors import InvalidInputError, shown
from cellblock.model.untrusted import parse_json

_MAX_FILE = 1024 * 1024  # bytes of a file of settings
_MAX_SHOWN = 200  # maximum characters of a wrong value in a message
_MAX_NAME = 4096  # characters of a path or a host
_MAX_TOGETHER = 4000  # in a combined list of two policies, with the built-in protected names
_MAX_ITEMS = 1000  # in one list of a policy: each costs a mount, or a comparison with all others


def read_settings(path: str | os.PathLike[str]) -> Any:
    """Read a settings file: JSON, in which lines that begin with ``//`` are comments.

    Raises:
        InvalidInputError: It cannot be read, is not valid JSON, or is too large or too deeply nested.
    """
    try:
        lines = _read(Path(path).expanduser()).splitlines()
        # Blank lines instead of removed ones: errors then name the right line.
        text = b"\n".join(b"" if line.lstrip().startswith(b"//") else line for line in lines)
        return parse_json(text, what="it")
    except OSError as error:
        raise InvalidInputError(f"the sandbox configuration {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InvalidInputError(f"the sandbox configuration {path} cannot be parsed: {error}") from error


class Section:
    """One JSON object of settings, with its permitted keys."""

    def __init__(self, source: str, prefix: str, data: object, known: Mapping[str, str]) -> None:
        self._where = f"{source}: {prefix}"
        if not isinstance(data, dict):
            raise InvalidInputError(f"{self._where.rstrip('.')} must be an object, not {type(data).__name__}")
        self.data = data
        for key in data:
            if key not in known:
                name = str(key)[:_MAX_SHOWN]
                near = difflib.get_close_matches(name, known, 1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}"
                raise InvalidInputError(f"{self._where}{name} is not a known key{hint}")

    def get(self, key: str, default: object) -> object:
        """Return a value without validation."""
        return self.data.get(key, default)

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of strings; empty if the key is missing."""
        value = self.data.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            raise InvalidInputError(f"{self._where}{key} must be a list of strings, not {shown(value)}")
        _check_count(f"{self._where}{key}", value)
        return tuple(value)

    def text(self, key: str) -> str:
        """Return a string; empty if the key is missing."""
        value = self.data.get(key, "")
        if not isinstance(value, str):
            raise InvalidInputError(f"{self._where}{key} must be a string, not {shown(value)}")
        return value

    def boolean(self, key: str) -> bool:
        """Return a boolean; false if the key is missing."""
        value = self.data.get(key, False)
        if not isinstance(value, bool):
            raise InvalidInputError(f"{self._where}{key} must be true or false, not {shown(value)}")
        return value

    def choice(self, key: str, choices: tuple[str, ...]) -> str:
        """Return one of some strings; the first if the key is missing."""
        value = self.data.get(key, choices[0])
        if value not in choices:
            raise InvalidInputError(f"{self._where}{key} must be {' or '.join(map(repr, choices))}, not {shown(value)}")
        return str(value)

    def integer(self, key: str) -> int:
        """Return a required integer."""
        value = self.data.get(key)
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidInputError(f"{self._where}{key} must be an integer, not {shown(value)}")
        return value


def _read(path: Path) -> bytes:
    """Read a file that may be in a workspace, and so is untrusted."""
    from cellblock.common import config  # processes in a sandbox load this module, and read no settings

    return config.read_file(path, _MAX_FILE)


def check_list(where: str, items: tuple[str, ...]) -> None:
    """Check the paths or hosts of a policy, which may be combined from two others.

    Raises:
        InvalidInputError: There are too many, or one is too long.
    """
    if len(items) > _MAX_TOGETHER:
        raise InvalidInputError(f"{where} has {len(items)} items, and the limit is {_MAX_TOGETHER}")
    for item in items:
        if not isinstance(item, str) or not 0 < len(item) <= _MAX_NAME:
            raise InvalidInputError(f"{where}: {shown(item)} must be a text of 1 to {_MAX_NAME} characters")


def _check_count(where: str, items: Sized) -> None:
    if len(items) > _MAX_ITEMS:
        raise InvalidInputError(f"{where} has {len(items)} items, and the limit is {_MAX_ITEMS}")
