"""The text of widgets at the end of a cell: they change after they are displayed, which only a web page would show."""

from __future__ import annotations

import sys

VIEW = "application/vnd.jupyter.widget-view+json"


def text_now(view: object) -> str | None:
    """Return what a widget is as text by now, or None if there is no such widget any more.

    Args:
        view: What its bundle says to pages.
    """
    module = sys.modules.get("ipywidgets.widgets.widget")
    try:
        return repr(module._instances[view["model_id"]])  # type: ignore[union-attr, index]  # noqa: SLF001
    except Exception:  # code can display anything under this type, and a widget's text is its own
        return None
