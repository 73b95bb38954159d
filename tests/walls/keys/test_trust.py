"""The certificates of a session, to which its authority is added while it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellblock.errors import StateError
from cellblock.walls.keys.session_keys import SessionKeys


async def test_the_next_host_can_add_the_first_line(tmp_path: Path) -> None:
    first, second, third = (SessionKeys(needed=False) for _ in range(3))
    bundle = str(tmp_path / "ca.pem")
    await first.enter(bundle)
    first.trust.make(bundle)
    before = Path(bundle).read_bytes()
    second.resume(first.hold())
    first.leave()
    await second.enter(bundle)
    held: list[int] = []
    second.watchers.add(lambda: held.append(second.hold()))
    await second.make_ready()
    await second.make_ready()
    added = Path(bundle).read_bytes()
    assert added == before + second.trust.certificate
    second.leave()
    third.resume(held.pop())
    assert not held
    await third.enter(bundle)
    await third.make_ready()
    third.leave()
    assert Path(bundle).read_bytes() == added


async def test_a_sandbox_without_the_file_cannot_trust_the_authority(tmp_path: Path) -> None:
    keys = SessionKeys(needed=False)
    keys.trust.mounted = False
    keys.trust.make(str(tmp_path / "ca.pem"))
    assert (keys.environment, keys.trust.mounts("/x"), [*tmp_path.iterdir()]) == ({}, (), [])
    with pytest.raises(StateError, match="Make a new session"):
        await keys.make_ready()
