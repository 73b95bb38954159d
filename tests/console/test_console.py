"""The console in a real browser: its views, what people do in it, and what attackers try."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

import cellblock
from cellblock.model.sessions import SessionRecord
from cellblock.service.store.named import NamedStore
from daemons import own_daemon

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SOURCES = ROOT / "console"
BUILT = ROOT / "src" / "cellblock" / "fronts" / "gateway" / "console_page"
SCENARIOS = [
    "keys_decide",
    "several_at_once",
    "servers_ask",
    "precedents",
    "nothing_hides",
    "cells_run",
    "files_and_checkpoints",
    "lines_of_files",
    "branches",
    "ports",
    "secrets_and_lines",
    "ended_sessions",
    "undone_lines",
    "figures_of_plotly",
    "progress_and_colours",
    "large_output",
    "gateway_killed",
    "logged_in_by_command",
    "every_view",
    "narrow",
]
ATTACKS = ["hostile_outputs", "hints", "worst_inputs", "moved", "framed", "posted", "small_scopes"]


class Player:
    """Plays scenarios in a process of its own: Playwright has a mind about event loops."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def play(self, name: str, directory: Path) -> str:
        """Play a scenario; return what it has printed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([name, str(directory)]) + "\n")
        self._process.stdin.flush()
        printed, failure = json.loads(self._process.stdout.readline())
        assert not failure, f"{printed}{failure}"
        return str(printed)


@contextmanager
def playing() -> Iterator[Player]:
    """Have a gateway and a browser."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", str(HERE / "scenarios.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{HERE.parent}:{HERE}"},
    )
    with process:  # waits for its end, which comes when there is no more to read
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield Player(process)


@pytest.fixture(scope="module")
def player(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Player]:
    """A daemon of its own, a gateway and a browser."""
    with own_daemon(tmp_path_factory.mktemp("daemon")), playing() as made:
        yield made


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", SCENARIOS)
def test_what_people_do(name: str, player: Player, tmp_path: Path) -> None:
    cellblock.wipe()
    player.play(name, tmp_path)


@pytest.mark.parametrize("name", ATTACKS)
def test_what_attackers_try(name: str, player: Player, tmp_path: Path) -> None:
    cellblock.wipe()
    player.play(name, tmp_path)


@pytest.mark.sampled(4)
def test_a_thousand_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELLBLOCK_MAX_SESSIONS", "1000")
    (tmp_path / "state").mkdir(mode=0o700)
    store = NamedStore(tmp_path / "state")
    at = datetime.now(UTC).isoformat()
    for number in range(200, 1000):  # the others have kernels
        store.sessions.add(SessionRecord(hashlib.sha256(b"%d" % number).hexdigest()[:32], f"agent-{number:04}", at, at), {})
    store.close()
    with own_daemon(tmp_path), playing() as player:
        print(player.play("thousands", tmp_path))


def test_a_new_user_reaches_the_first_decision() -> None:
    """By the commands of README.md and docs/starting.md alone, in a clone of what is committed."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / "new_user.py")],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{HERE.parent}:{HERE}"},
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_shipped_is_what_the_sources_build(tmp_path: Path) -> None:
    """`npm ci` has installed what the lock file names: `.ci/install`."""
    subprocess.run(["node", "build.mjs", str(tmp_path)], cwd=SOURCES, check=True, timeout=100)
    subprocess.run([sys.executable, "fetch_plotly.py", str(tmp_path)], cwd=SOURCES, check=True, timeout=100)
    fresh, shipped = ({path.name: uncompressed(path) for path in directory.iterdir()} for directory in (tmp_path, BUILT))
    assert fresh.keys() == shipped.keys()
    assert [name for name in fresh if fresh[name] != shipped[name]] == [], "make console builds it"


def uncompressed(path: Path) -> bytes:
    """Return a file's content, which each release of Node compresses differently."""
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
