"""The benchmark of sandboxes: it runs, it can fail, and its programs run anywhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from suite import first_quick

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))

from bench.escape import report  # noqa: E402
from bench.escape.attacks import PARTS  # noqa: E402
from bench.escape.run import RESULTS, judge, measure  # noqa: E402
from bench.escape.sandboxes import NOTHING, SANDBOXES, AbsentError, Sandbox  # noqa: E402
from bench.escape.suite import ATTACKS, program  # noqa: E402
from bench.escape.world import World  # noqa: E402

NATIVE = next(sandbox for sandbox in SANDBOXES if sandbox.name == "cellblock, native")
TWO = [ATTACKS["read_home"], ATTACKS["create_beside"]]
DOCUMENT = ROOT / "docs" / "escape-benchmark.md"


@pytest.mark.slow
def test_cellblock_holds_two_attacks_that_succeed_without_a_sandbox() -> None:
    results = measure([NOTHING, NATIVE], TWO)
    assert {name: {found["verdict"] for found in ends.values()} for name, ends in results.items()} == {
        "no sandbox": {"escaped"},
        "cellblock, native": {"held"},
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", first_quick(["read_home", "proxy_nul", "send_signal", "outlive"]))
def test_an_open_sandbox_is_reported_as_escaped(name: str) -> None:
    """One attack of each kind of proof: a secret, a secret behind a proxy, a mark, and a process that goes on."""
    assert judge(NOTHING, ATTACKS[name])["verdict"] == "escaped"


class Liar(Sandbox):
    """A sandbox whose programs say that they escaped."""

    def command(self, *_: object) -> list[str]:
        return ["echo", '{"escaped": true, "evidence": "canary:home:0"}']


class Broken(Sandbox):
    """A sandbox that does not start."""

    def command(self, *_: object) -> list[str]:
        return ["false"]


def test_what_a_program_says_is_no_proof_where_the_host_can_look() -> None:
    assert judge(Liar("liar", ""), ATTACKS["read_home"])["verdict"] == "held"


def test_a_sandbox_that_does_not_start_is_not_said_to_hold() -> None:
    assert judge(Broken("broken", ""), ATTACKS["read_home"])["verdict"] == "no verdict"


def test_a_sandbox_that_is_not_present_is_a_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for sandbox in SANDBOXES:
        if sandbox.name in ("sandbox-runtime", "bubblewrap", "Docker"):
            with pytest.raises(AbsentError, match="in PATH"):
                sandbox.version()


@pytest.mark.slow
def test_programs_need_nothing_but_their_own_text(tmp_path: Path) -> None:
    with World() as world:
        for attack in ATTACKS.values():
            (tmp_path / f"{attack.name}.py").write_text(program(attack, world.given))
            assert not [secret for secret in world.secrets.values() if secret in program(attack, world.given)]
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_document_shows_the_results() -> None:
    kept: dict[str, Any] = json.loads(RESULTS.read_text())
    assert report.tables(kept, PARTS) in DOCUMENT.read_text()
    assert all({*results} == {*ATTACKS} for user in kept.values() for results in user["results"].values())
