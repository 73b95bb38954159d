"""The host: what it refuses, whom it belongs to, what it leaves behind."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellblock import Host, InvalidInputError, LaunchError, StateError, UnsupportedError
from cells import value
from processes import below, eventually


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"launch": "thread"}, "launch must be 'zygote' or 'spawn'"),
        ({"start_timeout": 0}, "start_timeout must be a positive number"),
        ({"start_timeout": -1}, "start_timeout must be a positive number"),
        ({"start_timeout": float("nan")}, "start_timeout must be a positive number"),
        ({"preload": "numpy"}, "preload must be a sequence of module names"),
        ({"preload": ["not a module"]}, "is not the name of a module"),
    ],
    ids=range(6),
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidInputError, match=complaint):
        Host(**options)


def test_windows_is_told_where_to_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(UnsupportedError, match="WSL 2"):
        Host()


@pytest.mark.parametrize("option", ["images_dir", "spill_dir", "working_dir"])
async def test_a_directory_that_is_a_file_is_refused(host: Host, tmp_path: Path, option: str) -> None:
    file = tmp_path / "file"
    file.touch()
    options: dict[str, Any] = {option: file}
    with pytest.raises(InvalidInputError, match=f"{option}: .*not a directory"):
        host.session(**options)
    options = {option: file / "below"}
    with pytest.raises(InvalidInputError, match=f"{option}: .*not a directory"):
        host.session(**options)


async def test_an_images_dir_that_vanishes_costs_the_image_and_not_the_cell(host: Host, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    async with host.session(images_dir=place / "images") as session:
        place.rmdir()
        place.touch()
        code = "from IPython.display import Image\ndisplay(Image(b'\\x89PNG\\r\\n\\x1a\\n', format='png'))\n1"
        result = await session.execute(code)
        assert result.status == "success"
        assert result.images == []
        assert "an image could not be saved" in result.stderr
        assert result.return_value == "1"


async def test_a_closed_host_says_so_and_closing_twice_is_fine() -> None:
    host = Host(launch="spawn", isolate="none")
    async with host, host.session() as session:
        assert await value(session, "1") == 1
        await host.close()
        with pytest.raises(StateError, match="closed"):
            await session.execute("1")
    await host.close()
    with pytest.raises(StateError, match="the host is closed"):
        host.session()
    with pytest.raises(StateError, match="the host is closed"):
        await host.start()


@pytest.mark.slow
async def test_closing_a_host_ends_its_sessions_and_processes() -> None:
    before = below(os.getpid())
    host = Host()
    sessions = [host.session() for _ in range(3)]
    await asyncio.gather(*(session.start() for session in sessions))
    running = asyncio.create_task(sessions[0].execute("while True: pass"))
    await eventually(lambda: sessions[0].cells.running)
    await host.close()
    assert (await running).status == "interrupted"
    await eventually(lambda: below(os.getpid()) <= before)


class _Unwalked(set[Any]):
    """A set that refuses to be walked over, by any way that takes longer the more is in it."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("somebody walks over all sessions")

    __reversed__ = copy = __or__ = __sub__ = __and__ = __iter__  # type: ignore[assignment]


@pytest.mark.slow
async def test_making_using_and_closing_a_session_walks_over_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Host() as host:
        others = [host.session() for _ in range(2)]
        await asyncio.gather(*(other.start() for other in others))
        with monkeypatch.context() as patch:
            for owner, name in ((host, "_sessions"), (host.kernels, "alive"), (host.kernels, "families")):
                patch.setattr(owner, name, _Unwalked([*getattr(owner, name)]))
            async with host.session() as one:
                assert await value(one, "6 * 7") == 42
            assert len(host._sessions) == len(host.kernels.alive) == 2
        assert [await value(other, "1") for other in others] == [1, 1]


@pytest.mark.slow
async def test_a_host_that_is_closed_while_it_starts_leaves_nothing() -> None:
    before = below(os.getpid())
    host = Host()
    starting = asyncio.create_task(host.start())
    await eventually(lambda: host.kernels.launchers.in_use)
    await host.close()
    with pytest.raises((LaunchError, StateError), match="closed"):
        await asyncio.wait_for(starting, 30)
    with pytest.raises(StateError, match="closed"):
        await host.start()
    await eventually(lambda: below(os.getpid()) <= before)


@pytest.mark.slow
def test_a_host_belongs_to_its_event_loop() -> None:
    host = Host()

    async def use() -> None:
        async with host.session() as session:
            assert await value(session, "1") == 1

    async def use_elsewhere() -> None:
        with pytest.raises(StateError, match="another event loop"):
            host.session()

    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(use())
        asyncio.run(use_elsewhere())
        loop.run_until_complete(host.close())
    finally:
        loop.close()


IN_A_FORK = """
import asyncio, os, sys
from cellblock import Host, StateError

async def main():
    async with Host() as host, host.session() as session:
        await session.execute("x = 1")
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                await session.execute("x")
            except StateError as error:
                code = 42 if "after a fork, make a new one" in str(error) else 2
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 42
        assert (await session.execute("x")).return_value == "1"

asyncio.run(main())
"""


@pytest.mark.slow
def test_a_host_does_not_work_in_a_fork_of_its_process_and_goes_on_in_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", IN_A_FORK], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


ALIVE = """
import asyncio
from cellblock import Host
COUNT = {count}

async def main():
    async with Host() as host:
        sessions = [host.session(recovery="none") for _ in range(COUNT)]
        for start in range(0, COUNT, 50):
            await asyncio.gather(*(session.start() for session in sessions[start : start + 50]))
        for number, session in enumerate(sessions):
            assert (await session.execute(f"mine = {{number}}")).status == "success"
        for number, session in enumerate(sessions):
            result = await session.execute("mine")
            assert result.return_value == str(number)
        print("answered")

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_hundreds_of_kernels_live_in_one_host_and_each_answers() -> None:
    """With more descriptors than 1,024. The bench has a thousand kernels."""
    available = next(int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines() if "MemAvailable" in line)
    count = min(300, available // 1024 // 16)
    if count < 100:
        pytest.skip("too little memory")
    before = below(os.getpid())
    done = subprocess.run(
        [sys.executable, "-c", ALIVE.format(count=count)], capture_output=True, text=True, timeout=230, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("answered")
    assert below(os.getpid()) <= before
