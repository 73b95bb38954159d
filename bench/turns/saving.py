"""Sessions that are saved, loaded and exported."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import tempfile
import zipfile
from pathlib import Path

from cellblock import CellblockError, Host, Session
from cellblock.host.saved_file import CELLS, MANIFEST, VARIABLES

_STATE = {
    "groups": [],
    "imports": {},
    "modules": [],
    "environment": {},
    "directory": "",
    "count": 0,
    "python": "3.11",
    "libraries": {},
    "left_out": [],
}


for _name in ("notebook", "saving"):  # what is measured is not the time that it takes to load
    importlib.import_module(f"cellblock.host.{_name}")


async def _saved(code: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with Host() as host, host.session(working_dir=directory) as session:
            await session.execute(code)
            await session.save(Path(directory, "file"))
            await session.load(Path(directory, "file"))
            await session.export(Path(directory, "file.ipynb"))


async def case_large() -> None:
    """300 MB in one value."""
    await _saved("x = bytes(range(256)) * 1_200_000")


async def case_many() -> None:
    """5,000 variables, and 50,000 objects in each of some."""
    await _saved("globals().update({f'v{i}': [i] for i in range(5000)})\nx = [{'i': i} for i in range(50_000)]")


async def case_output() -> None:
    """A notebook of a cell that has shown JSON and text of 8 MB."""
    await _saved(
        "from IPython.display import JSON, display\ndisplay(JSON([{'a': 1}] * 200_000)); print('é' * 900_000)\n'x' * 4_000_000"
    )


async def case_lying_file() -> None:
    """A manifest and cells as large as they may be."""
    names = [f"n{i}" for i in range(80_000)]
    state = {**_STATE, "groups": [{"names": names, "size": 0, "code": False}]}
    told = {"format": 1, "version": "", "created": "", "state": state}
    cell = json.dumps({"code": "\U0001f4a9" * 100_000, "status": "success", "execution_count": 1})
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr(MANIFEST, json.dumps(told))
        archive.writestr(VARIABLES, b"")
        archive.writestr(CELLS, f"{cell}\n" * 50)
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "file").write_bytes(data.getvalue())
        async with Host() as host, host.session(working_dir=directory) as session:
            await _load(session, Path(directory, "file"))


async def _load(session: Session, path: Path) -> None:
    with contextlib.suppress(CellblockError):
        await session.load(path)
