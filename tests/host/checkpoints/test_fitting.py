"""No session goes on with a kernel that has other walls than its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cellblock import CheckpointError, CommandRequest, Filesystem, Host, Policy
from suite import first_quick


async def decide(request: CommandRequest) -> bool:
    return False


@pytest.mark.parametrize(
    ("options", "said"),
    first_quick(
        [
            ({"policy": Policy(filesystem=Filesystem(deny_read=("secret",)))}, "another policy"),
            ({"working_dir": "elsewhere"}, "cannot reach this session's directory"),
            ({"on_command": decide}, "handle shell commands differently"),
        ]
    ),
    ids=["policy", "directory", "commands"],
)
async def test_a_kernel_of_another_sandbox_is_refused(
    native_host: Host, tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    if "working_dir" in options:
        options = {"working_dir": elsewhere}
    usual = {"working_dir": here, "images_dir": tmp_path, "recovery": "none"}
    async with native_host.session(**usual) as session:  # type: ignore[arg-type]
        checkpoint = await session.checkpoint()
        with pytest.raises(CheckpointError, match=said):
            await native_host.session(start_from=checkpoint, **options).start()
        async with native_host.session(**usual | options) as other:  # type: ignore[arg-type]
            with pytest.raises(CheckpointError, match=said):
                await other.restore(checkpoint)
            with pytest.raises(CheckpointError, match=said):
                await other.adopt(session)
            assert (await other.execute("1")).ok
        assert (await session.execute("1")).ok
        await checkpoint.drop()


@pytest.mark.slow
async def test_a_kernel_without_a_sandbox_is_none_of_a_session_that_has_one(tmp_path: Path) -> None:
    async with Host(isolate="native") as host:
        usual = {"working_dir": tmp_path, "images_dir": tmp_path.parent / "images", "recovery": "none"}
        async with host.session(**usual) as session, host.session(**usual, isolate="none") as free:  # type: ignore[arg-type]
            checkpoint = await free.checkpoint()
            with pytest.raises(CheckpointError, match="isolate='none', and this session has 'native'"):
                await session.restore(checkpoint)
            with pytest.raises(CheckpointError, match="isolate"):
                await host.session(start_from=checkpoint, isolate="native").start()
            assert (await session.execute("1")).ok
