"""The command line ``cellblock`` (docs/cli.md)."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: The arguments after the program's name; the process's arguments by default.

    Returns:
        The exit status (docs/cli.md).
    """
    from cellblock.errors import CellblockError
    from cellblock.fronts.cli import problems

    _open_what_is_closed()
    given = sys.argv[1:] if arguments is None else list(arguments)
    _show_everything()
    try:
        with _warnings_in_one_line():
            status = _run(given)
        sys.stdout.flush()
    except CellblockError as error:
        return problems.report(error)
    except KeyboardInterrupt:
        problems.say("cellblock: interrupted")
        return problems.INTERRUPTED
    except BrokenPipeError:
        # The reader has left, as in `cellblock list --json | head`. Python would complain when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return problems.OK
    return status


def _run(arguments: list[str]) -> int:
    if arguments and "_CELLBLOCK_COMPLETE" not in os.environ:
        from cellblock.fronts.cli.quick import plain

        if (understood := plain(arguments[0], arguments[1:])) is not None:
            return _run_quickly(arguments[0], understood)
    from cellblock.fronts.cli.app import run

    return run(arguments)


def _run_quickly(command: str, given: dict[str, Any]) -> int:
    if command == "mcp":
        from cellblock.fronts.cli import serve_mcp

        return serve_mcp.run(**given)
    from cellblock.fronts.cli import execute

    return execute.run(**given)


@contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    """Print warnings in one line, as errors: users do not need the source line that warns."""
    from cellblock.fronts.cli.problems import say

    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_args, **_options: say(f"cellblock: warning: {message}")
        yield


def _open_what_is_closed() -> None:
    """Reopen closed standard descriptors. Otherwise a socket could get the number 0, 1 or 2 and be used as one."""
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this descriptor
            setattr(sys, name, os.fdopen(opened, mode, closefd=opened != number))


def _show_everything() -> None:
    """Escape characters that the terminal's encoding lacks, instead of failing."""
    import io

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
