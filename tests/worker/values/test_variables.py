"""What is told of variables: without running code of the session's, and in little time."""

from __future__ import annotations

import math
import re
import sys
from typing import Any

import numpy as np
import pandas as pd

from cellblock.model.variables import MAX_SURVEY, Survey, Variable, read_survey
from cellblock.worker.values.variables import survey


class Trap:
    """An object whose every method is an accident."""

    def __repr__(self) -> str:
        raise AssertionError("its code was run")

    __str__ = __len__ = __sizeof__ = __iter__ = __hash__ = __eq__ = __bool__ = __repr__  # type: ignore[assignment]

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"its code was run for {name}")


def told(**namespace: Any) -> Survey:
    return read_survey(survey(namespace, {}, None))


def test_type_size_shape_and_preview() -> None:
    def double(x: int, y: int = 2) -> int:
        return x * y

    found = told(
        n=3,
        text="x" * 200,
        items=[1, "a", [2], {"k": 1}, (), 6],
        table=pd.DataFrame({"a": [1, 2, 3], "b": 0.5}),
        array=np.zeros((2, 3)),
        module=math,
        double=double,
        kind=re.Pattern,
    ).variables
    assert found["n"] == Variable("n", "int", sys.getsizeof(3), None, "3")
    assert found["text"].shape == (200,)
    assert found["text"].preview == "'" + "x" * 80 + "'…"
    assert found["items"].preview == "[1, 'a', […], {…}, (), …]"
    assert (found["table"].type, found["table"].shape, found["table"].preview) == ("pandas.DataFrame", (3, 2), "a, b")
    assert found["table"].size is not None
    assert found["table"].size >= 48
    assert (found["array"].type, found["array"].size, found["array"].preview) == ("numpy.ndarray", 48, "float64")
    assert found["module"].preview == "module math"
    assert found["double"].preview == "def double(x, y)"
    assert found["kind"].preview == "class Pattern"


def test_no_code_of_the_session_runs() -> None:
    found = told(trap=Trap(), inside=[Trap()], key={"k": Trap()}).variables
    assert found["trap"].preview == "<test_variables.Trap>" or found["trap"].preview.endswith("Trap>")
    assert found["trap"].size is None
    assert "Trap" in found["inside"].preview
    assert "Trap" in found["key"].preview


def test_what_ipython_puts_there_is_left_out_and_what_the_code_puts_there_is_not() -> None:
    hidden = {"get_ipython": 1, "open": open}
    namespace = {"_": 1, "_1": 1, "_i": "", "_i12": "", "_oh": {}, "In": [], "__name__": "__main__", "__": 2, **hidden}
    mine = {"_x": 1, "open": 2, "_private": 3, "Input": 4}
    assert set(read_survey(survey({**namespace, **mine}, hidden, None)).variables) == set(mine)


def test_a_value_that_cannot_be_written_as_text_is_described_all_the_same() -> None:
    loop: list[Any] = []
    loop.append(loop)
    found = told(huge=10**10_000, loop=loop, surrogate="\ud800").variables
    assert found["huge"].preview == "an integer of 33,220 bits"
    assert found["loop"].preview == "[[…]]"
    assert found["surrogate"].shape == (1,)


def test_what_does_not_fit_is_counted() -> None:
    found = told(**{f"name_{number}": "é" * 100 for number in range(4000)})
    assert 1000 < len(found.variables) < 4000
    assert len(found.variables) + found.left_out == 4000


def test_a_survey_has_its_limit() -> None:
    data = survey({f"v{number}" + "n" * 400: "\N{PILE OF POO}" * 80 for number in range(2000)}, {}, None)
    assert len(data) <= MAX_SURVEY
