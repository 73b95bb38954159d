"""The life of a `KernelGateway`, and the gateway of a `CodeExecutor`. Nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from cellblock import CodeExecutor, ExecutionError, Host, KernelClient, KernelGateway
from cellblock.errors import InvalidInputError, StateError
from cellblock.fronts.kernel_mgr import token_files
from processes import alive, below, eventually

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


async def test_a_caller_that_blocks_its_loop_is_served() -> None:
    async with KernelGateway(port=0) as gateway:
        request = urllib.request.Request(f"http://localhost:{gateway.port}/api/kernels", method="POST", data=b"{}")
        request.add_header("Authorization", f"token {gateway.token}")
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=20) as answer:  # in the loop's own thread
            assert answer.status == 201


def test_a_gateway_outlives_the_loop_that_started_it_and_is_stopped_in_another() -> None:
    gateway = KernelGateway(port=0)

    async def use() -> str | None:
        async with KernelClient(port=gateway.port) as client:
            return (await client.execute("6 * 7")).text

    asyncio.run(gateway.start())
    assert asyncio.run(use()) == "42"
    asyncio.run(gateway.stop())
    with pytest.raises(StateError, match="no kernel could be started"):
        asyncio.run(KernelClient(port=gateway.port).connect(retries=1))


async def test_a_start_that_is_cancelled_leaves_nothing() -> None:
    for turns in range(0, 400, 20):
        gateway = KernelGateway(port=0)
        task = asyncio.create_task(gateway.start())
        for _ in range(turns):
            await asyncio.sleep(0.001)
        if not task.cancel():
            await gateway.stop()
            return
        with pytest.raises(asyncio.CancelledError):
            await task
    pytest.fail("it never started")


def test_a_program_that_ends_without_stopping_it_leaves_nothing(tmp_path: Path) -> None:
    program = """
import asyncio, os
from cellblock import KernelClient, KernelGateway

async def main():
    gateway = KernelGateway(port=0)
    await gateway.start()
    await KernelClient(port=gateway.port).connect()
    print(len(os.listdir(os.environ["CELLBLOCK_HOME"] + "/gateways")))

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("1\n", "")
    assert os.listdir(tmp_path / "state" / "gateways") == []


async def test_kernels_end_with_a_program_that_is_killed(tmp_path: Path) -> None:
    program = """
import asyncio
from cellblock import KernelClient, KernelGateway

async def main():
    async with KernelGateway(port=0) as gateway, KernelClient(port=gateway.port) as client:
        print((await client.execute("import os; os.getpid()")).text, flush=True)
        await asyncio.sleep(1000)

asyncio.run(main())
"""
    running = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    assert running.stdout is not None
    assert (await running.stdout.readline()).strip().isdigit()
    processes = below(running.pid)
    running.kill()
    await running.wait()
    await eventually(lambda: not any(map(alive, processes)))


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
