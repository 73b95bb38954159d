"""A session over its memory, by whichever of the two ways this machine has; and what a control group adds where it has one."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cellblock import Filesystem, Host, LaunchError, SandboxError, Session
from cellblock.host import doctor
from cellblock.host.kernels import memory
from cellblock.host.trial import Trial
from cellblock.walls.sandbox import cgroups
from cellblock.walls.sandbox.policy import MIB, Policy, Resources
from cells import ok, value
from processes import below, command_line, eventually, parents

POLICY = Policy(resources=Resources(memory=256 * MIB, processes=64))

TOGETHER = """
import os, time
for _ in range(4):
    if os.fork() == 0:
        mine = b'x' * (100 << 20)
        time.sleep(60)
time.sleep(60)
"""
SHARED = """
import mmap, time
area = mmap.mmap(-1, 400 << 20)
for place in range(0, len(area), 4096):
    area[place] = 1
time.sleep(60)
"""


@pytest.fixture(params=["zygote", "spawn"])
async def small(request: pytest.FixtureRequest) -> AsyncIterator[Host]:
    async with Host(isolate="native", policy=POLICY, launch=request.param) as host:
        yield host


@pytest.mark.slow
@pytest.mark.parametrize("code", [TOGETHER, SHARED])
async def test_a_session_over_its_memory_is_the_only_one_that_dies(small: Host, tmp_path: Path, code: str) -> None:
    async with (
        small.session(working_dir=tmp_path, images_dir=tmp_path) as greedy,
        small.session(working_dir=tmp_path, images_dir=tmp_path) as other,
    ):
        await ok(other, "kept = 7")
        result = await greedy.execute(code, timeout=60)
        assert result.status == "died"
        assert result.error is not None
        assert "out of memory" in result.error.evalue
        assert "may use 256 MiB" in result.error.evalue
        assert await value(greedy, "1 + 1") == 2
        assert await value(other, "kept") == 7


@pytest.mark.slow
async def test_each_kernel_has_a_group_where_there_can_be_one(small: Host, tmp_path: Path) -> None:
    place = cgroups.find().directory
    async with (
        small.session(working_dir=tmp_path, images_dir=tmp_path) as one,
        small.session(working_dir=tmp_path, images_dir=tmp_path) as two,
    ):
        groups = [_group(session) for session in (one, two)]
        seen = [await value(session, "open('/proc/self/cgroup').read().splitlines()[-1]") for session in (one, two)]
        assert seen == ["0::/", "0::/"]
        if place is None:
            assert groups == [None, None]
            return
        paths = [Path(group.path) for group in groups if group is not None]
        assert len({*paths}) == 2
        for path in paths:
            assert path.is_relative_to(place)
            assert (path / "memory.max").read_text() == f"{256 * MIB}\n"
            assert (path / "memory.oom.group").read_text() == "1\n"
            assert len((path / "cgroup.procs").read_text().split()) == 2  # init and worker
    assert not any(path.exists() for path in paths)
    await small.close()
    assert not paths[0].parent.exists()


@pytest.fixture
def impossible(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine that says that groups can be made in a directory, which is none of cgroup v2's."""
    place = tmp_path / "groups"
    place.mkdir()
    (place / "cgroup.controllers").write_text("memory\n")
    (place / "cgroup.subtree_control").write_text("memory\n")
    monkeypatch.setattr(cgroups, "find", lambda: cgroups.Availability(str(place)))
    monkeypatch.setattr(cgroups, "_enable", lambda _directory: None)
    return place


@pytest.mark.slow
async def test_a_kernel_that_cannot_be_made_in_its_group_is_not_made(
    impossible: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellblock.host.kernels.kernel._GRACE", 0.05)
    async with Host(isolate="native", launch="zygote") as host:
        session = host.session(working_dir=tmp_path / "groups", images_dir=tmp_path)
        with pytest.raises(LaunchError, match=r"failed to start a process .*clone: "):
            await session.start()
        await session.close()


@pytest.mark.slow
async def test_a_group_that_cannot_be_made_is_an_error_that_says_so(impossible: Path, tmp_path: Path) -> None:
    impossible.joinpath("cgroup.procs").touch()
    async with Host(isolate="native", launch="zygote") as host:
        await host.start()
        for path in impossible.glob("cellblock-*"):
            for below in path.iterdir():
                below.rmdir()
            path.rmdir()
            path.touch()  # nothing can be made below a file
        session = host.session(working_dir=tmp_path, images_dir=tmp_path)
        with pytest.raises(SandboxError, match="no control group can be made"):
            await session.start()
        await session.close()
        for path in impossible.glob("cellblock-*"):
            path.unlink()


@pytest.mark.slow
async def test_a_kill_by_the_group_is_told_as_one(tmp_path: Path) -> None:
    """What happens first is that the worker or init is gone, and that alone tells nothing."""
    group = tmp_path / "group"
    group.mkdir()
    (group / "memory.events").write_text("oom 1\noom_kill 3\n")
    async with (
        Host(isolate="native", policy=POLICY, launch="zygote") as host,
        host.session(working_dir=tmp_path, images_dir=tmp_path) as session,
    ):
        kernel = session._kernels.current
        assert kernel is not None
        kernel.memory._group = cgroups.Group(str(group))
        result = await session.execute("import os; os.kill(os.getpid(), 9)")
        assert result.error is not None
        assert "out of memory: the session may use 256 MiB" in result.error.evalue
        (group / "cgroup.kill").unlink(missing_ok=True)
        (group / "memory.events").unlink()


def test_doctor_tells_which_way_memory_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "find", lambda: cgroups.Availability("/sys/fs/cgroup/mine"))
    (check,) = [check for check in doctor.examine(Trial(0.1)) if check.name == "memory"]
    assert check.ok
    assert "cgroup v2, one group for each kernel in /sys/fs/cgroup/mine" in check.found
    monkeypatch.setattr(cgroups, "find", lambda: cgroups.Availability(None, "there is none", "make one"))
    (check,) = [check for check in doctor.examine(Trial(0.1)) if check.name == "memory"]
    assert (check.ok, check.needed) == (False, False)
    assert "RLIMIT_DATA" in check.found
    assert check.remedy == "there is none. To use cgroup v2 instead: make one"


def _group(session: Session) -> cgroups.Group | None:
    assert session._kernels.current is not None
    return session._kernels.current._ends.group


@pytest.mark.slow
async def test_a_session_whose_memory_cannot_be_measured_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code might have found a way to keep its init busy, and would have no limit then."""
    monkeypatch.setattr(memory, "_BUSY", 0.05)
    monkeypatch.setattr(memory, "_PATIENCE", 0.5)
    async with (
        Host(isolate="native", policy=POLICY) as host,
        host.session(working_dir=tmp_path, images_dir=tmp_path) as session,
    ):
        if _group(session) is not None:
            pytest.skip("the machine itself limits its memory")
        mark = f"{os.getpid()}.5"
        await ok(session, f"import subprocess; child = subprocess.Popen(['sleep', '{mark}'])")
        await eventually(lambda: _marked(mark))
        await eventually(session.checkpoints)  # the next cell would wait for it, and the kernel would end before that cell
        table = parents()
        os.kill(table[table[_marked(mark)[0]]], signal.SIGSTOP)
        result = await session.execute("while True: pass", timeout=10)
        assert result.status == "died"
        assert result.error is not None
        assert "could not be measured" in result.error.evalue
        assert await value(session, "1 + 1") == 2


def _marked(mark: str) -> list[int]:
    """Return the processes below this one that have a mark in their command line."""
    return [pid for pid in below(os.getpid()) if mark in command_line(pid)]


@pytest.mark.slow
async def test_a_session_that_may_read_everything_is_measured_too(tmp_path: Path) -> None:
    """Its home directory lies elsewhere: in /tmp, as there is a /home that it sees."""
    async with (
        Host(isolate="native", policy=Policy(Filesystem(read=("/",)))) as host,
        host.session(working_dir=tmp_path, images_dir=tmp_path) as session,
    ):
        await ok(session, "kept = 7")
        kernel = session._kernels.current
        assert kernel is not None
        measured: list[int] = []
        kernel.measured = lambda used, _copies, _excess: measured.append(used)  # type: ignore[method-assign,assignment]
        kernel.control.measure(0)
        await eventually(lambda: measured)
        assert measured[0] > MIB
        assert await value(session, "kept") == 7


STRAYS = """
import os, time
if not os.fork():
    os.setsid()
    if os.fork():
        os._exit(0)
    for _ in range(2):
        if not os.fork():
            break
    mine = b'x' * (110 << 20)
    time.sleep(60)
    os._exit(0)
os.wait()
time.sleep(60)
"""


@pytest.mark.slow
async def test_what_is_no_kernels_counts_for_each_that_shares_an_init(tmp_path: Path) -> None:
    """Without a control group, what has left its kernel's session and parent could use memory without limit."""
    async with (
        Host(isolate="native", policy=POLICY) as host,
        host.session(working_dir=tmp_path, images_dir=tmp_path) as session,
    ):
        await ok(session, "kept = 7")
        async with (await session.fork(1))[0] as branch:
            result = await session.execute(STRAYS, timeout=10)
            assert result.status == "died"
            await ok(branch, "kept")


async def test_pages_that_copies_share_count_once(native_host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if cgroups.find().directory is not None:
        pytest.skip("the control group counts")
    monkeypatch.setattr(memory, "_IDLE", 0.3)
    monkeypatch.setattr(memory, "_SHARE_AGE", 0.1)
    async with native_host.session(working_dir=tmp_path) as session:
        await ok(session, "area = b'x' * (100 << 20)")
        for _ in range(3):  # the copy after each of these has the area, too
            await ok(session, "1")
        await eventually(lambda: 100 * MIB < session.memory < 190 * MIB)
