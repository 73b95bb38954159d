"""Immutable dataclasses that are cheap to define, for message types that are rarely instantiated.

`dataclass` generates and compiles an `__init__`, an `__eq__` and so on for each class. That takes half a millisecond for each,
in every program and in every zygote. Records share these methods. Instantiating one takes a microsecond, so messages of a cell
are plain dataclasses.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from typing import Any, NoReturn, TypeVar, dataclass_transform

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[_T]) -> type[_T]:
    """Make a class a frozen dataclass. `dataclasses.fields`, `replace` and pattern matching work as for any other."""
    for name, method in _METHODS.items():
        setattr(cls, name, method)
    if not cls.__doc__:  # otherwise `dataclass` makes one from the signature, which is not known yet
        cls.__doc__ = cls.__name__
    made = dataclass(init=False, repr=False, eq=False)(cls)
    _DEFAULTS[made] = {item.name: _default(item) for item in fields(made)}  # type: ignore[arg-type]  # it is one now
    return made


_DEFAULTS: dict[type, dict[str, Callable[[], Any] | None]] = {}
"""The default factories of the fields of each record, in order; None: the field is required."""


def _default(item: Any) -> Callable[[], Any] | None:
    if item.default is not MISSING:
        return lambda: item.default
    return None if item.default_factory is MISSING else item.default_factory


def _init(self: Any, *given: Any, **named: Any) -> None:
    defaults = _DEFAULTS[type(self)]
    self.__dict__.update(zip(defaults, given, strict=False))
    if named or len(given) != len(defaults):
        _init_by_name(self, given, named)


def _init_by_name(self: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
    kind, defaults, values = type(self), _DEFAULTS[type(self)], self.__dict__
    if len(given) > len(defaults) or values.keys() & named.keys():
        raise TypeError(f"{kind.__name__}() takes {', '.join(defaults) or 'nothing'}, each once")
    values.update(named)
    for name, make in defaults.items():
        if name not in values and make is not None:
            values[name] = make()
    if values.keys() != defaults.keys():
        raise TypeError(f"{kind.__name__}() takes {', '.join(defaults) or 'nothing'}, not {', '.join(values) or 'nothing'}")


def _eq(self: Any, other: object) -> bool:
    return type(self) is type(other) and self.__dict__ == other.__dict__


def _hash(self: Any) -> int:
    return hash((type(self), *(self.__dict__[name] for name in _DEFAULTS[type(self)])))


def _repr(self: Any) -> str:
    shown = ", ".join(f"{name}={self.__dict__[name]!r}" for name in _DEFAULTS[type(self)])
    return f"{type(self).__qualname__}({shown})"


def _frozen(self: Any, name: str, *_: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot change {name!r} of {type(self).__name__}")


class _Signature:
    """The signature for `help` and `inspect.signature`, computed on demand; ``*given, **named`` would not be informative."""

    def __get__(self, instance: object, owner: type) -> inspect.Signature:
        hints = typing.get_type_hints(owner)
        return inspect.Signature(
            [
                inspect.Parameter(
                    name,
                    inspect.Parameter.POSITIONAL_OR_KEYWORD,
                    default=inspect.Parameter.empty if make is None else make(),
                    annotation=hints[name],
                )
                for name, make in _DEFAULTS[owner].items()
            ]
        )


_METHODS: dict[str, Any] = {
    "__init__": _init,
    "__eq__": _eq,
    "__hash__": _hash,
    "__repr__": _repr,
    "__setattr__": _frozen,
    "__delattr__": _frozen,
    "__signature__": _Signature(),
}
