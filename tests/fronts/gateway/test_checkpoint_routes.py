"""Checkpoints over HTTP: by hand, and by the client."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from cellblock import CheckpointError, Client, ConflictError, InvalidInputError, NotFoundError
from gateways import Gateway, token


@pytest.fixture(autouse=True)
def session(api: httpx.Client, tmp_path: Path) -> str:
    """A session with a variable, and a directory of its own."""
    api.delete("/kernels")
    api.post("/kernels", json={"name": "s", "options": {"working_dir": str(tmp_path)}})
    api.post("/sessions/s/execute", json={"code": "x = 1"})
    return "s"


@pytest.mark.slow
def test_the_client_goes_back_and_branches(gateway: Gateway, session: str) -> None:
    with Client(gateway.url, token("admin")) as client:
        made = client.checkpoint(session, "a % ?", files="copy")
        assert (made.name, made.execution_count, made.automatic, made.files) == ("a % ?", 1, False, "copy")
        client.execute(session, "x = 2; open('data', 'w').write('1'); None")
        changes = client.diff(session, "a % ?")
        assert [(one.before.preview, one.after.preview) for one in changes.variables.changed] == [("1", "2")]
        assert changes.files is not None
        assert [one.path for one in changes.files.new] == ["data"]
        assert made in client.checkpoints(session)
        assert client.restore(session, "a % ?").removed == ("data",)
        assert client.execute(session, "import os; x, os.path.exists('data')").return_value == "(1, False)"
        assert [cell.code for cell in client.undo(session).cells][-1].startswith("import os")
        assert [one.name for one in client.fork(session, ["left", "right"])] == ["left", "right"]
        assert client.execute("left", "x += 1; x").return_value == "2"
        assert client.execute("right", "x").return_value == "1"
        with pytest.raises(ConflictError):
            client.fork(session, ["left"])
        with pytest.raises(InvalidInputError, match="branches need a list of names"):
            client.fork(session, "ab")
        (own,) = client.fork(session, ["own"], files="copy", same_random_state=True)
        client.execute(own, "open('new', 'w').write('1'); None")
        assert client.adopt(session, own).written == ("new",)
        with pytest.raises(NotFoundError):
            client.adopt(session, own)
        client.drop_checkpoint(session, made)
        for call in (client.restore, client.diff, client.drop_checkpoint):
            with pytest.raises(CheckpointError, match="there is no checkpoint"):
                call(session, made)
            for name in ("..", "", "a/b"):
                with pytest.raises(InvalidInputError, match="use the id of the checkpoint"):
                    call(session, name)
        with pytest.raises(CheckpointError, match="to undo, not 99"):
            client.undo(session, 99)
        with pytest.raises(NotFoundError):
            client.checkpoint("missing")


def test_who_may_do_what(gateway: Gateway, session: str) -> None:
    with gateway.client(token("read")) as reader:
        assert reader.get(f"/sessions/{session}/checkpoints").status_code == 200
        assert reader.post(f"/sessions/{session}/checkpoints").status_code == 403
        assert reader.get(f"/sessions/{session}/checkpoints/a/diff").status_code == 403
        assert reader.post(f"/sessions/{session}/undo").status_code == 403
    with gateway.client(token("run")) as runner:
        refused = runner.get(f"/sessions/{session}/checkpoints/a/diff")
        assert (refused.status_code, refused.json()["code"]) == (404, "unknown_checkpoint")


def test_nothing_is_converted_or_ignored(api: httpx.Client, session: str) -> None:
    cases: list[tuple[str, dict[str, object]]] = [
        ("checkpoints", {"name": 1}),
        ("undo", {"count": True}),
        ("undo", {"count": "1"}),
        ("fork", {"names": ["b"], "same_random_state": 0}),
        ("fork", {"names": ["b"], "seeds": ["1"]}),
        ("adopt", {"branch": "b", "keep": True}),
    ]
    for call, body in cases:
        refused = api.post(f"/sessions/{session}/{call}", json=body)
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_input")
        assert [one["name"] for one in api.get("/kernels").json()["kernels"]] == [session]
