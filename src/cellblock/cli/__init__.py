"""The terminal front: ``cellblock doctor``, ``cellblock policy`` and ``cellblock approvals``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: What stands behind the program's name; the process's own by default.

    Returns:
        The exit status: 0, 1 where something needed is missing, 2 for wrong usage.
    """
    options = _parser().parse_args(arguments)
    # Loaded now: asking for help should not wait for asyncio.
    from cellblock.errors import CellblockError
    from cellblock.terminal import printable

    try:
        status = _run(options)
        sys.stdout.flush()
    except CellblockError as error:
        print(f"cellblock: {printable(str(error))}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader has what it wants, as in `cellblock doctor --json | head`. Python would complain when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


def _run(options: argparse.Namespace) -> int:
    from cellblock.cli import show

    if options.command == "doctor":
        return show.doctor(as_json=options.json)
    if options.command == "approvals":
        return show.approvals(options.last, options.session, as_json=options.json)
    if options.action == "init":
        return show.new_policy(options.file)
    return show.policy(options.config, options.workspace, as_json=options.json)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cellblock", description="Sandboxed, stateful IPython sessions for AI agents.")
    parser.add_argument("--version", action="version", version=f"cellblock {_version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    doctor = commands.add_parser("doctor", help="say what this machine can do, and how to get the rest")
    doctor.add_argument("--json", action="store_true", help="for programs")
    policy = commands.add_parser("policy", help="work with sandbox policies")
    actions = policy.add_subparsers(dest="action", required=True, metavar="ACTION")
    made = actions.add_parser("init", help="write a configuration with comments, to be edited")
    made.add_argument("file", nargs="?", default="sandbox.json", metavar="FILE", help="sandbox.json without it")
    shown = actions.add_parser("show", help="say what a session could read, write, reach and use")
    shown.add_argument(
        "config", nargs="?", metavar="FILE", help="a sandbox configuration (JSON); the default policy without it"
    )
    shown.add_argument("--workspace", metavar="DIR", help="the session's working directory; the current one without it")
    shown.add_argument("--json", action="store_true", help="for programs")
    approvals = commands.add_parser("approvals", help="say what was decided about tool calls, commands and hosts, and by whom")
    approvals.add_argument("--last", type=_count, default=20, metavar="N", help="how many decisions; 20 without it")
    approvals.add_argument("--session", metavar="ID", help="of one session: its CodeExecutor.session_id")
    approvals.add_argument("--json", action="store_true", help="for programs")
    return parser


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 1_000_000_000:
        raise argparse.ArgumentTypeError(f"must be a number of decisions from 1, not {text!r}")
    return int(text)


def _version() -> str:
    from cellblock import __version__

    return __version__
