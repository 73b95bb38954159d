"""Sessions that were arriving from another node when their process was killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellblock import Host
from cellblock.host.survival.remains import SessionRemains
from cellblock.model.sessions import SessionRecord
from cellblock.service.named.arrival import Source, noted_sources
from cellblock.service.named.named_sessions import NamedSessions
from cellblock.service.store.named import NamedStore
from processes import eventually

SOURCE = Source("127.0.0.1", 5, "hold")


@pytest.mark.parametrize("given", [True, False])
async def test_a_session_is_not_here_until_its_source_has_answered(
    zygote_host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: bool
) -> None:
    async def adopt() -> list[SessionRemains]:
        return []

    monkeypatch.setattr(zygote_host, "adopt", adopt)  # its kernel has ended, too
    state, workspaces = tmp_path / "state", tmp_path / "workspaces"
    store, record = NamedStore(state), SessionRecord("1" * 32, "s", "2026", "2026")
    own = workspaces / record.kernel_id
    own.mkdir(parents=True)
    (workspaces / "of a session that has left").mkdir()
    store.sessions.add(record, {"working_dir": str(own), "sandbox": False})
    SOURCE.note(state, record.kernel_id)
    SOURCE.note(state, "2" * 32)  # it was not stored yet, so nobody has asked its source
    store.close()
    sessions = NamedSessions(zygote_host, NamedStore(state), mark="12345678", workspaces=workspaces)
    await sessions.adopt()
    assert sessions.arriving == {record.kernel_id: SOURCE} == noted_sources(state)
    assert sessions.all() == []
    await eventually(lambda: [*workspaces.iterdir()] == [own])  # a thread removes the other
    await sessions.settle(record.kernel_id, given=given)
    assert [named.record.name for named in sessions.all()] == ["s"] * given
    assert noted_sources(state) == {}
    assert own.exists() is given
    await sessions.close()
    again = NamedStore(state)
    assert [stored.record.name for stored in again.sessions.all()] == ["s"] * given
    again.close()
