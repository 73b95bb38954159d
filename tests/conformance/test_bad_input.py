"""What cannot be done is refused with an error that says what to do; nothing hangs, and the session goes on."""

from __future__ import annotations

import math
from typing import Any

import pytest

from cellblock import Host, InvalidInputError, Session, StateError
from cells import value

BAD_CODE: dict[str, tuple[Any, str]] = {
    "a NUL character": ("x = '\0'", "NUL character at index 5"),
    "a lone surrogate": ("x = '\ud800'", "lone surrogate at index 5"),
    "ten megabytes": ("x = '" + "y" * 10_000_000 + "'", "over the limit"),
    "bytes": (b"1", "must be a string, not bytes"),
    "None": (None, "must be a string, not NoneType"),
    "a number": (1, "must be a string, not int"),
}

BAD_TIMEOUTS: list[Any] = [10**400, -1, 0, 0.0, -0.5, math.nan, -math.inf, True, False, "5", b"5", [1]]


async def test_what_cannot_be_run_is_refused(session: Session) -> None:
    """And what looks odd runs."""
    # Code that cannot be source is refused.
    for code, complaint in BAD_CODE.values():
        with pytest.raises(InvalidInputError, match=complaint):
            await session.execute(code)
        with pytest.raises(InvalidInputError, match=complaint):
            await anext(session.stream(code))
        with pytest.raises(InvalidInputError):
            await session.complete(code)
        with pytest.raises(InvalidInputError):
            await session.inspect(code)
        assert await value(session, "40 + 2") == 42
    # A timeout that is no positive number is refused.
    for timeout in BAD_TIMEOUTS:
        with pytest.raises(InvalidInputError, match="timeout must be a positive number"):
            await session.execute("1", timeout=timeout)
        with pytest.raises(InvalidInputError, match="timeout must be a positive number"):
            await anext(session.stream("1", timeout=timeout))
        assert await value(session, "40 + 2") == 42
    # A very long timeout is none.
    for timeout in [None, math.inf, 10**6, 1e9]:
        assert await value(session, "1", timeout=timeout) == 1
    # Empty code is an empty cell.
    for code in ("", "\n", "   ", "# a comment", ";"):
        result = await session.execute(code)
        assert (result.status, result.text) == ("success", None) if code != ";" else (result.status == "error", result.text)
    # Other line ends are line ends.
    for newline in ["\r\n", "\r", "\x0c\n"]:
        assert await value(session, f"x = 1{newline}x") == 1
    # A byte order mark and odd characters do not hurt.
    for code in ("\ufeff1", "\x01", "\x1b[31m", "é = 1; é", "'😀'", "\u2028", "\x85"):
        assert (await session.execute(code)).status in ("success", "error")
    assert await value(session, "40 + 2") == 42
    # A session cannot be started twice.
    with pytest.raises(StateError, match="is running"):
        await session.start()
    assert await value(session, "1") == 1


async def test_a_cursor_outside_of_the_code_is_refused(session: Session) -> None:
    wrong: list[Any] = [-1, 4, 10**9, 1.0, True, "1"]
    for cursor in wrong:
        with pytest.raises(InvalidInputError, match="cursor must be an index from 0 to 3"):
            await session.complete("abc", cursor)
        with pytest.raises(InvalidInputError, match="cursor must be an index from 0 to 3"):
            await session.inspect("abc", cursor)
        with pytest.raises(InvalidInputError, match="detail must be 0 or 1"):
            await session.inspect("abc", detail=2)


@pytest.mark.slow
async def test_source_just_below_the_limit_runs(session: Session) -> None:
    size = 4 * 1024 * 1024 - 20
    assert await value(session, f"x = {'y' * size!r}; len(x)"[: size + 20], timeout=60) == size


@pytest.mark.slow
async def test_deeply_nested_source_is_an_error_or_a_death_and_never_a_hang(session: Session) -> None:
    for code in ("(" * 100_000, "[" * 300 + "]" * 300, "-" * 100_000 + "1", "x" + ".x" * 100_000):
        # Python 3.12 takes a minute to refuse some of it.
        result = await session.execute(code, timeout=5)
        assert result.status in ("error", "died", "timeout"), result.status
        assert await value(session, "40 + 2") == 42


async def test_a_session_that_is_not_started_says_so(host: Host) -> None:
    session = host.session()
    with pytest.raises(StateError, match="not started"):
        await session.execute("1")
    with pytest.raises(StateError, match="not started"):
        await session.reset()
    with pytest.raises(StateError, match="not started"):
        await session.complete("1")
    assert await session.interrupt() is False
    assert session.history() == []
    await session.close()


async def test_a_session_that_is_closed_says_so(host: Host) -> None:
    session = host.session()
    async with session:
        assert await value(session, "1") == 1
    for _ in range(2):
        await session.close()
    with pytest.raises(StateError, match="closed"):
        await session.execute("1")
    with pytest.raises(StateError, match="closed"):
        await session.reset()
    with pytest.raises(StateError, match="closed"):
        await anext(session.stream("1"))
    with pytest.raises(StateError, match="closed"):
        await session.start()
    assert await session.interrupt() is False
