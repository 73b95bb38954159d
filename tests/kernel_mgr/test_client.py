"""`KernelGateway` and `KernelClient`, as ipybox documents them, and the gateway of a `CodeExecutor`."""

from __future__ import annotations

import inspect
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cellblock import ExecutionError, KernelClient, KernelGateway
from cellblock.errors import StateError
from cellblock.kernel_mgr import token_files
from cellblock.kernel_mgr.client import ExecutionResult
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
        ("sandbox", True),  # False there; here the sandbox is the default everywhere
        ("sandbox_config", None),
        ("log_level", "INFO"),
        ("log_to_stderr", False),
        ("env", None),
    ]
    expected = [("host", "localhost"), ("port", 8888), ("images_dir", None), ("ping_interval", 10)]
    assert signature(KernelClient) == expected
    assert signature(KernelClient.connect)[1:] == [("retries", 10), ("retry_interval", 1.0)]
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
