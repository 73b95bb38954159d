"""Servers of a session's code are told once to the reader of its output."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cellblock import Host
from cellblock.service.named.named_sessions import NamedSessions
from cellblock.service.named.servers import ServerNotes
from cellblock.service.store.named import NamedStore
from named_sessions import OPTIONS, submit

SERVER = (
    "import socket; made = [*globals().get('made', ()), socket.create_server(('127.0.0.1', 0))]; made[-1].getsockname()[1]"
)


@pytest.fixture
async def native(native_host: Host, tmp_path: Path) -> AsyncIterator[NamedSessions]:
    sessions = NamedSessions(native_host, NamedStore(tmp_path / "state"))
    yield sessions
    await sessions.close()


async def test_a_server_is_told_once_in_a_result(native: NamedSessions, tmp_path: Path) -> None:
    named = await native.create("web app", {"working_dir": str(tmp_path), "recovery": "none"})
    port = (await submit(native, named, SERVER).wait()).return_value
    named.servers.look(named.session)
    assert named.servers._looking is not None
    await named.servers._looking
    first, second = [(await submit(native, named, "print(1)").wait()).text or "" for _ in range(2)]
    assert f"A server listens at port {port}. The user opens its page with: cellblock open 'web app' {port}" in first
    assert second.strip() == "1"


@pytest.mark.slow
async def test_the_loop_of_the_sessions_looks_while_a_cell_runs(native: NamedSessions, tmp_path: Path) -> None:
    named = await native.create("web", {"working_dir": str(tmp_path), "recovery": "none"})
    code = f"{SERVER}\nimport asyncio\nwhile not globals().get('enough'): await asyncio.sleep(0.01)"
    running = submit(native, named, code)
    while not named.servers._told:
        await asyncio.sleep(0.05)
    await named.session.interrupt()
    assert "cellblock open web " in ((await running.wait()).text or "")


@pytest.mark.slow
async def test_a_thousand_servers_are_not_all_told(native: NamedSessions, tmp_path: Path) -> None:
    named = await native.create("web", {"working_dir": str(tmp_path), "recovery": "none"})
    await submit(native, named, "import socket; made = [socket.create_server(('127.0.0.1', 0)) for _ in range(100)]").wait()
    for _ in range(3):
        named.servers.look(named.session)
        if named.servers._looking is not None:
            await named.servers._looking
    assert ((await submit(native, named, "print(1)").wait()).text or "").count("A server listens") == 8


@pytest.mark.slow
async def test_a_session_without_its_own_network_is_not_asked(sessions: NamedSessions) -> None:
    """The ports of the machine are not the session's."""
    named = await sessions.create("open", OPTIONS)
    await submit(sessions, named, SERVER).wait()
    named.servers.look(named.session)
    assert named.servers._looking is None


@pytest.mark.slow
async def test_listeners_of_other_languages_kernels_are_no_servers(native: NamedSessions, tmp_path: Path) -> None:
    named = await native.create("web", {"working_dir": str(tmp_path)})
    for kernel_type in ("bash", "python3"):
        notes = ServerNotes("web", kernel_type)
        notes.look(named.session)
        assert (notes._looking is None) == (kernel_type == "bash")
    assert notes._looking is not None
    await notes._looking
