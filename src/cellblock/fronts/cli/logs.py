"""``cellblock logs``: prints the executions of a session, with their output."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from typing import Any

from cellblock.common.terminal import printable
from cellblock.fronts.cli import live
from cellblock.fronts.cli.daemon_access import connect, connected
from cellblock.fronts.cli.output import moment, painted, print_json
from cellblock.fronts.cli.problems import OK
from cellblock.operations.executions import Executions, Follow, Lookup, Source
from cellblock.service.daemon.daemon_connection import SessionConnection

_EVERY = 0.3
"""Seconds between two polls for new executions."""


def show(session: str, count: int, *, follow: bool, as_json: bool) -> int:
    """Print the last executions of a session, oldest first.

    Args:
        session: The session's name or id.
        count: The number of executions.
        follow: Whether to wait for further executions, until Ctrl-C.
        as_json: Whether to print JSON, in one document.

    Raises:
        CellblockError: The session does not exist.
    """
    with connected() as connection:
        records = connection.call(Executions(session, count))[::-1]
        if as_json:
            print_json([_as_data(connection, record) for record in records])
            return OK
        shown = set()
        while True:
            for record in records:
                if record["id"] not in shown:
                    shown.add(record["id"])
                    _show(connection, record, follow=follow)
            if not follow:
                return OK
            time.sleep(_EVERY)  # the daemon has no request that waits for new executions
            records = connection.call(Executions(session, 50))[::-1]


def show_one(execution: str, *, follow: bool, as_json: bool) -> int:
    with connected() as connection:
        record = connection.call(Lookup(execution))
        if as_json:
            print_json(_as_data(connection, record))
        else:
            _show(connection, record, follow=follow)
    return OK


def _as_data(connection: SessionConnection, record: dict[str, Any]) -> dict[str, Any]:
    events = _events(record) if record["state"] in ("done", "unknown") else []
    result = next((event["data"] for event in events if event["kind"] == "result"), None)
    return {**record, "code": connection.call(Source(record["id"])), "result": result}


def _events(record: dict[str, Any]) -> list[dict[str, Any]]:
    with closing(connect()) as connection:
        return list(connection.follow(Follow(record["id"])))


def _show(connection: SessionConnection, record: dict[str, Any], *, follow: bool) -> None:
    """Print an execution's time, code and output. With `follow`, wait for the end of a running one."""
    at = moment(record["begun"] or record["submitted"])
    state = record["state"]
    print(painted(f"── {at}  {record['id']}{'' if state == 'done' else f'  {state}'}", "dim", sys.stdout))
    for line in connection.call(Source(record["id"])).splitlines():
        print(painted(f"> {printable(line)}", "bold", sys.stdout))
    sys.stdout.flush()
    if state in ("done", "unknown") or follow:
        with closing(connect()) as another:
            _follow(another, record["id"])


def _follow(connection: SessionConnection, execution: str) -> None:
    reader, streamed = live.Terminal(errors=sys.stdout), False
    for event in connection.follow(Follow(execution)):
        kind, data = event["kind"], event["data"]
        if kind in ("stream", "display", "gap"):
            streamed = True
            reader.take(kind, data, execution)
        elif kind == "result":
            _finish(reader, data, streamed)
        elif kind == "failed":
            print(f"{data['error']}: {printable(data['message'])}")


def _finish(reader: live.Terminal, result: dict[str, Any], streamed: bool) -> None:
    """Print the rest of the output, or all of it if it was not streamed."""
    if not streamed:
        for item in result["outputs"]:
            reader.take("display", item, "")
    reader.end(result)
