"""What cells do to variables."""

from __future__ import annotations

from typing import Any

from cellblock.host import Session
from cellblock.wire.messages import Changed
from cellblock.worker.changes import Variables


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


async def test_a_type_that_will_not_tell_its_name_does_no_harm(session: Session) -> None:
    await session.execute(
        "class Odd(type):\n    __name__ = property(lambda self: 1 / 0)\nclass A(metaclass=Odd): pass\nx = A()"
    )
    assert await session.changes() == ({}, [])
    assert (await session.execute("1 + 1")).text == "2"


async def test_a_session_tells(session: Session) -> None:
    await session.execute("x = 1\ny = 'a'")
    assert await session.changes() == ({"x": "int", "y": "str"}, [])
    await session.execute("del y")
    assert await session.changes() == ({}, ["y"])
    await session.reset()
    assert await session.changes() == ({}, [])
