"""The suite that every way to run a kernel must pass: each test gets a fresh session of each of them.

To add a way to launch, or a kind of isolation, add a parameter to `WAYS`; no test here may know which one it runs in.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest

from cellblock import Host, Session
from cellblock.walls.sandbox.policy import Filesystem, Policy
from suite import without_slow

NOT_UNDER_NATIVE = {
    # The sandbox's own mount lies there.
    "test_a_working_dir_that_is_removed_is_told",
    # It is process 1 of its namespace, and takes no such signal from inside.
    "test_a_death_names_its_cause_and_the_session_goes_on[kill of its parent]",
}
"""What the native sandbox makes different, and why."""

NOT_UNDER_SRT = {
    # As above.
    "test_a_working_dir_that_is_removed_is_told",
    # There is a TMPDIR; tests/test_spec_srt.py says which variables there are.
    "test_a_kernel_sees_nothing_of_the_hosts_environment",
    # It talks through a local socket, which srt does not let it make.
    "test_multiprocessing_children_are_heard[forkserver]",
}
"""What srt makes different, and why."""


ALIKE_UNDER_SRT = {
    "test_bad_input.py",  # what the host refuses
    "test_input.py",  # what the worker does, which is the same one
    "test_language.py",
    "test_output.py",
}
"""What has nothing to do with srt, of which each sandbox takes a second to start."""


ALIKE_WHEN_SPAWNED = {
    "test_bad_input.py",  # what the host refuses
    "test_bounds.py",  # what the host keeps
    "test_input.py",
    "test_language.py",  # what a fork has and a fresh interpreter has not would show in the others
    "test_output.py",
}
"""What has nothing to do with how a kernel is begun, of which a spawned one takes a second to start."""


NOT_UNDER_LANDLOCK = {
    # No signal of its own gets to its parent.
    "test_a_death_names_its_cause_and_the_session_goes_on[kill of its parent]",
    # There is a TMPDIR.
    "test_a_kernel_sees_nothing_of_the_hosts_environment",
    # Locks of multiprocessing lie in /dev/shm, which is every program's; forkserver talks through a local socket.
    *(f"test_multiprocessing_children_are_heard[{method}]" for method in ("fork", "spawn", "forkserver")),
}
"""What Landlock makes different, and why."""


def pytest_configure(config: pytest.Config) -> None:
    """Say what the markers of this suite mean."""
    config.addinivalue_line("markers", "stress: looks for races of worker and host, which are the same in every way to launch")
    config.addinivalue_line("markers", "launcher: about how kernels begin and end, which is what launchers differ in")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what cannot be so in a sandbox, and what takes minutes and can find nothing else in any way but the first."""
    items[:] = [item for item in items if not _differs(item)]


def _differs(item: pytest.Item) -> bool:
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return False
    way = item.callspec.params.get("way")
    if not isinstance(way, Way):
        return False
    if item.get_closest_marker("stress") and way != Way("zygote"):
        return True
    if way.isolate == "srt" and item.path.name in ALIKE_UNDER_SRT:
        return True
    if way.launch == "spawn" and item.path.name in ALIKE_WHEN_SPAWNED:
        return True
    # What runs is the same worker, in the same sandbox, and the whole suite has been run on either by itself. Both together
    # differ in how a kernel is begun and ended; and a kernel takes a second to start.
    if way.launch == "spawn" and way.isolate != "none" and not item.get_closest_marker("launcher"):
        return True
    different = {"native": NOT_UNDER_NATIVE, "landlock": NOT_UNDER_LANDLOCK, "srt": NOT_UNDER_SRT}.get(way.isolate, set())
    parameters = item.callspec.id.removeprefix(way.name).removeprefix("-")
    return bool({item.originalname, f"{item.originalname}[{parameters}]"} & different)


class Way(NamedTuple):
    """A way to run kernels."""

    launch: str
    isolate: str = "none"

    @property
    def name(self) -> str:
        """What it is called in the names of tests."""
        if self.isolate == "none":
            return self.launch
        return self.isolate if self.launch == "zygote" else f"{self.launch}-{self.isolate}"


# A spawned kernel takes a second to start, and so does srt, so that these tests run with the slow ones.
WAYS = [
    pytest.param(way, id=way.name, marks=() if way == Way("zygote") else pytest.mark.slow)
    for way in (
        Way("zygote"),
        Way("spawn"),
        Way("zygote", "srt"),
        Way("zygote", "native"),
        Way("zygote", "landlock"),
        Way("spawn", "srt"),
        Way("spawn", "native"),
        Way("spawn", "landlock"),
    )
]


@pytest.fixture(params=without_slow(WAYS))
def way(request: pytest.FixtureRequest) -> Way:
    """The way in which this test's kernels run."""
    way: Way = request.param
    return way


@pytest.fixture(scope="session")
def confined_workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that all tests under srt run in, because it makes a sandbox for each."""
    return tmp_path_factory.mktemp("confined")


@pytest.fixture(scope="session")
def confined_policy(confined_workspace: Path) -> Policy:
    """What sandboxed kernels may do here: write wherever tests do."""
    return Policy(Filesystem(write=(".", str(confined_workspace.parent)), deny_read=(), deny_write=()))


@pytest.fixture(scope="session")
async def srt_host(confined_workspace: Path, confined_policy: Policy) -> AsyncIterator[Host]:
    """A host whose sandbox of srt is warm, and which closes others as soon as nobody uses them."""
    async with (
        Host(isolate="srt", policy=confined_policy) as host,
        host.session(working_dir=confined_workspace, recovery="none"),
    ):
        host.kernels.launchers.idle_sandboxes = 0
        yield host


def _confined_host(isolate: str, launch: str = "zygote") -> Any:
    """Return a fixture: a host whose kernels run in this way, with `confined_policy`."""

    @pytest.fixture(scope="session")
    async def confined_host(confined_policy: Policy) -> AsyncIterator[Host]:
        async with Host(launch=launch, isolate=isolate, policy=confined_policy) as host:  # type: ignore[arg-type]  # of `WAYS`
            yield host

    return confined_host


native_host, landlock_host = _confined_host("native"), _confined_host("landlock")
spawn_native_host, spawn_landlock_host = _confined_host("native", "spawn"), _confined_host("landlock", "spawn")
spawn_srt_host = _confined_host("srt", "spawn")


@pytest.fixture
def host(way: Way, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A warm host that runs kernels in this way."""
    if way.isolate != "none":
        monkeypatch.chdir(request.getfixturevalue("confined_workspace"))
    host: Host = request.getfixturevalue(f"{way.name.replace('-', '_')}_host")
    return host


@pytest.fixture(autouse=True)
def nothing_left_behind(host: Host, nothing_left_behind: None) -> None:
    """As everywhere, but for what the host needs to be warm."""


@pytest.fixture
async def session(way: Way, host: Host, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Session]:
    """A fresh session, run in this way.

    In quick tests it makes no copies for undo, which take half of the time. In all others it does.
    """
    quick = way == Way("zygote") and request.node.get_closest_marker("slow") is None
    recovery: Literal["none", "exact"] = "none" if quick else "exact"
    async with host.session(images_dir=tmp_path / "images", recovery=recovery) as session:
        yield session
