"""Finds ``pip install`` in shell lines, in all common spellings, because only the host can install."""

from __future__ import annotations

import os
import re
import shlex
import sys
import sysconfig

_PIP = re.compile(r"pip[0-9.]*")
_PYTHON = re.compile(r"python[0-9.]*")
_EXPANDED = re.compile(r"[$`*?~\n]")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_OPERATOR = re.compile(r"[();<>|&]+")
MAX_LINE = 64 * 1024
"""Maximum length of a line to parse. That takes a quarter of a second, and four times as long for twice the length."""

_OF_UV = ("--system",)
"""Options of uv that pip does not have, and that state the default."""


def installs(command: str) -> list[str] | None:
    """Return pip's arguments if a shell line is only ``pip install``, without operators and expansions."""
    segments = _segments(command)
    if len(segments) != 1 or _EXPANDED.search(command):
        return None
    return _arguments(segments[0])


def installs_among_others(command: str) -> bool:
    """Return whether a shell line contains ``pip install`` as one of several commands, or with a redirection."""
    return any(_arguments(segment) is not None for segment in _segments(command))


def cannot_install() -> bool:
    """Return whether programs of this session cannot install packages: the interpreter's own directory is read-only."""
    return not os.access(sysconfig.get_path("purelib"), os.W_OK)


def _segments(command: str) -> list[list[str]]:
    """Return the words of each command in a line. A line that cannot be parsed, or is too long, has none."""
    if len(command) > MAX_LINE:
        return []
    reader = shlex.shlex(command, posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    found: list[list[str]] = [[]]
    try:
        for word in reader:
            if _OPERATOR.fullmatch(word):
                found.append([])
            else:
                found[-1].append(word)
    except ValueError:
        return []
    return found


def _arguments(words: list[str]) -> list[str] | None:
    while words and _ASSIGNMENT.match(words[0]):
        words = words[1:]
    match words:
        case [pip, "install", *rest] if _PIP.fullmatch(pip):
            return rest
        case ["uv", "pip", "install", *rest]:
            return [word for word in rest if word not in _OF_UV]
        case [python, "-m", "pip", "install", *rest] if _PYTHON.fullmatch(python) or python == sys.executable:
            return rest
    return None
