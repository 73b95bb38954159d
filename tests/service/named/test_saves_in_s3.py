"""A session that is saved in S3 goes on elsewhere, with a real server between the two."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellblock import BusyError, Host
from cellblock.common.url_folder import age, folder_at
from cellblock.service.named import lease
from cellblock.service.named.named_sessions import NamedSessions
from cellblock.service.store.named import NamedStore
from named_sessions import OPTIONS, submit
from processes import eventually
from s3 import s3_server

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
    """fsspec keeps its thread and its connections."""


async def test_a_session_goes_on_elsewhere(
    zygote_host: Host, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    one, two = (NamedSessions(zygote_host, NamedStore(tmp_path_factory.mktemp("state") / "state")) for _ in range(2))
    with s3_server() as bucket:
        options = {**OPTIONS, "durable": f"{bucket}/sessions", "save_every": 0.01, "idle_timeout": 0}
        named = await one.create("a name", options)
        await submit(one, named, "x = 1; open('a', 'w').write('saved'); None").wait()
        durable = named.durable
        assert durable is not None
        await eventually(lambda: named.session.saving.last_state.number == durable._saved, 60)
        with pytest.raises(BusyError, match="its lease ends in"):
            await two.create("a name", options)
        monkeypatch.setattr(lease, "LASTS", 0.0)  # as if a minute had passed: the server's times are of whole seconds
        assert durable.remote is not None
        durable.remote._lease._until = float("-inf")
        await eventually(lambda: age(folder_at(f"{bucket}/sessions/a=20name"), "lease-00000001.json") > 0, 20)
        again = await two.create("a name", options)
        monkeypatch.undo()
        result = await submit(two, again, "x").wait()
        assert (result.return_value, result.recovery) == ("1", "restored_earlier")
        await two.destroy("a name")
        assert folder_at(f"{bucket}/sessions/a=20name").names() == []
        await two.close()
        await one.close()
