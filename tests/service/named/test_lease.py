"""Leases on names: whatever happens in between, no two sessions hold one at once."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import IO, Any

import pytest

from cellblock.common.url_folder import Folder
from cellblock.errors import BusyError, CellblockError, ConflictError, StoreError
from cellblock.service.named import lease as module
from cellblock.service.named.lease import LASTS, Lease
from suite import first_quick


class Store:
    """A folder in memory, with a clock of its own."""

    url = "memory://store"
    exclusive = True

    def __init__(self) -> None:
        self.files: dict[str, tuple[bytes, float]] = {}
        self.now = 1000.0

    def prepare(self) -> None: ...

    def names(self) -> list[str]:
        return sorted(self.files)

    def read(self, name: str, most: int) -> bytes | None:
        return self.files[name][0] if name in self.files else None

    def write(self, name: str, data: bytes) -> None:
        self.files[name] = (data, self.now)

    def create(self, name: str, data: bytes) -> bool:
        if name in self.files:
            return False
        self.write(name, data)
        return True

    def upload(self, name: str, path: str, stop: threading.Event | None = None) -> None:
        raise NotImplementedError

    def download(self, name: str, file: IO[bytes], stop: threading.Event | None = None) -> None:
        raise NotImplementedError

    def remove(self, name: str) -> None:
        self.files.pop(name, None)

    def clear(self) -> None:
        self.files.clear()

    def written(self, name: str) -> float:
        if name not in self.files:
            raise StoreError(f"there is no {name}")
        return self.files[name][1]


@pytest.fixture
def store() -> Store:
    """An empty store."""
    return Store()


def lease(store: Store, session: str) -> Lease:
    folder: Folder = store
    return Lease(folder, session, f"host-of-{session}", lambda: store.now)


def holds(one: Lease) -> bool:
    return one.held


def test_a_name_is_taken_renewed_and_released(store: Store) -> None:
    one = lease(store, "one")
    assert one.take(from_others=True) is None
    assert one.held
    store.now += 50
    one.renew(save="save", lost=3)
    store.now += 50
    assert holds(one)
    one.release()
    assert not holds(one)
    assert store.names() == ["lease-00000001.json"]


def test_another_one_waits_until_the_lease_has_run_out(store: Store) -> None:
    one, two = lease(store, "one"), lease(store, "two")
    one.take(from_others=True)
    one.renew(save="save", ran=("x = 1",), lost=1)
    store.now += 20
    with pytest.raises(BusyError, match=r"held by host-of-one. If that host is down, its lease ends in 40 s") as caught:
        two.take(from_others=True)
    assert caught.value.retry_after == pytest.approx(LASTS - 20)
    assert holds(one)
    store.now += LASTS
    assert not holds(one)
    left = two.take(from_others=True)
    assert left is not None
    assert (left.session, left.save, left.ran, left.lost, left.released) == ("one", "save", ("x = 1",), 1, False)
    assert (two.record.save, two.record.session) == ("save", "two")
    assert store.names() == ["lease-00000002.json"]


def test_a_holder_whose_name_was_taken_ends(store: Store) -> None:
    one, two = lease(store, "one"), lease(store, "two")
    one.take(from_others=True)
    store.now += LASTS + 1
    two.take(from_others=True)
    for _ in range(2):
        with pytest.raises(ConflictError, match="was taken over by host-of-two"):
            one.renew()
    assert one.taken_by == "host-of-two"
    assert not one.held
    one.release()
    assert two.held
    two.renew()


def test_what_was_released_is_free_at_once(store: Store) -> None:
    one, two = lease(store, "one"), lease(store, "two")
    one.take(from_others=True)
    one.release(lost=2)
    left = two.take(from_others=True)
    assert left is not None
    assert (left.released, left.lost) == (True, 2)
    assert two.record.released is False


def test_a_lease_that_has_run_out_is_taken_again_if_nobody_else_has(store: Store) -> None:
    one = lease(store, "one")
    one.take(from_others=True)
    store.now += 10 * LASTS
    one.renew(save="save")
    assert (one.held, one.epoch, one.record.save) == (True, 2, "save")


def test_a_daemon_that_begins_again_goes_on_at_once_with_its_own_session(store: Store) -> None:
    lease(store, "one").take(from_others=True)
    again = lease(store, "one")
    assert again.take(from_others=False) is not None
    assert (again.held, again.epoch) == (True, 2)


def test_a_kernel_that_lives_here_does_not_take_what_another_daemon_has(store: Store) -> None:
    one, two = lease(store, "one"), lease(store, "two")
    one.take(from_others=True)
    one.release()
    with pytest.raises(ConflictError, match="was taken over by host-of-one"):
        two.take(from_others=False)
    assert two.taken_by


def test_a_holder_that_was_late_keeps_its_name(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = lease(store, "one"), lease(store, "two")
    one.take(from_others=True)
    late = store.files["lease-00000001.json"]
    store.now += LASTS + 1
    create = store.create

    def create_late(name: str, data: bytes) -> bool:
        made = create(name, data)
        store.files["lease-00000001.json"] = (late[0] + b" ", store.now)
        return made

    monkeypatch.setattr(store, "create", create_late)
    with pytest.raises(ConflictError, match="renewed its lease late"):
        two.take(from_others=True)
    assert store.names() == ["lease-00000001.json"]
    assert not two.held


def test_an_answer_that_was_lost_is_no_other_holder(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    create = store.create
    monkeypatch.setattr(store, "create", lambda name, data: create(name, data) and create(name, data))  # sent twice
    one = lease(store, "one")
    one.take(from_others=True)
    assert one.held


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b"\xff" * 10, b'{"format": 99}'])
def test_a_damaged_lease_is_nobodys(store: Store, data: bytes) -> None:
    store.write("lease-00000003.json", data)
    with pytest.raises(StoreError, match="is damaged"):
        lease(store, "one").take(from_others=True)


def test_another_format_is_nobodys(store: Store) -> None:
    one = lease(store, "one")
    one.take(from_others=True)
    data = store.files["lease-00000001.json"][0].replace(b'"format": 1', b'"format": 2')
    store.write("lease-00000001.json", data)
    with pytest.raises(StoreError, match="has format 2"):
        lease(store, "two").take(from_others=True)


def test_other_files_of_the_folder_do_not_matter(store: Store) -> None:
    for name in ("lease-1.json", "lease-00000009.json.bak", "save-00000001-00000001.cellblock", "now-1"):
        store.write(name, b"")
    one = lease(store, "one")
    one.take(from_others=True)
    assert one.epoch == 1


# -- any order of what several do at once ----------------------------------------------------------------------------------


class Interleaved:
    """A store each of whose operations waits for its turn: the test decides who goes on, operation by operation."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._mine = threading.local()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found):
            return found

        def call(*given: Any) -> Any:
            self._mine.turn()
            return found(*given)

        return call

    def join(self, turn: Callable[[], None]) -> None:
        """Have the operations of this thread wait."""
        self._mine.turn = turn


class Actor:
    """A daemon in a thread, which tries to have the name and to keep it, until it is told to end."""

    def __init__(self, store: Interleaved, clock: Callable[[], float], name: str, seed: int) -> None:
        self.lease = Lease(store, name, name, clock)
        self.ended = False
        self._store, self._chance = store, random.Random(seed)
        self._may, self._waits = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._waits.acquire()

    def _turn(self) -> None:
        if self.ended:
            raise SystemExit
        self._waits.release()
        self._may.acquire()
        if self.ended:
            raise SystemExit

    def _run(self) -> None:
        self._store.join(self._turn)
        with suppress(SystemExit):
            while not self.lease.taken_by:
                self._turn()
                with suppress(CellblockError):
                    if not self.lease.epoch:
                        self.lease.take(from_others=True)
                    elif self._chance.random() < 0.1:
                        self.lease.release()
                    else:
                        self.lease.renew()
        self.ended = True
        self._waits.release()

    def step(self) -> None:
        """Let it do one operation on the store."""
        if not self.ended:
            self._may.release()
            self._waits.acquire()

    def end(self) -> None:
        """End its thread."""
        self.ended = True
        self._may.release()
        self._thread.join()


@pytest.fixture
def actors() -> Iterator[list[Actor]]:
    """Actors, which end with the test."""
    made: list[Actor] = []
    yield made
    for actor in made:
        actor.end()


def holders(actors: list[Actor], seed: int, steps: int) -> Iterator[list[str]]:
    """Let actors do things in a random order, at random times; yield who holds the name after each of them."""
    chance, store = random.Random(seed), Store()
    interleaved = Interleaved(store)
    for number in range(3):
        actors.append(Actor(interleaved, lambda: store.now, f"session-{number}", seed + number))
    going = actors[0]
    for count in range(steps):
        store.now += chance.random()
        if chance.random() < 0.1:  # it pauses, in the middle of something, for as long as it takes until its turn comes again
            store.now += chance.choice([0, 1, LASTS / 3, LASTS]) * chance.random()
            going = chance.choice(actors)
        going.step()
        if all(actor.ended for actor in actors):  # each has lost the name to one that has lost it, too
            actors.append(Actor(interleaved, lambda: store.now, f"later-{count}", count))
            going = actors[-1]
        yield [actor.lease.session for actor in actors if actor.lease.held]


@pytest.mark.parametrize("seed", first_quick(range(20), 5))
def test_no_two_hold_a_name_in_any_order(actors: list[Actor], seed: int) -> None:
    seen = set()
    for holding in holders(actors, seed, 600):
        assert len(holding) <= 1
        seen.update(holding)
    assert len(seen) > 1


@pytest.mark.parametrize("missing", ["the margin", "exclusive creation"])
def test_without_one_of_the_rules_two_hold_it(actors: list[Actor], monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    """The test above can fail."""
    if missing == "the margin":
        monkeypatch.setattr(module, "_MARGIN", -LASTS)
    else:
        monkeypatch.setattr(Store, "create", lambda store, name, data: store.write(name, data) or True)
    found = False
    for seed in range(100):
        found = found or any(len(holding) > 1 for holding in holders(actors, seed, 600))
        if found:
            break
        for actor in actors:
            actor.end()
        actors.clear()
    assert found
