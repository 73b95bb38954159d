"""Reads the plain form of `cellblock exec` by hand: typer and what it loads take longer than the whole command.

`app.exec_` declares the same command for typer. It gets what is not understood here, and says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_FLAGS = {"--bash": "bash", "--json": "as_json"}
_VALUES = {"--name": "name", "--id": "session_id", "--timeout": "timeout", "--file": "file"}


def plain(arguments: Sequence[str]) -> dict[str, Any] | None:
    """Return the arguments of `execute.run` that stand behind `exec`; None if typer has to look at them."""
    found: dict[str, Any] = {}
    left = iter(arguments)
    for argument in left:
        option, equals, value = argument.partition("=")
        if argument in _FLAGS:
            found[_FLAGS[argument]] = True
        elif option in _VALUES:
            following = value if equals else next(left, None)
            if following is None:
                return None
            found[_VALUES[option]] = following
        elif argument == "-" or not argument.startswith("-"):
            if "code" in found:
                return None
            found["code"] = argument
        else:
            return None
    return found
