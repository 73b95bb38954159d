"""Copies the signature of one constructor to another, so that arguments are declared once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

_P = ParamSpec("_P")


def takes(
    model: Callable[Concatenate[Any, _P], object],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, _P], None]]:
    """Give a constructor the signature of another one, and its docstring if it has none."""

    def named(init: Callable[..., None]) -> Callable[Concatenate[Any, _P], None]:
        documentation = init.__doc__ or model.__doc__
        made = functools.wraps(model)(init)
        made.__doc__ = documentation
        return made

    return named
