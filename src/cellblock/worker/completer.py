"""Completes names among many variables quickly.

IPython's completer makes an abbreviation of every variable, an object of every match, and sorts them all, twice: 0.3 s for
10,000 variables. Then it returns the first 500. Here it sees only those 500.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from typing import Any

from IPython.core.completer import MATCHES_LIMIT, IPCompleter


def look_at_few(completer: IPCompleter) -> None:
    """Make a completer examine only variables that it can return."""
    search = completer.global_matches

    def global_matches(text: str, **context: Any) -> list[str]:  # IPython 8 passes no context
        variables = completer.namespace
        kept = {*candidates(variables, text)}
        # In their order: of several with the same abbreviation, IPython shows the last.
        completer.namespace = _Names(variables, [name for name in [*variables] if name in kept])
        try:
            return search(text, **context)  # type: ignore[no-any-return]  # IPython has no annotation for it
        finally:
            completer.namespace = variables

    completer.global_matches = global_matches  # type: ignore[method-assign, assignment]


def candidates(variables: Mapping[str, Any], text: str) -> list[str]:
    """Return the variables that IPython may return for a text: at most its limit, and the first in its order."""
    names = [name for name in [*variables] if isinstance(name, str)]
    found = [name for name in names if name.startswith(text)]
    if text[1:2] == "_":  # `a_b` finds `apples_bought`; any other prefix of an abbreviation is a prefix of the name
        found += [name for name in names if name[:1] == text[0] and _abbreviated(name).startswith(text)]
    return heapq.nsmallest(MATCHES_LIMIT, found, key=_rank)


def _rank(name: str) -> tuple[bool, bool, str]:
    return name.startswith("__"), name.startswith("_"), name


def _abbreviated(name: str) -> str:
    return "_".join(word[:1] for word in name.split("_"))


class _Names(Mapping[str, Any]):
    """A namespace whose iteration yields only some of its variables. All can be looked up."""

    def __init__(self, variables: Mapping[str, Any], seen: list[str]) -> None:
        self._variables = variables
        self._seen = seen

    def __getitem__(self, name: str) -> Any:
        return self._variables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._seen)

    def __len__(self) -> int:
        return len(self._seen)

    def copy(self) -> dict[str, Any]:
        """Return all of them: IPython evaluates the part of a cell above the cursor in a copy."""
        return dict(self._variables)
