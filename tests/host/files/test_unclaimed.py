"""What killed operations have left in a workspace is removed by the next session there."""

from __future__ import annotations

import os
from pathlib import Path

from cellblock import Host
from cellblock.common.whole_file import claimed
from processes import eventually

LEFT_FILE, LEFT_FOLDER, CLAIMED = (f".cellblock-{digit * 16}" for digit in "0ab")


async def test_a_session_removes_what_no_operation_claims(host: Host, tmp_path: Path) -> None:
    (tmp_path / LEFT_FILE).write_text("x")
    (tmp_path / LEFT_FOLDER / "deep").mkdir(parents=True)
    (tmp_path / LEFT_FOLDER / "deep" / "file").write_text("x")
    (tmp_path / CLAIMED).write_text("x")
    (tmp_path / ".cellblock-of-somebody").write_text("x")
    (tmp_path / "file").write_text("x")
    fd = claimed(os.open(tmp_path / CLAIMED, os.O_RDONLY))
    try:
        async with host.session(working_dir=tmp_path):
            await eventually(lambda: {*os.listdir(tmp_path)} == {CLAIMED, ".cellblock-of-somebody", "file"})
    finally:
        os.close(fd)
