"""Reports about saving and loading a session."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from cellblock.model.plain import Plain


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Something that could not be saved or restored.

    Attributes:
        name: The variable, or another part, such as ``the working directory``.
        reason: Why.
    """

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class SaveReport(Plain):
    """The report of `Session.save`.

    Attributes:
        path: The file's path, or its URL as a string.
        size: Size in bytes.
        saved: The saved variables.
        left_out: Variables and other parts that could not be saved, with reasons.
        cells: Number of saved history entries.
        files: Whether the workspace's files were saved.
    """

    path: Path | str
    size: int
    saved: list[str] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    cells: int = 0
    files: bool = False


@dataclass(frozen=True, slots=True)
class LoadReport(Plain):
    """The report of `Session.load`.

    Attributes:
        loaded: The restored variables.
        left_out: Parts that could not be restored, with reasons. Parts omitted from the save come first.
        cells: Number of restored history entries.
        files: Whether the workspace's files were restored.
    """

    loaded: list[str] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    cells: int = 0
    files: bool = False
