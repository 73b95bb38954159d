"""Digests: equal for equal values, whoever made them, and different for different ones."""

from __future__ import annotations

import threading
import time
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cellblock.worker.values.digests import digest


def of(value: object) -> str | None:
    return digest(value, time.monotonic() + 60)


def made(code: str) -> dict[str, Any]:
    """Return what code defines as a session's code would."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(code, namespace)
    return namespace


VALUES: list[Callable[[], Any]] = [
    lambda: 1,
    lambda: "text" * 3,
    lambda: [1, "a" + str(1), {"k": (1.5, None)}],
    lambda: np.arange(100_000),
    lambda: np.arange(12).reshape(3, 4)[:, ::2],
    lambda: pd.DataFrame({"a": [1, 2], "b": ["x", "y"]}),
    lambda: {1, 2, 3},
    lambda: b"x" * 200_000,
    lambda: threading,
    lambda: made("def f(x, y=[1]): return x + len(y)")["f"],
    lambda: made("class C:\n    k = [1]\n    def m(self): return __class__\n    @property\n    def p(self): return 1")["C"],
]


@pytest.mark.parametrize("make", VALUES)
def test_equal_values_have_equal_digests_and_others_have_not(make: Callable[[], Any]) -> None:
    first, second = of(make()), of(make())
    assert first is not None
    assert first == second
    assert sum(of(other()) == first for other in VALUES) == 1


def test_a_change_in_place_is_seen() -> None:
    array = np.zeros(1_000_000)
    frame = pd.DataFrame({"a": range(1000)})
    for value, change in ((array, array.__setitem__), (frame, lambda _row, x: frame.__setitem__("a", x))):
        before = of(value)
        change(999_999, 1)
        assert of(value) != before


def test_sharing_makes_no_difference() -> None:
    one = [1]
    assert of([one, one]) == of([[1], [1]])


def test_a_value_that_contains_itself_is_compared() -> None:
    def loop(last: int) -> list[Any]:
        items: list[Any] = [1, last]
        items.append(items)
        return items

    assert of(loop(2)) == of(loop(2)) != of(loop(3))


def test_functions_and_classes_are_compared_by_what_they_do() -> None:
    code = "def f(x):\n    return x + 1"
    assert of(made(code)["f"]) == of(made(f"\n\n{code}")["f"])
    assert of(made(code)["f"]) != of(made(code.replace("1", "2"))["f"])
    kind = "class C:\n    def m(self): return 1\n    def n(self): return __class__"
    assert of(made(kind)["C"]) != of(made(kind.replace("1", "2"))["C"])


@pytest.mark.slow
def test_what_cannot_be_compared_is_not_claimed_to_be_the_same() -> None:
    class Bad:
        def __reduce__(self) -> Any:
            raise SystemExit

    assert of(threading.Lock()) is None
    assert of(Bad()) is None
    assert of(types.SimpleNamespace(lock=threading.Lock())) is None
    assert digest(np.zeros(10_000_000), time.monotonic() - 1) is None
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert of(deep) is None
