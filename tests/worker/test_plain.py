"""Text for displayed objects whose own text says nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies

from cellblock import Session
from cellblock.worker.plain import LONGEST, markdown_of, text_of
from cells import ok

OPAQUE = "<IPython.core.display.HTML object>"


async def test_what_ipython_shows_is_read(session: Session) -> None:
    cases: list[tuple[str, str]] = [
        ("Markdown('# Title\\n*text*')", "# Title\n*text*"),
        ("Latex('$x^2$')", "$x^2$"),
        ("JSON({'a': [1, float('nan')]})", '{"a": [1, null]}'),
        ("HTML('<h2>Prices</h2><p>of <b>tea</b> &amp; cake</p>')", "## Prices\nof tea & cake"),
    ]
    await ok(session, "from IPython.display import *")
    for code, text in cases:
        result = await ok(session, code)
        assert (result.text, result.return_value, result.for_model()) == (text, text, text)
        assert result.outputs[0].data["text/plain"].endswith(" object>")  # type: ignore[arg-type]
        assert (await ok(session, f"display({code})")).text == text
        assert all("cellblock" not in mime for mime in result.outputs[0].data)


async def test_an_object_of_the_codes_own_is_read_as_its_page(session: Session) -> None:
    code = "class Table:\n    def _repr_html_(self): return '<table><tr><th>a<th>b<tr><td>1<td>x|y</table>'\nTable()"
    assert (await ok(session, code)).text == "| a | b |\n| --- | --- |\n| 1 | x\\|y |"
    assert (await ok(session, "object()")).text is not None


def test_a_good_text_stays() -> None:
    for text in ("   a\n0  1", "<Figure size 640x480 with 1 Axes>", "5", "<b>", "a <x object at 0x1>"):
        assert text_of({"text/plain": text, "text/html": "<p>other</p>"}) is None
    assert text_of({"text/plain": OPAQUE}) is None
    assert text_of({"text/plain": OPAQUE, "image/png": b""}) is None
    assert text_of({"text/plain": "<pandas.io.formats.style.Styler at 0x7f00>", "text/html": "<p>a"}) == "a"
    assert text_of({"text/html": "<p>a"}) == "a"


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("<ul><li>one<li>two</ul>after", "- one\n- two\nafter"),
        ("<style>b {}</style><script>x()</script>seen<title>t</title>", "seen"),
        ("<pre>  kept\n    as it is</pre>", "  kept\n    as it is"),
        ("a<br>b<p>c</p><p>d</p>", "a\nb\nc\n\nd"),
        ("<table><tr><td>1</td><td></td></tr><tr><td>2</td></tr></table>", "|  |  |\n| --- | --- |\n| 1 |  |\n| 2 |  |"),
        ("<table></table>", ""),
        ("just text", "just text"),
        ("", ""),
    ],
)
def test_pages_become_markdown(page: str, text: str) -> None:
    assert markdown_of(page) == text


@settings(max_examples=20)
@given(strategies.text(alphabet="<>/!-[]&;#x tabledrh'\"=\n|", max_size=300))
def test_whatever_the_page_there_is_a_text(page: str) -> None:
    assert len(markdown_of(page)) <= LONGEST
