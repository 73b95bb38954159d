"""How a result shows itself: one line, and HTML for notebooks."""

from __future__ import annotations

from cellblock import CodeExecutionResult
from cellblock.model import ErrorInfo, OutputItem


def test_a_result_is_one_line() -> None:
    result = CodeExecutionResult(text="one\ntwo" + "x" * 1000, duration_ms=3)
    assert repr(result).startswith("<CodeExecutionResult success, in 3 ms: 'one\\ntwoxxx")
    assert len(repr(result)) < 200
    failed = CodeExecutionResult(status="error", error=ErrorInfo("KeyError", "'a\nb'" + "x" * 1000))
    assert repr(failed).startswith("<CodeExecutionResult error: KeyError: \"'a\\nb'xxx")
    assert "\n" not in repr(failed)


def test_a_notebook_shows_text_and_pictures() -> None:
    shown = CodeExecutionResult(
        outputs=[
            OutputItem("stream", text="plain", name="stdout"),
            OutputItem("display_data", text="<Figure>", data={"image/png": b"\x89PNG", "text/plain": "<Figure>"}),
        ]
    )._repr_html_()
    assert "<pre>plain</pre>" in shown
    assert '<img src="data:image/png;base64,iVBORw=="/>' in shown


def test_html_of_the_code_is_text() -> None:
    script = "<script>alert(1)</script>"
    shown = CodeExecutionResult(
        status="error",
        error=ErrorInfo(script, script),
        outputs=[
            OutputItem("stream", text=script, name="stdout"),
            OutputItem("display_data", text=script, data={"text/html": script, "image/svg+xml": script}),
            OutputItem("display_data", text=script, data={"image/png": script}),
        ],
    )._repr_html_()
    assert "<script" not in shown
    assert "<img" not in shown


def test_a_notebook_shows_so_much_and_no_more() -> None:
    shown = CodeExecutionResult(outputs=[OutputItem("stream", text="&" * 90_000, name="stdout")] * 100)._repr_html_()
    assert len(shown) < 600_000
