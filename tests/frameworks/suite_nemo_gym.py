"""`cellblock.adapters.nemo_gym`, by NeMo Gym's own sandboxes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from nemo_gym.sandbox import AsyncSandbox, Sandbox, SandboxCreateError, SandboxSpec, SandboxStatus, list_providers

from cellblock.adapters.nemo_gym import CellblockProvider
from frameworks.document import check_agent


@pytest.fixture
async def sandbox() -> AsyncIterator[AsyncSandbox]:
    async with AsyncSandbox(CellblockProvider(), SandboxSpec(env={"A": "spec", "B": "spec"})) as sandbox:
        yield await sandbox.start()


def test_the_program_of_the_page() -> None:
    assert "cellblock" in list_providers()
    check_agent("NeMo Gym")


def test_programs_without_an_event_loop_use_it_as_well() -> None:
    """Its loop is dropped without a word, so what was warm there ends with the next test, which starts a sandbox."""
    with Sandbox({"cellblock": {}}, SandboxSpec()) as sandbox:
        sandbox.start()
        assert sandbox.exec("echo 1").stdout == "1\n"


async def test_commands_have_a_status_and_a_kind_of_error(sandbox: AsyncSandbox) -> None:
    done = await sandbox.exec("echo $A $B; pwd; echo err >&2; exit 3", cwd="/", env={"B": "own"})
    assert (done.stdout, done.stderr, done.return_code, done.error_type) == ("spec own\n/\n", "err\n", 3, None)
    late = await sandbox.exec("echo out; sleep 60", timeout_s=0.5)
    assert (late.stdout, late.return_code, late.error_type) == ("out\n", 124, "timeout")
    with pytest.raises(ValueError, match="one user"):
        await sandbox.exec("true", user="nobody")


async def test_files_go_both_ways(sandbox: AsyncSandbox, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"\x00\xff")
    await sandbox.upload(tmp_path / "in", "a/b.bin")
    await sandbox.download("a/b.bin", tmp_path / "c" / "out")
    assert (tmp_path / "c" / "out").read_bytes() == b"\x00\xff"
    with pytest.raises(FileNotFoundError):
        await sandbox.download("nothing", tmp_path / "out")


async def test_a_sandbox_ends_when_it_is_closed_or_its_time_is_over_and_others_go_on() -> None:
    provider = CellblockProvider()
    async with AsyncSandbox(provider, SandboxSpec(workdir="a/b")) as stays:
        await stays.start()
        handle = await provider.create(SandboxSpec(ttl_s=0.2))
        while await provider.status(handle) == SandboxStatus.RUNNING:
            await asyncio.sleep(0)
        assert (await provider.exec(handle, "true")).error_type == "sandbox"
        async with AsyncSandbox(provider, SandboxSpec()) as other:
            await other.start()
        assert await other.status() == SandboxStatus.STOPPED
        await provider.close(handle)
        await provider.close(handle)
        assert await stays.status() == SandboxStatus.RUNNING
        assert (await stays.exec("basename $PWD")).stdout == "b\n"


@pytest.mark.parametrize(
    "wrong",
    [
        {"image": "python:3.12"},
        {"entrypoint": ["sh"]},
        {"resources": {"cpu": 1}},
        {"workdir": "/root"},
        {"ready_timeout_s": 0},
        {"provider_options": {"timeout": -1}},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
async def test_what_a_session_does_not_have_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SandboxCreateError, match="session"):
        await CellblockProvider().create(SandboxSpec(**wrong))
