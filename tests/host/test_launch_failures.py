"""A kernel that cannot be started says at which step it failed, the likely cause and a way out: real limits, real masks."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import cellblock

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="namespaces")

# Settings of a user namespace apply to what is made below it. Its mounts are locked in there, as a container's are.
LIMIT = "echo {most} > /proc/sys/user/{name}"
MASK_PROC = "mount --bind /dev/null /proc/loadavg"
FEW_FILES = "ulimit -n {most}"
FAULTS = {
    "no user namespace": LIMIT.format(name="max_user_namespaces", most=0),
    "no network namespace": LIMIT.format(name="max_net_namespaces", most=0),
    "no second group namespace": LIMIT.format(name="max_cgroup_namespaces", most=1),
    "masked /proc": MASK_PROC,
    "20 files": FEW_FILES.format(most=20),
    "48 files": FEW_FILES.format(most=48),
}
PROGRAM = """
    import asyncio, json, sys
    from cellblock import Host, LaunchError, Policy

    async def main():
        policy = Policy(weaker_proc="weaker" in sys.argv)
        hooks = {"on_command": lambda _: None, "forbid_programs": True} if "forbid" in sys.argv else {}
        try:
            async with Host(isolate=sys.argv[1], launch=sys.argv[2], policy=policy) as host:
                async with host.session(working_dir=sys.argv[3], **hooks) as session:
                    result = await session.execute(sys.stdin.read() or "42")
                    return {"result": result.return_value or result.text}
        except LaunchError as error:
            return {"kind": type(error).__name__, "step": error.step, "message": str(error)}

    print(json.dumps(asyncio.run(main())))
"""


async def outcome(fault: str, workspace: Path, *options: str, isolate: str = "native", code: str = "") -> dict[str, str]:
    """Try to start a session where something is not allowed, in a program of its own; return what came of it."""
    launch = options[0] if options else "zygote"
    program = [sys.executable, "-c", textwrap.dedent(PROGRAM), isolate, launch, str(workspace), *options[1:]]
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", f'{FAULTS[fault]} && exec "$@"', "sh", *program]
    done = await asyncio.to_thread(subprocess.run, command, input=code, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    told: dict[str, str] = json.loads(done.stdout)
    return told


def _slow(*values: str) -> object:
    """What `make test` leaves out: another limit that is told like the rest."""
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("fault", "step", "cause", "way"),
    [
        ("no user namespace", "user namespace", "user.max_user_namespaces is 0", "sysctl -w user.max_user_namespaces"),
        _slow("no network namespace", "process", "user.max_net_namespaces is 0", "sysctl -w user.max_net_namespaces"),
        _slow("no second group namespace", "identity", "as many namespaces as", "sysctl -w"),
        _slow("masked /proc", "proc", "masks parts of /proc (/proc/loadavg)", "enableWeakerNestedSandbox"),
        # Which step meets the limit first differs from run to run.
        _slow("20 files", "shared mounts|process", "a limit of 20 open files", "nofile="),
        _slow("48 files", "worker|process", "a limit of 48 open files", "nofile="),
    ],
)
async def test_what_failed_is_told_with_its_cause_and_a_way_out(
    tmp_path: Path, fault: str, step: str, cause: str, way: str
) -> None:
    told = await outcome(fault, tmp_path)
    assert told["step"] in step.split("|"), told
    assert cause in told["message"]
    assert "Invalid argument" not in told["message"]
    assert way in told["message"]
    assert told["message"].endswith("'cellblock doctor' says more")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "step"),
    [
        ("no network namespace", "process"),
        ("masked /proc", "proc"),
        ("20 files", "shared mounts|process"),
        ("48 files", "worker|process"),
    ],
)
async def test_a_session_without_a_zygote_tells_the_same(tmp_path: Path, fault: str, step: str) -> None:
    told = await outcome(fault, tmp_path, "spawn")
    assert told["step"] in step.split("|"), told
    assert "'cellblock doctor' says more" in told["message"]


@pytest.mark.slow
async def test_without_a_sandbox_a_limit_is_told_too(tmp_path: Path) -> None:
    told = await outcome("48 files", tmp_path, isolate="none")
    assert (told["kind"], told["step"] in ("worker", "process")) == ("LaunchError", True)
    assert "a limit of 48 open files" in told["message"]


# -- the weaker /proc --------------------------------------------------------------------------------------------------

ATTACKS = """
import json, os, signal

def arguments(name):
    try:
        with open(f"/proc/{name}/cmdline", "rb") as file:
            return file.read().split(bytes(1))
    except OSError:
        return []  # it has ended

host = [int(name) for name in os.listdir("/proc") if name.isdigit() and b"weaker" in arguments(name)]

def attempt(action, *arguments):
    try:
        return repr(action(*arguments))[:20]
    except OSError as error:
        return error.strerror

def write(path):
    with open(path, "w") as file:
        file.write("1")

found = {"seen": bool(host)}
for pid in host[:1]:
    for name in ("environ", "mem", "maps"):
        found[name] = attempt(open, f"/proc/{pid}/{name}")
    found["root"] = attempt(os.listdir, f"/proc/{pid}/root")
    found["fd"] = attempt(os.readlink, f"/proc/{pid}/fd/1")
    found["opened"] = attempt(open, f"/proc/{pid}/fd/1")
    found["net"] = attempt(open, f"/proc/{pid}/net/tcp")[:3]
    found["mounts"] = attempt(open, f"/proc/{pid}/mountinfo")[:3]
    found["oom"] = attempt(write, f"/proc/{pid}/oom_score_adj")
    found["kill"] = attempt(os.kill, pid, signal.SIGTERM)
found["core_pattern"] = attempt(write, "/proc/sys/kernel/core_pattern")
found["kallsyms"] = attempt(open, "/proc/kallsyms")
found["own"] = attempt(os.listdir, "/proc/self/task")
print(json.dumps(found))
"""


@pytest.mark.slow
async def test_the_weaker_proc_is_had_by_name_and_shows_processes_but_gives_no_power(tmp_path: Path) -> None:
    told = await outcome("masked /proc", tmp_path, "zygote", "weaker", code=ATTACKS)
    found = json.loads(told["result"])
    # This is what is weaker: which processes there are, and what of them everybody may read.
    assert found.pop("seen")
    assert (found.pop("net"), found.pop("mounts")) == ("<_i", "<_i")
    assert found.pop("own").startswith("['")
    assert found == {
        **dict.fromkeys(("environ", "mem", "maps", "root", "fd", "opened", "kallsyms"), "Permission denied"),
        **dict.fromkeys(("oom", "core_pattern"), "Read-only file system"),
        "kill": "No such process",
    }


@pytest.mark.slow
async def test_the_weaker_proc_is_not_enough_to_forbid_programs(tmp_path: Path) -> None:
    told = await outcome("masked /proc", tmp_path, "zygote", "weaker", "forbid")
    assert told["kind"] == "SandboxError"
    assert "forbid_programs needs a /proc of the session's own" in told["message"]


@pytest.mark.slow
def test_a_program_whose_cellblock_was_installed_anew_elsewhere_says_so(tmp_path: Path) -> None:
    """Its own files are gone: those that it has not imported yet, and those that it runs in other processes."""
    package = Path(cellblock.__file__).parent
    shutil.copytree(package, tmp_path / "here" / "cellblock", ignore=shutil.ignore_patterns("__pycache__", "console_page"))
    program = """
import asyncio, shutil
from cellblock import Host
async def main():
    async with Host(isolate="none") as host:
        shutil.rmtree(HERE)
        await host.session(preload=["json"]).start()
asyncio.run(main())
"""
    here = str(tmp_path / "here")
    env = os.environ | {"PYTHONPATH": here}
    command = [sys.executable, "-c", program.replace("HERE", repr(here))]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert "cellblock was reinstalled or moved after this program started" in done.stderr, done.stderr
