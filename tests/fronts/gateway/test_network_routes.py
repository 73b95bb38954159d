"""The network of a running session over HTTP."""

from __future__ import annotations

import httpx
import pytest

from gateways import Gateway, token

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def sessions(api: httpx.Client) -> None:
    """A session with a network."""
    api.post("/sessions/one", json={"options": {"allow_hosts": ["a.invalid"]}})


def test_lists_are_read_and_changed_with_their_scopes(gateway: Gateway, api: httpx.Client) -> None:
    path = "/sessions/one/network"
    shown = {"allow": ["a.invalid"], "deny": [], "ask": False, "revision": 0, "closed": 0, "http": []}
    assert api.get(path).json() == shown
    changed = api.post(path, json={"allow": ["b.invalid"], "remove": ["a.invalid"], "expect": 0})
    assert changed.json() == {**shown, "allow": ["b.invalid"], "revision": 1}
    lines = api.post(path, json={"http": ["GET c.invalid/**"]}).json()
    assert (lines["allow"], lines["http"], lines["revision"]) == (["b.invalid", "c.invalid"], ["GET c.invalid/**"], 2)
    assert api.post(path, json={"http": ["get c.invalid/"]}).status_code == 422
    conflict = api.post(path, json={"deny": ["b.invalid"], "expect": 0})
    assert (conflict.status_code, conflict.json()["code"]) == (409, "conflict")
    assert api.post(path, json={"allow": ["http://x"]}).status_code == 422
    assert api.post(path, json={"allow": "b.invalid"}).status_code == 422
    assert api.post(path, json={"by": "another"}).status_code == 422
    decisions = api.get("/sessions/one/decisions").json()["decisions"]
    assert [(one["tool"], one["by"]) for one in decisions] == [("change", "person: test")] * 2
    with gateway.client(token("read", "run", session="one")) as runner:
        assert runner.get(path).json()["revision"] == 2
        assert runner.post(path, json={"allow": ["c.invalid"]}).status_code == 403
    with gateway.client(token("approve", session="two")) as foreign:
        assert foreign.post(path, json={"allow": ["c.invalid"]}).status_code in (403, 404)
