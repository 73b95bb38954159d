"""`KernelGateway` and `KernelClient`, as ipybox documents them, and the gateway of a `CodeExecutor`."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import stat
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cellblock import ApprovalClient, ApprovalRequest, ExecutionError, KernelClient, KernelGateway, ToolServer
from cellblock.errors import InvalidInputError, StateError, UnsupportedError
from cellblock.fronts.kernel_mgr import token_files
from cellblock.fronts.kernel_mgr.client import ExecutionResult
from processes import below, descriptors, eventually

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
    """The gateway of all tests keeps its connections and zygotes; that it leaves nothing is looked at when it has ended."""


@pytest.fixture(scope="module", autouse=True)
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KernelGateway]:
    """A gateway of these tests' own."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CELLBLOCK_HOME", str(home / "state"))
        (home / "work").mkdir()
        patch.chdir(home / "work")
        processes, opened = below(os.getpid()), descriptors()
        async with KernelGateway(port=0, env={"COLOUR": "blue"}) as made:
            yield made
        await eventually(lambda: len(below(os.getpid())) <= len(processes))
        await eventually(lambda: len(descriptors()) <= len(opened))


@pytest.fixture(scope="module")
async def client(gateway: KernelGateway) -> AsyncIterator[KernelClient]:
    async with KernelClient(port=gateway.port) as made:
        yield made


def signature(function: Any) -> list[tuple[str, Any]]:
    return [
        (name, one.default) for name, one in inspect.signature(function).parameters.items() if one.kind != one.KEYWORD_ONLY
    ]


def test_the_signatures_are_those_of_the_documents() -> None:
    assert signature(KernelGateway) == [
        ("host", "localhost"),
        ("port", 8888),
        ("working_dir", None),
        ("sandbox", True),  # False there; here the sandbox is the default everywhere
        ("sandbox_config", None),
        ("log_level", "INFO"),
        ("log_to_stderr", False),
        ("env", None),
    ]
    assert signature(KernelClient) == [
        ("host", "localhost"),
        ("port", 8888),
        ("working_dir", None),
        ("images_dir", None),
        ("ping_interval", 10),
        ("approve_shell_cmds", False),
        ("require_shell_escape", False),
        ("tool_server_host", "localhost"),
        ("tool_server_port", 0),
        ("kernel_init_timeout", 10),
    ]
    assert signature(KernelClient.connect)[1:] == [
        ("retries", 10),
        ("retry_interval", 1.0),
        ("kernel_init_timeout", None),
    ]
    assert signature(KernelClient.drain)[1:] == [("timeout", 1.0)]
    assert signature(KernelClient.interrupt_and_drain)[1:] == [("drain_timeout", 1.0), ("settle_delay", 0.2)]
    # None there; here every front has the same default.
    assert signature(KernelClient.execute)[2:] == signature(KernelClient.stream)[2:] == [("timeout", 120)]
    assert signature(KernelGateway.stop)[1:] == [("timeout", 10)]


async def test_code_is_executed_with_state(client: KernelClient) -> None:
    assert await client.execute("x = 40") == ExecutionResult(None, [])
    assert (await client.execute("print('a'); x + 2")).text == "a\n42"
    assert (await client.execute("import os; os.environ['COLOUR']")).text == "'blue'"
    items = [item async for item in client.stream("print('b')\n'c'")]
    assert items == ["b\n", "'c'", ExecutionResult("b\n'c'", [])]


async def test_images_are_saved(client: KernelClient) -> None:
    code = "from IPython.display import display; display({'image/png': b'abc', 'text/plain': 'an image'}, raw=True)"
    result = await client.execute(code)
    assert [path.read_bytes() for path in result.images] == [b"abc"]
    assert result.images[0].parent == Path("images")
    assert result.text == "an image"


async def test_errors_and_timeouts(client: KernelClient) -> None:
    with pytest.raises(ExecutionError, match=r"ZeroDivisionError: division by zero[\s\S]*1/0"):
        await client.execute("y = 1; 1/0")
    with pytest.raises(TimeoutError):
        await client.execute("import time; time.sleep(100)", timeout=0.05)
    assert (await client.execute("y")).text == "1"


async def test_reset_and_disconnect(gateway: KernelGateway) -> None:
    client = KernelClient(port=gateway.port)
    with pytest.raises(RuntimeError, match="not connected"):
        _ = client.kernel_id
    async with client:
        first = client.kernel_id
        await client.execute("x = 1")
        with pytest.raises(StateError, match="already"):
            await client.connect()
        await client.reset()
        assert client.kernel_id != first
        with pytest.raises(ExecutionError, match="NameError"):
            await client.execute("x")
    with pytest.raises(RuntimeError, match="not connected"):
        await client.execute("1")


async def test_a_gateway_that_is_not_there(unused_tcp_port: int) -> None:
    with pytest.raises(RuntimeError, match="no kernel could be started"):
        await KernelClient(port=unused_tcp_port).connect(retries=2, retry_interval=0)


async def test_who_has_no_token_is_refused(gateway: KernelGateway) -> None:
    file = Path(os.environ["CELLBLOCK_HOME"]) / "gateways" / str(gateway.port)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text() == gateway.token == token_files.find(gateway.port)
    with pytest.raises(RuntimeError, match="401"):
        await KernelClient(port=gateway.port, token="guessed").connect(retries=1)
    async with KernelClient(port=gateway.port, token=gateway.token) as client:
        assert (await client.execute("1")).text == "1"


async def test_a_kernel_stays_where_its_code_goes_or_comes_back(gateway: KernelGateway) -> None:
    sub = Path.cwd() / "sub"
    sub.mkdir(exist_ok=True)
    before = await kernels(gateway)
    async with KernelClient(port=gateway.port) as client:
        await client.execute("import os; os.chdir('sub')")
        assert (await client.execute("os.getcwd()")).text == repr(str(sub))
    async with KernelClient(port=gateway.port, working_dir="sub") as client:
        assert (await client.execute("import os; os.getcwd()")).text == repr(str(sub))
        assert (await client.execute("os.chdir('/')")).text == f"[cellblock] cwd reset to {sub}"
        assert (await client.execute("os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')")).text is not None
        assert (await client.execute("os.getcwd()")).text == repr(str(sub))
        assert (await client.execute("[name for name in globals() if 'cellblock' in name]")).text == "[]"
    with pytest.raises(StateError, match=r"cannot work in /nowhere: FileNotFoundError.*KernelGateway\(working_dir=…\)"):
        await KernelClient(port=gateway.port, working_dir="/nowhere").connect()
    await until_there_are(before, gateway)


async def kernels(gateway: KernelGateway) -> int:
    url = f"http://localhost:{gateway.port}/api/kernels?token={gateway.token}"
    return len(json.loads(await asyncio.to_thread(lambda: urllib.request.urlopen(url).read())))


async def until_there_are(count: int, gateway: KernelGateway) -> None:
    """Wait until a gateway has as many kernels as before a test: one that failed ends."""
    async with asyncio.timeout(10):
        while await kernels(gateway) != count:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("given", [{"kernel_init_timeout": 0.0001}, {}])
async def test_a_kernel_that_takes_too_long_to_begin_is_ended(gateway: KernelGateway, given: dict[str, Any]) -> None:
    before = await kernels(gateway)
    client = KernelClient(port=gateway.port, **given)
    with pytest.raises(TimeoutError):
        await client.connect(kernel_init_timeout=None if given else 0.0001)
    await client.disconnect()
    with pytest.raises(StateError, match="not connected"):
        _ = client.kernel_http_url
    await until_there_are(before, gateway)


async def test_a_client_that_is_cancelled_while_it_connects_leaves_no_kernel(gateway: KernelGateway) -> None:
    for turns in range(0, 60, 3):
        task = asyncio.create_task(KernelClient(port=gateway.port).connect())
        for _ in range(turns):
            await asyncio.sleep(0.001)
        if not task.cancel():
            break
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        pytest.fail("it never connected")
    await task


async def test_where_things_are(gateway: KernelGateway, client: KernelClient) -> None:
    base = f"localhost:{gateway.port}/api/kernels"
    assert client.base_http_url == f"http://{base}"
    assert client.kernel_http_url == f"http://{base}/{client.kernel_id}"
    assert client.kernel_ws_url.startswith(f"ws://{base}/{client.kernel_id}/channels?session_id=")


async def test_what_a_kernel_still_says_is_dropped(client: KernelClient) -> None:
    async for item in client.stream("import time\nprint('begun')\ntime.sleep(100)"):
        assert item == "begun\n"
        break
    await client.interrupt_and_drain(drain_timeout=0.5)
    assert (await client.execute("'next'")).text == "'next'"
    assert await client.drain(0.01) <= 1  # the kernel is idle


async def test_commands_are_approved_by_a_tool_server(gateway: KernelGateway) -> None:
    asked = []

    async def decide(request: ApprovalRequest) -> None:
        asked.append((request.server_name, request.tool_name, request.tool_args["cmd"]))
        await (request.reject() if "rm" in request.tool_args["cmd"] else request.accept())

    async with (
        ToolServer(port=0, approval_required=True) as server,
        ApprovalClient(decide, port=server.port),
        KernelClient(
            port=gateway.port, approve_shell_cmds=True, require_shell_escape=True, tool_server_port=server.port
        ) as client,
    ):
        assert (await client.execute("!echo one")).text == "one"
        assert (await client.execute("%%bash\necho two")).text == "two"
        with pytest.raises(ExecutionError, match="Rejected"):
            await client.execute("!rm -r x")
        with pytest.raises(ExecutionError, match="Direct subprocess calls are not allowed"):
            await client.execute("import subprocess; subprocess.run(['ls'])")
        assert asked == [("shell", "shell", "echo one"), ("shell", "shell_magic", "echo two\n"), ("shell", "shell", "rm -r x")]
        await server.stop()
        with pytest.raises(ExecutionError, match="Rejected"):
            await client.execute("!echo three")


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"approve_shell_cmds": True}, "approve_shell_cmds needs tool_server_port"),
        ({"require_shell_escape": True}, "require_shell_escape needs approve_shell_cmds=True"),
    ],
)
def test_what_commands_need_to_be_approved(given: dict[str, Any], wrong: str) -> None:
    with pytest.raises(InvalidInputError, match=wrong):
        KernelClient(**given)


async def test_a_gateway_of_others_cannot_have_commands_approved() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b'HTTP/1.1 201 Created\r\nContent-Length: 11\r\nConnection: close\r\n\r\n{"id": "7"}')
        writer.close()

    async with await asyncio.start_server(answer, "localhost", 0) as other:
        port = other.sockets[0].getsockname()[1]
        with pytest.raises(UnsupportedError, match="approve_shell_cmds needs a gateway of cellblock"):
            await KernelClient(port=port, approve_shell_cmds=True, tool_server_port=1).connect()
