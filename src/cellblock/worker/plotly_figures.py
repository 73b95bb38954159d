"""Makes figures of plotly display without nbformat, which plotly demands although it only looks at its version."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from cellblock.worker.on_import import on_import


def install() -> None:
    """Make `plotly` display figures although nbformat is missing."""
    on_import("plotly.io._renderers", _change)


def _change(module: Any) -> None:
    if not getattr(module, "nbformat", True):
        module.nbformat = SimpleNamespace(__version__="5.0.0")
