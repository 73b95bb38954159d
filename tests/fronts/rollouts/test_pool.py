"""Rollouts: admitted in order, made once, with files of their own, recorded, and ended for sure."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cellblock import (
    CodeExecutor,
    ConflictError,
    Host,
    InvalidInputError,
    LaunchError,
    Pool,
    Rollout,
    StateError,
    UnsupportedError,
)
from cellblock.fronts.rollouts import pool as pool_module
from cellblock.fronts.rollouts import trajectory
from clocks import Clock
from processes import eventually

RANDOM = "import random; random.random()"


async def number(rollout: Rollout, code: str = RANDOM) -> str:
    result = await rollout.execute(code)
    return str(result.return_value)


async def test_a_rollout_has_files_of_its_own_and_leaves_nothing(host: Host) -> None:
    async with Pool(2, host=host, sandbox=False) as pool:
        async with pool.rollout("a") as one, pool.rollout("b") as two:
            await one.execute("open('f', 'w').write('one')")
            assert (await two.exec(["ls"])).out == ""
            await two.fs.write_text("g", "two")
            assert [info.path for info in await one.files.list()] == ["f"]
            places = [one.workspace, two.workspace]
        assert not any(map(os.path.exists, places))


async def test_a_template_that_cannot_be_copied_says_why(host: Host, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    async with Pool(1, host=host, sandbox=False, template=tmp_path) as pool:
        with pytest.raises(InvalidInputError, match=r"the template cannot be copied: .*pipe.* is a named pipe"):
            async with pool.rollout("a"):
                pass


async def test_each_begins_with_the_files_of_the_template(host: Host, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("x = 1")
    async with Pool(1, host=host, sandbox=False, template=tmp_path / "src") as pool:
        async with pool.rollout() as rollout:
            await rollout.execute("open('a.py', 'a').write('; y = 2'); open('new', 'w').close()")
        assert rollout.trajectory.events[-2]["written"] == ["a.py", "new"]
    assert (tmp_path / "src" / "a.py").read_text() == "x = 1"


@pytest.mark.slow
async def test_a_seed_makes_it_repeatable(host: Host) -> None:
    async with Pool(2, host=host, sandbox=False) as pool:
        found = [await pool.run(number, f"{seed}-{again}", seed=seed) for seed in (1, 2) for again in (1, 2)]
        assert found[0] == found[1] != found[2] == found[3]
        assert await pool.run(number, "none") != await pool.run(number, "none again")


@pytest.mark.slow
async def test_a_clock_begins_where_it_should_and_goes_on(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    noon = datetime(2020, 2, 29, 12, tzinfo=UTC)
    code = "import datetime, time; str(datetime.date.today()), time.time()"
    async with Pool(2, host=host, sandbox=False) as pool:
        async with pool.rollout("a", clock=noon) as rollout, pool.rollout("b") as other:
            day, seconds = eval(await number(rollout, code))
            assert (day, rollout.trajectory.events[0]["clock"]) == ("2020-02-29", "2020-02-29T12:00:00+00:00")
            assert 0 <= seconds - noon.timestamp() < 60
            assert eval(await number(rollout, code))[1] > seconds
            assert eval(await number(other, code))[1] > time.time() - 60
        with pytest.raises(InvalidInputError, match="clock must be a datetime with a time zone, not"):
            async with pool.rollout("c", clock=datetime(2020, 1, 1)):  # this is what is refused
                pass
        monkeypatch.setattr(pool_module, "_CLOCK", "__import__('no_such_time_machine')")
        with pytest.raises(InvalidInputError, match="needs the package time-machine"):
            async with pool.rollout("d", clock=noon):
                pass


@pytest.mark.slow
async def test_a_key_names_one_rollout(host: Host) -> None:
    runs = 0

    async def work(rollout: Rollout) -> int:
        nonlocal runs
        runs += 1
        await rollout.execute("1")
        return runs

    async with Pool(2, host=host, sandbox=False) as pool:
        assert await asyncio.gather(*(pool.run(work, "same") for _ in range(5))) == [1] * 5
        assert await pool.run(work, "same") == 1
        with pytest.raises(ConflictError, match="'same' has run already"):
            async with pool.rollout("same"):
                pass
        async with pool.rollout("other"):
            with pytest.raises(ConflictError, match="'other' runs already"):
                async with pool.rollout("other"):
                    pass
        pool.forget("same")
        assert await pool.run(work, "same") == 2
        with pytest.raises(ZeroDivisionError):
            await pool.run(_fail, "fails")
        with pytest.raises(ZeroDivisionError):
            await pool.run(_fail, "fails")


async def _fail(_rollout: Rollout) -> None:
    raise ZeroDivisionError


@pytest.mark.slow
async def test_they_are_admitted_in_order_and_only_so_many(host: Host) -> None:
    order: list[int] = []
    most = 0

    async def work(rollout: Rollout) -> None:
        nonlocal most
        order.append(int(rollout.key))
        most = max(most, pool.running)
        await rollout.execute("1")

    async with Pool(2, host=host, sandbox=False) as pool:
        await asyncio.gather(*(pool.run(work, str(key)) for key in range(8)))
        assert (sorted(order), most, pool.ended, pool.running, pool.waiting) == ([*range(8)], 2, 8, 0, 0)
    # Two sessions start at the same time, and either may be the first that is ready.
    assert all(abs(place - key) <= 1 for place, key in enumerate(order))


async def test_who_is_cancelled_while_waiting_never_ran(host: Host) -> None:
    async with Pool(1, host=host, sandbox=False) as pool:
        async with pool.rollout("first"):
            waiting = asyncio.create_task(pool.run(number, "second"))
            await eventually(lambda: pool.waiting == 1)
            pool._shared["second"].cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert pool.waiting == 0
        async with pool.rollout("second"):
            pass


@pytest.mark.slow
async def test_the_lifetime_ends_what_runs(host: Host, tmp_path: Path) -> None:
    place = ""
    async with Pool(1, host=host, sandbox=False, lifetime=0.7, trajectories=tmp_path / "t.jsonl") as pool:
        with pytest.raises(TimeoutError, match=r"rollout 'slow' was ended: its lifetime is 0.7 s"):  # noqa: PT012  # as users write it
            async with pool.rollout("slow") as rollout:
                place = rollout.workspace
                await rollout.execute("import time; time.sleep(1000)")
        assert not os.path.exists(place)
        with pytest.raises(StateError):
            await rollout.execute("1")
        async with pool.rollout("next", lifetime=1000) as rollout:
            assert await number(rollout, "6 * 7") == "42"
    events = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    ends = [event for event in events if event["event"] == "end"]
    assert [event["status"] for event in ends] == ["failed", "ended"]
    assert ends[0]["reason"].startswith("CancelledError")


async def test_idle_ones_are_ended_and_busy_ones_are_not(host: Host) -> None:
    async with Pool(2, host=host, sandbox=False, idle=50) as pool:
        with Clock() as clock:
            async with pool.rollout() as rollout:
                code = "import os, time\nopen('begun', 'w').close()\nwhile not os.path.exists('end'): time.sleep(0.01)"
                busy = asyncio.create_task(rollout.execute(code))
                await eventually((Path(rollout.workspace) / "begun").exists)
                await clock.advance(60)
                (Path(rollout.workspace) / "end").touch()
                assert (await busy).ok
            with pytest.raises(TimeoutError, match=r"it was idle for 50 s"):  # noqa: PT012  # as users write it
                async with pool.rollout():
                    await clock.advance(60)
                    await asyncio.sleep(1000)


@pytest.mark.slow
async def test_what_could_not_be_started_is_tried_again_and_what_ran_is_not(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts, failures = 0, 2
    start = CodeExecutor.start

    async def failing(executor: CodeExecutor) -> None:
        nonlocal starts
        starts += 1
        if starts <= failures:
            raise LaunchError("no room")
        await start(executor)

    monkeypatch.setattr(CodeExecutor, "start", failing)
    async with Pool(1, host=host, sandbox=False) as pool:
        assert await pool.run(number, "a") != ""
        assert starts == 3
        starts, failures = 0, 3
        with pytest.raises(LaunchError):
            await pool.run(number, "b")
        assert starts == 3
        starts, failures = 0, 0
        with pytest.raises(ZeroDivisionError):
            await pool.run(_fail, "c")
        assert starts == 1


async def test_the_trajectory_has_what_happened(host: Host) -> None:
    pool = Pool(1, host=host, sandbox=False, labels={"set": "a"})
    async with pool, pool.rollout("k", seed=5, labels={"task": "b"}) as rollout:
        await rollout.execute("print('out')\n1 / 0")
        await rollout.session.execute("x = 1")
        await rollout.exec("echo hi; exit 2")
        await (await rollout.spawn(["true"])).wait()
        await (await rollout.snapshot("s")).drop()
        rollout.trajectory.note(reward=0.5)
    begin, first, second, program, spawned, files, note, _, end = rollout.trajectory.events
    assert (begin["key"], begin["seed"], begin["labels"]) == ("k", 5, {"set": "a", "task": "b"})
    assert (first["status"], first["output"].splitlines()[0], first["error"]["name"]) == ("error", "out", "ZeroDivisionError")
    assert second["code"] == "x = 1"
    assert (program["command"][-1], program["exit_code"], program["stdout"]) == ("echo hi; exit 2", 2, "hi\n")
    assert spawned["command"] == ["true"]
    assert files == {**files, "event": "files", "written": [], "removed": []}
    assert note["reward"] == 0.5
    assert (end["status"], end["reason"]) == ("ended", "")
    assert [json.loads(line)["event"] for line in rollout.trajectory.lines()] == [
        e["event"] for e in rollout.trajectory.events
    ]
    assert len(trajectory._cut("x" * 1_000_000)) < trajectory.MAX_TEXT + 100


@pytest.mark.slow
async def test_they_begin_with_a_checkpoint_or_a_saved_session(host: Host, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    async with CodeExecutor(host=host, sandbox=False, working_dir=tmp_path / "work") as executor:
        await executor.execute("x = 41; open('f', 'w').write('data')")
        checkpoint = await executor.checkpoint(files="copy")
        await executor.save(tmp_path / "saved", workspace=True)
        for start_from in (checkpoint, tmp_path / "saved"):
            pool = Pool(2, host=host, sandbox=False, start_from=start_from)
            async with pool, pool.rollout(seed=1) as one, pool.rollout(seed=1) as two:
                assert await number(one, "x += 1; x, open('f').read()") == "(42, 'data')"
                assert await number(two, "x") == "41"
                assert await number(one) == await number(two)
                await one.execute("open('f', 'w').write('changed')")
                assert await number(two, "open('f').read()") == "'data'"
        await checkpoint.drop()


async def test_egress_is_closed_for_good(native_host: Host, zygote_host: Host) -> None:
    server = await asyncio.start_server(_greet, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    get = (  # not by urllib, which asks no proxy for addresses of its own machine
        "import os, socket; s = socket.create_connection(os.environ['HTTP_PROXY'].removeprefix('http://').split(':'), 10); "
        f"s.sendall(b'GET http://{address}/ HTTP/1.1\\r\\nHost: {address}\\r\\nConnection: close\\r\\n\\r\\n'); "
        "s.makefile('rb').read().split()[1]"
    )
    async with server, Pool(2, host=native_host, allow_hosts=[address]) as pool, pool.rollout() as rollout:
        assert await number(rollout, get) == "b'200'"
        await rollout.close_egress([address])
        assert await number(rollout, get) == "b'200'"
        with pytest.raises(InvalidInputError):
            await rollout.close_egress(["http://x/"])
        await rollout.close_egress()
        assert await number(rollout, get) == "b'403'"
        with pytest.raises(Exception, match="closed permanently"):
            await rollout.session.fork()
        await rollout.session.reset()
        assert await number(rollout, get) == "b'403'"
        await rollout.close_egress([address])  # which cannot be widened again
        assert await number(rollout, get) == "b'403'"
    async with Pool(1, host=zygote_host, sandbox=False) as pool, pool.rollout() as rollout:
        with pytest.raises(UnsupportedError, match="isolate='none'"):
            await rollout.close_egress()


async def _greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello")
    await writer.drain()
    writer.close()


async def test_the_pool_ends_what_it_has_started(host: Host) -> None:
    begun = asyncio.Event()

    async def endless(rollout: Rollout) -> None:
        begun.set()
        await rollout.execute("import time; time.sleep(1000)")

    async with Pool(1, host=host, sandbox=False) as pool:
        task = asyncio.create_task(pool.run(endless, "a"))
        await begun.wait()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(StateError, match="the pool is closed"):
        await pool.run(endless, "b")


PROGRAM = """
import asyncio, sys
from cellblock import Pool

async def main():
    async with Pool(1, sandbox=False, lifetime=1000) as pool, pool.rollout() as rollout:
        await rollout.spawn("sleep 1000")
        print(rollout.workspace, (await rollout.execute("import os; os.getpid()")).return_value, flush=True)
        await asyncio.sleep(1000)

asyncio.run(main())
"""


@pytest.mark.slow
async def test_nothing_outlives_a_killed_program(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        workspace, pid = (await asyncio.to_thread(program.stdout.readline)).split()
        program.kill()
    await eventually(lambda: not os.path.exists(f"/proc/{pid}"))
    await eventually(lambda: not os.path.exists(workspace))


def test_bad_arguments_name_themselves() -> None:
    cases: list[tuple[dict[str, object], str]] = [
        ({"size": 0}, "size must be a number of rollouts"),
        ({"lifetime": 0}, "lifetime must be a positive number"),
        ({"idle": "x"}, "idle must be a positive number"),
        ({"working_dir": "/tmp"}, "each rollout has a directory of its own"),
        ({"template": "/missing"}, "template must be a directory"),
        ({"template": "/tmp", "start_from": "x"}, "template or start_from, not both"),
        ({"prelaod": ["x"]}, "did you mean"),
    ]
    for arguments, message in cases:
        with pytest.raises((InvalidInputError, TypeError), match=message):
            Pool(**arguments)  # type: ignore[arg-type]  # that is what is tested


async def test_bad_arguments_of_a_rollout_name_themselves(host: Host) -> None:
    async with Pool(1, host=host, sandbox=False) as pool:
        for arguments in ({"key": 3}, {"seed": "x"}):
            with pytest.raises(InvalidInputError, match=r"must be"):
                async with pool.rollout(**arguments):
                    pass
