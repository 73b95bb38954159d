"""Declared options: fronts read their flags, kinds and limits from the fields of a dataclass."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from cellblock.common.declared import declared, options_of


@dataclass(frozen=True, kw_only=True)
class Inner:
    hosts: tuple[str, ...] = declared((), "Hosts.", "--host", "--allow-host")
    memory: int | str | None = declared(None, "Memory.", "--memory", metavar="SIZE")


@dataclass(frozen=True, kw_only=True)
class Outer:
    nested: Inner = field(default_factory=Inner)
    mode: Literal["fast", "slow"] = declared("fast", "Mode.", "--mode")
    path: Path = declared(Path(), "Path.", "--path")
    port: int = declared(80, "Port.", "--port", ge=0)
    host: str = declared("", "Address.", "--host")
    safe: bool = declared(True, "Not safe.", "--no-safe")
    setting: int = declared(1, "Without a flag.", ge=1)
    token: str = declared("secret", "Token.", shown=False)
    other: int = 3


def test_what_flags_take_follows_from_types_and_defaults() -> None:
    found = {option.name: option for option in options_of(Outer)}
    kinds = {name: option.kind for name, option in found.items()}
    assert kinds == {"hosts": list, "memory": str, "mode": str, "path": Path, "port": int, "host": str, "safe": bool}
    assert found["mode"].choices == ("fast", "slow")
    assert found["port"].more == {"about": "Port.", "ge": 0}
    assert found["memory"].default is None


def test_a_flag_belongs_to_the_outer_declaration() -> None:
    flags = {option.name: option.flags for option in options_of(Outer)}
    assert (flags["hosts"], flags["host"]) == (("--allow-host",), ("--host",))
    assert "host" not in {option.name for option in options_of(Outer, taken=["--host"])}


def test_a_value_that_is_not_shown_is_not_in_the_repr() -> None:
    assert "secret" not in repr(Outer())
    assert "port=80" in repr(Outer())
