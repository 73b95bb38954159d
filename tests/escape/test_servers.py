"""Attack 51: an MCP server in a sandbox of its own tries to see, change, reach and outlive what it may not.

Each attack is also made by the same server without a sandbox, where it must succeed: so it is seen that it can.
"""

from __future__ import annotations

import ast
import asyncio
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cellblock.tools.mcp.params import parse_params
from cellblock.tools.mcp.servers import Servers
from processes import alive, below, command_line, eventually, parents
from web_servers import web_server

SERVER = Path(__file__).parents[1] / "servers" / "hostile_server.py"
_INSIDE = (Path(__file__).parent / "inside.py").read_text()


class Field(NamedTuple):
    """What lies around an attacked server."""

    data: Path
    home: Path
    project: Path
    state: Path


@pytest.fixture
def field(monkeypatch: pytest.MonkeyPatch) -> Iterator[Field]:
    """A directory that the server may write, and a home directory, another project and cellblock's state that it may not."""
    # Not in /tmp, which every sandbox has for itself: there nothing would be seen of the policy.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as top:
        found = Field(*(Path(top, name) for name in ("data", "home", "project", "all/state")))
        for place in found:
            place.mkdir(0o700, parents=True)
            (place / "file").write_text(place.name)
        monkeypatch.setenv("HOME", str(found.home))
        monkeypatch.setenv("CELLBLOCK_HOME", str(found.state))
        yield found


def narrow(field: Field, **more: Any) -> dict[str, Any]:
    """Return a policy that denies everything but the server's own script and one directory."""
    files = {"denyRead": ["/"], "allowRead": [str(SERVER)], "allowWrite": [str(field.data)]}
    return {"defaults": "sandbox-runtime", "filesystem": files, **more}


def wide(field: Field) -> dict[str, Any]:
    """Return a policy that lets everything be read but the home directory."""
    files = {"denyRead": ["~"], "allowRead": [str(SERVER)], "allowWrite": [str(field.data)]}
    return {"defaults": "sandbox-runtime", "filesystem": files}


def servers(sandbox: object, *mode: str) -> Servers:
    given = {"command": sys.executable, "args": [str(SERVER), *(mode or ("good",))], "sandbox": sandbox}
    return Servers(lambda name: parse_params(name, given), connect_timeout=20, environment=os.environ)


async def does(sandbox: object, code: str) -> Any:
    """Return what a server says of what it did."""
    async with servers(sandbox) as running:
        return await says(running, code)


async def says(running: Servers, code: str) -> Any:
    return ast.literal_eval((await running.call("s", "python", {"code": f"{_INSIDE}\n{code}"}, timeout=60)).text)


async def test_a_server_sees_nothing_of_the_host(field: Field) -> None:
    code = f"said = [read({str(field.home / 'file')!r}), read({str(field.project / 'file')!r}), read({str(field.data / 'file')!r})]"
    assert await does(narrow(field), code) == ["ENOENT", "ENOENT", "data"]
    assert await does(wide(field), code) == ["EACCES", "project", "data"]
    assert await does(False, code) == ["home", "project", "data"]


@pytest.mark.slow
@pytest.mark.sampled(1)
async def test_a_server_that_may_read_everything_does_not_read_the_state(field: Field) -> None:
    look = code = f"said = [read({str(field.state / 'file')!r}), answer(os.listdir, {str(field.state)!r})]"
    shown = {"allowRead": [str(SERVER)]}
    policies: list[dict[str, Any]] = [{"filesystem": shown}, {"filesystem": shown | {"allowWrite": [str(field.data.parent)]}}]
    for sandbox in policies:
        assert await does({"defaults": "sandbox-runtime", **sandbox}, code) == ["EACCES", "EACCES"]
    # Where it may write to what is around it, it does not get it out of the way either.
    code = f"""
state = {str(field.state)!r}
said = [answer(os.rename, state, state + '-away'), answer(os.rename, os.path.dirname(state), os.path.dirname(state) + '-away'),
        answer(os.rmdir, state), write(state + '/servers.db')]
"""
    around = {"defaults": "sandbox-runtime", "filesystem": shown | {"allowWrite": [str(field.state.parent.parent)]}}
    assert await does(around, code) == ["EBUSY", "EBUSY", "EBUSY", "EACCES"]
    assert (await does(False, look))[0] == "state"


@pytest.mark.slow
@pytest.mark.sampled(1)
async def test_a_server_writes_where_it_may_and_nowhere_else(field: Field) -> None:
    places = [field.data / "new", field.project / "new", Path(sys.prefix) / "new", Path("/usr/new"), field.data / ".mcp.json"]
    code = f"said = [answer(lambda: open(path, 'w').close()) for path in {[*map(str, places)]!r}]"
    assert await does(narrow(field), code) == [None, "ENOENT", "EROFS", "EROFS", "EISDIR"]
    assert await does(wide(field), code) == [None, "EROFS", "EROFS", "EROFS", "EISDIR"]
    assert [path.exists() for path in places] == [True, False, False, False, False]
    code = f"said = [answer(lambda: open(path, 'w').close()) for path in {[str(field.project / 'new'), str(field.data / '.mcp.json')]!r}]"
    assert await does(False, code) == [None, None]


@pytest.mark.slow
@pytest.mark.sampled(1)
async def test_a_server_begins_in_an_empty_directory_of_its_own(field: Field) -> None:
    code = "said = [os.getcwd() == os.environ['HOME'], os.listdir('.'), write('new', 'x'), os.listdir('.')]"
    for sandbox in (narrow(field), wide(field)):
        assert await does(sandbox, code) == [True, [], None, ["new"]]
    assert (await does(False, code))[0] is False


@pytest.mark.slow
@pytest.mark.sampled(1)
async def test_a_server_gets_nothing_of_the_hosts_environment_and_sees_no_process(field: Field) -> None:
    host = os.getpid()
    code = f"""
def signalled(pid):
    return answer(os.kill, pid, 0)
said = [len(read('/proc/{host}/environ')) > 10, signalled({host}), sorted(name for name in os.listdir('/proc') if name.isdigit())[0],
        read('/proc/1/environ'), answer(os.listdir, '/proc/1/root'), call(101, 0x4206, os.getppid(), 0, 0)]
"""
    if os.uname().machine != "x86_64":
        code = code.replace("call(101,", "call(117,")
    seen = await does(narrow(field), code)
    assert seen == [False, "ESRCH", "1", "EACCES", "EACCES", "EPERM"]
    seen = await does(False, code)
    assert seen[0] is True
    assert seen[1] is None
    assert seen[5] == 0  # seizes its keeper


async def test_a_server_has_three_descriptors_no_privileges_and_a_filter(field: Field) -> None:
    code = """
fields = dict(line.split(':\\t') for line in open('/proc/self/status').read().splitlines() if ':\\t' in line)
# Newer releases of libffi, which ctypes brings, keep their own file open.
opened = [name for name in os.listdir('/proc/self/fd') if 'libffi' not in answer(os.readlink, f'/proc/self/fd/{name}')]
said = [len(opened), fields['NoNewPrivs'], fields['Seccomp'], int(fields['CapEff'], 16), int(fields['CapBnd'], 16)]
"""
    assert await does(narrow(field), code) == [4, "1", "2", 0, 0]  # the fourth is for looking
    status = dict(line.split(":\t") for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    assert (await does(False, code))[1:3] == [status["NoNewPrivs"], status["Seccomp"]]  # in a container both may be set


@pytest.fixture
def site() -> Iterator[int]:
    """The port of a web server on this machine."""
    with web_server() as port:
        yield port


@pytest.mark.slow
@pytest.mark.sampled(1)
async def test_a_server_reaches_what_its_policy_names_and_nothing_else(
    field: Field, site: int, caplog: pytest.LogCaptureFixture
) -> None:
    code = f"""
import http.client, socket
def connect(address):
    with socket.socket() as s:
        s.settimeout(5)
        return answer(s.connect, address)
def get(url):
    proxy = os.environ.get('HTTP_PROXY', 'http://' + url.split('/')[2]).split('/')[2]
    connection = http.client.HTTPConnection(proxy, timeout=10)
    try:
        connection.request('GET', url if 'HTTP_PROXY' in os.environ else '/')
        answered = connection.getresponse()
        return answered.status, answered.read()[:5]
    except OSError as error:
        return errno.errorcode[error.errno]
said = [connect(('127.0.0.1', {site})), connect(('198.51.100.1', 80)), get('http://127.0.0.1:{site}/'), get('http://127.0.0.1:1/')]
"""
    assert await does(narrow(field), code) == ["ECONNREFUSED", "ENETUNREACH", "ECONNREFUSED", "ECONNREFUSED"]
    allowing = narrow(field, network={"allowedDomains": [f"127.0.0.1:{site}"]})
    caplog.set_level("INFO", "cellblock.tools")
    assert await does(allowing, code) == ["ECONNREFUSED", "ENETUNREACH", (200, b"hello"), (403, b"cellb")]
    assert "MCP server 's': [cellblock] " in caplog.text
    assert "127.0.0.1:1" in caplog.text
    code = code.replace("connect(('198.51.100.1', 80))", "None")
    assert await does(False, code) == [None, None, (200, b"hello"), "ECONNREFUSED"]


@pytest.mark.slow
@pytest.mark.sampled(1)
async def test_a_server_over_its_memory_is_told_so(field: Field) -> None:
    code = """
try:
    said = len(bytearray(600_000_000))
except MemoryError:
    said = 'MemoryError'
"""
    assert await does(narrow(field, resources={"memory": 256 * 2**20}), code) == "MemoryError"
    assert await does(narrow(field), code) == 600_000_000


STAY = """
import signal
def stay():
    if os.fork() == 0:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        for stream in (0, 1, 2):
            os.close(stream)
        while True:
            signal.pause()
stay()
said = None
"""


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("way", ["reset", "keeper", "process 1"])
async def test_nothing_of_a_server_outlives_its_stop(field: Field, way: str) -> None:
    async with servers(narrow(field)) as running:
        assert (await says(running, "said = os.path.isdir('.')")) is True
        await says(running, STAY)
        keeper = next(pid for pid, parent in parents().items() if parent == os.getpid() and "keeper.py" in command_line(pid))
        inner = below(keeper)
        assert len(inner) == 3  # process 1, the server and what is to stay
        assert (field.data / ".mcp.json").is_dir()
        if way == "reset":
            await running.reset()
            assert not any(map(alive, inner))
        else:
            os.kill(keeper if way == "keeper" else min(inner), 9)
            await eventually(lambda: not any(map(alive, inner)))
        await eventually(lambda: os.listdir(field.data) == ["file"])  # its placeholders are gone, too


@pytest.mark.slow
@pytest.mark.sampled(1)
async def test_a_server_cannot_reach_another_ones_network(field: Field) -> None:
    code = """
import socket, time
listener = socket.create_server(('127.0.0.1', 45678))
said = True
"""
    async with servers(narrow(field)) as one, servers(narrow(field)) as other:
        assert await says(one, code) is True
        assert (
            await says(other, "import socket\nsaid = answer(socket.create_connection, ('127.0.0.1', 45678))") == "ECONNREFUSED"
        )
        with pytest.raises(ConnectionRefusedError):
            await asyncio.to_thread(socket.create_connection, ("127.0.0.1", 45678))
