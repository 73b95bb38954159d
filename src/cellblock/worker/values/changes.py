"""Reports how cells change variables: new names, names that refer to another object, and deleted names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from cellblock.wire.fields import MAX_NAMES
from cellblock.wire.messages import Changed

_SHOWN = 100
"""Characters of a name that are sent."""

_type_name = cast("Any", type.__dict__["__name__"]).__get__
"""Returns a type's own name. A metaclass can define another one, computed by its own code."""


class Variables:
    """A comparison of a session's variables with the last call. None of the code's own methods runs."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def changed(self, variables: dict[str, Any], hidden: Mapping[str, Any]) -> Changed:
        """Return the changes of variables since the last call.

        Args:
            variables: The session's current variables.
            hidden: Variables that are not the code's own.
        """
        before, self._seen = self._seen, {}
        names: list[str] = []
        types: list[str] = []
        for name, value in [*dict.items(variables)]:
            if type(name) is not str or name.startswith("_") or name in hidden:
                continue
            self._seen[name] = id(value)
            if before.get(name) != id(value) and len(names) < MAX_NAMES:
                names.append(name)
                types.append(_type_name(type(value)))
        gone = sorted(before.keys() - self._seen.keys())
        return Changed(_short(names), _short(types), _short(gone[:MAX_NAMES]))


def _short(texts: list[str]) -> tuple[str, ...]:
    """Truncate names to what may be sent: the code chooses them."""
    return tuple(text[:_SHOWN] for text in texts)
