"""Reports about saving and loading a session."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from cellblock.model.plain import Plain


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Something that could not be kept.

    Attributes:
        name: The variable, or what else it is, such as ``the working directory``.
        reason: Why.
    """

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class SaveReport(Plain):
    """The report of `Session.save`.

    Attributes:
        path: The file's path, or its URL as a text.
        size: How many bytes it has.
        saved: The variables in it.
        left_out: Variables, and other parts of the session, that could not be saved, with reasons.
        cells: How many cells of the history are in it.
        files: Whether the files of the workspace are in it.
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
        loaded: The variables.
        left_out: Parts that could not be restored, with reasons; those that were left out of the save come first.
        cells: How many cells the history has.
        files: Whether the files of the workspace were brought back.
    """

    loaded: list[str] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    cells: int = 0
    files: bool = False
