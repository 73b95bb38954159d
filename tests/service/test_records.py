"""Records equal what clients were told: twenty processes make sessions, decide, register and are killed, all at once.

TEST_SECONDS=60 has them do it for a minute.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import cellblock
from cellblock.fronts.functions.connection import call
from cellblock.operations.approvals import Pending
from cellblock.service.daemon import control
from cellblock.service.store.tokens import Tokens
from cellblock.tools.registry.approvals import Approvals
from cellblock.tools.registry.servers import ServerRegistry
from daemons import own_daemon

pytestmark = pytest.mark.slow

SECONDS = float(os.environ.get("TEST_SECONDS", "8"))

MAKER = """
import sys, time, cellblock
name, number = sys.argv[1], 0
while True:
    made = f"{name}-{number}"
    cellblock.get_or_create(made, approve_shell_cmds=True)
    say("session", made)
    said = cellblock.execute(made, f"!echo {made}", timeout=60).output
    say("ran" if made in said and "Rejected" not in said else "rejected", made)
    if number % 2:
        cellblock.destroy(made)
        say("destroyed", made)
    number += 1
"""
DECIDER = """
import sys, time, cellblock
from cellblock.errors import CellblockError
from cellblock.fronts.functions.connection import call
from cellblock.operations.approvals import Decide, Pending
while True:
    for asked in call(Pending("")):
        try:
            decided = call(Decide([asked["id"]], allow=True, by=sys.argv[1]))
        except CellblockError:
            continue  # the daemon was killed meanwhile
        for _ in decided:
            say("allowed", asked["arguments"]["command"])
    time.sleep(0.02)
"""
REGISTRAR = """
import sys, itertools
from cellblock.service.store.tokens import Tokens
from cellblock.tools.mcp.params import StdioServer
from cellblock.tools.registry.approvals import Approvals
from cellblock.tools.registry.servers import ServerRegistry
for number in itertools.count():
    name = f"{sys.argv[1]}-{number}"
    if number % 3 == 0:
        ServerRegistry().register(name, StdioServer("x"), "")
        say("server", name)
    elif number % 3 == 1:
        say("token", Tokens().create(name)[1].id)
    else:
        with Approvals() as trail:
            trail.last(10)
"""
SAY = """
import os
_told = os.open(TOLD, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
def say(kind, what):
    os.write(_told, f"{kind} {what}\\n".encode())
"""


class Clients:
    """Processes that use everything at once, each of which is killed now and then, and begun again under another name."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._programs = [MAKER] * 8 + [DECIDER] * 4 + [REGISTRAR] * 8
        self._number = 0
        self._running = [self._begin(program) for program in self._programs]
        self.failures = ""

    def _begin(self, program: str) -> tuple[subprocess.Popen[str], Path]:
        self._number += 1
        told = self._directory / f"told-{self._number}"
        source = SAY.replace("TOLD", repr(str(told))) + program
        process = subprocess.Popen(
            [sys.executable, "-c", source, f"p{self._number}"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        return process, told

    def kill(self, place: int) -> bool:
        """Kill one that has told something, and begin another one in its place."""
        process, told = self._running[place]
        if not told.exists() or not told.stat().st_size:
            return False
        self._end(process)
        self._running[place] = self._begin(self._programs[place])
        return True

    def close(self) -> None:
        for process, _ in self._running:
            self._end(process)

    def _end(self, process: subprocess.Popen[str]) -> None:
        ended = process.poll()
        process.kill()
        said = process.communicate()[1]
        if ended is not None:  # it should have gone on
            self.failures += said

    def told(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for path in sorted(self._directory.glob("told-*")):
            for line in path.read_text().splitlines():
                kind, _, what = line.partition(" ")
                found.setdefault(kind, []).append(what)
        return found


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    with own_daemon(tmp_path) as home:
        yield home


@pytest.mark.timeout(300 + 2 * SECONDS)
def test_every_record_equals_what_clients_were_told(home: Path, tmp_path: Path) -> None:
    clients = Clients(tmp_path)
    until, kills = time.monotonic() + SECONDS, 0
    place = 0
    try:
        while time.monotonic() < until or kills < 20 or not {"session", "token", "server"} <= clients.told().keys():
            time.sleep(0.1)
            place = (place + 7) % 20
            kills += clients.kill(place)
    finally:
        clients.close()
    told = clients.told()
    assert clients.failures == ""
    # Whoever was told that a session exists finds it, unless it was ended; a kill may have come between the end and its news.
    there = {record.name for record in cellblock.list_kernels()}
    ended = {*told.get("destroyed", ())}
    half = {name for name in told["session"] if name not in there} - ended
    assert all(int(name.rpartition("-")[2]) % 2 for name in half)
    assert not ended & there
    # Every command that ran was allowed, and is in the record; so is every decision that a client was told of.
    with Approvals() as trail:
        recorded = [json.loads(one.payload)["command"] for one in trail.last(100_000) if one.allowed]
    assert {f"echo {name}" for name in told.get("ran", ())} <= {*recorded}
    assert {*told.get("allowed", ())} <= {*recorded}
    assert len(recorded) == len({*recorded})
    assert {*told["token"]} <= {token.id for token in Tokens().all()}
    assert {*told["server"]} <= {*ServerRegistry().names()}
    assert control.problems() == []
    print({kind: len(what) for kind, what in told.items()}, kills)
    with suppress(Exception):
        call(Pending(""))
