"""Displays of a cell: MIME bundles are sent as messages, large values in parts."""

from __future__ import annotations

import binascii
import sys
from collections import deque
from collections.abc import Mapping
from typing import Any

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher

from cellblock.errors import ProtocolError
from cellblock.model import is_text
from cellblock.wire.fields import MAX_MIMES, PIECE
from cellblock.wire.messages import TEXT_MIME, Clear, Display, Part
from cellblock.worker.json_values import encode_json
from cellblock.worker.outbox import Outbox
from cellblock.worker.plain import text_of

_MAX_WIDGETS = 100
_VIEW = "application/vnd.jupyter.widget-view+json"


class Publisher(DisplayPublisher):
    """Implements `display`, `update_display` and `clear_output`.

    Attributes:
        count: Number of values shown.
    """

    outbox: Outbox
    count = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._widgets: deque[tuple[object, Mapping[str, Any], Mapping[str, Any] | None, str | None]] = deque(
            maxlen=_MAX_WIDGETS
        )

    def publish(
        self,
        data: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
        source: object = None,
        *,
        transient: Mapping[str, Any] | None = None,
        update: bool = False,
        **_kwargs: object,
    ) -> None:
        """Send a bundle."""
        self.count += not update
        kind = "update_display_data" if update else "display_data"
        identity = (transient or {}).get("display_id")
        if _VIEW in data and not update:
            identity = identity or f"widget-{self.count}-{id(data)}"
            self._widgets.append((identity, data, metadata, _text_now(data[_VIEW])))
        send_bundle(self.outbox, kind, data, metadata, identity)

    def update_widgets(self) -> None:
        """Show again, as text, the widgets of this cell that have changed since they were displayed."""
        while self._widgets:
            identity, data, metadata, before = self._widgets.popleft()
            text = _text_now(data[_VIEW])
            if text is not None and text != before:
                send_bundle(self.outbox, "update_display_data", {**data, "text/plain": text}, metadata, identity)

    def clear_output(self, wait: bool = False) -> None:
        """Drop the cell's output so far."""
        self.outbox.send(Clear(bool(wait)))


class Hook(DisplayHook):
    """Displays the value of a cell's last expression."""

    outbox: Outbox

    def write_output_prompt(self) -> None:
        """Do nothing: the result carries its number."""

    def write_format_data(self, format_dict: Mapping[str, Any], md_dict: Mapping[str, Any] | None = None) -> None:
        """Send the value's bundle."""
        send_bundle(self.outbox, "execute_result", format_dict, md_dict)

    def finish_displayhook(self) -> None:
        """Do nothing: there is no trailing separator."""
        self._is_active = False


def send_bundle(
    outbox: Outbox,
    kind: Any,
    data: Mapping[str, Any],
    metadata: Mapping[str, Any] | None,
    display_id: object = None,
) -> None:
    """Send one MIME bundle. Values of more than `PIECE` bytes are sent before it in parts.

    Args:
        outbox: The outbox.
        kind: ``display_data``, ``update_display_data`` or ``execute_result``.
        data: Values by MIME type, from IPython's formatters.
        metadata: Metadata by MIME type.
        display_id: The id for later updates.
    """
    small: dict[str, bytes] = {}
    parts: list[str] = []
    texts: list[str] = []
    room = PIECE
    for mime, value in _with_text(kind, data):
        raw, text = _to_bytes(mime, value)
        if text and not is_text(mime):
            texts.append(mime)
        if len(raw) <= room:
            small[mime] = raw
            room -= len(raw)
            continue
        parts.append(mime)
        view = memoryview(raw)
        for start in range(0, len(raw), PIECE):
            outbox.send(Part(mime, bytes(view[start : start + PIECE])))
    identity = None if display_id is None else str(display_id)
    message = Display(kind, small, metadata or {}, identity, tuple(parts), outbox.behind(), tuple(texts))
    try:
        outbox.send(message)
    except (ProtocolError, TypeError, ValueError):
        # Only the metadata is in the header, so it is the problem, and it is dropped.
        outbox.send(Display(kind, small, {}, identity, tuple(parts), texts=tuple(texts)))


def _with_text(kind: str, data: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the values of a bundle, with an added text for readers if its own plain text is not informative."""
    values = list(data.items())[: MAX_MIMES - 1]
    if kind != "error" and _VIEW not in data and (text := text_of(data)) is not None:
        values.append((TEXT_MIME, text))
    return values


def _to_bytes(mime: str, value: Any) -> tuple[bytes, bool]:
    """Return a value as bytes, and whether these are text. Types not known as text can be: vendor-specific JSON."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value), False
    if not isinstance(value, str):
        return encode_json(value), True
    if not is_text(mime):
        # Jupyter's formatters give images as base64.
        try:
            return binascii.a2b_base64(value.encode("ascii").replace(b"\n", b""), strict_mode=True), False
        except (binascii.Error, UnicodeEncodeError):
            pass
    return value.encode("utf-8", "backslashreplace"), True


def _text_now(view: object) -> str | None:
    """Return the current text of a widget, which changes after it is displayed; None if the widget no longer exists.

    Args:
        view: The data for pages in its bundle.
    """
    module = sys.modules.get("ipywidgets.widgets.widget")
    try:
        return repr(module._instances[view["model_id"]])  # type: ignore[union-attr, index]  # noqa: SLF001
    except Exception:  # code can display anything under this type, and a widget computes its own text
        return None
