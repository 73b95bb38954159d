"""The suite that every way to run a kernel must pass: each test gets a fresh session of each of them.

To add a way to launch, or a kind of isolation, add a parameter to `WAYS`; no test here may know which one it runs in.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from cellblock import Host, Session
from cellblock.sandbox.policy import Filesystem, Policy

NOT_UNDER_NATIVE = {
    # The sandbox's own mount lies there.
    "test_a_working_dir_that_is_removed_is_told",
    # It is process 1 of its namespace, and takes no such signal from inside.
    "test_a_death_names_its_cause_and_the_session_goes_on[native-kill of its parent]",
}
"""What the native sandbox makes different, and why."""

NOT_UNDER_SRT = {
    # As above.
    "test_a_working_dir_that_is_removed_is_told",
    # There is a TMPDIR; tests/test_spec_srt.py says which variables there are.
    "test_a_kernel_sees_nothing_of_the_hosts_environment",
    # It talks through a local socket, which srt does not let it make.
    "test_multiprocessing_children_are_heard[srt-forkserver]",
}
"""What srt makes different, and why."""


def pytest_configure(config: pytest.Config) -> None:
    """Say what the marker of this suite means."""
    config.addinivalue_line("markers", "stress: looks for races of worker and host, which are the same in every way to launch")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what cannot be so in a sandbox, and what takes minutes and can find nothing else in any way but the first."""
    items[:] = [item for item in items if not _differs(item)]


def _differs(item: pytest.Item) -> bool:
    way = item.callspec.params.get("way") if isinstance(item, pytest.Function) and hasattr(item, "callspec") else None
    if not isinstance(way, Way) or not isinstance(item, pytest.Function):
        return False
    if item.get_closest_marker("stress") and way != Way("zygote"):
        return True
    different = {"native": NOT_UNDER_NATIVE, "srt": NOT_UNDER_SRT}.get(way.isolate, set())
    return bool({item.originalname, item.name} & different)


class Way(NamedTuple):
    """A way to run kernels."""

    launch: str
    isolate: str = "none"


# A spawned kernel takes a second to start, and so does srt, so that these tests run with the slow ones.
WAYS = [
    pytest.param(Way("zygote"), id="zygote"),
    pytest.param(Way("spawn"), id="spawn", marks=pytest.mark.slow),
    pytest.param(Way("zygote", "srt"), id="srt", marks=pytest.mark.slow),
    pytest.param(Way("zygote", "native"), id="native", marks=pytest.mark.slow),
]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    """The way in which this test's kernels run."""
    way: Way = request.param
    return way


@pytest.fixture(scope="session")
def confined_workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that all tests under srt run in, because it makes a sandbox for each."""
    return tmp_path_factory.mktemp("confined")


@pytest.fixture(scope="session")
async def srt_host(confined_workspace: Path) -> AsyncIterator[Host]:
    """A host whose sandbox of srt is warm, and which closes others as soon as nobody uses them."""
    everything_of_tests = str(confined_workspace.parent)
    policy = Policy(Filesystem(write=(".", everything_of_tests), deny_read=(), deny_write=()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cellblock.host.host._IDLE_SANDBOXES", 0)
        async with Host(isolate="srt", policy=policy) as host, host.session(working_dir=confined_workspace):
            yield host


@pytest.fixture(scope="session")
async def native_host(confined_workspace: Path) -> AsyncIterator[Host]:
    """A host whose kernels are in native sandboxes."""
    policy = Policy(Filesystem(write=(".", str(confined_workspace.parent)), deny_read=(), deny_write=()))
    async with Host(isolate="native", policy=policy) as host:
        yield host


@pytest.fixture
def host(way: Way, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A warm host that runs kernels in this way."""
    name = f"{way.launch}_host"
    if way.isolate != "none":
        name = f"{way.isolate}_host"
        monkeypatch.chdir(request.getfixturevalue("confined_workspace"))
    host: Host = request.getfixturevalue(name)
    return host


@pytest.fixture(autouse=True)
def nothing_left_behind(host: Host, nothing_left_behind: None) -> None:
    """As everywhere, but for what the host needs to be warm."""


@pytest.fixture
async def session(host: Host, tmp_path: Path) -> AsyncIterator[Session]:
    """A fresh session, run in this way."""
    async with host.session(images_dir=tmp_path / "images") as session:
        yield session
