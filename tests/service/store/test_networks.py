"""Networks of named sessions: shared by branches, and there again in the next process."""

from __future__ import annotations

from pathlib import Path

from cellblock.model.sessions import SessionRecord
from cellblock.service.store.named import NamedStore
from cellblock.walls.egress.live import LiveNetwork
from cellblock.walls.sandbox.policy import Network


def fresh() -> LiveNetwork:
    return LiveNetwork.of(Network(("a.example",), ask=True))


def store_with(directory: Path, *sessions: str) -> NamedStore:
    store = NamedStore(directory)
    for name in sessions:
        store.sessions.add(SessionRecord(name, name, "2026-01-01T00:00:00+00:00", "2026-01-01T00:00:00+00:00"), {})
    return store


async def test_a_changed_network_is_there_in_the_next_process(tmp_path: Path) -> None:
    store = store_with(tmp_path, "one", "two")
    live, other = (store.networks.joining(name)(fresh()) for name in ("one", "two"))
    await live.change(allow=["b.example"], deny=["c.example"])
    assert other.state.revision == 0
    store.close()
    store = NamedStore(tmp_path)
    store.sessions.withdraw_requests()
    assert store.networks.joining("two")(fresh()).state == fresh().state
    again = store.networks.joining("one")(fresh())
    assert again.state == live.state
    await again.change(remove=["b.example"])
    assert again.state.revision == 2
    store.close()


async def test_branches_share_a_network_also_after_a_restart(tmp_path: Path) -> None:
    store = store_with(tmp_path, "one", "branch", "twig")
    live = store.networks.joining("one")(fresh())
    store.networks.share("one", "branch")
    assert store.networks.joining("branch")(fresh()) is live
    store.networks.share("branch", "twig")
    store.sessions.remove("branch")
    store.networks.leave("branch")
    store.close()
    store = NamedStore(tmp_path)  # before anything has changed
    live = store.networks.joining("one")(fresh())
    assert store.networks.joining("twig")(fresh()) is live
    await live.change(allow=["b.example"])
    store.networks.leave("one")
    store.sessions.remove("one")
    store.close()
    store = NamedStore(tmp_path)
    assert store.networks.joining("twig")(fresh()).state == live.state
    store.close()


async def test_the_network_of_an_ended_session_is_forgotten(tmp_path: Path) -> None:
    store = store_with(tmp_path, "one")
    await store.networks.joining("one")(fresh()).change(allow=["b.example"])
    store.sessions.remove("one")
    store.networks.leave("one")
    assert store.networks.joining("one")(fresh()).state.revision == 0
    assert store.sessions.networks() == []
    store.close()


async def test_a_session_brings_its_network_to_another_node(tmp_path: Path) -> None:
    store, other = (store_with(tmp_path / name, "one") for name in ("here", "there"))
    live = store.networks.joining("one")(fresh())
    assert store.networks.state("one") == ""
    other.networks.take("one", "")
    await live.change(allow=["b.example"])
    other.networks.take("one", store.networks.state("one"))
    assert other.networks.joining("one")(fresh()).state == live.state
    store.close()
    other.close()
