"""Declarations of options: default, meaning, limits, flags and variable in one place, from which fronts are derived.

Standard library only, because the command line loads this at each start.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Collection, Mapping
from typing import Any, Literal, NamedTuple


def declared(default: Any, about: str, *flags: str, shown: bool = True, **more: Any) -> Any:
    """Declare an option as a field of a dataclass.

    Args:
        default: Its default.
        about: Its meaning, for help texts and lists of settings.
        flags: Its flags on the command line, if it has any. A flag ``--no-…`` turns off what is on by default.
        shown: Whether the ``repr`` of the options shows its value.
        more: Limits by pydantic's names (``ge``, ``gt``, ``le``, ``pattern``), which settings and flags check; and for a flag
            ``metavar``, ``envvar`` and ``rich_help_panel``.
    """
    return dataclasses.field(default=default, repr=shown, metadata={"about": about, "flags": flags, **more})


class Option(NamedTuple):
    """An option that has flags.

    Attributes:
        name: The name of its field.
        flags: Its flags.
        kind: What a flag takes: ``bool`` for nothing, ``list`` if it can be repeated, else the type of its value.
        choices: The permitted values, if they are few.
        default: Its default.
        more: The rest of its declaration.
    """

    name: str
    flags: tuple[str, ...]
    kind: type
    choices: tuple[str, ...]
    default: Any
    more: Mapping[str, Any]


def options_of(declaring: type, taken: Collection[str] = ()) -> list[Option]:
    """Return the options of a dataclass that have flags, also the ones in its nested declarations.

    Args:
        declaring: The dataclass.
        taken: Flags that mean something else.
    """
    hints = typing.get_type_hints(declaring)
    own = {*taken} | {flag for item in dataclasses.fields(declaring) for flag in item.metadata.get("flags", ())}
    found: list[Option] = []
    for item in dataclasses.fields(declaring):
        hint = hints[item.name]
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            found += options_of(hint, own)
        elif flags := tuple(flag for flag in item.metadata.get("flags", ()) if flag not in taken):
            kind, choices = _kind_of(hint, item.default)
            more = {key: value for key, value in item.metadata.items() if key != "flags"}
            found.append(Option(item.name, flags, kind, choices, item.default, more))
    return found


def _kind_of(hint: Any, default: Any) -> tuple[type, tuple[str, ...]]:
    if default == ():
        return list, ()
    if typing.get_origin(hint) is Literal:
        return str, typing.get_args(hint)
    members = [member for member in typing.get_args(hint) or (hint,) if member is not type(None)]
    return (str if str in members else members[0]), ()
