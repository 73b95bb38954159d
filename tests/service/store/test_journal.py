"""The journal of executions: what is written comes back, in order, also for the next process; what is too much goes."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cellblock.errors import ConflictError, OutcomeUnknownError
from cellblock.model.sessions import ExecutionEvent, ExecutionRecord
from cellblock.service.named.ended_executions import EndedExecution, close_unfinished
from cellblock.service.store.journal import Journal, _Numbers, new_id
from cellblock.service.store.named import NamedStore
from cellblock.wire.packed import pack
from processes import eventually
from suite import first_quick


def record(session: str = "s", key: str = "", state: str = "queued") -> ExecutionRecord:
    return ExecutionRecord(new_id(), session, state, submitted=time.time(), key=key)  # type: ignore[arg-type]


async def shown(journal: Journal, execution: str, after: int = 0) -> list[tuple[int, str, object]]:
    return [(event.seq, event.kind, event.data) async for event in journal.events(execution, after)]


class JournalMachine(RuleBasedStateMachine):
    """A journal is what a plain dict is, whenever its process dies."""

    @initialize()
    def begin(self) -> None:
        self.directory = TemporaryDirectory()
        self.loop = asyncio.new_event_loop()
        self.known: dict[str, tuple[ExecutionRecord, list[tuple[int, str, object]]]] = {}
        self.open()

    def open(self) -> None:
        async def opened() -> NamedStore:
            return NamedStore(Path(self.directory.name))

        self.store = self.loop.run_until_complete(opened())

    def do(self, function: object, *arguments: object) -> object:
        async def called() -> object:
            assert callable(function)
            return function(*arguments)

        return self.loop.run_until_complete(called())

    def of_state(self, *states: str) -> list[str]:
        return [number for number, (record, _) in self.known.items() if record.state in states]

    @rule(session=st.sampled_from("ab"), key=st.sampled_from(["", "k", "l"]), code=st.sampled_from(["x = 1", "y"]))
    def add(self, session: str, key: str, code: str) -> None:
        journal, digest = self.store.journal, code.encode()
        known = [one for one, _ in self.known.values() if key and (one.session, one.key) == (session, key)]
        if known:
            assert self.do(journal.add, record(session, key), digest, code) is False
            assert self.store.writer.problem == ""
        try:
            found = journal.find_key(session, key, digest)
        except ConflictError:
            assert journal.code(known[0].id) != code
            return
        assert ([] if found is None else [found.id]) == [one.id for one in known]
        if found is None:
            new = record(session, key)
            assert self.do(journal.add, new, digest, code) is True
            self.known[new.id] = (new, [])

    @rule(data=st.data())
    def run(self, data: st.DataObject) -> None:
        if waiting := self.of_state("queued"):
            number = data.draw(st.sampled_from(waiting))
            begun = replace(self.known[number][0], state="running", begun=time.time())
            self.do(self.store.journal.begin, begun, "1/0")
            self.known[number] = (begun, self.known[number][1])

    @rule(data=st.data(), size=st.sampled_from([1, 10, 70_000]))
    def happen(self, data: st.DataObject, size: int) -> None:
        if running := self.of_state("running"):
            number = data.draw(st.sampled_from(running))
            events = self.known[number][1]
            event = (len(events) + 1, "stream", {"text": "x" * size})
            self.do(self.store.journal.event, number, event[0], "stream", pack(event[2]))
            events.append(event)

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if running := self.of_state("running"):
            number = data.draw(st.sampled_from(running))
            ended = replace(self.known[number][0], state="done", ended=time.time())
            self.do(self.store.journal.end, ended, 10)
            self.known[number] = (ended, self.known[number][1])

    @rule(data=st.data(), written=st.booleans())
    def die(self, data: st.DataObject, written: bool) -> None:
        """The process is killed before or after a transaction, and the next one opens the journal."""
        self.happen(data, 10)
        writer = self.store.writer
        self.do(writer.flush if written else writer.make_safe)
        writer._cancel_schedule()
        writer._connection.close()
        if writer._ahead is not None:
            writer._ahead.close()
        self.open()
        self.do(close_unfinished, self.store.journal)
        self.do(self.store.writer.flush)
        for number, (known, events) in self.known.items():
            if known.state in ("queued", "running"):
                now = self.store.journal.find(number)
                assert now is not None
                assert now.state == ("done" if known.state == "queued" else "unknown")
                (last,) = self.loop.run_until_complete(shown(self.store.journal, number, len(events)))
                assert isinstance(last[2], dict)
                assert last[2]["ran"] == ("no" if known.state == "queued" else "unknown")
                self.known[number] = (now, [*events, last])

    @invariant()
    def is_what_it_was(self) -> None:
        if not hasattr(self, "store"):
            return
        for number, (known, events) in self.known.items():
            found = self.store.journal.find(number)
            assert found == known
            assert self.loop.run_until_complete(shown(self.store.journal, number)) == events
            assert self.loop.run_until_complete(shown(self.store.journal, number, 2)) == events[2:]

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.do(self.store.close)
            self.loop.close()
            self.directory.cleanup()


TestJournal = JournalMachine.TestCase
TestJournal.settings = settings(max_examples=8, stateful_step_count=15, deadline=None)


async def test_what_was_submitted_first_is_first_although_the_clock_is_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the process dies meanwhile: the next one goes on with what waits, in this order."""
    store, made = NamedStore(tmp_path), [record() for _ in range(3)]
    monkeypatch.setattr("cellblock.service.store.journal._numbers", _Numbers())
    for one in made:
        store.journal.add(one, b"", "1")
    store.close()
    now = time.time_ns()
    monkeypatch.setattr("cellblock.service.store.journal.time.time_ns", lambda: now - 3600 * 10**9)
    store = NamedStore(tmp_path)
    made += [record() for _ in range(3)]
    for one in made[3:]:
        store.journal.add(one, b"", "1")
    assert [one.id for one in store.journal.unfinished()] == [one.id for one in made]
    assert [one.id for one in store.journal.last("s", 10)] == [one.id for one in reversed(made)]
    store.close()


async def test_what_is_large_lies_in_files(tmp_path: Path) -> None:
    store = NamedStore(tmp_path)
    execution = record()
    store.journal.add(execution, b"", "x")
    data = {"text": "é" * 100_000}
    store.journal.event(execution.id, 1, "result", pack(data))
    store.journal.event(execution.id, 2, "display", pack(data))
    (first, second) = sorted((tmp_path / "named").glob("*-*"))
    assert [event.data async for event in store.journal.events(execution.id)] == [data, data]
    # A power cut may leave a file without its content.
    first.write_bytes(b"")
    second.unlink()
    kinds = [(event.kind, event.data.get("ran")) async for event in store.journal.events(execution.id)]
    assert kinds == [("failed", "yes"), ("gap", None)]
    store.close()


async def test_the_first_events_can_be_forgotten(tmp_path: Path) -> None:
    store = NamedStore(tmp_path)
    execution = record()
    store.journal.add(execution, b"", "x")
    for seq in range(1, 400):
        store.journal.event(execution.id, seq, "stream", pack({"text": "x" * (70_000 if seq == 2 else 1)}))
    store.journal.drop(execution.id, 100)
    events = [event async for event in store.journal.events(execution.id)]
    assert events[0] == ExecutionEvent(100, "gap", {"dropped": 100})
    assert [event.seq for event in events[1:]] == list(range(101, 400))
    assert [event.seq async for event in store.journal.events(execution.id, 390)] == list(range(391, 400))
    store.close()
    assert list((tmp_path / "named").glob("*-*")) == []


@pytest.mark.parametrize(("limit", "value"), first_quick([("MAX_EXECUTIONS", 20), ("MAX_BYTES", 20_000), ("MAX_AGE", -1.0)]))
async def test_the_oldest_that_have_ended_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: float
) -> None:
    monkeypatch.setattr(f"cellblock.service.store.journal.{limit}", value)
    monkeypatch.setattr("cellblock.service.store.journal._AGE_EVERY", 0.0)
    store = NamedStore(tmp_path)
    running = record(state="running")
    store.journal.add(running, b"", "x")
    for _ in range(200):
        execution = record()
        store.journal.add(execution, b"", "x")
        store.journal.event(execution.id, 1, "result", pack({"text": "x" * 1000}))
        store.journal.end(replace(execution, state="done", ended=time.time()), 1000)
    kept = store.journal.last("s", 1000)
    assert 0 < len(kept) < 150
    assert kept[-1].id == running.id
    assert kept[0].id == execution.id
    (count,) = store.writer.read("SELECT count(*) FROM events")[0]
    assert count == len(kept) - 1
    store.close()


def run(journal: Journal, session: str, key: str = "", size: int = 10) -> ExecutionRecord:
    """Enter an execution with its result."""
    execution = record(session, key)
    assert journal.add(execution, b"digest", "x")
    journal.event(execution.id, 1, "result", pack({"text": "x" * size}))
    ended = replace(execution, state="done", begun=time.time(), ended=time.time())
    journal.end(ended, size)
    return execution


@pytest.mark.parametrize(("limit", "value"), first_quick([("MAX_EXECUTIONS", 50), ("MAX_BYTES", 50_000)]))
async def test_a_session_displaces_its_own_executions_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(f"cellblock.service.store.journal.{limit}", value)
    monkeypatch.setattr("cellblock.service.store.journal._TRIM_EVERY", 5)
    with closing(NamedStore(tmp_path)) as store:
        quiet = [run(store.journal, "quiet", size=1000) for _ in range(10)]
        for _ in range(2):  # the next process counts what it finds
            for _ in range(100):
                loud = run(store.journal, "loud", size=1000)
        store.journal.trim()
    with closing(NamedStore(tmp_path)) as store:
        for _ in range(100):
            loud = run(store.journal, "loud", size=1000)
        kept = {one.id for one in store.journal.last("quiet", 1000)}
        assert kept == {one.id for one in quiet}
        assert 20 < len(store.journal.last("loud", 1000)) < 60
        assert store.journal.last("loud", 1)[0].id == loud.id


async def test_a_key_is_known_for_longer_than_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry must not run the code a second time."""
    monkeypatch.setattr("cellblock.service.store.journal.MAX_EXECUTIONS", 10)
    monkeypatch.setattr("cellblock.service.store.journal._TRIM_EVERY", 5)
    with closing(NamedStore(tmp_path)) as store:
        first = run(store.journal, "s", "key")
        for number in range(100):
            run(store.journal, "s", f"{number}")
        assert store.journal.find(first.id) is None
    with closing(NamedStore(tmp_path)) as store:
        assert not store.journal.add(record("s", "key"), b"digest", "x")
        known = store.journal.find_key("s", "key", b"digest")
        assert known is not None
        assert (known.id, known.state, known.key) == (first.id, "done", "key")
        with pytest.raises(ConflictError, match="other code"):
            store.journal.find_key("s", "key", b"other")
        assert store.journal.find_key("t", "key") is None
        past = EndedExecution(known, store.journal)
        with pytest.raises(OutcomeUnknownError, match="its result is no longer stored"):
            await past.wait()
        assert [event.kind async for event in past.follow()] == ["failed"]


@pytest.mark.parametrize(("limit", "most"), first_quick([("MAX_KEYS", 20), ("MAX_ALL_KEYS", 30)]))
async def test_keys_have_a_limit_and_those_of_a_quiet_session_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setattr("cellblock.service.store.journal.MAX_EXECUTIONS", 10)
    monkeypatch.setattr(f"cellblock.service.store.journal.{limit}", most)
    monkeypatch.setattr("cellblock.service.store.journal._TRIM_EVERY", 5)
    with closing(NamedStore(tmp_path)) as store:
        for number in range(4):
            run(store.journal, "quiet", f"{number}")
        for number in range(200):
            run(store.journal, "loud", f"{number}")
        assert all(store.journal.find_key("quiet", f"{number}") for number in range(4))
        known = [number for number in range(200) if store.journal.find_key("loud", f"{number}")]
        assert known == [*range(known[0], 200)]
        assert most <= len(known) <= most + 20


async def test_keys_that_are_old_enough_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cellblock.service.store.journal.MAX_EXECUTIONS", 1)
    monkeypatch.setattr("cellblock.service.store.journal._TRIM_EVERY", 1)
    monkeypatch.setattr("cellblock.service.store.journal._AGE_EVERY", 0.0)
    monkeypatch.setattr("cellblock.service.store.journal._numbers", _Numbers())  # other tests use later ones
    with closing(NamedStore(tmp_path)) as store:
        for number in range(5):
            run(store.journal, "s", f"{number}")
        assert store.journal.find_key("s", "0")
        monkeypatch.setattr("cellblock.service.store.journal.MAX_AGE", -1.0)

        def left() -> object:
            store.journal.trim()
            return store.writer.read("SELECT count(*) FROM keys")

        await eventually(lambda: left() == [(0,)])  # changes are written a little later


async def test_new_keys_need_no_transaction_each(tmp_path: Path) -> None:
    with closing(NamedStore(tmp_path)) as store:
        for number in range(50):
            store.journal.add(record(key=f"{number}"), b"", "x")
        assert store.writer.read("SELECT count(*) FROM executions", pending=False) == [(0,)]


async def test_a_freed_key_can_be_used_again_before_that_is_written(tmp_path: Path) -> None:
    with closing(NamedStore(tmp_path)) as store:
        first = record(key="key")
        assert store.journal.add(first, b"", "x")
        store.journal.free_key(first.id)
        assert store.journal.add(record(key="key"), b"", "x")
        assert not store.journal.add(record(key="key"), b"", "x")


async def test_keys_of_a_session_that_moved_here_are_known_at_once(tmp_path: Path) -> None:
    with closing(NamedStore()) as elsewhere, closing(NamedStore(tmp_path)) as store:
        run(elsewhere.journal, "s", "key")
        store.journal.enter_past(elsewhere.journal.past("s"))
        assert not store.journal.add(record("s", "key"), b"", "x")


def test_an_id_that_is_none_is_not_found() -> None:
    for number in ("", "x", "f" * 32, "0" * 32, "../../etc/passwd", "0x" + "1" * 30, "１" * 32):
        with closing(NamedStore()) as store:
            assert store.journal.find(number) is None


@pytest.mark.slow
async def test_what_is_too_much_is_forgotten_in_small_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An execution can have 10,000 events: to forget all of them at once would take a tenth of a second."""
    store = NamedStore(tmp_path)
    executions = [record() for _ in range(2)]
    for execution in executions:
        store.journal.add(execution, b"", "x")
        for seq in range(1, 3001):
            store.journal.event(execution.id, seq, "stream", pack({"text": "x"}))
        store.journal.end(replace(execution, state="done", ended=time.time()), 10)

    async def left(execution: ExecutionRecord) -> int:
        return len([event async for event in store.journal.events(execution.id) if event.kind == "stream"])

    monkeypatch.setattr("cellblock.service.store.journal.MAX_EXECUTIONS", 1)
    pieces = []
    while store.journal.find(executions[0].id) is not None:
        before = await left(executions[0])
        store.journal.trim()
        pieces.append(before - await left(executions[0]))
    assert sum(pieces) == 3000
    assert max(pieces) <= 500
    assert store.journal.find(executions[1].id) is not None
    assert await left(executions[1]) == 3000
    store.close()
