"""Makes text for displayed objects whose plain text is not informative.

An example is ``<IPython.core.display.Markdown object>``. The text is made from the object's other types: Markdown and LaTeX
unchanged, JSON, or HTML as Markdown. This happens in the kernel, because parsing a library's output takes time, which its own
session should pay.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any

from cellblock.worker.json_values import plain_json

LONGEST = 200_000
"""Characters of HTML that are parsed, and of text that is produced."""

_OPAQUE = re.compile(r"<[\w.]+ (?:object|(?:object )?at 0x[0-9a-f]+)>", re.IGNORECASE)
_HIDDEN = {"script", "style", "head", "title", "template", "noscript"}
_BLOCKS = {"p", "div", "section", "article", "header", "footer", "table", "ul", "ol", "dl", "dd", "dt", "figure", "blockquote"}
_BLANKS = re.compile(r"\s+")


def text_of(data: Mapping[str, Any]) -> str | None:
    """Return a text for an object; None if its plain text is good, or no other type is readable.

    Args:
        data: Its values by MIME type, from IPython's formatters.
    """
    said = data.get("text/plain")
    if isinstance(said, str) and not _OPAQUE.fullmatch(said):
        return None
    for mime in ("text/markdown", "text/latex"):
        if isinstance(data.get(mime), str):
            return str(data[mime])[:LONGEST]
    for mime in ("application/json", "application/geo+json"):
        if mime in data:
            value = data[mime]
            return (value if isinstance(value, str) else json.dumps(plain_json(value), ensure_ascii=False))[:LONGEST]
    page = data.get("text/html")
    return markdown_of(page) or None if isinstance(page, str) else None


def markdown_of(page: str) -> str:
    """Return the text of a page, with its headings, lists and tables in Markdown."""
    reader = _Reader()
    try:
        reader.feed(page[:LONGEST])
        if len(page) <= LONGEST:
            reader.close()  # in a truncated page, this would show half of a tag or a comment
    except (AssertionError, ValueError, RecursionError):
        return ""  # from `html.parser`, for pages that are not HTML
    return reader.text[:LONGEST]


class _Reader(HTMLParser):
    """Collects the text of a page."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._lines: list[str] = []
        self._line = ""
        self._hidden = 0
        self._literal = 0
        self._rows: list[list[str]] | None = None
        self._headed = False

    @property
    def text(self) -> str:
        """The text so far, with at most one empty line between two lines."""
        self._end_line()
        text = "\n".join(self._lines)
        return re.sub(r"\n{3,}", "\n\n", text).strip("\n")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _HIDDEN:
            self._hidden += 1
        elif tag == "table" and self._rows is None:
            self._end_line()
            self._rows, self._headed = [], False
        elif tag == "tr" and self._rows is not None:
            self._take_cell()
            self._rows.append([])
        elif tag in ("td", "th") and self._rows is not None:
            self._take_cell()
            self._headed |= tag == "th" and len(self._rows) == 1
        elif tag == "br":
            self._line += " " if self._rows is not None else "\n"
        elif tag == "pre":
            self._end_line()
            self._literal += 1
        elif tag == "li":
            self._end_line()
            self._line = "- "
        elif re.fullmatch("h[1-6]", tag):
            self._end_line()
            self._line = "#" * int(tag[1]) + " "
        elif tag in _BLOCKS and self._rows is None:
            self._end_line()

    def handle_endtag(self, tag: str) -> None:
        if tag in _HIDDEN:
            self._hidden = max(self._hidden - 1, 0)
        elif tag == "table" and self._rows is not None:
            self._take_cell()
            rows, self._rows = self._rows, None
            self._lines += ["", *_table([row for row in rows if row], headed=self._headed), ""]
        elif tag in ("td", "th") and self._rows is not None:
            self._take_cell(ended=True)
        elif tag == "pre":
            self._end_line()
            self._literal = max(self._literal - 1, 0)
        elif tag == "p":
            self._end_line()
            self._lines.append("")
        elif (tag in _BLOCKS or re.fullmatch("h[1-6]|li|tr", tag)) and self._rows is None:
            self._end_line()

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self._line += data if self._literal else _BLANKS.sub(" ", data)

    def _take_cell(self, *, ended: bool = False) -> None:
        """Add the text to the row as a cell. In HTML, the end of a cell may be implicit."""
        assert self._rows is not None
        if self._rows and (ended or self._line.strip()):
            self._rows[-1].append(_BLANKS.sub(" ", self._line).strip().replace("|", r"\|"))
        self._line = ""

    def _end_line(self) -> None:
        if self._rows is None:
            self._lines += [line if self._literal else line.strip() for line in self._line.split("\n") if line.strip()]
        self._line = ""


def _table(rows: list[list[str]], *, headed: bool) -> list[str]:
    """Return the lines of a Markdown table."""
    if not rows:
        return []
    width = max(map(len, rows))
    rows = [[*row, *[""] * (width - len(row))] for row in rows]
    if not headed:
        rows.insert(0, [""] * width)
    rows.insert(1, ["---"] * width)
    return [f"| {' | '.join(row)} |" for row in rows]
