"""A kernel gets the environment it was given and its own luck, sees nothing of its host's and shares nothing with others."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cellblock import Host, InvalidInputError, Session
from cells import ok, value

LUCK = {
    "random": "import random; random.getrandbits(64)",
    "the seed of hashes of objects": "import random; random.random()",
    "secrets": "import secrets; secrets.token_hex()",
    "uuid4": "import uuid; str(uuid.uuid4())",
    "uuid1": "import uuid; str(uuid.uuid1())",
    "temporary names": "import tempfile; next(tempfile._get_candidate_names())",
    "multiprocessing": "import multiprocessing; bytes(multiprocessing.current_process().authkey)",
    "process ids": "import os; os.getpid(), __import__('time').time_ns()",
}


@asynccontextmanager
async def sessions(host: Host, count: int, tmp_path: Path, **options: object) -> AsyncIterator[list[Session]]:
    """Some sessions at the same time."""
    async with AsyncExitStack() as stack:
        made = [host.session(images_dir=tmp_path, **options) for _ in range(count)]  # type: ignore[arg-type]
        yield [await stack.enter_async_context(session) for session in made]


@pytest.mark.slow
async def test_two_kernels_do_not_share_their_luck(host: Host, tmp_path: Path) -> None:
    async with sessions(host, 3, tmp_path) as several:
        for kind, code in LUCK.items():
            drawn = await asyncio.gather(*(value(session, code) for session in several))
            assert len({repr(one) for one in drawn}) == 3, kind


@pytest.mark.launcher
async def test_a_kernel_after_a_reset_has_new_luck(session: Session) -> None:
    code = "import random, uuid; (random.random(), str(uuid.uuid4()))"
    first = await value(session, code)
    await session.reset()
    second = await value(session, code)
    assert first[0] != second[0]
    assert first[1] != second[1]


@pytest.mark.launcher
async def test_a_kernel_sees_nothing_of_the_hosts_environment(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary = "canary-" + os.urandom(8).hex()
    monkeypatch.setenv("CANARY", canary)
    # Reversed, so that the code that looks does not find itself.
    backwards = canary[::-1]
    async with host.session(images_dir=tmp_path) as session:
        # PYTHONPATH is that of packages installed for the session; without a network, pip and uv are told not to retry. A test
        # of spans leaves its provider to the tests after it in this process: then the cell has a context of its own.
        offline = {"TRACEPARENT", "PIP_DISABLE_PIP_VERSION_CHECK", "PIP_RETRIES", "UV_HTTP_RETRIES"}
        assert set(await value(session, "import os; sorted(os.environ)")) - {"PYTHONPATH", *offline} == BASE
        assert canary not in await value(session, "open('/proc/self/environ').read() if os.path.exists('/proc/self') else ''")
        assert canary not in (await ok(session, "!env")).output
        if sys.platform == "linux":
            code = f"""
needle = {backwards!r}[::-1].encode()
found = []
with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
    for line in maps.read().splitlines():
        span, access, *rest = line.split(None, 5)
        if "r" not in access or line.endswith(("[vvar]", "[vsyscall]", "[vvar_vclock]")):
            continue
        start, end = (int(bound, 16) for bound in span.split("-"))
        try:
            memory.seek(start)
            data = memory.read(end - start)
        except (OSError, ValueError, OverflowError):
            continue
        if data.count(needle) > (needle in globals().values()):
            found.append(line)
        del data
len(found)
"""
            # The needle itself is in the memory of the code that looks for it, and perhaps in what it has read.
            baseline = await value(session, code.replace(backwards, ("absent-" + os.urandom(8).hex())[::-1]))
            assert await value(session, code) <= baseline


BASE = {
    "GIT_OPTIONAL_LOCKS",
    "HOME",
    "LANG",
    "MPLBACKEND",
    "PATH",
    "PLOTLY_RENDERER",
    "PYTHONUNBUFFERED",
    "SHELL",
    "TERM",
    "USER",
} | ({"VIRTUAL_ENV"} if sys.prefix != sys.base_prefix else set())


@pytest.mark.launcher
async def test_kernel_env_is_what_code_and_commands_see(host: Host, tmp_path: Path) -> None:
    env = {"NAME": "value", "EMPTY": "", "ODD": "a=b\nü 😀", "HOME": str(tmp_path)}
    async with host.session(images_dir=tmp_path, kernel_env=env) as session:
        got = await value(session, "import os; dict(os.environ)")
        assert {name: got[name] for name in env} == env
        assert (await ok(session, "!echo $NAME")).output == "value\n"
        assert await value(session, "os.path.expanduser('~')") == str(tmp_path)
    async with host.session(images_dir=tmp_path) as session:
        assert "NAME" not in await value(session, "import os; dict(os.environ)")


@pytest.mark.launcher
async def test_kernel_env_that_the_interpreter_reads_is_obeyed(host: Host, tmp_path: Path) -> None:
    (tmp_path / "only_here.py").write_text("value = 5")
    env = {"PYTHONPATH": str(tmp_path), "TZ": "Asia/Tokyo", "PYTHONWARNINGS": "error", "PYTHONDONTWRITEBYTECODE": "1"}
    async with host.session(images_dir=tmp_path, kernel_env=env) as session:
        assert await value(session, "import only_here; only_here.value") == 5
        assert await value(session, "import time; time.localtime(0).tm_hour") == 9
        result = await session.execute("import warnings; warnings.warn('careful')")
        assert result.error is not None
        assert result.error.ename == "UserWarning"
        assert await value(session, "import sys; sys.dont_write_bytecode") is True


async def test_an_environment_that_cannot_be_is_refused(host: Host) -> None:
    refused: list[tuple[Any, str]] = [
        ({"": "x"}, "cannot be in an environment"),
        ({"A=B": "x"}, "cannot be in an environment"),
        ({"A\0": "x"}, "cannot be in an environment"),
        ({"A": "x\0"}, "cannot be in an environment"),
        ({"A": "\ud800"}, "surrogate"),
        ({"A": 1}, "must be strings"),
        ({1: "x"}, "must be strings"),
        ({"A": "x" * 200_000}, "over the limit"),
        ({"A": "\x01" * 50_000}, "over the limit"),
        ({f"A{i}": "x" * 100 for i in range(2000)}, "over the limit"),
    ]
    for env, complaint in refused:
        with pytest.raises(InvalidInputError, match=complaint):
            host.session(kernel_env=env)


@pytest.mark.launcher
async def test_the_largest_environment_that_is_accepted_works(host: Host, tmp_path: Path) -> None:
    async with host.session(images_dir=tmp_path, kernel_env={"LARGE": "\x01" * 2_000, "MORE": "x" * 100_000}) as session:
        assert await value(session, "import os; len(os.environ['LARGE']), len(os.environ['MORE'])") == (2_000, 100_000)


@pytest.mark.launcher
async def test_a_kernel_has_only_its_own_descriptors_and_session(session: Session) -> None:
    """And may set the scheduling that it has."""
    # A kernel has only its own descriptors.
    if sys.platform != "linux":
        pytest.skip("/proc")
    code = "import os; sorted(int(n) for n in os.listdir('/proc/self/fd'))"
    before = await value(session, code)
    assert before[:4] == [0, 1, 2, 3]
    # The one on which copies come to be, the loop's own two, and the one of the directory that is being listed.
    assert len(before) <= 4 + 1 + 2 + 1
    # A kernel leads its own session and cannot be stopped from a terminal.
    assert await value(session, "import os; os.getsid(0) == os.getpid() == os.getpgrp()") is True
    # A thread may set the scheduling that it has. As ZeroMQ does for its threads: it aborts the process if that fails.
    code = "import os, threading\nos.sched_setscheduler(threading.get_native_id(), os.SCHED_OTHER, os.sched_param(0))"
    await ok(session, code)


async def test_sessions_run_in_parallel(host: Host, tmp_path: Path) -> None:
    async with sessions(host, 4, tmp_path) as several:
        barrier = tmp_path / "barrier"
        barrier.mkdir()
        code = f"""
import os, time
open({str(barrier)!r} + "/" + str(os.getpid()) + str(time.time_ns()), "w").close()
deadline = time.monotonic() + 20
while len(os.listdir({str(barrier)!r})) < 4 and time.monotonic() < deadline:
    time.sleep(0.005)
len(os.listdir({str(barrier)!r}))
"""
        assert await asyncio.gather(*(value(session, code) for session in several)) == [4, 4, 4, 4]


@pytest.mark.launcher
async def test_sessions_do_not_see_each_others_variables(host: Host, tmp_path: Path) -> None:
    async with sessions(host, 2, tmp_path) as (one, two):
        await ok(one, "mine = 1; import builtins; builtins.leak = 1; import sys; sys.modules['leak'] = sys")
        assert (await two.execute("mine")).status == "error"
        assert (await two.execute("leak")).status == "error"
        assert (await two.execute("import leak")).status == "error"
