"""Starting processes, and their end: whatever is killed, nothing is left, and what lives goes on."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import sysconfig
import time
import venv
from pathlib import Path

import pytest

from cellblock import Host, InterpreterError, LaunchError, PreloadError
from cellblock.host.launch import start
from cellblock.host.launch.launcher import launching
from cellblock.walls.sandbox.cgroups import Group
from cells import ok, value
from processes import alive, below, command_line, eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc")


def make_venv(directory: Path, *entries: Path | str) -> Path:
    """A virtual environment in which these directories are importable; nothing is downloaded."""
    venv.create(directory, with_pip=False, symlinks=True)
    (packages,) = directory.glob("lib/python*/site-packages")
    (packages / "entries.pth").write_text("".join(f"{entry}\n" for entry in entries))
    return directory


@pytest.fixture(scope="session")
def odd_modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Modules that import in every way but the right one."""
    directory = tmp_path_factory.mktemp("modules")
    sources = {
        "fails": "raise RuntimeError('this module is broken')",
        "exits": "import sys; sys.exit(0)",
        "dies": "import os; os._exit(0)",
        "crashes": "import ctypes; ctypes.string_at(0)",
        "hangs": "import time; time.sleep(600)",
        "prints": "print('hello from prints')",
        "threads": "import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
        "floods": "print('x' * 10_000_000)",
    }
    for name, source in sources.items():
        (directory / f"odd_{name}.py").write_text(source)
    return directory


@pytest.fixture(scope="session")
def odd_python(tmp_path_factory: pytest.TempPathFactory, odd_modules: Path) -> Path:
    """An environment with IPython and with those modules."""
    return make_venv(tmp_path_factory.mktemp("odd") / "venv", sysconfig.get_path("purelib"), odd_modules)


# -- interpreters ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("launch", ["zygote", pytest.param("spawn", marks=pytest.mark.slow)])
async def test_an_interpreter_without_ipython_says_how_to_install_it(tmp_path: Path, launch: str) -> None:
    host = Host(python=make_venv(tmp_path / "venv"), launch=launch)  # type: ignore[arg-type]
    with pytest.raises(InterpreterError, match=r"cannot import IPython: install it there with .* -m pip install ipython"):
        async with host, host.session():
            pass
    await host.close()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("kill -9 $$", "{python}"),
        ("exec sleep 600", "not ready within 0.2 s"),
        ("echo no python here >&2; exit 1", "no python here"),
    ],
)
async def test_a_program_that_is_not_an_interpreter_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    monkeypatch.setattr(start, "_PATIENCE", 0.1)
    fake = tmp_path / "python"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    host = Host(python=fake, start_timeout=0.2 if "sleep" in script else 60)
    with pytest.raises(LaunchError) as caught:
        await host.start()
    assert said.format(python=fake) in str(caught.value)
    await host.close()


async def test_a_file_that_cannot_be_executed_is_a_clear_error(tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_bytes(b"\x7fELF nonsense")
    fake.chmod(0o755)
    host = Host(python=fake)
    with pytest.raises(InterpreterError, match="cannot be started"):
        await host.start()
    await host.close()


@pytest.mark.slow
@pytest.mark.parametrize("launch", ["zygote", "spawn"])
async def test_another_environments_packages_are_there_and_ours_are_not(
    tmp_path: Path, other_environment: Path, launch: str
) -> None:
    async with Host(python=other_environment, launch=launch) as host, host.session(images_dir=tmp_path) as session:  # type: ignore[arg-type]
        prefix, version = await value(session, "import sys, IPython; sys.prefix, IPython.version_info[0]")
        assert prefix == str(other_environment)
        assert version == 8
        for ours in ("cellblock_is_not_here", "pytest", "pandas", "hypothesis"):
            result = await session.execute(f"import {ours}")
            assert result.error is not None, ours
            assert result.error.ename == "ModuleNotFoundError"
        assert await value(session, "__import__('os').environ['VIRTUAL_ENV']") == str(other_environment)
        assert (await ok(session, "!python -c 'import sys; print(sys.prefix)'")).output.strip() == str(other_environment)
        result = await session.execute("def f():\n    1/0  # here\nf()")
        assert result.error is not None
        assert "1/0  # here" in "\n".join(result.error.traceback)
        assert "\x1b" not in (result.text or "")
        assert "cellblock" not in (result.text or "")
        assert await value(session, "import asyncio; await asyncio.sleep(0, 5)") == 5
        assert (await ok(session, "!echo command")).output == "command\n"
        assert (await session.execute("while True: pass", timeout=0.2)).recovery == "interrupted"
        assert "int(x" in (await session.inspect("int") or "")
        assert (await session.complete("impor")).matches == ["import"]


@pytest.mark.slow
async def test_an_older_ipython_keeps_things_in_the_home_of_the_session(other_environment: Path) -> None:
    """It opens its database when it makes a shell, which the zygote does: in a home that no sandbox has."""
    async with Host(python=other_environment) as host, host.session() as session:
        await ok(session, "%cd -q .")
        assert await value(session, "import os; os.listdir(os.path.expanduser('~/.ipython/profile_default/db'))") == ["dhist"]


@pytest.fixture(scope="session")
def other_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with an older IPython, and nothing of ours."""
    directory = tmp_path_factory.mktemp("other") / "venv"
    venv.create(directory, with_pip=True, symlinks=True)
    command = [
        str(directory / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "ipython==8.37.*",
    ]
    installed = subprocess.run(
        [*command, "matplotlib-inline", "pickleshare"], capture_output=True, text=True, timeout=110, check=False
    )
    if installed.returncode != 0:
        pytest.skip(f"cannot install: {installed.stderr[-300:]}")
    return directory


# -- preloading --------------------------------------------------------------------------------------------------------

_ENDING = ("odd_dies", "odd_crashes")
"""Modules that end the process."""


@pytest.mark.parametrize("launch", ["zygote", pytest.param("spawn", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name",
    [
        "odd_fails",
        *(pytest.param(name, marks=pytest.mark.slow) for name in (*_ENDING, "odd_exits", "no_such_module", "os.no_such_part")),
    ],
)
async def test_a_module_that_fails_to_import_is_named(odd_python: Path, launch: str, name: str) -> None:
    host = Host(python=odd_python, preload=(name,), launch=launch)  # type: ignore[arg-type]
    with pytest.raises(LaunchError if name in _ENDING else PreloadError) as caught:
        async with host, host.session():
            pass
    assert name in str(caught.value) or name in _ENDING
    if name == "odd_fails":
        assert "this module is broken" in str(caught.value)
    await host.close()


@pytest.mark.slow
@pytest.mark.parametrize("launch", ["zygote", pytest.param("spawn", marks=pytest.mark.slow)])
async def test_a_module_that_never_finishes_is_an_error_at_the_start_timeout(odd_python: Path, launch: str) -> None:
    host = Host(python=odd_python, preload=("odd_hangs",), launch=launch, start_timeout=0.2)  # type: ignore[arg-type]
    with pytest.raises(LaunchError, match=r"not ready within 0\.2 s"):
        async with host, host.session():
            pass
    await host.close()


@pytest.mark.slow
async def test_modules_that_print_or_flood_do_not_disturb(odd_python: Path, tmp_path: Path) -> None:
    async with (
        Host(python=odd_python, preload=("odd_prints", "odd_floods")) as host,
        host.session(images_dir=tmp_path) as session,
    ):
        assert await value(session, "import sys; 'odd_prints' in sys.modules") is True
        assert (await ok(session, "print(1)")).text == "1"


def test_a_launch_that_fails_leaves_no_control_group(tmp_path: Path) -> None:
    class Directory(Group):
        def remove(self) -> bool:
            os.rmdir(self.path)  # in a real one nothing else is needed
            return True

    group = Directory(str(tmp_path / "group"))
    os.mkdir(group.path)
    with pytest.raises(LaunchError, match="Too many open files"), launching(group):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    assert not os.path.exists(group.path)


# -- what is killed ----------------------------------------------------------------------------------------------------


async def test_an_init_that_is_killed_ends_its_session_only(host: Host, tmp_path: Path) -> None:
    async with host.session(images_dir=tmp_path) as one, host.session(images_dir=tmp_path) as two:
        init = await value(one, "import os; os.getppid()")
        await ok(two, "kept = 1")
        os.kill(init, signal.SIGKILL)
        await eventually(lambda: not alive(init))
        result = await one.execute("1")
        assert result.state_lost
        assert await value(two, "kept") == 1


async def test_what_an_init_leaves_behind_that_is_killed_ends_as_well(host: Host, tmp_path: Path) -> None:
    async with host.session(images_dir=tmp_path) as session:
        code = "import os, subprocess; [os.getppid(), subprocess.Popen(['sleep', '600'], start_new_session=True).pid]"
        init, child = await value(session, code)
        os.kill(init, signal.SIGKILL)
        await eventually(lambda: not alive(child))


async def test_a_worker_that_is_killed_while_idle_is_replaced_and_the_next_result_says_so(host: Host, tmp_path: Path) -> None:
    async with host.session(images_dir=tmp_path) as session:
        worker = await value(session, "import os; os.getpid()")
        os.kill(worker, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while alive(worker):  # without giving the loop a turn, in which the host would hear of it
            assert time.monotonic() < deadline
        result = await session.execute("40 + 2")
        assert result.return_value == "42"
        assert result.state_lost
        assert "SIGKILL" in result.stderr


# -- the host is killed ------------------------------------------------------------------------------------------------

DAEMONS = """
import os, subprocess, time
def daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
    os.wait()
daemon()
subprocess.Popen(["setsid", "--fork", "sleep", "600"])
subprocess.Popen(["nohup", "sleep", "600"], start_new_session=True)
"""

HOST = """
import asyncio, os, sys
from cellblock import Host

DAEMONS = {daemons!r}

async def main():
    async with Host(launch={launch!r}) as host:
        sessions = [host.session() for _ in range(3)]
        await asyncio.gather(*(session.start() for session in sessions))
        for session in sessions:
            result = await session.execute(DAEMONS)
            assert result.status == "success", result.text
        busy = asyncio.create_task(sessions[0].execute("while True: print('x' * 1000)"))
        deaf = asyncio.create_task(sessions[1].execute(
            "import signal\\nfor n in range(1, 32):\\n    if n not in (9, 19): signal.signal(n, signal.SIG_IGN)\\n"
            "import time; time.sleep(600)"))
        await asyncio.sleep(0.3)
        {before}
        print("ready", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


def start_host(tmp_path: Path, source: str) -> subprocess.Popen[bytes]:
    """Run a host in a process of its own, until it says that it is ready."""
    script = tmp_path / "host.py"
    script.write_text(source)
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, start_new_session=True, cwd=tmp_path)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line == b"ready\n"
    return process


@pytest.mark.slow
@pytest.mark.parametrize("launch", ["zygote", "spawn"])
async def test_a_killed_host_leaves_nothing_although_a_fork_of_it_lives_on(tmp_path: Path, launch: str) -> None:
    before = (
        "pid = os.fork()\n        if pid == 0:\n            import time\n            time.sleep(600)\n            os._exit(0)"
    )
    host = start_host(tmp_path, HOST.format(daemons=DAEMONS, launch=launch, before=before))
    with host:
        processes = below(host.pid)
        fork = next(pid for pid in processes if str(tmp_path / "host.py") in command_line(pid))
        try:
            host.kill()
            host.wait()
            await eventually(lambda: not any(alive(pid) for pid in processes - {fork}), timeout=10)
            assert alive(fork)
        finally:
            os.kill(fork, signal.SIGKILL)
        assert host.stdout is not None


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_host_that_is_ended_by_a_signal_leaves_no_process_behind(tmp_path: Path, end: signal.Signals) -> None:
    with start_host(tmp_path, HOST.format(daemons=DAEMONS, launch="zygote", before="pass")) as host:
        processes = below(host.pid)
        host.send_signal(end)
        host.wait(20)
        await eventually(lambda: not any(map(alive, processes)), timeout=10)


WARMING = """
import asyncio
from cellblock import Host

async def main():
    host = Host(python={python!r}, preload=("odd_hangs",), launch={launch!r})
    session = host.session()
    starting = asyncio.create_task(session.start())
    await asyncio.sleep(1)
    print("ready", flush=True)
    await starting

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("launch", ["zygote", "spawn"])
async def test_a_host_that_is_killed_while_a_preload_never_finishes_leaves_nothing(
    tmp_path: Path, odd_python: Path, launch: str
) -> None:
    with start_host(tmp_path, WARMING.format(python=str(odd_python), launch=launch)) as host:
        processes = below(host.pid)
        assert processes
        host.kill()
        host.wait()
        await eventually(lambda: not any(map(alive, processes)), timeout=10)
