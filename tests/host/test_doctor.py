"""`cellblock doctor`: what this machine can do, and what to do about the rest."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from cellblock.host.doctor import _shared
from cellblock.walls.linux import landlock
from cli_runs import run_here


def limited(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command of cellblock, after settings of variables, where no user namespace can be made."""
    without = 'echo 0 > /proc/sys/user/max_user_namespaces && exec env "$@"'
    split = sum("=" in part for part in command)
    command = (*command[:split], sys.executable, "-m", "cellblock", *command[split:])
    limits = ["unshare", "--user", "--map-root-user", "sh", "-c", without, "sh"]
    return subprocess.run([*limits, *command], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_doctor_says_that_kernels_can_be_sandboxed_here() -> None:
    done = run_here("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "native sandbox" in done.stdout
    assert done.stdout.rstrip().endswith("Kernels run in a sandbox here.")


@pytest.mark.slow
def test_doctor_speaks_to_programs() -> None:
    found = json.loads(run_here("doctor", "--json").stdout)
    assert found["ok"] is True
    assert found["sandbox"] is True
    assert found["session"]["ok"]
    assert {step["state"] for step in found["session"]["steps"]} == {"ok"}
    assert {"operating system", "Python", "IPython", "native sandbox"} <= {check["name"] for check in found["checks"]}


@pytest.mark.slow
def test_doctor_says_which_step_fails_and_what_to_do() -> None:
    """The limit is one of the user namespace that it is written in."""
    done = limited("doctor")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "failed       make a user namespace" in done.stdout
    assert "not reached  run a first cell" in done.stdout
    assert "Likely cause: The setting user.max_user_namespaces is 0" in done.stdout
    assert "    sudo sysctl -w user.max_user_namespaces=10000\n" in done.stdout
    last = done.stdout.rstrip().splitlines()[-1]
    assert last.startswith("No kernel starts here with isolate='native'")
    assert last.endswith("export CELLBLOCK_ISOLATE=landlock") == (not landlock.missing())


@pytest.mark.slow
def test_doctor_judges_the_isolation_that_is_chosen_here() -> None:
    done = limited("CELLBLOCK_ISOLATE=landlock", "doctor", "--json")
    found = json.loads(done.stdout)
    states = {check["name"]: (check["ok"], check["needed"]) for check in found["checks"]}
    assert states["native sandbox"] == (False, False)
    assert states["landlock sandbox"] == (landlock.missing() == (), True)
    assert done.returncode == (0 if found["ok"] else 1)
    assert found["sandbox"] == (landlock.missing() == ())


@pytest.mark.skipif(bool(landlock.missing()), reason="; ".join(landlock.missing()))
@pytest.mark.slow
def test_doctor_does_not_propose_what_is_chosen_already() -> None:
    done = limited("CELLBLOCK_ISOLATE=landlock", "doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "This machine cannot run the native sandbox, which has stronger guarantees:" in done.stdout
    assert "MISSING" not in done.stdout
    assert "export CELLBLOCK_ISOLATE=landlock" not in done.stdout
    assert done.stdout.rstrip().endswith("Kernels run in a sandbox here, with isolate='landlock'.")


@pytest.mark.parametrize(
    ("version", "mounted", "root", "undivided"),
    [
        ((6, 18), 0, True, []),
        ((6, 1), 0, True, ["6.14"]),
        ((6, 1), 0, False, []),  # Linux limits the processes of an ordinary user's sessions
        ((5, 13), 0, True, ["5.14", "6.14"]),
        ((5, 10), os.ST_RDONLY, False, ["5.12", "5.14"]),
        ((6, 18), os.ST_RDONLY, False, ["/proc/sys is read-only here"]),
    ],
)
def test_doctor_says_which_limits_of_the_user_one_session_can_use_up(
    version: tuple[int, int], mounted: int, root: bool, undivided: list[str]
) -> None:
    check = _shared(version, mounted, root=root)
    assert check.ok is not bool(undivided)
    assert re.findall(r"\((?:Linux )?([^)]+)\)", check.found) == undivided
    assert check.found.count("inotify") == 1
    assert check.found.endswith("counted: descriptors in messages, epoll watches, open files")
