"""``cellblock daemon``: the process that keeps the sessions."""

from __future__ import annotations

import time
from contextlib import closing
from datetime import datetime
from typing import Annotated

import typer

from cellblock.cli.arguments import Json, new_app
from cellblock.cli.client import connect, connect_if_running
from cellblock.cli.output import age, print_fields, print_json, wants_json
from cellblock.cli.problems import FAILED, OK
from cellblock.cli.progress import Progress
from cellblock.daemon.connection import Connection
from cellblock.daemon.messages import About, End
from cellblock.daemon.place import Place
from cellblock.errors import DaemonError
from cellblock.terminal import printable

app = new_app("The process that keeps the sessions. It starts by itself when it is first needed.")


@app.command()
def start(as_json: Json = False) -> int:
    """Start the daemon, if there is none."""
    with closing(connect()) as connection:
        _show(connection, as_json)
    return OK


@app.command()
def stop(
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the sessions in the list; their kernels and variables end all the same.")
    ] = False,
    as_json: Json = False,
) -> int:
    """End the daemon and all of its sessions."""
    connection = connect_if_running()
    if connection is not None:
        with Progress("ending the sessions"), closing(connection):
            _end(connection, keep=keep)
    if wants_json(as_json):
        print_json({"stopped": connection is not None})
    else:
        print("There is no daemon." if connection is None else "The daemon has ended.")
    return OK


def _end(connection: Connection, *, keep: bool) -> None:
    """Ask the daemon to end, and wait until it has."""
    connection.call(End(keep))
    try:
        while True:
            connection.call(About())
            time.sleep(0.02)
    except DaemonError:
        pass  # it is gone


@app.command()
def status(as_json: Json = False) -> int:
    """Say whether the daemon runs; exit with 1 if it does not."""
    connection = connect_if_running()
    if connection is None:
        if wants_json(as_json):
            print_json({"running": False})
        else:
            print("There is no daemon; the first command that needs one starts it.")
        return FAILED
    with closing(connection):
        _show(connection, as_json)
    return OK


def _show(connection: Connection, as_json: bool) -> None:
    facts, place = connection.call(About()), Place()
    if wants_json(as_json):
        print_json(
            {**facts, "running": True, "executions": facts["running"], "socket": str(place.socket), "log": str(place.log)}
        )
        return
    begun = datetime.fromtimestamp(facts["started"]).astimezone().isoformat(sep=" ", timespec="seconds")
    print_fields(
        [
            ("process", facts["pid"]),
            ("version", facts["version"]),
            ("started", f"{begun} ({age(facts['uptime'])} ago)"),
            ("sessions", f"{facts['sessions']}, in which {facts['running']} executions run and {facts['waiting']} wait"),
            ("memory", f"{facts['memory'] >> 20:,} MiB"),
            ("socket", place.socket),
            ("log", place.log),
            *(("problem", problem) for problem in facts["problems"]),
        ]
    )


@app.command()
def logs(
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="How many of the last lines.")] = 50,
) -> int:
    """Print the end of the daemon's log."""
    try:
        text = Place().log.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        print("There is no log: no daemon has run yet.")
        return FAILED
    for line in text.splitlines()[-lines:]:
        print(printable(line, lines=False))
    return OK
