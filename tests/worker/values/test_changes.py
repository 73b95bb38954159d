"""What cells do to variables."""

from __future__ import annotations

from typing import Any

from cellblock.host import Session
from cellblock.wire.messages import Changed
from cellblock.worker.values.changes import Variables


def test_what_is_new_changed_and_gone() -> None:
    variables = Variables()
    names: dict[Any, Any] = {"x": 1, "y": "a", "_z": 1, "In": [], 7: 7}
    assert variables.changed(names, {"In": None}) == Changed(("x", "y"), ("int", "str"))
    assert variables.changed(names, {"In": None}) == Changed()
    del names["y"]
    names["x"] = 2.0
    assert variables.changed(names, {"In": None}) == Changed(("x",), ("float",), ("y",))


def test_of_many_variables_the_first_are_told() -> None:
    variables = Variables()
    names = {f"x{number}": object() for number in range(1000)}
    assert len(variables.changed(names, {}).names) == 50
    assert variables.changed(names, {}) == Changed()
    assert len(variables.changed({}, {}).gone) == 50


async def test_a_type_does_not_choose_its_name(session: Session) -> None:
    await session.execute(
        "class Odd(type):\n    __name__ = property(lambda self: 1 / 0)\nclass A(metaclass=Odd): pass\nx = A()"
    )
    assert (await session.changes())[0]["x"] == "A"
    assert (await session.execute("1 + 1")).text == "2"


async def test_a_session_that_was_asked_is_not_asked_again(session: Session) -> None:
    await session.execute("x = 1")
    assert await session.changes() == ({"x": "int"}, [])
    for code in ("y = 'a'\nz = 1", "del z\nx = 2.0"):
        await session.execute(code)
    channel = session.cells._kernels.current.channel._conversation  # type: ignore[union-attr]
    position = channel.position
    assert await session.changes() == ({"y": "str", "x": "float"}, ["z"])
    assert channel.position == position
    assert await session.changes() == ({}, [])


def test_what_is_told_twice_is_one() -> None:
    first, second = Changed(("x", "y"), ("int", "str"), ("a", "b")), Changed(("a", "x"), ("float", "list"), ("y",))
    assert first.then(second) == Changed(("x", "a"), ("list", "float"), ("b", "y"))
    many = Changed(tuple(f"x{number}" for number in range(50)), ("int",) * 50)
    assert len(many.then(second).names) == 50


async def test_a_session_tells(session: Session) -> None:
    await session.execute("x = 1\ny = 'a'")
    assert await session.changes() == ({"x": "int", "y": "str"}, [])
    await session.execute("del y")
    assert await session.changes() == ({}, ["y"])
    await session.reset()
    assert await session.changes() == ({}, [])
