"""Sessions that are saved at a URL go on on another machine, one daemon at a time."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import cellblock
from cellblock import BusyError, ConflictError, Host, InvalidInputError, StoreError, UnsupportedError
from cellblock.common.url_folder import folder_at
from cellblock.model import CodeExecutionResult
from cellblock.service.named import lease, remote_saves
from cellblock.service.named.json_options import read_options
from cellblock.service.named.named_sessions import NamedSessions
from cellblock.service.named.remote_saves import folder_name
from cellblock.service.named.session import NamedSession
from cellblock.service.store.named import NamedStore
from daemons import own_daemon, switch_off
from named_sessions import OPTIONS, saved, submit
from processes import eventually
from suite import first_quick

LASTS = 3.0


class Uptime:
    """The clock by which the holders of leases in this process go, which can be put forward."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self._real = lease._always_running

    def __call__(self) -> float:
        return self._real() + self.ahead


@pytest.fixture(autouse=True)
def uptime(monkeypatch: pytest.MonkeyPatch) -> Uptime:
    """Short leases, and the clock of their holders."""
    clock = Uptime()
    monkeypatch.setattr(lease, "_always_running", clock)
    monkeypatch.setattr(lease, "LASTS", LASTS)
    monkeypatch.setattr(lease, "_MARGIN", 0.5)
    monkeypatch.setattr(remote_saves, "BEAT", 0.3)
    monkeypatch.setattr(remote_saves, "_AGAIN", 0.3)
    return clock


@pytest.fixture
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where sessions are saved, for all daemons."""
    return f"file://{tmp_path_factory.mktemp('shared')}/saves"


@pytest.fixture
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where sessions outlive a process: not in their workspace."""
    return tmp_path_factory.mktemp("state") / "state"


@pytest.fixture
async def elsewhere(
    zygote_host: Host, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[NamedSessions]:
    """The named sessions of another machine."""
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    sessions = NamedSessions(zygote_host, NamedStore(tmp_path_factory.mktemp("elsewhere") / "state"))
    yield sessions
    await sessions.close()


def options(url: str, **more: Any) -> dict[str, Any]:
    return {**OPTIONS, "durable": url, "save_every": 0.01, "idle_timeout": 0, **more}


async def run(sessions: NamedSessions, named: NamedSession, code: str) -> CodeExecutionResult:
    return await submit(sessions, named, code).wait()


async def lose(named: NamedSession) -> None:
    """Let it go on as if its machine were cut off: it saves and renews nothing more."""
    durable = named.durable
    assert durable is not None
    remote = durable.remote
    assert remote is not None
    await durable.close()
    durable._removed = True
    await remote._stop_beating()


def let_leases_run_out(url: str) -> None:
    """Make all leases old, by the clock of their store."""
    for path in Path(url.removeprefix("file://")).glob("*/lease-*"):
        os.utime(path, (time.time() - 2 * LASTS,) * 2)


async def test_another_machine_goes_on_from_the_last_save_and_says_what_is_lost(
    sessions: NamedSessions, elsewhere: NamedSessions, url: str
) -> None:
    named = await sessions.create("one", options(url))
    await run(sessions, named, "def f(): return x + 1\nx = 2; open('a', 'w').write('saved'); None")
    await saved(named)
    assert named.durable is not None
    named.durable._next = time.monotonic() + 1000
    await run(sessions, named, "x = 3\ny = 4")
    remote = named.durable.remote
    assert remote is not None
    await eventually(lambda: remote._lease.record.lost == 1)
    await lose(named)
    Path("a").unlink()
    with pytest.raises(BusyError, match="held by") as caught:
        await elsewhere.create("one", options(url))
    assert 0 < caught.value.retry_after <= LASTS
    let_leases_run_out(url)
    again = await elsewhere.create("one", options(url))
    result = await run(elsewhere, again, "x, f(), open('a').read(), 'y' in globals()")
    assert (result.return_value, result.recovery) == ("(2, 3, 'saved', False)", "restored_earlier")
    assert "The session ran on " in result.stderr
    assert "continues from the save of" in result.stderr
    assert "What one later cell changed in memory is lost: `x = 3`." in result.stderr
    assert "It is unknown which cells ran after " in result.stderr
    result = await run(elsewhere, again, "1")
    assert (result.recovery, result.stderr) == (None, "")
    assert [entry.code.partition("\n")[0] for entry in again.session.history()][:1] == ["def f(): return x + 1"]


async def test_the_machine_that_was_cut_off_ends_the_session(
    sessions: NamedSessions, elsewhere: NamedSessions, url: str, uptime: Uptime
) -> None:
    named = await sessions.create("one", options(url))
    await run(sessions, named, "x = 1")
    await saved(named)
    await lose(named)
    let_leases_run_out(url)
    uptime.ahead += LASTS
    again = await elsewhere.create("one", options(url))
    with pytest.raises(ConflictError, match="was taken over by here"):
        await run(sessions, named, "open('never', 'w')")
    assert not Path("never").exists()
    await sessions._look_after_all()
    assert sessions.known("one") is None
    assert any("'one' has ended here: it was taken over by here" in problem for problem in sessions.about()["problems"])
    assert (await run(elsewhere, again, "x")).return_value == "1"  # what is there was not removed


@pytest.mark.slow
async def test_a_session_that_has_ended_leaves_nothing_there(
    sessions: NamedSessions, elsewhere: NamedSessions, url: str
) -> None:
    named = await sessions.create("one", options(url))
    await run(sessions, named, "x = 1")
    await saved(named)
    assert folder_at(f"{url}/one").names() == ["lease-00000001.json", "save-00000001-00000001.cellblock"]
    await sessions.destroy("one")
    assert folder_at(f"{url}/one").names() == []
    again = await elsewhere.create("one", options(url))
    assert (await run(elsewhere, again, "'x' in globals()")).return_value == "False"


@pytest.mark.slow
async def test_a_restarted_session_has_nothing_to_go_on_from(
    sessions: NamedSessions, elsewhere: NamedSessions, url: str
) -> None:
    named = await sessions.create("one", options(url))
    await run(sessions, named, "x = 1")
    await saved(named)
    await sessions.restart("one")
    assert folder_at(f"{url}/one").names() == ["lease-00000001.json"]
    await sessions.end_kernels()
    again = await elsewhere.create("one", options(url))
    result = await run(elsewhere, again, "'x' in globals()")
    assert (result.return_value, result.recovery) == ("False", "restarted")


@pytest.mark.slow
async def test_only_two_saves_are_kept(sessions: NamedSessions, url: str) -> None:
    named = await sessions.create("one", options(url))
    for number in range(5):
        await run(sessions, named, f"x = {number}")
        await saved(named)
    assert len(folder_at(f"{url}/one").names()) == 3


@pytest.mark.slow
async def test_it_goes_there_and_back(sessions: NamedSessions, elsewhere: NamedSessions, url: str, zygote_host: Host) -> None:
    """What a machine has saved itself is older than what another one has saved since."""
    named = await sessions.create("one", options(url))
    await run(sessions, named, "x = 1")
    await saved(named)
    await sessions.save_last()
    await sessions.end_kernels()
    again = await elsewhere.create("one", options(url))
    await run(elsewhere, again, "x = 2")
    await saved(again)
    await elsewhere.end_kernels()
    store = sessions.store
    assert store.directory is not None
    store.writer.flush()
    back = NamedSessions(zygote_host, store)
    result = await run(back, back.find("one"), "x")
    assert (result.return_value, result.recovery) == ("2", "restored")
    assert "The session ran on here, which" in result.stderr
    await back.end_kernels()


@pytest.mark.slow
async def test_a_store_that_fails_is_told_and_costs_nothing(sessions: NamedSessions, url: str, uptime: Uptime) -> None:
    named = await sessions.create("one", options(url))
    await run(sessions, named, "x = 1")
    await saved(named)
    directory = Path(url.removeprefix("file://"))
    moved = directory.with_name("moved")
    directory.rename(moved)
    directory.write_text("no directory")
    await run(sessions, named, "x = 2")
    named.save_if_due()
    await eventually(lambda: bool(sessions.about()["problems"]), 20)
    assert "cannot" in sessions.about()["problems"][0]
    uptime.ahead += LASTS
    with pytest.raises(StoreError):  # who knows whether another machine goes on
        await run(sessions, named, "x = 3")
    directory.unlink()
    moved.rename(directory)
    assert (await run(sessions, named, "x")).return_value == "2"
    await saved(named)
    await eventually(lambda: sessions.about()["problems"] == [], 20)


@pytest.mark.parametrize("name", first_quick(["../../etc/passwd", "save-1.cellblock", "lease-00000001.json"]))
async def test_a_lease_that_names_another_file_is_refused(
    sessions: NamedSessions, elsewhere: NamedSessions, url: str, name: str
) -> None:
    named = await sessions.create("one", options(url))
    await run(sessions, named, "x = 1")
    await saved(named)
    await sessions.end_kernels()
    (path,) = Path(url.removeprefix("file://")).glob("*/lease-*")
    path.write_text(json.dumps({**json.loads(path.read_text()), "save": name}))
    for _ in range(2):  # nor the second time
        with pytest.raises(StoreError, match="is damaged: it names"):
            await elsewhere.create("one", options(url))


@pytest.mark.slow
async def test_a_save_that_is_gone_is_no_reason_to_begin_afresh(
    sessions: NamedSessions, elsewhere: NamedSessions, url: str
) -> None:
    named = await sessions.create("one", options(url))
    await run(sessions, named, "x = 1")
    await saved(named)
    await sessions.end_kernels()
    (save,) = Path(url.removeprefix("file://")).glob("*/save-*")
    save.rename(save.with_name("kept"))
    for _ in range(2):
        with pytest.raises(StoreError, match="cannot be read"):
            await elsewhere.create("one", options(url))
    save.with_name("kept").rename(save)
    again = await elsewhere.create("one", options(url))
    assert (await run(elsewhere, again, "x")).return_value == "1"


async def test_a_name_with_dots_stays_in_the_folder(sessions: NamedSessions, url: str) -> None:
    await sessions.create("a/../b".replace("/", " "), options(url))
    assert os.listdir(url.removeprefix("file://")) == ["a=20=2e=2e=20b"]


def test_a_name_cannot_lead_elsewhere() -> None:
    assert folder_name("..") == "=2e=2e"
    assert folder_name("a b") == "a=20b"
    assert folder_name("ä") == "=c3=a4"
    assert len(folder_name("ä" * 128)) < 255
    assert folder_name("ä" * 128) != folder_name("ä" * 127 + "ö")


async def test_a_package_that_is_missing_is_told_before_anything_begins(sessions: NamedSessions) -> None:
    with pytest.raises((UnsupportedError, InvalidInputError), match="nosuchscheme"):
        await sessions.create("one", options("nosuchscheme://a"))
    assert not len(sessions)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"durable": "often"}, "a URL, not 'often'"),
        ({"durable": "/a/directory"}, "a URL, not"),
        ({"durable": "sftp://me:secret@host/a"}, "password"),
        ({"durable": "s3://bucket", "save_every": 0}, "save_every must be"),
        ({"durable": True, "save_every": -1}, "save_every must be"),
        ({"save_every": 0}, "save_every must be"),
    ],
)
def test_what_cannot_be_a_place_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidInputError, match=why):
        read_options(given)


@pytest.mark.parametrize(
    ("given", "every"),
    [
        ({"durable": "s3://bucket"}, 30.0),
        ({"durable": "s3://b", "save_every": 5}, 5.0),
        ({"durable": True, "save_every": 5}, 5.0),
    ],
)
def test_how_often_it_is_saved(given: dict[str, Any], every: float) -> None:
    assert read_options(given).named.saved_every == every


# -- real daemons --------------------------------------------------------------------------------------------------------


@pytest.fixture
def homes(tmp_path: Path) -> tuple[Path, Path]:
    """The directories of two machines."""
    made = tmp_path / "one", tmp_path / "two"
    for one in made:
        one.mkdir()
    return made


@pytest.mark.slow
def test_a_session_outlives_its_machine_and_all_that_it_had(homes: tuple[Path, Path], url: str) -> None:
    one, two = homes
    with own_daemon(one) as home:
        cellblock.get_or_create("s", durable=url, save_every=0.1, idle_timeout=0)
        cellblock.execute("s", "x = 1; open('a', 'w').write('1'); None")
        deadline = time.monotonic() + 20
        while '"save": "save-' not in "".join(path.read_text() for path in Path(url[7:]).glob("s/lease-*")):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        switch_off()
        shutil.rmtree(home)
        home.mkdir()
    with own_daemon(two):
        with pytest.raises(BusyError, match="its lease ends in"):
            cellblock.get_or_create("s", durable=url)
        for path in Path(url.removeprefix("file://")).glob("s/lease-*"):
            os.utime(path, (time.time() - 100,) * 2)
        cellblock.get_or_create("s", durable=url)
        result = cellblock.execute("s", "x, open('a').read()")
        assert (result.return_value, result.recovery) == ("(1, '1')", "restored_earlier"), (result.text, result.stderr)
        assert "It is unknown which cells ran after" in result.stderr
        cellblock.wipe()
        assert folder_at(f"{url}/s").names() == []
