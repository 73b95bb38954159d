"""What a cell shows is kept in order, from its beginning and its end, within bounds."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellblock.host.output.collect import MOST_METADATA, Bundle, Collector, Value
from cellblock.host.output.limits import Limits
from cellblock.host.output.spill import SpillDirectory, save_images
from cellblock.model import OutputItem
from cellblock.model.blocks import pictures
from cellblock.wire.fields import MAX_MIMES, PIECE
from cellblock.wire.messages import Display

unhurried = settings(deadline=None)  # on a busy machine time says nothing
LARGE = 2 * 1024 * 1024
PNG = b"\x89PNG\r\n\x1a\nrest"
MARK = "bytes of output left out"


def shown(text: str, kind: Any = "display_data", display_id: str | None = None) -> Display:
    """Return a bundle of plain text."""
    return Display(kind, {"text/plain": text.encode()}, display_id=display_id)


def texts(collector: Collector) -> list[str | None]:
    """Return what a reader sees of each output."""
    return [item.text for item in collector.items()]


def stdout(collector: Collector) -> str:
    """Return what was kept of stdout."""
    return "".join(item.text or "" for item in collector.items() if item.name == "stdout")


# -- text ---------------------------------------------------------------------------------------------------------------

writes = st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.text(max_size=60)), max_size=60)


@settings(unhurried, max_examples=20)
@given(writes)
def test_text_within_the_limit_is_kept_whole_and_in_order(pieces: list[Any]) -> None:
    collector = Collector(Limits(text=100_000))
    for name, text in pieces:
        collector.add_text(name, text.encode())
    items = collector.items()
    assert "".join(item.text or "" for item in items) == "".join(text for _, text in pieces)
    for name in ("stdout", "stderr"):
        assert "".join(i.text or "" for i in items if i.name == name) == "".join(t for n, t in pieces if n == name)
    assert all(first.name != second.name for first, second in itertools.pairwise(items))
    assert not collector.truncated


@unhurried
@given(st.lists(st.text("aé😀\n", min_size=1, max_size=300), min_size=1, max_size=40), st.integers(0, 4000))
def test_text_over_the_limit_keeps_its_exact_beginning_and_end(pieces: list[str], limit: int) -> None:
    collector = Collector(Limits(text=limit))
    for piece in pieces:
        collector.add_text("stdout", piece.encode())
    whole, kept = "".join(pieces), stdout(collector)
    if not collector.truncated:
        assert kept == whole
        return
    head, _, rest = kept.partition("\n… ")
    count, _, tail = rest.partition(f" {MARK} …\n")
    assert whole.startswith(head)
    assert whole.endswith(tail)
    assert len((head + tail).encode()) <= limit
    assert int(count.replace(",", "")) == len(whole.encode()) - len((head + tail).encode())


def test_half_of_the_limit_goes_to_each_end() -> None:
    collector = Collector(Limits(text=100_000))
    for number in range(20_000):
        collector.add_text("stdout", b"%09d\n" % number)
    head, _, tail = stdout(collector).partition("\n… ")
    assert head.startswith("000000000\n000000001\n")
    assert tail.endswith("000019998\n000019999\n")
    assert 49_000 < len(head) <= 50_000
    assert 49_000 < len(tail) <= 50_100


@unhurried
@given(st.lists(st.binary(min_size=1, max_size=400), max_size=30))
def test_bytes_that_are_no_utf8_are_shown_as_such(pieces: list[bytes]) -> None:
    collector = Collector(Limits(text=1000))
    for piece in pieces:
        collector.add_text("stdout", piece)
    kept = stdout(collector)
    kept.encode()
    if not collector.truncated:
        assert kept == b"".join(pieces).decode("utf-8", "replace")


@pytest.mark.parametrize("piece", [b"\x80" * 10_000, "😀".encode() * 5000, b"x"])
def test_memory_for_text_is_bounded_whatever_is_written(piece: bytes) -> None:
    collector = Collector(Limits(text=20_000))
    for number in range(3000):
        collector.add_text("stdout" if number % 2 else "stderr", piece)
    entries = [entry for entry in (*collector._head, *collector._tail) if hasattr(entry, "data")]
    assert sum(sys.getsizeof(entry) + sys.getsizeof(entry.data) for entry in entries) < 60_000
    assert len(entries) < 400
    assert collector.truncated


@pytest.mark.parametrize("limit", [0, 1, 2, 127, 129])
def test_limits_too_small_for_anything_lose_it_and_say_so(limit: int) -> None:
    collector = Collector(Limits(text=limit))
    collector.add_text("stdout", b"x" * 1000)
    collector.add_text("stderr", b"y" * 1000)
    assert collector.truncated
    assert MARK in "".join(text or "" for text in texts(collector))


# -- displays and order -------------------------------------------------------------------------------------------------


@unhurried
@given(st.lists(st.none() | st.text("ab", min_size=1, max_size=80), max_size=60), st.integers(500, 20_000))
def test_values_stand_between_the_texts_they_were_shown_between(steps: list[str | None], limit: int) -> None:
    """None shows a value, anything else is printed."""
    collector = Collector(Limits(text=limit))
    for number, step in enumerate(steps):
        if step is None:
            collector.add_display(shown(f"<{number}>"))
        else:
            collector.add_text("stdout", step.encode())
    whole = "".join(f"<{number}>" if step is None else step for number, step in enumerate(steps))
    kept = "".join(text or "" for text in texts(collector))
    if collector.truncated:
        head, _, rest = kept.partition("\n… ")
        _, _, tail = rest.partition(f" {MARK} …\n")
        assert whole.startswith(head)
        assert [part for part in tail.split("<") if ">" in part][-1:] == [part for part in whole.split("<") if ">" in part][
            -1:
        ]
        assert all(f"<{number}>" in kept for number, step in enumerate(steps) if step is None)
    else:
        assert kept == whole


def test_a_value_shown_late_stays_before_the_text_that_follows_it() -> None:
    collector = Collector(Limits())
    collector.add_text("stdout", b"x" * 1_500_000)
    collector.add_display(shown("value"))
    collector.add_text("stdout", b"done\n")
    assert [len(text or "") for text in texts(collector)] == [1_500_000, 5, 5]
    assert not collector.truncated


def test_an_update_changes_a_value_in_its_place_wherever_it_stands() -> None:
    collector = Collector(Limits(text=4000))
    collector.add_display(shown("early", display_id="a"))
    collector.add_text("stdout", b"x" * 2100)
    collector.add_display(shown("late", display_id="b"))
    collector.add_text("stdout", b"y")
    for identity in ("a", "b"):
        collector.add_display(shown(f"new {identity}", "update_display_data", identity))
    assert texts(collector) == ["new a", "x" * 2100, "new b", "y"]
    assert [item.kind for item in collector.items() if item.display_id] == ["display_data", "display_data"]
    for unknown in (None, "never shown"):  # nothing is updated by these
        item = collector.add_display(shown("another", "update_display_data", unknown))
        assert item is not None
        assert item.kind == "update_display_data"
    assert texts(collector)[4:] == ["another", "another"]


def test_clearing_forgets_and_clearing_later_waits_for_what_comes() -> None:
    collector = Collector(Limits())
    collector.add_text("stdout", b"one")
    collector.clear(wait=False)
    assert texts(collector) == []
    collector.add_text("stdout", b"two")
    collector.clear(wait=True)
    assert texts(collector) == ["two"]
    collector.add_display(shown("three"))
    assert texts(collector) == ["three"]
    small = Collector(Limits(displays=2, values=300))
    for _ in range(5):
        assert small.add_display(shown("x" * 90)) is not None
        small.clear(wait=False)


def test_the_number_of_values_is_limited() -> None:
    collector = Collector(Limits(displays=3))
    assert [collector.add_display(shown(str(number))) is not None for number in range(4)] == [True, True, True, False]
    assert texts(collector) == ["0", "1", "2"]
    assert collector.truncated


def test_values_that_do_not_fit_are_left_out() -> None:
    collector = Collector(Limits(values=1000))
    collector.add_display(Display("display_data", {"text/plain": b"small", "text/html": b"x" * 1001}))
    (item,) = collector.items()
    assert dict(item.data) == {"text/plain": "small"}
    assert collector.truncated


@pytest.mark.parametrize(("character", "width"), [("é", 1), ("中", 2), ("\U0001f600", 4)])
@pytest.mark.parametrize("in_parts", [False, True])
def test_text_counts_with_what_it_takes_in_memory(character: str, width: int, in_parts: bool) -> None:
    """One wide character makes all others of a text as wide: a megabyte of HTML takes four."""
    collector = Collector(Limits(values=400_000))
    page = character.encode() + b"x" * 48_000
    for _ in range(10):
        if in_parts:
            for start in range(0, len(page), 20_000):
                collector.add_part("text/html", page[start : start + 20_000])
            collector.add_display(Display("display_data", {}, parts=("text/html",)))
        else:
            collector.add_display(Display("display_data", {"text/html": page}))
    kept = [value for item in collector.items() for value in item.data.values()]
    assert sum(map(sys.getsizeof, kept)) < 400_000
    assert len(kept) == 8 // width
    assert ("in memory" in "".join(collector.unsaid)) == (width > 1 and not in_parts)


@pytest.mark.parametrize(
    "data", [b"\xf0\x9f\x98\x80" + b"\x80" * 30_000, b"\xf0" * 10_000 + b"\x80" * 30_000, b"\xff" * 30_000]
)
def test_what_is_not_utf_8_counts_with_what_replaces_it(data: bytes) -> None:
    collector = Collector(Limits(values=200_000))
    for _ in range(10):
        collector.add_display(Display("display_data", {"text/html": data}))
    assert sum(sys.getsizeof(value) for item in collector.items() for value in item.data.values()) < 220_000


def test_room_does_not_grow_by_updates() -> None:
    """Invalid bytes become three times as long when they are replaced."""
    collector = Collector(Limits(values=10_000))
    collector.add_display(shown("", display_id="a"))
    for _ in range(50):
        for raw in (b"\xff" * 2000, b""):
            collector.add_display(Display("update_display_data", {"text/plain": raw}, display_id="a"))
    collector.add_display(Display("display_data", {"text/plain": b"x" * 10_001}))
    assert collector.items()[-1].text != "x" * 10_001


def test_metadata_counts_with_what_it_takes_in_memory() -> None:
    collector = Collector(Limits(values=1_000_000))
    for _ in range(30):
        collector.add_display(Display("display_data", {}, {"x": [{} for _ in range(3000)]}))  # 9 kB on the wire
    kept = [item for item in collector.items() if item.metadata]
    assert 0 < len(kept) < 8
    assert collector.truncated


def test_types_are_text_or_bytes_as_the_model_says() -> None:
    collector = Collector(Limits())
    bundle = {
        "text/html": b"<b>",
        "image/svg+xml": b"<svg/>",
        "application/json": b"{}",
        "application/vnd.x+json": b"{}",
        "image/png": b"\xff",
    }
    collector.add_display(Display("execute_result", bundle))
    (item,) = collector.items()
    assert item.kind == "execute_result"
    assert {mime: type(value) for mime, value in item.data.items()} == dict.fromkeys(bundle, str) | {"image/png": bytes}


# -- values in parts ----------------------------------------------------------------------------------------------------


def in_parts(collector: Collector, mime: str, data: bytes, size: int = PIECE) -> None:
    for start in range(0, len(data), size):
        collector.add_part(mime, data[start : start + size])


@unhurried
@given(st.binary(max_size=3000), st.integers(1, 500))
def test_a_value_in_parts_is_put_together(data: bytes, size: int) -> None:
    collector = Collector(Limits())
    in_parts(collector, "image/png", data, size)
    collector.add_display(Display("display_data", {"text/plain": b"x"}, parts=("image/png",)))
    (item,) = collector.items()
    assert item.data.get("image/png", b"") == data
    assert not collector.truncated


@settings(unhurried, max_examples=20)
@given(st.text("aé", min_size=600, max_size=800), st.integers(1, 300))
def test_a_text_value_over_its_limit_keeps_its_beginning_and_end(text: str, size: int) -> None:
    collector = Collector(Limits(value=500))
    in_parts(collector, "text/plain", text.encode(), size)
    collector.add_display(Display("display_data", {}, parts=("text/plain",)))
    (item,) = collector.items()
    kept = str(item.data["text/plain"])
    head, _, tail = kept.partition("\n… ")
    tail = tail.partition(" bytes left out …\n")[2]
    assert text.startswith(head.rstrip("�"))
    assert text.endswith(tail.lstrip("�"))
    assert 240 <= len(head.encode()) <= 255
    assert 240 <= len(tail.encode()) <= 260
    assert collector.truncated


@pytest.mark.parametrize("mime", ["image/png", "text/html", "application/vnd.plotly.v1+json", "text/markdown"])
async def test_half_a_value_is_none(mime: str, tmp_path: Path) -> None:
    """Nobody can read half of a picture, of a page or of JSON: it is there whole or not at all, and somebody is told."""
    data = PNG + bytes(1000)
    for directory in (None, SpillDirectory(tmp_path, 10_000, 10_000)):
        collector = Collector(Limits(value=500, media=500), directory)
        in_parts(collector, mime, data, 300)
        collector.add_display(Display("display_data", {"text/plain": b"x"}, parts=(mime,)))
        (item,) = collector.items()
        assert dict(item.data) == {"text/plain": "x"}
        assert collector.truncated
        (note,) = collector.unsaid
        assert f"{mime} is left out: its {len(data):,} bytes are over the limit of 500 " in note
        await written(collector)
    assert str(collector.spilled[0]) in note
    assert collector.spilled[0].read_bytes() == data


def test_a_picture_of_twenty_megabytes_is_kept() -> None:
    """As much as matplotlib makes of an animation."""
    collector = Collector(Limits())
    in_parts(collector, "image/png", PNG + bytes(20_000_000))
    collector.add_display(Display("display_data", {}, parts=("image/png",)))
    (item,) = collector.items()
    assert len(item.data["image/png"]) == 20_000_000 + len(PNG)
    assert not collector.truncated


def test_what_is_shown_again_keeps_its_own_value_until_the_next_update() -> None:
    collector = Collector(Limits())
    collector.add_display(shown("one", display_id="x"))
    collector.add_display(shown("two", display_id="x"))
    collector.add_display(shown("three", "update_display_data", "x"))
    collector.add_display(shown("four", display_id="x"))
    assert texts(collector) == ["three", "three", "four"]
    collector.add_display(shown("five", "update_display_data", "x"))
    assert texts(collector) == ["five"] * 3


def test_an_update_counts_in_every_place_and_is_made_in_one() -> None:
    """A thousand places of one id: what an update costs must not depend on how many there are."""
    collector = Collector(Limits(values=3_000_000))
    for _ in range(1000):
        collector.add_display(shown("old", display_id="x"))
    assert collector.add_display(shown("new" * 10_000, "update_display_data", "x")) is None
    assert collector.truncated
    assert {*texts(collector)} == {"old"}
    assert collector.add_display(shown("new", "update_display_data", "x")) is not None
    assert texts(collector) == ["new"] * 1000


def test_parts_of_several_types_follow_each_other() -> None:
    collector = Collector(Limits())
    for mime in ("text/html", "application/json", "image/png"):
        in_parts(collector, mime, mime.encode() * 100_000)
    collector.add_display(Display("display_data", {}, parts=("text/html", "application/json", "image/png")))
    (item,) = collector.items()
    assert {mime: len(value) for mime, value in item.data.items()} == {
        mime: len(mime) * 100_000 for mime in ("text/html", "application/json", "image/png")
    }
    assert not collector.truncated


def held_in_parts(collector: Collector) -> int:
    values = collector._parts.values()
    return sum(sys.getsizeof(value._data) + sum(map(sys.getsizeof, value._tail)) for value in values)


def test_parts_of_many_types_share_one_limit_in_turn_or_not() -> None:
    limits = Limits(media=100_000, values=200_000)
    in_turn, mixed = Collector(limits), Collector(limits)
    piece = bytes(10_000)
    for mime in range(MAX_MIMES + 5):
        for _ in range(20):
            in_turn.add_part(str(mime), piece)
    for _ in range(20):
        for mime in range(MAX_MIMES + 5):
            mixed.add_part(str(mime), piece)
    for collector in (in_turn, mixed):
        assert held_in_parts(collector) < 300_000
        assert len(collector._parts) <= MAX_MIMES
        assert collector.truncated


def test_parts_of_a_few_bytes_take_no_more_than_parts_of_many() -> None:
    collector = Collector(Limits(media=100_000))
    for _ in range(60_000):
        collector.add_part("text/html", b"ab")
    assert held_in_parts(collector) < 150_000


def test_parts_that_no_bundle_wanted_are_forgotten() -> None:
    collector = Collector(Limits())
    collector.add_part("text/html", b"x")
    collector.add_display(shown("value"))
    collector.add_display(Display("display_data", {"text/plain": b"y"}, parts=("text/html",)))
    assert [dict(item.data) for item in collector.items()] == [{"text/plain": "value"}, {"text/plain": "y"}]


# -- files --------------------------------------------------------------------------------------------------------------


async def written(collector: Collector) -> None:
    """Close it, and wait for the disk."""
    collector.close()
    await collector.written()


async def test_what_was_left_out_is_in_a_file_with_all_around_it(tmp_path: Path) -> None:
    collector = Collector(Limits(text=1000), SpillDirectory(tmp_path, 10**9, 10**9))
    pieces = [b"%d\n" % number * 50 for number in range(100)]
    for piece in pieces:
        collector.add_text("stdout", piece)
    await written(collector)
    (path,) = collector.spilled
    assert path.read_bytes() == b"".join(pieces)
    assert path.suffix == ".txt"
    within = Collector(Limits(), SpillDirectory(tmp_path / "spill", 10**9, 10**9))
    within.add_text("stdout", b"x")
    await written(within)
    assert within.spilled == []
    assert not (tmp_path / "spill").exists()


async def test_clearing_does_not_begin_a_second_file(tmp_path: Path) -> None:
    collector = Collector(Limits(text=1000), SpillDirectory(tmp_path, 10**9, 10**9))
    for mark in (b"a", b"b"):
        collector.add_text("stdout", mark * 5000)
        collector.clear(wait=False)
    await written(collector)
    (path,) = collector.spilled
    assert path.read_bytes() == b"a" * 5000 + b"b" * 5000
    assert [*tmp_path.iterdir()] == [path]


async def test_a_value_that_was_cut_is_whole_in_a_file(tmp_path: Path) -> None:
    collector = Collector(Limits(media=1000), SpillDirectory(tmp_path, 10**9, 10**9))
    data = b"<p>" * 3000
    in_parts(collector, "text/html", data, 700)
    collector.add_display(Display("display_data", {}, parts=("text/html",)))
    await written(collector)
    (path,) = collector.spilled
    assert path.read_bytes() == data
    assert path.suffix == ".html"


async def test_a_directory_that_takes_no_file_is_noted_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    collector = Collector(Limits(text=1000, media=10), SpillDirectory(tmp_path / "file", 10**9, 10**9))
    collector.add_text("stdout", b"x" * 5000)
    for _ in range(3):
        collector.add_part("text/html", b"y" * 100)
        collector.add_display(Display("display_data", {}, parts=("text/html",)))
    await written(collector)
    notes = "".join(item.text or "" for item in collector.items() if item.name == "stderr")
    assert notes.count("[cellblock] the whole output could not be written") == 1
    assert collector.spilled == []


def test_png_images_are_saved_and_nothing_else(tmp_path: Path) -> None:
    items = [
        OutputItem("display_data", data={"image/png": PNG}),
        OutputItem("display_data", data={"image/png": b"no image"}),
        OutputItem("display_data", data={"image/jpeg": b"x"}),
        OutputItem("execute_result", data={"image/png": PNG}),
        OutputItem("stream", "text", "stdout"),
    ]
    paths, notes = save_images(pictures(items), tmp_path / "images")
    assert [path.read_bytes() for path in paths] == [PNG, PNG]
    assert sorted((tmp_path / "images").iterdir()) == sorted(paths)
    assert notes == []


def test_images_that_cannot_be_saved_are_noted(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    paths, notes = save_images([("image/png", PNG)], tmp_path / "file")
    assert paths == []
    assert len(notes) == 1
    assert str(tmp_path / "file") in notes[0]


async def test_no_link_on_the_way_is_followed(tmp_path: Path) -> None:
    """The directory was resolved before; a link in it has come since."""
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / "images").symlink_to(other)
    for place in (tmp_path / "images", tmp_path / "images" / "inner"):
        paths, notes = save_images([("image/png", PNG)], place)
        assert paths == []
        assert "the path has a symbolic link that a session could have created" in notes[0]
        collector = Collector(Limits(text=2000), SpillDirectory(place, 10**9, 10**9))
        collector.add_text("stdout", b"x" * 5000)
        await written(collector)
        assert "the path has a symbolic link that a session could have created" in "".join(
            item.text or "" for item in collector.items()
        )
        assert collector.spilled == []
    assert [*other.iterdir()] == []


# -- one value --------------------------------------------------------------------------------------------------------


class Spilled:
    """Where a value goes that is too large."""

    def __init__(self) -> None:
        self.data = b""
        self.closed = 0

    def begin(self, pieces: Iterable[bytes | bytearray]) -> None:
        self.data = b"".join(pieces)

    def write(self, data: bytes) -> None:
        self.data += data

    def close(self) -> None:
        self.closed += 1


def value(mime: str, limit: int, pieces: Iterable[bytes]) -> tuple[Value, Spilled]:
    spilled = Spilled()
    made = Value(mime, limit, spilled)  # type: ignore[arg-type]
    for piece in pieces:
        made.add(piece)
        assert made.size <= limit
    return made, spilled


def bundle(data: dict[str, bytes], metadata: dict[str, Any] | None = None, room: int = 10**6) -> Bundle:
    return Bundle("display_data", data, metadata or {}, None, room, sum(map(len, data.values())))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"text/plain": b"plain", "text/html": b"<b>"}, "plain"),
        ({"image/png": b"x", "text/markdown": b"**b**"}, "**b**"),
        ({"text/html": b"<b>"}, "<b>"),
        ({"text/html": b"x" * LARGE}, "<text/html>"),  # nobody reads more of a page that a browser was to show
        ({"image/png": b"x", "image/jpeg": b"y"}, "<image/png, image/jpeg>"),
        ({"text/plain": b"a\xff"}, "a\ufffd"),
        ({}, None),
    ],
)
def test_a_reader_of_plain_text_sees_the_plainest_type(data: dict[str, bytes], text: str | None) -> None:
    shown = bundle(data)
    assert shown.item("display_data").text == text
    if b"\xff" not in b"".join(data.values()):
        assert shown.text == text


def test_bytes_that_are_no_text_do_not_hold_up_the_reader_of_a_stream() -> None:
    data = {"text/plain": b"\xff" * LARGE, "text/html": b"<b>"}
    assert bundle(data).text == "<b>"
    assert bundle(data).item("display_data").text == "\ufffd" * LARGE


@pytest.mark.parametrize("metadata", [{"a": [[]] * 10_000}, {"a": "x" * MOST_METADATA}, {"x" * MOST_METADATA: 1}])
def test_metadata_that_takes_too_much_is_left_out(metadata: dict[str, Any]) -> None:
    heavy = bundle({"text/plain": b"x"}, metadata)
    assert (heavy.heavy, heavy.metadata) == (True, {})
    light = bundle({"text/plain": b"x"}, {"a": 1})
    assert (light.heavy, light.metadata) == (False, {"a": 1})
    assert light.size > bundle({"text/plain": b"x"}).size


def test_an_error_is_its_text_and_nothing_else() -> None:
    item = bundle({"text/plain": b"Traceback", "image/png": b"x"}).item("error")
    assert (item.text, item.data) == ("Traceback", {})
