"""``cellblock cluster``: serves sessions on the nodes of a Ray cluster, shows them, drains and stops them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import typer

from cellblock.common.terminal import printable
from cellblock.errors import DaemonError, InvalidInputError, NotFoundError
from cellblock.fronts.cli.arguments import Json, new_app
from cellblock.fronts.cli.output import finish, print_table
from cellblock.fronts.cli.problems import FAILED, OK
from cellblock.fronts.cli.progress import Progress
from cellblock.service import settings

app = new_app("Sessions on the nodes of a Ray cluster (docs/cluster.md).")

_Address = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="The address of the Ray cluster; by default CELLBLOCK_RAY_ADDRESS, or the cluster that 'start' started.",
    ),
]
_MB = 1024 * 1024
_LOOK = 0.5


@app.command()
def start(
    address: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="The address of a running Ray cluster; by default, start one on this machine."),
    ] = None,
    nodes: Annotated[int, typer.Option(metavar="N", min=1, max=20, help="Number of nodes to start on this machine.")] = 3,
    cpus: Annotated[
        float | None, typer.Option(metavar="N", min=0, help="Processors that sessions reserve of each node; half by default.")
    ] = None,
    memory: Annotated[
        int | None, typer.Option(metavar="MIB", min=64, help="Memory that sessions reserve of each node; half by default.")
    ] = None,
    session_memory: Annotated[
        int, typer.Option(metavar="MIB", min=1, help="Memory reserved for a session without memory=.")
    ] = 64,
    lease: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="How long a node keeps its sessions after it was cut off.")
    ] = 30.0,
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="The port of each node; 0: any that is free.")] = 0,
    on: Annotated[str, typer.Option(metavar="RESOURCE", help="Only on nodes with this custom resource of Ray.")] = "",
    as_json: Json = False,
) -> int:
    """Serve sessions on each node of a Ray cluster, or of a new one on this machine."""
    from cellblock.cluster import local
    from cellblock.cluster.cluster_options import ClusterOptions
    from cellblock.cluster.opening import open_director

    options = ClusterOptions(
        cpus=cpus,
        memory=None if memory is None else memory * _MB,
        session_memory=session_memory * _MB,
        lease=lease,
        port=port,
        on=on,
    )
    if address is None:
        with Progress(f"starting {nodes} nodes of Ray"):
            address = local.start_nodes(nodes)
    with Progress("starting hosts for sessions"):
        director = open_director(address, options)
        status = director.ask("status_soon", 120.0)
    count = sum(node["state"] == "ready" for node in status["nodes"])
    text = f"Sessions are served on {count} nodes. To use them:\n  export CELLBLOCK_RAY_ADDRESS={address}"
    problems = "".join(f"\n{printable(f'{node}: {problem}', lines=False)}" for node, problem in status["problems"].items())
    return finish({"address": address, "nodes": count, "problems": status["problems"]}, text + problems, as_json)


@app.command()
def status(address: _Address = None, as_json: Json = False) -> int:
    """Show nodes with their sessions and memory, queued sessions with reasons, and problems."""
    from cellblock.cluster.opening import open_director

    found = open_director(_chosen(address)).ask("status")
    return finish(found, partial(_print_status, found), as_json)


def _print_status(found: Mapping[str, Any]) -> None:
    rows = [
        (
            node["name"],
            node["state"],
            node["sessions"],
            node["running"],
            f"{node['used'] // _MB:,}",
            f"{(node['memory'] - node['free']) // _MB:,}",
            f"{node['memory'] // _MB:,}",
        )
        for node in found["nodes"]
    ]
    print_table(("node", "state", "sessions", "running", "used MiB", "reserved", "of"), rows, empty="There are no nodes.")
    for one in found["waiting"]:
        print(printable(f"waits for {one['seconds']:g} s: {one['name']}: {one['why']}", lines=False))
    problems = [*found["problems"].items()]
    problems += [(node["name"], problem) for node in found["nodes"] for problem in node["problems"]]
    for name, problem in problems:
        print(printable(f"problem on {name}: {problem}", lines=False))
    if found["doubt"]:
        print(printable(found["doubt"], lines=False))


@app.command()
def drain(
    node: Annotated[str, typer.Argument(metavar="NODE", help="The node's name, or the beginning of Ray's id of it.")],
    deadline: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="How long to wait for busy sessions.")] = 60.0,
    undo: Annotated[bool, typer.Option("--undo", help="Let it take new sessions again.")] = False,
    address: _Address = None,
    as_json: Json = False,
) -> int:
    """Drain a node: it takes no new sessions, and its sessions move to other nodes, each between two cells.

    Exit with 1 and the reasons if it still has sessions at the deadline.
    """
    from cellblock.cluster.opening import open_director

    director = open_director(_chosen(address))
    with Progress("moving its sessions"):
        while True:
            found = director.ask("drain", node, not undo, deadline)
            if "unknown" in found:
                raise NotFoundError(found["unknown"])
            if found["over"]:
                break
            time.sleep(_LOOK)
    left = {name: found["left"].get(name, "it arrived in the meantime") for name in found["sessions"]}
    moved = f"{found['moved']} session{'' if found['moved'] == 1 else 's'} moved."
    if undo:
        text = f"Node {found['name']} takes new sessions again."
    elif left:
        reasons = "".join(f"\n  {name}: {printable(why, lines=False)}" for name, why in left.items())
        text = f"Node {found['name']} takes no new sessions. {moved} It still has {len(left)}:{reasons}"
    else:
        text = f"Node {found['name']} takes no new sessions, and has none. {moved}"
    data = {"node": found["name"], "draining": not undo, "moved": found["moved"], "sessions": [*left], "left": left}
    return finish(data, text, as_json, OK if undo or not left else FAILED)


@app.command()
def stop(address: _Address = None, as_json: Json = False) -> int:
    """End all sessions and their hosts, and the Ray cluster if 'start' started it."""
    from cellblock.cluster import local
    from cellblock.cluster.opening import open_director

    chosen, own = _chosen(address), local.running_address()
    with Progress("ending the sessions"):
        try:
            open_director(chosen).stop()
        except DaemonError:  # its nodes were ended by other means; the process that started them still runs
            if chosen != own:
                raise
        if chosen == own:
            local.stop_nodes()
    done = "The sessions have ended." if chosen != own else "The cluster has ended."
    return finish({"stopped": True}, done, as_json)


def _chosen(address: str | None) -> str:
    from cellblock.cluster import local

    if found := address or settings.current().ray_address or local.running_address():
        return found
    raise InvalidInputError("name a Ray cluster with --address ADDRESS, or start one: cellblock cluster start")
