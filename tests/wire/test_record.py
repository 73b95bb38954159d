"""Records behave as frozen dataclasses do."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import field
from typing import ClassVar

import pytest

from cellblock.wire.record import record


@record
class Point:
    """A record with all kinds of fields."""

    kind: ClassVar[str] = "point"
    x: int
    y: int = 2
    names: tuple[str, ...] = ()
    seen: dict[str, int] = field(default_factory=dict)


@record
class Empty:
    """A record without fields."""


def test_fields_are_given_by_place_and_by_name() -> None:
    assert Point(1) == Point(x=1) == Point(1, 2) == Point(1, y=2, names=(), seen={})
    assert Point(1, 2, ("a",), {"b": 3}).seen == {"b": 3}
    assert Point(1).seen is not Point(1).seen
    assert repr(Point(1)) == "Point(x=1, y=2, names=(), seen={})"
    assert Empty() == Empty()


def test_one_is_only_equal_to_its_own_kind() -> None:
    assert Point(1) != Point(2)
    assert Empty() != object()
    assert hash(Empty()) == hash(Empty())


def test_wrong_arguments_are_an_error() -> None:
    cases: list[tuple[tuple[object, ...], dict[str, object]]] = [
        ((), {}),
        ((), {"y": 1}),
        ((1, 2, (), {}, 5), {}),
        ((1,), {"x": 1}),
        ((1,), {"z": 1}),
        ((), {"x": 1, "z": 2}),
    ]
    for given, named in cases:
        with pytest.raises(TypeError, match=r"Point\(\) takes x, y, names, seen"):
            Point(*given, **named)  # type: ignore[arg-type]


def test_nothing_can_be_changed() -> None:
    point = Point(1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="'x' of Point"):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del point.y
    with pytest.raises(dataclasses.FrozenInstanceError):
        point.other = 2  # type: ignore[attr-defined]


def test_what_works_for_dataclasses_works() -> None:
    assert [item.name for item in dataclasses.fields(Point)] == ["x", "y", "names", "seen"]
    assert dataclasses.replace(Point(1), y=5) == Point(1, 5)
    assert copy.deepcopy(Point(1)) == Point(1) == pickle.loads(pickle.dumps(Point(1)))
    match Point(1, 7):
        case Point(x, y):
            assert (x, y) == (1, 7)
