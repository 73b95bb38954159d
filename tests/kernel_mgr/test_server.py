"""The life of a `KernelGateway`, and the gateway of a `CodeExecutor`. Nothing is left behind."""

from __future__ import annotations

import asyncio
import socket
import urllib.request
from pathlib import Path

import pytest

from cellblock import CodeExecutor, ExecutionError, Host, KernelClient, KernelGateway
from cellblock.errors import InvalidInputError, StateError
from cellblock.kernel_mgr import token_files

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELLBLOCK_HOME", str(tmp_path / "state"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


async def test_the_life_of_a_gateway() -> None:
    gateway = KernelGateway(port=0)
    await gateway.join()
    await gateway.start()
    with pytest.raises(RuntimeError, match="already running"):
        await gateway.start()
    client = KernelClient(port=gateway.port)
    await client.connect()
    await gateway.stop()
    await gateway.join()
    assert token_files.find(gateway.port) == ""
    with pytest.raises(StateError, match="lost"):
        await client.execute("1")
    await gateway.stop()


async def test_an_address_that_cannot_be_used() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(InvalidInputError, match="cannot listen"):
        await KernelGateway("127.0.0.1", taken.getsockname()[1]).start()


async def test_an_executor_opens_its_session_to_jupyter_clients(host: Host, tmp_path: Path) -> None:
    executor = CodeExecutor(kernel_gateway_port=0, working_dir=tmp_path / "work", host=host, sandbox=False)
    with pytest.raises(StateError, match="no gateway"):
        _ = executor.kernel_gateway_token
    async with executor:
        assert executor.kernel_gateway_port
        async with KernelClient(port=executor.kernel_gateway_port) as client:
            assert (await client.execute("import os; os.getcwd()")).text == repr(str(tmp_path / "work"))
            await executor.execute("mine = 1")
            with pytest.raises(ExecutionError, match="NameError"):
                await client.execute("mine")  # a kernel of its own
        await executor.execute("mine + 1")
        url = f"http://localhost:{executor.kernel_gateway_port}/api/kernels?token={executor.kernel_gateway_token}"
        assert f"executor-{executor.session_id}" in await read(url)
    with pytest.raises(StateError, match="no gateway"):
        _ = executor.kernel_gateway_token


async def read(url: str) -> str:
    def get() -> bytes:
        with urllib.request.urlopen(url) as answer:  # http, as it says
            return bytes(answer.read())

    return (await asyncio.to_thread(get)).decode()
