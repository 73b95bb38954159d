"""What a cell's result is made of: readable text, the reason of its end, and chunks for whoever streams."""

from __future__ import annotations

import asyncio
import threading
import tracemalloc
import weakref
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellblock.host.kernels.cell import _CHUNK, Cell, Notice, overwrite, readable
from cellblock.host.kernels.exit_status import Death
from cellblock.host.output.collect import Collector
from cellblock.host.output.limits import Limits
from cellblock.model import CodeExecutionChunk, CodeExecutionResult, OutputItem, Recovery, Status
from cellblock.wire.messages import Display, Reply

LIMIT = 2000
unhurried = settings(deadline=None)  # on a busy machine time says nothing


def stream(text: str) -> OutputItem:
    return OutputItem("stream", text, "stdout")


def value(text: str | None) -> OutputItem:
    return OutputItem("display_data", text)


def ended(ending: Reply | Death, reason: Status | None = None, recovery: Recovery | None = None) -> CodeExecutionResult:
    """Return the result of a cell that ended like this."""
    cell = Cell("code", None, None)
    cell.attach(Collector(Limits()))
    cell.reason, cell.recovery = reason, recovery
    cell.finish(ending)
    return cell.result(Path("/nowhere"))


# -- readable -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("items", "text"),
    [
        ([], None),
        ([stream("")], None),
        ([value(None)], None),
        ([stream("a")], "a"),
        ([stream("\n\na\n\n")], "a"),
        ([stream("  indented\n")], "  indented"),
        ([stream("\n")], ""),
        ([stream("a"), stream("b")], "ab"),
        ([stream("a"), value("v"), stream("b")], "a\nv\nb"),
        ([stream("a\n"), value("v"), value("w")], "a\nv\nw"),
        ([stream("50%\r100%\n")], "100%"),
        ([stream("50%\r"), stream("100%")], "100%"),
        ([stream("\n"), stream("\n\n a"), value("v \n"), stream(" \n"), value(" ")], " a\nv"),
    ],
)
def test_a_reader_sees_what_was_shown_in_order(items: list[OutputItem], text: str | None) -> None:
    assert readable(items) == text


def test_a_result_holds_its_text_twice_at_most() -> None:
    """In its outputs, and all of it together: the bytes that came have gone."""
    cell = Cell("code", None, None)
    collector, size = Collector(Limits()), 10_000_000
    tracemalloc.start()
    try:
        for _ in range(10):
            collector.add_display(Display("display_data", {"text/plain": b"x" * (size // 10)}))
        cell.attach(collector)
        cell.finish(Reply(1))
        result = cell.result(Path("/nowhere"))
        assert tracemalloc.get_traced_memory()[1] < 2.3 * size
    finally:
        tracemalloc.stop()
    assert result.text == "\n".join(["x" * (size // 10)] * 10)
    assert result.outputs[9].data == {"text/plain": "x" * (size // 10)}


@unhurried
@given(st.text("ab\r\n", max_size=60))
def test_overwriting_is_what_a_terminal_does(text: str) -> None:
    lines: list[list[str]] = [[]]
    column = 0
    for character in text:
        if character == "\r":
            column = 0
        elif character == "\n":
            lines.append([])
            column = 0
        else:
            lines[-1][column : column + 1] = [character]
            column += 1
    assert overwrite(text) == "\n".join("".join(line) for line in lines)


# -- endings ------------------------------------------------------------------------------------------------------------


def test_an_exception_without_a_traceback_is_readable_all_the_same() -> None:
    assert ended(Reply(1, "ValueError", "wrong")).text == "ValueError: wrong"


@pytest.mark.parametrize(
    ("recovery", "words"),
    [
        ("interrupted", "by an interrupt"),
        ("interrupted_twice", "by a second interrupt"),
        ("killed_children", "by killing the processes that it had started"),
    ],
)
def test_a_timeout_says_which_rung_it_took_and_that_variables_are_kept(recovery: Recovery, words: str) -> None:
    result = ended(Reply(1, "KeyboardInterrupt", ""), "timeout", recovery)
    assert (result.status, result.recovery, result.state_lost) == ("timeout", recovery, False)
    assert result.error is not None
    assert result.error.ename == "TimeoutError"
    assert words in result.error.evalue
    assert "Variables are kept" in result.error.evalue


@pytest.mark.parametrize(("reason", "status"), [(None, "died"), ("timeout", "timeout"), ("interrupted", "interrupted")])
def test_the_end_of_the_kernel_says_that_state_is_lost(reason: Status | None, status: Status) -> None:
    result = ended(Death("SIGKILL, somebody killed it", -9), reason)
    assert (result.status, result.recovery, result.state_lost) == (status, "restarted", True)
    assert result.execution_count is None
    assert result.error is not None
    assert "Variables and imports are lost" in result.error.evalue
    assert (reason is None) == ("SIGKILL" in result.error.evalue)
    assert result.exit_status == (-9 if reason is None else None)


def test_only_the_first_ending_counts() -> None:
    cell = Cell("code", None, None)
    cell.attach(Collector(Limits()))
    cell.finish(Reply(1))
    cell.finish(Death("later"))
    assert cell.result(Path("/nowhere")).ok


def test_a_result_sorts_outputs_by_stream_and_takes_the_last_value() -> None:
    cell, collector = Cell("code", None, None), Collector(Limits())
    cell.attach(collector)
    collector.add_text("stdout", b"out\n")
    collector.add_text("stderr", b"err\n")
    for text in (b"first", b"last"):
        collector.add_display(Display("execute_result", {"text/plain": text}))
    collector.add_text("stdout", b"more\n")
    cell.finish(Reply(1))
    result = cell.result(Path("/nowhere"))
    assert (result.output, result.stderr, result.return_value) == ("out\nmore\n", "err\n", "last")
    assert result.text == "out\nerr\nfirst\nlast\nmore"


# -- chunks -------------------------------------------------------------------------------------------------------------


async def test_chunks_come_in_order_and_end_with_the_cell() -> None:
    cell = Cell("code", None, LIMIT)
    cell.events.emit("a", "stdout")
    cell.events.emit("", "stdout")
    cell.events.emit("b", None)
    cell.finish(Reply(1))
    chunks = [await cell.events.next() for _ in range(3)]
    assert chunks == [CodeExecutionChunk("a", "stdout"), CodeExecutionChunk("b"), None]


async def test_a_notice_comes_behind_what_was_written_before_also_without_chunks() -> None:
    for limit in (LIMIT, None):
        cell = Cell("code", None, limit)
        cell.events.emit("a", "stdout")
        cell.events.notify(Notice("about"))
        cell.finish(Reply(1))
        events = [await cell.events.next() for _ in range(3 if limit else 2)]
        assert events == [*([CodeExecutionChunk("a", "stdout")] if limit else []), Notice("about"), None]


async def test_a_reader_that_waits_is_woken_by_a_chunk_and_by_the_end() -> None:
    cell = Cell("code", None, LIMIT)
    waiting = asyncio.ensure_future(cell.events.next())
    await asyncio.sleep(0)
    cell.events.emit("a", "stdout")
    assert await waiting == CodeExecutionChunk("a", "stdout")
    waiting = asyncio.ensure_future(cell.events.next())
    await asyncio.sleep(0)
    cell.finish(Reply(1))
    assert await waiting is None


async def test_a_slow_reader_makes_the_kernel_wait_until_half_is_read() -> None:
    cell = Cell("code", None, LIMIT)
    paused: list[bool] = []
    cell.attach(Collector(Limits()), pause=paused.append)
    for _ in range(4):
        cell.events.emit("x" * (LIMIT * 3 // 10 - _CHUNK), "stdout")
    assert paused == [True]
    await cell.events.next()
    await cell.events.next()
    assert paused == [True]
    await cell.events.next()
    assert paused == [True, False]


async def test_a_cell_that_is_being_stopped_waits_for_no_reader_and_queues_no_more() -> None:
    cell = Cell("code", None, LIMIT)
    paused: list[bool] = []
    cell.attach(Collector(Limits()), pause=paused.append)
    cell.events.emit("x" * LIMIT, "stdout")
    cell.stopped_for("timeout")
    cell.events.release()
    cell.events.release()
    cell.events.emit("lost", "stdout")
    cell.finish(Reply(1))
    assert paused == [True, False]
    assert [await cell.events.next(), await cell.events.next()] == [CodeExecutionChunk("x" * LIMIT, "stdout"), None]


def test_without_a_reader_there_are_no_chunks() -> None:
    cell = Cell("code", None, None)
    cell.events.emit("x", "stdout")
    assert not cell.events.streaming
    assert not cell.events._events


async def test_a_notice_that_was_taken_back_is_neither_kept_nor_read() -> None:
    cell = Cell("code", None, 1000)
    kept, gone = Request(), [Request() for _ in range(5000)]
    cell.events.emit("first", "stdout")
    for number, about in enumerate(gone):
        if number == 2000:
            cell.events.notify(Notice(kept))
        cell.events.notify(Notice(about))
        cell.events.retract(about)
    leaving = [weakref.ref(about) for about in gone]
    del gone, about
    assert not any(ref() for ref in leaving)
    assert len(cell.events._events) < 2000
    cell.events.retract(object())
    cell.finish(Reply(1))
    assert await cell.events.next() == CodeExecutionChunk("first", "stdout")
    assert await cell.events.next() == Notice(kept)
    assert await cell.events.next() is None


async def test_what_others_say_does_not_grow_while_nobody_reads() -> None:
    cell = Cell("code", None, 1000)
    for _ in range(10_000):
        cell.events.emit("a line of a server\n", "stderr", ours=True)
    assert cell.events._queued < 1500


def test_a_flood_of_tiny_chunks_makes_the_kernel_wait_as_well() -> None:
    cell = Cell("code", None, 20_000)
    paused: list[bool] = []
    cell.attach(Collector(Limits()), pause=paused.append)
    for _ in range(1000):
        cell.events.emit("x", "stdout")
    assert paused == [True]


class Request:
    """What a notice is about."""


@pytest.mark.timeout(20)
def test_a_long_line_that_is_written_over_again_and_again_is_shown_at_once() -> None:
    """In time that grows with the text; with its square it would take more than a minute."""
    assert overwrite("x" * 1_000_000 + "\r" + "a\r" * 500_000 + "\rb") == "b" + "x" * 999_999


async def test_a_large_result_is_made_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    original = Collector.items

    def items(collector: Collector) -> list[OutputItem]:
        threads.append(threading.current_thread())
        return original(collector)

    monkeypatch.setattr(Collector, "items", items)
    for size in (10, 1_000_000):
        cell = Cell("code", None, None)
        collector = Collector(Limits())
        collector.add_text("stdout", b"\xff" * size)
        cell.attach(collector)
        cell.finish(Reply(1))
        assert len((await cell.finished(tmp_path)).output) == size
    assert [thread is threading.main_thread() for thread in threads] == [True, False]
