"""Tools of sessions, as clients ask the daemon for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cellblock.errors import UnsupportedError
from cellblock.operations.executions import Submit
from cellblock.operations.sessions import Create
from cellblock.operations.tools import SearchTools
from cellblock.service.daemon import control
from cellblock.service.daemon.link import DaemonLink
from cellblock.service.daemon.place import Place

pytestmark = pytest.mark.slow


@pytest.fixture
async def link(tmp_path: Path) -> AsyncIterator[DaemonLink]:
    place = Place(tmp_path / "state")
    control.start(place)
    link = DaemonLink(place)
    yield link
    await link.close()
    control.stop(place)


@pytest.mark.parametrize(
    "source",
    ["def f(a: int = 1) -> str: ...\n" * 300_000, "x = " + "(" * 190 + "[1], " * 2_000_000, '"""' + " \n" * 4_000_000],
    ids=["functions", "values", "text"],
)
async def test_a_search_in_what_a_session_wrote_delays_no_other_session(link: DaemonLink, tmp_path: Path, source: str) -> None:
    tools = tmp_path / "workspace" / "gentools" / "x" / "y"
    tools.mkdir(parents=True)
    for name in ("__init__.py", "../__init__.py"):
        (tools / name).touch()
    (tools / "api.py").write_text(source)
    await link.call(Create("hostile", {"working_dir": str(tmp_path / "workspace")}))
    await link.call(Create("other", {"working_dir": str(tmp_path / "workspace")}))
    search = asyncio.ensure_future(link.call(SearchTools("hostile", "y")))
    for number in range(3):
        result = await link.call(Submit("other", wait=True, timeout=60_000), str(number).encode())
        assert result["text"] == str(number)
    assert not search.done()  # it takes seconds
    try:
        found = await search
    except UnsupportedError as error:
        found = str(error)
    assert len(found) < 20_000
    after = await link.call(Submit("other", wait=True, timeout=60_000), b"'alive'")
    assert after["text"] == "'alive'"
