"""Fixtures that tests share: warm hosts, sessions on them, and a watch for what a test leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import os
import re
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import settings

from cellblock import CodeExecutor, Host, Session
from cellblock.host import distrusted
from cellblock.host.shared import acquire, release
from daemons import own_daemon
from leaks import Watch
from progress import Progress
from suite import LEFT_OUT, SEED, SUMMARY, is_whole, not_sampled, selection, shared, sharing, spread

Launch = Literal["zygote", "spawn"]

TESTS = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that the Makefile gives."""
    parser.addoption("--one-line", action="store_true", help="show progress on one line")
    parser.addoption("--whole", action="store_true", help="run all mutants and all variants of tests, not a sample of the day")


def pytest_configure(config: pytest.Config) -> None:
    """Give this run a temporary directory of its own: another run's files are not what a test left behind.

    And state of its own: no test registers a server, or records a decision, among this user's.
    """
    directory = tempfile.mkdtemp(prefix="cbt-")  # short: addresses of sockets have 107 bytes at most
    config.add_cleanup(lambda: shutil.rmtree(directory, ignore_errors=True))
    os.environ["TMPDIR"] = directory
    tempfile.tempdir = directory  # at once: whoever asks first may have set TMPDIR for a daemon
    state = Path(directory) / "state"
    state.mkdir(mode=0o700)  # now, as whatever appears later is what a test left behind
    os.environ["CELLBLOCK_HOME"] = str(state)
    os.environ["CELLBLOCK_CONFIG"] = str(state / "config.toml")  # which is not there, whatever this user has set
    # On a busy machine time says nothing. CI runs these tests several times, with other examples each time, and many more at
    # night; Hypothesis would try the same ones wherever it finds that it runs in CI.
    examples = 200 if config.option.whole else 15
    settings.register_profile("cellblock", parent=settings.get_profile("default"), deadline=None, max_examples=examples)
    settings.load_profile("cellblock")
    _heed_signals()
    selection["slow"] = config.option.markexpr != "quick" and "not slow" not in config.option.markexpr
    gc.disable()  # until everything is collected, which makes a million objects that stay
    if hasattr(config, "workerinput"):
        _collect_elsewhere_first(config)
    os.environ.setdefault(SEED, f"{datetime.now(UTC):%Y-%m-%d}")  # once, and all processes have it
    if not hasattr(config, "workerinput") and config.getoption("--one-line"):
        config.pluginmanager.register(Progress())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what tests have to say about the run."""
    reports = [report for key in ("passed", "failed") for report in terminalreporter.stats.get(key, ())]
    if left_out := terminalreporter.config.stash.get(LEFT_OUT, 0):
        terminalreporter.write_line(f"a sample left out {left_out} tests ({SEED}={os.environ[SEED]}); --whole runs them")
    for text in [value for report in reports for name, value in report.user_properties if name == SUMMARY]:
        terminalreporter.write_line(str(text))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what a process of pytest-xdist says: each collects the same tests."""
    node.config.stash[LEFT_OUT] = node.workeroutput.get("left out", 0)


def _heed_signals() -> None:
    """Heed signals that end a program, as programs of the tests do: started in the background or by nohup, none would."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def _collect_elsewhere_first(config: pytest.Config) -> None:
    """Have each of several processes begin with other tests: what one has compiled, the others only read."""
    if config.args != config.getini("testpaths"):
        return
    places = sorted(str(path) for path in TESTS.iterdir() if path.is_dir() or path.name.startswith("test_"))
    worker = config.workerinput  # type: ignore[attr-defined]  # of pytest-xdist
    start = len(places) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    config.args = places[start:] + places[:start]


_NOT_QUICK = {"slow", "srt", "npm", "clients", "ray"}
# A mark for all tests of a file, none of which is quick then.
_NONE_IS_QUICK = re.compile(r"^pytestmark = .*\bmark\.(slow|npm|clients|ray)\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files in which no test is one that a run is about: to collect all takes each process many seconds."""
    mark = config.option.markexpr.partition(" ")[0]
    if not collection_path.match("test_*.py"):
        return None
    if mark == "quick":
        return True if _NONE_IS_QUICK.search(collection_path.read_text(encoding="utf-8")) else None
    if mark not in _NOT_QUICK:
        return None
    word = "srt" if mark == "srt" else f"mark.{mark}"  # see below
    above = [path for path in collection_path.parents if path.is_relative_to(TESTS) and path != TESTS]
    found = (path for path in (collection_path, *(folder / "conftest.py" for folder in above)) if path.is_file())
    return None if any(word in path.read_text(encoding="utf-8") for path in found) else True


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, obj: object) -> list[pytest.Item] | None:
    """Leave out tests that are not quick, with all their parameters, from a run of what is quick."""
    marks = getattr(obj, "pytestmark", ()) if collector.config.option.markexpr == "quick" and inspect.isfunction(obj) else ()
    return None if _NOT_QUICK.isdisjoint(mark.name for mark in marks) else []


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs srt, by its name, and what is quick."""
    for item in items:
        if item.path.name in ("test_srt.py", "test_spec_srt.py") or any(f"{before}srt" in item.nodeid for before in "[- "):
            item.add_marker(pytest.mark.srt)
        if _NOT_QUICK.isdisjoint(mark.name for mark in item.iter_markers()):
            item.add_marker(pytest.mark.quick)


@pytest.hookimpl(trylast=True, specname="pytest_collection_modifyitems")
def pytest_sample_items(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose a sample of what pytest has selected by marks, and have all processes agree on the order."""
    if not is_whole(config):
        left_out = not_sampled(items, os.environ[SEED])
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
        config.stash[LEFT_OUT] = len(left_out)
        if hasattr(config, "workeroutput"):  # of pytest-xdist
            config.workeroutput["left out"] = len(left_out)
    items[:] = spread(sorted(items, key=lambda item: str(item.path)))


def pytest_collection_finish() -> None:
    """Collect garbage again, but not what pytest keeps."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def empty_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Run the tests in an empty directory: sessions without a workspace of their own have it, and read all files in theirs."""
    with contextlib.chdir(tmp_path_factory.mktemp("current")):
        yield Path.cwd()


@pytest.fixture(scope="session")
async def zygote_host() -> AsyncIterator[Host]:
    """A warm host that forks its kernels."""
    async with sharing(Host(launch="zygote", isolate="none")) as host:
        yield host


@pytest.fixture(scope="session")
async def spawn_host() -> AsyncIterator[Host]:
    """A host that starts an interpreter for each kernel."""
    async with sharing(Host(launch="spawn", isolate="none")) as host:
        yield host


@pytest.fixture(scope="session")
async def native_host() -> AsyncIterator[Host]:
    """A warm host that sandboxes its kernels."""
    async with sharing(Host(isolate="native")) as host:
        yield host


@pytest.fixture(scope="session")
async def landlock_host() -> AsyncIterator[Host]:
    """A warm host whose sessions are kept in by Landlock."""
    async with sharing(Host(isolate="landlock")) as host:
        yield host


@pytest.fixture(scope="session")
def common_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of a daemon for tests of several packages, which begin with `daemons.asking` and end without sessions."""
    yield (directory := tmp_path_factory.mktemp("daemon"))
    with own_daemon(directory):
        pass


@pytest.fixture(autouse=True)
def nothing_distrusted() -> Iterator[None]:
    """Forget the directories that sessions of a test could write. Those of another test may lie below them."""
    before = {*distrusted.places}
    yield
    for place in distrusted.places - before:
        distrusted.places.discard(place)
        (distrusted._records() / distrusted._record_of(place)).unlink(missing_ok=True)


@pytest.fixture(scope="module")
async def shared_host_kept_warm(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[None]:
    """The host that plain executors share, open for the whole module: an example must not wait for a cold start."""
    host = await acquire()
    async with host.session(isolate="native", working_dir=tmp_path_factory.mktemp("work")):
        pass  # its fork server stays
    yield
    release(host)
    await host.close()


@pytest.fixture
async def host(zygote_host: Host) -> Host:
    """A warm host."""
    return zygote_host


@pytest.fixture
async def session(host: Host, tmp_path: Path) -> AsyncIterator[Session]:
    """A fresh session on a warm host."""
    async with host.session(images_dir=tmp_path / "images") as session:
        yield session


@pytest.fixture
async def executor(host: Host, tmp_path: Path) -> AsyncIterator[CodeExecutor]:
    """A fresh executor on a warm host."""
    async with CodeExecutor(host=host, sandbox=False, images_dir=tmp_path / "images") as executor:
        yield executor


@pytest.fixture(scope="session")
async def watch() -> Watch:
    """Watch the loop of all tests, and what they start on it."""
    return Watch(asyncio.get_running_loop())


@pytest.fixture(autouse=True)
def nothing_left_behind(watch: Watch) -> Iterator[None]:
    """Fail a test after which a process, a descriptor or a temporary file is left that was not there before.

    Set up before, and so checked after, whatever else a test asks for.
    """
    with watch.test(shared):
        yield
