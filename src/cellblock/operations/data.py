"""Objects of `model` as JSON data, which is what most answers are."""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar


class _ToDict(Protocol):
    def to_dict(self) -> dict[str, Any]: ...


_ModelT = TypeVar("_ModelT", bound=_ToDict)
_ModelT_co = TypeVar("_ModelT_co", covariant=True)


class Data(dict[str, Any], Generic[_ModelT_co]):
    """For type checkers: what `to_dict` of a class of `model` returns. There are no objects of this class, but plain dicts."""


def as_data(found: _ModelT) -> Data[_ModelT]:
    """Return an object of `model` as JSON data."""
    return found.to_dict()  # type: ignore[return-value]  # see `Data`
