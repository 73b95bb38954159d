"""A chain of hosts on one custodian, each killed at another point of a save or a load. A program, for `test_saving_kills`.

Usage: saved_kills.py STATE WORKSPACE ISOLATION FIRST STEP.

Each host is a fork of this process, which continues the session of the host before, with tools and a network as a daemon's
sessions have them. It fails unless history, variables and files are as before or after what that host was doing, the session
reaches its tools, the saved file is complete, and no text is lost that a person has written. Then it runs cells, saves the
session with its files, and loads it. It is killed when it has entered and left calls by which anything
moves FIRST times; the next host STEP times later, and so on, until one is not killed. Prints how many were killed.
"""

from __future__ import annotations

import os
import re
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

from cellblock import Host
from cellblock.common import config
from cellblock.host.options import SessionOptions
from cellblock.host.session import Session
from cellblock.launch.custody.custodian_client import Custodian
from cellblock.service.session.service_options import ServiceOptions, SessionOrigin
from cellblock.service.session.services import open_session
from cellblock.walls.sandbox.policy import Network, Policy
from exact_kills import MOVES
from fuses import NOT_KILLED, Chain, Fuse, note, noted

STEPS = (*MOVES, *((os, name) for name in ("link", "fsync", "mkdir", "rmdir", "copy_file_range")))
"""The calls by which anything moves or becomes durable."""

_CALL = """
import os as _os, socket as _socket
with _socket.create_connection(("127.0.0.1", int(_os.environ["CELLBLOCK_TOOL_PORT"])), 30) as _port:
    _port.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
    print(_port.recv(100))
"""
"""Asks the tool port for a page that it does not have."""

_TEMPORARY = re.compile(r"\.cellblock-[0-9a-f]{16}")


class Script:
    """What one host does, and what it notes for the next one."""

    def __init__(self, session: Session, fuse: Fuse, state: Path, workspace: Path) -> None:
        self.session = session
        self.fuse = fuse
        self.workspace = workspace
        self.saves = state / "saves"
        self.path = self.saves / "s"
        self.notes = str(state / "notes")
        self.allowed: dict[str, Any] = noted(self.notes) or {"values": [0], "saved": [None], "text": ""}

    def allow(self, **allowed: Any) -> None:
        self.allowed |= allowed
        note(self.notes, self.allowed)

    def saved(self) -> int | None:
        """Return the value in the saved file, which must be complete; None if there is none."""
        if not self.path.exists():
            return None
        with zipfile.ZipFile(self.path) as archive:
            assert archive.testzip() is None
            with archive.open("workspace.tar") as stream, tarfile.open(fileobj=stream) as tar:
                return int((tar.extractfile("number") or stream).read())

    async def value(self) -> int:
        """Return the value that history and variables have."""
        cells = [cell for cell in self.session.history() if not cell.abandoned and cell.code.startswith("v = ")]
        value = int((await self.session.execute("globals().get('v', 0)")).return_value or "")
        assert value == (int(cells[-1].code[4:].partition(";")[0]) if cells else 0), (value, cells)
        assert (await self.session.execute("'w' in globals()")).return_value == "False"
        return value

    async def look(self) -> int:
        """Check what the host before has left, and that a cell can run and be undone; return the value."""
        if self.session.cells.resumed is not None:
            async for _ in self.session.cells.resume():
                pass
        value = await self.value()
        assert value in self.allowed["values"], (value, self.allowed)
        assert self.saved() in self.allowed["saved"], (self.saved(), self.allowed)
        others = {path.name for path in self.saves.iterdir()} - {"s"}
        assert all(map(_TEMPORARY.fullmatch, others)), others
        if text := self.allowed["text"]:
            tops = (self.workspace, config.state_directory())
            assert text in {path.read_text() for top in tops for path in top.rglob("text")}, text
        number = self.workspace / "number"
        before = number.read_text() if number.exists() else ""
        assert before == (str(value) if value else ""), (before, value)
        assert "HTTP" in (await self.session.execute(_CALL)).output
        await self.session.execute("w = open('number', 'w').write('w')")
        await self.session.undo()
        assert (number.read_text() if number.exists() else "") == before
        return await self.value()

    async def cell(self, value: int) -> None:
        await self.session.execute(f"v = {value}; open('number', 'w').write('{value}')", tag="t")

    async def act(self, value: int) -> None:
        """Save and load the session, after cells, and after a person has replaced a file."""
        self.allow(values=[value, value + 1])
        await self.cell(value + 1)
        self.allow(values=[value + 1], saved=[*self.allowed["saved"], value + 1])
        await self.session.save(self.path, workspace=True)
        assert os.listdir(self.saves) == ["s"]
        self.allow(saved=[value + 1])
        self.allow(values=[value + 1, value + 2])
        await self.cell(value + 2)
        self.fuse.armed = False
        (self.workspace / "text").write_text(f"text {value}")
        self.allow(text=f"text {value}")
        self.fuse.armed = True
        await self.session.load(self.path, workspace=True)
        self.allow(values=[value + 1])
        assert (self.workspace / "number").read_text() == str(value + 1)
        assert "HTTP" in (await self.session.execute(_CALL)).output


async def run(state: Path, workspace: Path, isolate: str, point: int) -> None:
    """Be one host of the chain; without a point, the last one."""
    custodian = Custodian.connect(str(state))
    host = Host(isolate=isolate, custodian=custodian)  # type: ignore[arg-type]
    remains = await host.adopt()
    network = Policy(network=Network(allow=("example.org",))) if isolate == "native" else None
    options = SessionOptions(working_dir=workspace, images_dir=state / "images", policy=network)
    session, services = open_session(
        host, options, ServiceOptions(), "s", SessionOrigin(label="s", remains=remains[0] if remains else None)
    )
    await session.start()
    fuse = Fuse(point, *STEPS)
    script = Script(session, fuse, state, workspace)
    value = await script.look()
    if not point:
        await host.close()
        await services.close()
        custodian.end()
        return
    script.allow(values=[value], saved=[script.saved()])
    if not script.allowed["text"]:
        (workspace / "text").write_text("the first text")
    fuse.armed = True
    await script.act(value)
    fuse.armed = False
    os._exit(NOT_KILLED)


def main(state: str, workspace: str, isolate: str, first: str, step: str) -> None:
    Path(state, "saves").mkdir(exist_ok=True)
    chain, point = Chain(), int(first)

    def one(point: int) -> bool:
        return chain.run(lambda: run(Path(state), Path(workspace), isolate, point), f"point {point}")

    while one(point):
        point += int(step)
    one(0)
    print(chain.killed)


if __name__ == "__main__":
    main(*sys.argv[1:])
