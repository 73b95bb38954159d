"""Dataclasses to JSON data and back, by the types of their fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import pytest

from cellblock.errors import ProtocolError
from cellblock.wire.codec import MAX_INTEGER, Most, decoder, encoder


@dataclass(frozen=True)
class Inner:
    number: int
    name: str = "none"


@dataclass(frozen=True)
class Circle:
    kind: ClassVar[str] = "circle"
    radius: int


@dataclass(frozen=True)
class Label:
    kind: ClassVar[str] = "label"
    text: str
    bold: bool


@dataclass(frozen=True)
class Outer:
    inner: Inner
    many: tuple[Inner, ...] = ()
    pair: tuple[int, str] = (0, "")
    maybe: Inner | None = None
    by_name: Mapping[str, Inner] = field(default_factory=dict)
    choice: Literal["a", "b"] = "a"
    shapes: tuple[Circle | Label, ...] = ()
    free: Any = None


FULL = Outer(
    Inner(1), (Inner(2), Inner(3, "c")), (4, "d"), Inner(5), {"x": Inner(6)}, "b", (Circle(7), Label("t", True)), [1, {"a": 2}]
)
DATA = {
    "inner": {"number": 1, "name": "none"},
    "many": [{"number": 2, "name": "none"}, {"number": 3, "name": "c"}],
    "pair": [4, "d"],
    "maybe": {"number": 5, "name": "none"},
    "by_name": {"x": {"number": 6, "name": "none"}},
    "choice": "b",
    "shapes": [["circle", 7], ["label", "t", True]],
    "free": [1, {"a": 2}],
}


def test_every_kind_of_field_travels() -> None:
    encode = encoder(Outer)
    assert encode is not None
    data = encode(FULL)
    assert {**data, "pair": [*data["pair"]], "shapes": [[*shape] for shape in data["shapes"]]} == DATA
    assert decoder(Outer)(DATA) == FULL
    assert decoder(Outer)({"inner": {"number": 1}}) == Outer(Inner(1))


def test_what_is_wrong_is_named_with_its_place() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"inner": {}}, "inner: number is missing"),
        ({"inner": []}, "inner: must be an object"),
        ({"inner": {"number": True}}, "inner: number: must be an integer"),
        ({"inner": {"number": MAX_INTEGER}}, "inner: number: must be an integer"),
        ({"inner": {"number": 1, "odd": 2}}, "inner: 'odd' is unknown"),
        ({"many": {}}, "many: must be a list"),
        ({"pair": [1]}, "pair: must be a list of 2"),
        ({"pair": ["1", "2"]}, "pair: must be an integer"),
        ({"by_name": {"x": 1}}, "by_name: must be an object"),
        ({"choice": "c"}, "choice: must be one of 'a', 'b'"),
        ({"shapes": [[]]}, "shapes: must be a list that is not empty"),
        ({"shapes": [["square", 1]]}, "shapes: must be a list that begins with one of circle, label"),
        ({"shapes": [["circle"]]}, "shapes: circle must have 1 fields"),
        ({"shapes": [["circle", "1"]]}, "shapes: must be an integer"),
        ({"shapes": [["circle", True]]}, "shapes: must be an integer"),
        ({"shapes": [["circle", {}]]}, "shapes: must be a list of texts"),
    ]
    for change, complaint in cases:
        with pytest.raises(ProtocolError) as raised:
            decoder(Outer)({**DATA, **change})
        assert str(raised.value).startswith(complaint)


def test_one_and_true_are_not_the_same_to_what_is_remembered() -> None:
    decode = decoder(Circle | Label)
    assert decode(["circle", 1]) == Circle(1)
    with pytest.raises(ProtocolError):
        decode(["circle", True])


def test_a_message_cannot_have_a_field_of_any_type() -> None:
    cases: list[type] = [bytes, list, set, float]
    for hint in cases:
        with pytest.raises(TypeError, match="cannot have a field"):
            decoder(hint)


def test_a_field_has_the_limit_that_it_says() -> None:
    cases: list[tuple[Any, Any, Any, str]] = [
        (Annotated[int, Most(3)], 3, 4, "must be an integer from 0 to 3"),
        (Annotated[int, Most(3)], 0, -1, "must be an integer from 0 to 3"),
        (Annotated[str, Most(3)], "abc", "abcd", "has 4 characters, over the limit of 3"),
        (Annotated[tuple[int, ...], Most(2)], [1, 2], [1, 2, 3], "has 3 items, over the limit of 2"),
    ]
    for hint, most, too_much, complaint in cases:
        assert decoder(hint)(most) == (tuple(most) if isinstance(most, list) else most)
        with pytest.raises(ProtocolError, match=complaint):
            decoder(hint)(too_much)


def test_notes_for_others_limit_nothing() -> None:
    assert decoder(Annotated[int, "for HTTP"])(-5) == -5
    assert encoder(Annotated[tuple[Inner, ...], "for HTTP"])([Inner(1)]) == [{"number": 1, "name": "none"}]  # type: ignore[misc]
