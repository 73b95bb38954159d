"""What known clients can take, and work that takes longer."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import Any

import pytest

from cellblock.fronts.mcp_server.clients import Clients
from cellblock.host import Host
from cellblock.model.sessions import SessionRecord
from mcp_clients import connect, data, images, opened, png, run, show, text
from processes import eventually
from suite import first_quick


@pytest.mark.slow
async def test_a_session_that_is_still_starting_is_said_to_be(
    native_host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect(native_host, tmp_path, wait=0.1) as connected:
        go = asyncio.Event()

        async def slow(self: Clients) -> SessionRecord:
            await go.wait()
            return await only(self)

        only = Clients._only
        monkeypatch.setattr(Clients, "_only", slow)
        early = text(await run(connected, "x = 1"))
        assert early == "BusyError: nothing was done, because the session is still starting: call again"
        go.set()
        await opened(connected)


@pytest.mark.slow
async def test_an_option_is_the_limit_whatever_the_client_is_called(native_host: Host, tmp_path: Path) -> None:
    for name in ("mcp", "unknown"):
        async with connect(native_host, tmp_path, name=name, wait=0.3) as connected:
            await opened(connected)
            began = time.monotonic()
            going = await run(connected, "import time; time.sleep(60)")
            assert (data(going)["status"], time.monotonic() - began < 4) == ("running", True)


@pytest.mark.parametrize(
    "how", first_quick([{"name": "google-adk", "wait": 60}, {"pictures_as_files": True}]), ids=["client", "option"]
)
async def test_pictures_stay_files_where_a_model_would_get_base64(native_host: Host, tmp_path: Path, how: Any) -> None:
    async with connect(native_host, tmp_path, **how) as connected:
        shown = await run(connected, show(png()) + "\nprint('after')")
        assert images(shown) == []
        note = re.search(r"\[1 picture is not shown here, but kept in images/(\w+\.png)\]$", text(shown))
        assert note is not None
        assert (tmp_path / "images" / note[1]).read_bytes() == png()


@pytest.mark.slow
async def test_work_that_takes_longer_is_waited_for_by_the_same_call(native_host: Host, tmp_path: Path) -> None:
    async with connect(native_host, tmp_path, wait=0.3, programs=True) as connected:
        await opened(connected)
        call = "run_program", {"command": "echo once >> made; while [ ! -e go ]; do sleep 0.1; done; cat made"}
        going = await connected.call_tool(*call)
        assert text(going) == "Still running. Call run_program again with the same arguments to wait for it."
        (tmp_path / "go").touch()

        async def ended() -> bool:
            return text(await connected.call_tool(*call)) == "once"

        await eventually(ended)
