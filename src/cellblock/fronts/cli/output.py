"""Prints results of commands: JSON for programs, tables for people."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TextIO, TypeAlias

from cellblock.common.terminal import printable
from cellblock.fronts.cli.problems import OK


def wants_json(asked: bool) -> bool:
    """Return whether to print JSON: it was requested, or standard output is not a terminal."""
    return asked or not sys.stdout.isatty()


def print_json(data: Any) -> None:
    """Print JSON, sorted and indented."""
    print(json.dumps(data, indent=2, sort_keys=True, default=_base64))


def finish(data: Any, shown: str | Callable[[], object], as_json: bool, status: int = OK) -> int:
    """Print the outcome of a command, and return its exit status.

    Args:
        data: The outcome for programs.
        shown: The outcome for people: a text that is safe to print (empty: nothing), or a function that prints it.
        as_json: Whether to print JSON even to a terminal.
        status: The exit status.
    """
    if wants_json(as_json):
        print_json(data)
    elif callable(shown):
        shown()
    elif shown:
        print(shown)
    return status


Columns: TypeAlias = Mapping[str, str | Callable[[Any], object]]
"""Headings of a table, each with the field of an item that it shows, or with a function of the item."""


def finish_list(key: str, found: Sequence[Mapping[str, Any]], columns: Columns, as_json: bool, *, empty: str) -> int:
    """Print the outcome of a command that lists something, and return its exit status.

    Args:
        key: The field of the JSON document that contains the list.
        found: The items.
        columns: The table for people.
        as_json: Whether to print JSON even to a terminal.
        empty: The sentence for people if there are no items.
    """

    def show() -> None:
        rows = ([item[cell] if isinstance(cell, str) else cell(item) for cell in columns.values()] for item in found)
        print_table([*columns], rows, empty=empty)

    return finish({key: found}, show, as_json)


def _base64(value: object) -> str:
    """Encode bytes as Jupyter's messages do."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    raise TypeError(f"{type(value).__name__} is not JSON data")


def has_color(stream: TextIO) -> bool:
    """Return whether a stream shows colours."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def painted(text: str, style: str, stream: TextIO) -> str:
    """Return a text in a colour, if the stream shows colours."""
    codes = {"red": 31, "green": 32, "yellow": 33, "dim": 2, "bold": 1}
    return f"\x1b[{codes[style]}m{text}\x1b[0m" if has_color(stream) else text


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Print a table whose cells are safe to print, or a sentence if there are no rows."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold")  # rich would cut a long word to the width of its column
    for row in rows:
        table.add_row(*map(_cell, row))
    if table.row_count:
        Console(highlight=False).print(table)
    else:
        print(empty)


def _cell(value: object) -> Any:
    """Return text for a table, without control characters for the terminal or markup for rich."""
    from rich.text import Text

    return Text(printable(str(value), lines=False))


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one pair in a line."""
    for name, value in fields:
        label = painted(f"{name}:".ljust(14), "dim", sys.stdout)
        print(f"{label} {printable(str(value), lines=False)}")


def since(moment: str) -> str:
    """Return how long ago a time in ISO 8601 was."""
    from datetime import UTC, datetime

    return age((datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds())


def moment(seconds: float) -> str:
    """Return a time as all commands show it: local time to the second. Code in a session can set any number."""
    from datetime import datetime

    try:
        return datetime.fromtimestamp(seconds).isoformat(" ", "seconds")
    except (OverflowError, OSError, ValueError):
        return "?"


def age(seconds: float) -> str:
    """Format a duration: ``42 s``, ``5 min``, ``3 h``, ``2 d``."""
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{max(seconds, 0) // size:.0f} {unit}"
    return f"{seconds // 86400:.0f} d"
