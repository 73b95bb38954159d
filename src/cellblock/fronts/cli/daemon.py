"""``cellblock daemon``: starts, stops and shows the process that keeps the sessions."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from cellblock.common.terminal import printable
from cellblock.fronts.cli.arguments import Json, new_app
from cellblock.fronts.cli.output import age, finish, moment, print_fields
from cellblock.fronts.cli.problems import FAILED, OK
from cellblock.fronts.cli.progress import Progress
from cellblock.service.daemon.place import Place

app = new_app("The process that runs the sessions. It starts when it is first needed.")


@app.command()
def start(as_json: Json = False) -> int:
    """Start the daemon if none is running."""
    from cellblock.service.daemon import control

    with Progress("starting the daemon"):
        about = control.start()
    return _show(about, as_json)


@app.command()
def stop(
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep all sessions; those that are not durable lose their variables.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Save durable sessions, then end the daemon and all other sessions. Durable sessions continue with the next daemon."""
    from cellblock.service.daemon import control

    with Progress("ending the sessions"):
        stopped = control.stop(keep=keep)
    return finish({"stopped": stopped}, "The daemon has ended." if stopped else "The daemon is not running.", as_json)


@app.command()
def restart(as_json: Json = False) -> int:
    """Replace the daemon by a new one. It takes over the sessions and their running code.

    If the daemon is another version, durable sessions are saved and resumed; the variables of the others are lost.
    """
    from cellblock.service.daemon import control

    with Progress("restarting the daemon"):
        about = control.restart()
    return _show(about, as_json)


@app.command()
def status(as_json: Json = False) -> int:
    """Show whether the daemon runs. Exit with 1 if it does not."""
    from cellblock.service.daemon import control

    if (about := control.status()) is not None:
        return _show(about, as_json)
    said = "The daemon is not running; the first command that needs it starts it."
    return finish({"running": False}, said, as_json, FAILED)


def _show(about: dict[str, Any], as_json: bool) -> int:
    place = Place()
    data = {**about, "running": True, "executions": about["running"], "socket": str(place.socket), "log": str(place.log)}
    fields = [
        ("process", about["pid"]),
        ("version", about["version"]),
        ("started", f"{moment(about['started'])} ({age(about['uptime'])} ago)"),
        ("sessions", f"{about['sessions']}, in which {about['running']} executions run and {about['waiting']} wait"),
        ("memory", f"at most {about['memory'] >> 20:,} MiB (what sessions share may be counted for each)"),
        ("socket", place.socket),
        ("log", place.log),
        *(("problem", problem) for problem in about["problems"]),
    ]
    return finish(data, partial(print_fields, fields), as_json)


@app.command()
def install(as_json: Json = False) -> int:
    """Write a systemd user unit, so that systemd runs the daemon."""
    from cellblock.service.daemon import control

    path = control.install_unit()
    then = ["cellblock daemon stop", "systemctl --user daemon-reload", "systemctl --user enable --now cellblock"]
    done = f"{printable(str(path), lines=False)} is written. To have systemd run the daemon from now on:"
    return finish({"unit": str(path), "then": then}, "\n  ".join([done, *then]), as_json)


@app.command()
def logs(
    lines: Annotated[int, typer.Option("--lines", "-n", metavar="N", min=1, help="How many lines to print.")] = 50,
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
