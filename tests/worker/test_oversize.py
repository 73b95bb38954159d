"""What is too large or too odd for the wire costs a cell an error at most, never its kernel."""

from __future__ import annotations

import pytest

from cellblock import Session
from cellblock.wire.message_codec import encode
from cellblock.wire.messages import Reply
from cellblock.worker.shell import _clip_parts
from suite import first_quick

CHAIN = """
def fail():
    cause = None
    for number in range(100):
        try:
            raise ValueError(f"{number}" + "x" * 300_000) from cause
        except ValueError as error:
            cause = error
    raise cause
fail()
"""


@pytest.mark.slow
async def test_a_chain_of_long_exceptions_ends_its_cell(session: Session) -> None:
    result = await session.execute(CHAIN, timeout=30)
    assert result.status == "error"
    assert result.error is not None
    assert result.error.ename == "ValueError"
    assert "bytes left out" in str(result.text)


@pytest.mark.slow
def test_a_traceback_fits_into_a_frame_whatever_it_is_made_of() -> None:
    short = ["line"] * 10
    assert _clip_parts(short) == tuple(short)
    for parts in (["\ud800" * 10_000_000], ["\ud800" * 200_000] * 100, ["x"] * 100_000):
        assert encode(Reply(1, "E", "\ud800" * 256 * 1024, _clip_parts(parts)))


async def test_a_bundle_that_cannot_be_sent_is_an_error_of_its_cell(session: Session) -> None:
    cases: list[tuple[str, str]] = [
        ("display(1, display_id='x' * 5000)", "5000 characters, over the limit of 4096"),
        ("display({'x' * 5000: 'a'}, raw=True)", "5000 characters, over the limit of 4096"),
        ("display({1: b'a'}, raw=True)", "must be a string, not int"),
        ("display({'\\ud800': 'a'}, raw=True)", "surrogates not allowed"),
    ]
    for code, complaint in cases:
        await session.execute("from IPython.display import display\nx = 41")
        result = await session.execute(code)
        assert result.status == "error"
        assert result.error is not None
        assert complaint in result.error.evalue
        assert (await session.execute("x + 1")).return_value == "42"


@pytest.mark.parametrize(
    "metadata", first_quick(["deep(20)", "deep(20_000)", "{'x': float('nan')}", "{'\\ud800': 1}", "{'x': 'y' * 100_000}"])
)
async def test_metadata_that_cannot_be_sent_is_left_out(session: Session, metadata: str) -> None:
    code = f"""
from IPython.display import display
def deep(levels):
    value = {{}}
    for _ in range(levels):
        value = {{"x": value}}
    return value
display({{"text/plain": "shown"}}, raw=True, metadata={metadata})
"""
    result = await session.execute(code)
    assert (result.status, result.text) == ("success", "shown")
    assert result.outputs[0].metadata == {}
