"""The text of widgets at the end of a cell. They change after they are displayed, and only a web page would show that."""

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
    except Exception:  # code can display anything under this type, and a widget computes its own text
        return None
