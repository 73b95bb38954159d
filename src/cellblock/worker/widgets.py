"""The text of widgets at the end of a cell. They change after they are displayed, which only a web page would show."""

from __future__ import annotations

import sys

VIEW = "application/vnd.jupyter.widget-view+json"


def text_now(view: object) -> str | None:
    """Return the present text of a widget, or None if the widget no longer exists.

    Args:
        view: The data for pages in its bundle.
    """
    module = sys.modules.get("ipywidgets.widgets.widget")
    try:
        return repr(module._instances[view["model_id"]])  # type: ignore[union-attr, index]  # noqa: SLF001
    except Exception:  # code can display anything under this type, and a widget computes its own text
        return None
