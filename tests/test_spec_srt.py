"""The sandbox that ipybox documents, under srt: its examples, what keeps code in, and that nothing of it stays behind.

They run srt itself. Where it is missing they fail, and say what to install.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import cellblock
from cellblock import Host, InvalidInputError, LaunchError, SandboxError, Session
from cellblock.host.launch.srt import sandbox_apart
from cellblock.walls.sandbox import srt
from cellblock.walls.sandbox.policy import Filesystem, Network, Policy
from cellblock.walls.sandbox.srt import SrtPolicy
from cells import ok, value
from package_index import package_index, wheel
from processes import alive, below, command_line, eventually
from web_servers import web_server

pytestmark = pytest.mark.slow

DOCUMENTED: dict[str, Any] = {
    "enableWeakerNestedSandbox": False,
    "filesystem": {"denyRead": [".env"], "allowWrite": [".", "~/Library/Jupyter", "~/.ipython"], "denyWrite": []},
    "network": {"allowedDomains": [], "deniedDomains": [], "allowLocalBinding": True},
}


def listed() -> list[str]:
    """Directories of srt that are there now."""
    return [name for name in os.listdir(tempfile.gettempdir()) if name.startswith("srt-")]


def running(pid: int) -> set[int]:
    return {process for process in below(pid) if "srt" in command_line(process)}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with something to hide and something to protect."""
    assert not srt.missing(), srt.missing()
    directory = tmp_path_factory.mktemp("workspace")
    (directory / ".env").write_text("SECRET=1")
    (directory / "data.txt").write_text("data")
    (directory / ".git").mkdir()  # without hooks, which srt would make up for
    (directory / ".git" / "config").write_text("[core]\n")
    return directory


@pytest.fixture(scope="module")
async def srt_host(workspace: Path) -> AsyncIterator[Host]:
    """A host whose sandbox for the workspace is warm."""
    async with Host() as host:
        async with host.session(isolate="srt", working_dir=workspace, recovery="none") as session:
            await ok(session, "1")
        yield host


@pytest.fixture
async def confined(srt_host: Host, workspace: Path) -> AsyncIterator[Session]:
    """A session under srt, with the default policy."""
    async with srt_host.session(isolate="srt", working_dir=workspace, recovery="none") as session:
        yield session


def settings_file(directory: Path, **network: object) -> Path:
    file = directory / "sandbox-kernel.json"
    file.write_text(json.dumps(DOCUMENTED | {"network": DOCUMENTED["network"] | network}))
    return file


# -- the documented examples -------------------------------------------------------------------------------------------

BLOCKED = """
import requests
try:
    requests.get('https://example.org')
except Exception as e:
    print(e)
"""


async def test_the_default_sandbox_runs_code_and_blocks_the_internet(confined: Session) -> None:
    assert (await confined.execute("print('hello world')")).text == "hello world"
    result = await confined.execute(BLOCKED)
    assert "Failed to resolve 'example.org'" in (result.text or "")


async def test_the_documented_default_settings_do_the_same(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("SECRET=1")
    policy = SrtPolicy.load(settings_file(tmp_path))
    async with Host(isolate="srt", policy=policy) as host, host.session(working_dir=tmp_path) as session:
        assert (await session.execute("print('hello world')")).text == "hello world"
        assert "Failed to resolve 'example.org'" in ((await session.execute(BLOCKED)).text or "")
        await ok(session, "open('new', 'w').write('x')")
        result = await session.execute("open('.env').read()")
        assert result.error is not None
        assert result.error.ename == "PermissionError"
        # Everything else can be read, and what is not listed cannot be written.
        await ok(session, f"open({os.__file__!r}).read(1)")
        assert (await session.execute("open('/var/tmp/x', 'w')")).status == "error"
        # Temporary files have a place all the same.
        await ok(session, "import tempfile; tempfile.TemporaryFile().write(b'x')")
    assert (tmp_path / "new").read_text() == "x"


@pytest.mark.parametrize("own", [False, True], ids=["ours", "srt's"])
async def test_a_custom_sandbox_lets_code_reach_what_it_allows_and_nothing_else(own: bool, tmp_path: Path) -> None:
    with web_server("127.0.0.2") as port, web_server("127.0.0.2") as other:
        allowed = f"127.0.0.2:{port}"
        ours = Policy(network=Network((allowed,)))
        policy = SrtPolicy.load(settings_file(tmp_path, allowedDomains=[allowed])) if own else ours
        async with Host(isolate="srt", policy=policy) as host, host.session(working_dir=tmp_path) as session:
            await ok(session, "import requests, urllib.request")
            assert (await session.execute(f"print(requests.get('http://127.0.0.2:{port}').text)")).text == "hello"
            code = f"print(urllib.request.urlopen('http://127.0.0.2:{port}').read())"
            assert (await session.execute(code)).text == "b'hello'"
            refused = await session.execute(f"print(requests.get('http://127.0.0.2:{other}').text)")
            assert refused.text == "Connection blocked by network allowlist"
            assert (await session.execute("requests.get('https://example.org')")).status == "error"


async def test_local_servers_inside_can_be_reached_inside(confined: Session) -> None:
    code = """
    import http.server, threading, urllib.request
    server = http.server.HTTPServer(('127.0.0.1', 0), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(urllib.request.urlopen(f'http://127.0.0.1:{server.server_port}/data.txt').read())
    server.shutdown()
    """
    assert "b'data'" in ((await confined.execute(textwrap.dedent(code))).text or "")


# -- what keeps code in ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("open('.env').read()", "PermissionError"),
        ("open('/etc/shadow').read()", "PermissionError"),
        ("open('/usr/new', 'w')", "OSError"),
        ("open('/etc/new', 'w')", "OSError"),
        ("open('.git/config', 'a')", "OSError"),
        ("open('.git/hooks/pre-commit', 'w')", "OSError"),
        ("open('.git/commondir', 'w')", "OSError"),
        ("open('.bashrc', 'w')", "OSError"),
        ("import sys; open(sys.executable, 'r+b')", "OSError"),
        ("import socket; socket.create_connection(('8.8.8.8', 53), 5)", "OSError"),
        ("import socket; socket.socket(socket.AF_UNIX)", "PermissionError"),
        ("import os; os.chroot('.')", "PermissionError"),
        ("import os; os.setuid(1)", "OSError"),
    ],
)
async def test_what_must_not_be_is_refused(confined: Session, code: str, error: str) -> None:
    result = await confined.execute(code)
    assert result.error is not None, result.text
    assert result.error.ename in (error, "PermissionError"), result.text


async def test_other_places_are_not_there(confined: Session, workspace: Path) -> None:
    beside = workspace.parent / "beside"
    beside.mkdir(exist_ok=True)
    assert await value(confined, f"import os; os.path.exists({str(beside)!r})") is False
    home = os.path.expanduser("~")
    kept = {Path(sys.prefix), Path(sys.base_prefix), workspace}
    names = await value(confined, f"os.listdir({home!r}) if os.path.isdir({home!r}) else []")
    assert all(any(Path(home, name) in (path, *path.parents) for path in kept) for name in names)


async def test_home_and_temporary_directory_are_private_and_writable(confined: Session) -> None:
    code = "import os, tempfile; (os.path.expanduser('~'), tempfile.gettempdir())"
    home, temporary = await value(confined, code)
    assert home.startswith(tempfile.gettempdir())
    assert temporary.startswith(tempfile.gettempdir())
    await ok(confined, "open(os.path.expanduser('~/x'), 'w').close(); tempfile.TemporaryFile().close()")


async def test_kernels_have_no_capability_and_a_second_filter(confined: Session) -> None:
    status = await value(confined, "open('/proc/self/status').read()")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert {int(fields[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}
    assert fields["NoNewPrivs"] == "1"
    assert int(fields["Seccomp_filters"]) >= 2
    # Not to be had by executing something either.
    assert await value(confined, "import subprocess; subprocess.run(['unshare', '-U', 'true']).returncode") != 0


async def test_kernels_learn_nothing_of_this_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CANARY", "cannot-be-found")
    async with Host(isolate="srt") as host, host.session(working_dir=tmp_path) as session:
        environment = await value(session, "import os; sorted(os.environ)")
        assert not {name for name in environment if "PROXY" in name.upper()}
        assert await value(session, "b'CANARY' in open('/proc/self/environ', 'rb').read()") is False


async def test_variables_of_the_caller_win(srt_host: Host, workspace: Path) -> None:
    env = {"HOME": str(workspace), "TMPDIR": str(workspace)}
    async with srt_host.session(isolate="srt", working_dir=workspace, kernel_env=env) as session:
        assert await value(session, "import os; os.environ['HOME'], os.environ['TMPDIR']") == (str(workspace),) * 2


# -- kernels -----------------------------------------------------------------------------------------------------------


async def test_sessions_of_one_policy_and_workspace_share_a_sandbox(srt_host: Host, workspace: Path) -> None:
    before = running(os.getpid())
    sessions = [srt_host.session(isolate="srt", working_dir=workspace, recovery="none") for _ in range(4)]
    await asyncio.gather(*(session.start() for session in sessions))
    results = await asyncio.gather(*(session.execute(f"x = {n}; x") for n, session in enumerate(sessions)))
    assert [result.text for result in results] == ["0", "1", "2", "3"]
    assert {pid for pid in running(os.getpid()) - before if "--settings" in command_line(pid)} == set()
    await sessions[0].close()
    assert [(await session.execute("x")).text for session in sessions[1:]] == ["1", "2", "3"]
    await asyncio.gather(*(session.close() for session in sessions))


async def test_another_workspace_is_another_sandbox(workspace: Path, tmp_path: Path) -> None:
    async with (
        Host(isolate="srt") as host,
        host.session(working_dir=workspace) as first,
        host.session(working_dir=tmp_path) as second,
    ):
        await ok(first, "open('of-the-first', 'w').close()")
        assert await value(second, f"import os; os.path.exists({str(workspace)!r})") is False
        assert (await second.execute(f"open({str(workspace / 'x')!r}, 'w')")).status == "error"


async def test_sandboxes_that_nobody_uses_are_closed_but_for_two(tmp_path: Path) -> None:
    async with Host(launch="zygote") as host:
        for number in range(4):
            (tmp_path / str(number)).mkdir()
            async with host.session(isolate="srt", working_dir=tmp_path / str(number)) as session:
                await ok(session, "1")
        used = {Path(key.workspace).name for key in host.kernels.launchers.in_use if key.workspace is not None}
        assert used == {"2", "3"}


async def test_code_that_takes_no_signal_is_killed_with_its_children(confined: Session) -> None:
    code = """
    import os, signal, subprocess
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    subprocess.Popen(['sleep', '4321'], start_new_session=True)
    while True: pass
    """
    result = await confined.execute(textwrap.dedent(code), timeout=0.5)
    assert (result.status, result.recovery) == ("timeout", "restarted")
    await eventually(lambda: not [pid for pid in below(os.getpid()) if "sleep 4321" in command_line(pid)])
    assert (await confined.execute("1 + 1")).text == "2"


async def test_a_daemon_of_the_code_is_gone_when_the_session_is(srt_host: Host, workspace: Path) -> None:
    async with srt_host.session(isolate="srt", working_dir=workspace, recovery="none") as session:
        await ok(session, "import subprocess; subprocess.Popen(['setsid', 'sleep', '9876'])")
        await eventually(lambda: [pid for pid in below(os.getpid()) if "sleep 9876" in command_line(pid)])
    await eventually(lambda: not [pid for pid in below(os.getpid()) if "sleep 9876" in command_line(pid)])


async def test_a_spawned_kernel_has_an_srt_of_its_own(tmp_path: Path) -> None:
    async with Host(launch="spawn", isolate="srt") as host, host.session(working_dir=tmp_path) as session:
        assert (await session.execute("print('hello world')")).text == "hello world"
        assert (await session.execute("open('/usr/new', 'w')")).status == "error"
        await session.reset()
        assert (await session.execute("1 + 1")).text == "2"
    assert [*tmp_path.iterdir()] == []


# -- nothing stays behind ----------------------------------------------------------------------------------------------


async def test_closing_leaves_no_process_no_file_and_the_workspace_as_it_was(tmp_path: Path) -> None:
    before, there = listed(), below(os.getpid())
    async with Host(isolate="srt") as host, host.session(working_dir=tmp_path) as session:
        await ok(session, "1")
        assert len(listed()) > len(before)
    assert listed() == before
    assert [*tmp_path.iterdir()] == []
    await eventually(lambda: below(os.getpid()) <= there)


ELSEWHERE = """
import asyncio
from cellblock import Host

async def main():
    async with Host(isolate="srt") as host, host.session(working_dir=".") as session:
        print((await session.execute("print(6 * 7)")).text)

asyncio.run(main())
"""


def test_cellblock_may_be_where_the_interpreter_looks_for_no_packages(tmp_path: Path) -> None:
    # As with the interpreter of an environment in which cellblock is not installed.
    shutil.copytree(Path(cellblock.__file__).parent, tmp_path / "packages" / "cellblock")
    (tmp_path / "workspace").mkdir()
    command, around = [sys.executable, "-c", ELSEWHERE], {**os.environ, "PYTHONPATH": str(tmp_path / "packages")}
    ran = subprocess.run(command, env=around, cwd=tmp_path / "workspace", capture_output=True, text=True, timeout=60)
    assert ran.stdout.split() == ["42"], ran.stderr


async def test_the_settings_have_no_name(srt_host: Host, workspace: Path) -> None:
    [*arguments] = [command_line(pid) for pid in below(os.getpid()) if "--settings" in command_line(pid)]
    assert arguments
    assert all("--settings /dev/fd/" in line for line in arguments)


HOST = """
import asyncio, sys
from cellblock import Host

async def main():
    async with Host() as host, host.session(isolate="srt", working_dir=sys.argv[1]) as session:
        await session.execute("import subprocess; subprocess.Popen(['sleep', '8765'])")
        print("ready", flush=True)
        await session.execute("while True: pass", timeout=None)

asyncio.run(main())
"""


@pytest.mark.parametrize("moment", ["running", "starting"])
async def test_a_host_that_is_killed_leaves_nothing(tmp_path: Path, moment: str) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    before = listed()
    host = subprocess.Popen([sys.executable, "-c", HOST, str(workspace)], stdout=subprocess.PIPE, text=True)
    assert host.stdout is not None
    if moment == "running":
        assert host.stdout.readline() == "ready\n"

    def parts() -> set[int]:
        """Return the processes of the sandbox, once those of both kinds are there."""
        found = below(host.pid)
        lines = [command_line(pid) for pid in found]
        return found if all(any(program in line for line in lines) for program in ("bwrap", "socat")) else set()

    started = await eventually(parts)
    host.kill()
    host.wait()
    host.stdout.close()
    await eventually(lambda: not any(map(alive, started)))
    await eventually(lambda: listed() == before)
    assert [*workspace.iterdir()] == []


@pytest.mark.parametrize("victim", ["node", "bwrap"])
async def test_when_srt_is_killed_the_session_dies_says_so_and_goes_on(tmp_path: Path, victim: str) -> None:
    async with Host(isolate="srt") as host, host.session(working_dir=tmp_path) as session:
        await ok(session, "x = 1")
        mine = [pid for pid in below(os.getpid()) if str(tmp_path) in _directory(pid)]
        found = [pid for pid in mine if command_line(pid).startswith(victim)]
        os.kill(found[0], signal.SIGKILL)
        await eventually(lambda: not any(map(alive, mine)))
        results = [await session.execute("x = 2") for _ in range(2)]
        assert results[-1].ok
        assert "died" in (results[0].text or "")
    assert [name for name in os.listdir(tmp_path) if (tmp_path / name).is_file()] == []


def _directory(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""


# -- what cannot be ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["srt", "bwrap", "socat"])
def test_without_srt_or_what_it_needs_nothing_starts(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    there = srt.where
    monkeypatch.setattr(srt, "where", lambda name: None if name == missing else there(name))
    monkeypatch.setattr(srt.missing, "__defaults__", (srt.where, "linux"))
    with pytest.raises(SandboxError, match=f"{missing}.*install"):
        Host(isolate="srt")


async def test_settings_that_srt_refuses_are_an_error_with_its_words(tmp_path: Path) -> None:
    policy = SrtPolicy.load(settings_file(tmp_path, allowedDomains=["*"]))
    host = Host(isolate="srt", policy=policy)
    with pytest.raises(LaunchError, match=r"srt ended with status 1(.|\n)*Invalid domain pattern"):
        await host.session(working_dir=tmp_path).start()
    await host.close()


async def test_settings_of_srt_are_for_srt(tmp_path: Path) -> None:
    policy = SrtPolicy.load(settings_file(tmp_path))
    with pytest.raises(InvalidInputError, match="isolate='srt'"):
        Host(isolate="none", policy=policy)
    async with Host(launch="spawn") as host:
        with pytest.raises(InvalidInputError, match="isolate='srt'"):
            host.session(isolate="native", policy=policy)


async def test_a_session_cannot_widen_what_its_host_allows(tmp_path: Path) -> None:
    given = SrtPolicy.load(settings_file(tmp_path))
    other = SrtPolicy.load(settings_file(tmp_path, allowedDomains=["example.org"]))
    async with Host(launch="spawn", isolate="srt", policy=given) as host:
        for policy in (other, Policy(), Policy(Filesystem(read=("/",)))):
            with pytest.raises(InvalidInputError, match="cannot be compared"):
                host.session(policy=policy)
    async with Host(launch="spawn", isolate="srt", policy=Policy()) as host:
        with pytest.raises(InvalidInputError, match="cannot be compared"):
            host.session(policy=given)


# -- packages ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def stocked(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have pip take packages from one directory."""
    directory = tmp_path_factory.mktemp("wheels")
    (directory / "tiny_demo-1.0-py3-none-any.whl").write_bytes(wheel("tiny_demo"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    return directory


def packages() -> list[str]:
    """What is installed for sessions now."""
    top = Path(tempfile.gettempdir())
    return [str(path) for name in listed() for path in (top / name / "packages").glob("*")]


async def test_packages_are_installed_for_one_session_and_survive_a_reset(stocked: Path, tmp_path: Path) -> None:
    async with Host(isolate="srt") as host:
        async with host.session(working_dir=tmp_path) as session, host.session(working_dir=tmp_path) as other:
            result = await session.install("tiny-demo>=1")
            assert result.ok, result.text
            assert "Successfully installed tiny-demo-1.0" in result.output
            assert await value(session, "import tiny_demo; tiny_demo.ANSWER") == 42
            await session.reset()
            assert await value(session, "import tiny_demo; tiny_demo.ANSWER") == 42
            assert (await session.execute("!python -c 'import tiny_demo; print(tiny_demo.ANSWER)'")).output == "42\n"
            # They are pip's to write, and no one else's.
            refused = await session.execute("import tiny_demo; open(tiny_demo.__file__, 'w')")
            assert refused.error is not None
            assert refused.error.ename in ("OSError", "PermissionError")
            assert (await other.execute("import tiny_demo")).status == "error"
            again = await session.install("tiny-demo")
            assert again.ok
            assert len(packages()) == 1
        assert packages() == []
    assert os.listdir(tmp_path) == []


async def test_packages_that_cannot_be_had_are_an_error_that_names_them(stocked: Path, confined_shop: Session) -> None:
    result = await confined_shop.execute("%pip install no-such-package")
    assert result.error is not None
    assert "no-such-package cannot be installed: No matching distribution found" in result.error.evalue
    assert await value(confined_shop, "1 + 1") == 2


@pytest.fixture
async def confined_shop(stocked: Path, tmp_path: Path) -> AsyncIterator[Session]:
    """A session whose pip takes packages from one directory."""
    async with Host(isolate="srt") as host, host.session(working_dir=tmp_path) as session:
        yield session


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
async def test_an_index_on_this_machine_is_reached_and_with_settings_of_srts_own(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".env").write_text("SECRET=1")
    with package_index() as index:
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        for variable in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX"):
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("127.0.0.1", name))
        policy = SrtPolicy.load(settings_file(tmp_path))
        async with Host(isolate="srt", policy=policy) as host, host.session(working_dir=tmp_path) as session:
            result = await session.install("tiny-demo")
            assert result.ok, result.text
            assert await value(session, "import tiny_demo; tiny_demo.ANSWER") == 42
            # The session itself reaches it no more than before.
            code = f"import urllib.request; urllib.request.urlopen('http://{name}:{index.port}', timeout=5)"
            refused = await session.execute(code)
            assert refused.error is not None
            assert "401" not in refused.error.evalue


_APART = """
import os, sys, urllib.request
def attempt(name, act):
    try:
        act()
        print(name, 'done')
    except Exception as error:
        print(name, 'refused')
attempt('secret', lambda: open('.env').read())
attempt('data', lambda: open('data.txt').read())
attempt('workspace', lambda: open('new', 'w'))
attempt('packages', lambda: open(sys.argv[1] + '/new', 'w'))
attempt('others', lambda: open(os.path.dirname(sys.argv[1]) + '/new', 'w'))
attempt('allowed', lambda: urllib.request.urlopen(sys.argv[2], timeout=5).read())
attempt('elsewhere', lambda: urllib.request.urlopen(sys.argv[3], timeout=5).read())
attempt('capabilities', lambda: os.chroot('/'))
"""


@pytest.mark.parametrize("own", [False, True], ids=["ours", "srt's"])
async def test_what_runs_for_an_installation_is_kept_in(own: bool, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("SECRET=1")
    (tmp_path / "data.txt").write_text("data")
    policy = SrtPolicy.load(settings_file(tmp_path)) if own else Policy()
    with web_server("127.0.0.2") as port, web_server("127.0.0.2") as other:
        async with Host(isolate="srt", policy=policy) as host, host.session(working_dir=tmp_path) as session:
            kernel = session._kernels.current
            assert kernel is not None
            target = f"{kernel.family.packages}/one"
            os.mkdir(target)
            changed = srt.for_installing(policy, target, [], [f"127.0.0.2:{port}"])
            urls = [f"http://127.0.0.2:{number}" for number in (port, other)]
            argv = [sys.executable, "-c", _APART, target, *urls]
            async with sandbox_apart(kernel._running, changed, host.facts) as control:
                control.begin(argv, str(tmp_path), env={"PATH": os.environ["PATH"]})
                assert await control.finish() == 0
            # Where the disk is hidden, what is written beside goes to memory and is gone.
            assert os.listdir(kernel.family.packages or "") == ["one"]
            said = dict(line.split() for line in (await session.execute("")).output.splitlines())
    del said["others"]
    assert said == {
        "secret": "refused",
        "data": "done",
        "workspace": "refused",
        "packages": "done",
        "allowed": "done",
        "elsewhere": "refused",
        "capabilities": "refused",
    }


async def test_an_installation_that_is_stopped_leaves_nothing(stocked: Path, confined_shop: Session) -> None:
    before = {*listed()}
    result = await confined_shop.execute("%pip install tiny-demo\nimport time; time.sleep(60)", timeout=0.5)
    assert result.status == "timeout"
    await eventually(lambda: {*listed()} == before)
    assert await value(confined_shop, "1 + 1") == 2


_KILLED = """
import asyncio
from cellblock import Host

async def main():
    async with Host(isolate="srt") as host, host.session() as session:
        assert (await session.install("tiny-demo")).ok
        await session.execute("1")
        print("installed", flush=True)
        async for item in session.stream("%pip install --force-reinstall tiny-demo"):
            print("installing", flush=True)

asyncio.run(main())
"""


async def test_nothing_is_left_of_an_installation_when_the_host_is_killed(stocked: Path, tmp_path: Path) -> None:
    before = {*listed()}
    (tmp_path / "program.py").write_text(_KILLED)
    with subprocess.Popen([sys.executable, "program.py"], stdout=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stdout is not None
        for _ in range(2):
            assert await asyncio.to_thread(process.stdout.readline)
        everything = below(process.pid)
        process.kill()
    await eventually(lambda: not any(alive(pid) for pid in everything))
    await eventually(lambda: {*listed()} == before)
