"""``cellblock daemon``: starts, stops and shows the process that keeps the sessions."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cellblock.common.terminal import printable
from cellblock.fronts.cli.arguments import Json, new_app
from cellblock.fronts.cli.output import age, moment, print_done, print_fields, print_json, wants_json
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
    _show(about, as_json)
    return OK


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
    if wants_json(as_json):
        print_json({"stopped": stopped})
    else:
        print("The daemon has ended." if stopped else "The daemon is not running.")
    return OK


@app.command()
def restart(as_json: Json = False) -> int:
    """Replace the daemon by a new one. It takes over the sessions and their running code.

    If the daemon is another version, durable sessions are saved and resumed; the variables of the others are lost.
    """
    from cellblock.service.daemon import control

    with Progress("restarting the daemon"):
        about = control.restart()
    _show(about, as_json)
    return OK


@app.command()
def status(as_json: Json = False) -> int:
    """Show whether the daemon runs. Exit with 1 if it does not."""
    from cellblock.service.daemon import control

    about = control.status()
    if about is not None:
        _show(about, as_json)
        return OK
    if wants_json(as_json):
        print_json({"running": False})
    else:
        print("The daemon is not running; the first command that needs it starts it.")
    return FAILED


def _show(about: dict[str, Any], as_json: bool) -> None:
    place = Place()
    if wants_json(as_json):
        print_json(
            {**about, "running": True, "executions": about["running"], "socket": str(place.socket), "log": str(place.log)}
        )
        return
    print_fields(
        [
            ("process", about["pid"]),
            ("version", about["version"]),
            ("started", f"{moment(about['started'])} ({age(about['uptime'])} ago)"),
            ("sessions", f"{about['sessions']}, in which {about['running']} executions run and {about['waiting']} wait"),
            ("memory", f"at most {about['memory'] >> 20:,} MiB (what sessions share may be counted for each)"),
            ("socket", place.socket),
            ("log", place.log),
            *(("problem", problem) for problem in about["problems"]),
        ]
    )


@app.command()
def install(as_json: Json = False) -> int:
    """Write a systemd user unit, so that systemd runs the daemon."""
    from cellblock.service.daemon import control

    path = control.install_unit()
    then = ["cellblock daemon stop", "systemctl --user daemon-reload", "systemctl --user enable --now cellblock"]
    done = f"{printable(str(path), lines=False)} is written. To have systemd run the daemon from now on:"
    print_done({"unit": str(path), "then": then}, "\n  ".join([done, *then]), as_json)
    return OK


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
