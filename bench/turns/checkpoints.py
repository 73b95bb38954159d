"""Checkpoints of a workspace with as many files as it may have."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from bench.turns import begin, end
from cellblock import Host

_FOLDERS, _FILES = 90, 1000
_MAKE = f"""
import os
for folder in range({_FOLDERS}):
    os.mkdir(f"d{{folder}}")
    for file in range({_FILES}):
        os.close(os.open(f"d{{folder}}/{{file}}", os.O_CREAT | os.O_WRONLY, 0o600))
"""


async def case_files() -> None:
    """90,000 files: kept, compared when nothing has changed and when all are gone, and brought back."""
    with tempfile.TemporaryDirectory() as directory:
        async with Host(isolate="none") as host, host.session(working_dir=directory, recovery="none") as session:
            await session.execute(_MAKE, timeout=120)
            begin()
            checkpoint = await session.checkpoint(files="copy")
            await session.diff(checkpoint)
            for folder in os.listdir(directory):
                os.rename(Path(directory, folder), Path(directory, f"{folder} elsewhere"))
            (await session.diff(checkpoint)).to_dict()
            await session.restore(checkpoint)
            end()
