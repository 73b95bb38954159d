"""A cell that shows without end costs its own session: head and tail are kept, the rest is dropped or spilled."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cellblock import CodeExecutionChunk, CodeExecutionResult, Host, Limits, Session
from cells import ok, value

SMALL = Limits(text=64 * 1024, value=64 * 1024, media=64 * 1024, values=256 * 1024, displays=50, queue=64 * 1024)


@pytest.mark.slow
async def test_the_head_and_the_tail_of_a_long_output_are_kept(session: Session) -> None:
    result = await ok(session, "for i in range(1_000_000): print(i)")
    assert result.truncated
    assert result.output.startswith("0\n1\n2\n")
    assert result.output.endswith("999998\n999999\n")
    assert "left out" in result.output
    assert len(result.output) < 2.2 * 1024 * 1024


async def test_a_long_line_keeps_its_head_and_tail(session: Session) -> None:
    result = await ok(session, "print('a' + 'x' * 10_000_000 + 'z')")
    assert result.truncated
    assert result.output.startswith("axxx")
    assert result.output.endswith("xxxz\n")


async def test_what_is_left_out_is_in_the_spill_directory(host: Host, tmp_path: Path) -> None:
    async with host.session(images_dir=tmp_path, spill_dir=tmp_path / "spill", limits=SMALL) as session:
        result = await ok(session, "for i in range(100_000): print(i)")
        assert result.truncated
        assert len(result.spilled) == 1
        assert result.spilled[0].read_text() == "".join(f"{i}\n" for i in range(100_000))
        assert (await ok(session, "print(1)")).spilled == []


async def test_a_large_value_is_left_out_and_is_in_a_file_whole(host: Host, tmp_path: Path) -> None:
    async with host.session(images_dir=tmp_path, spill_dir=tmp_path / "spill", limits=SMALL) as session:
        await ok(session, "from IPython.display import HTML, display")
        result = await ok(session, "display(HTML('<p>seen</p><!--' + 'x' * 3_000_000 + '-->'))\nprint('end')")
        assert result.truncated
        (path,) = result.spilled
        assert [*result.outputs[0].data] == ["text/plain"]
        left_out = "[cellblock] text/html is left out: its 3,000,018 bytes are over the limit of 65,536 (Limits.media)"
        assert result.text == f"seen\n{left_out}; it is in {path}\nend"
        assert path.suffix == ".html"
        assert path.read_text() == "<p>seen</p><!--" + "x" * 3_000_000 + "-->"


async def test_the_text_of_a_large_page_keeps_its_head_and_tail(host: Host, tmp_path: Path) -> None:
    async with host.session(images_dir=tmp_path, spill_dir=tmp_path / "spill", limits=SMALL) as session:
        await ok(session, "from IPython.display import HTML, display")
        result = await ok(session, "display(HTML('<i>first</i>' + 'x ' * 80_000 + 'last'))")
        assert result.text is not None
        shown = result.text.splitlines()
        assert shown[0].startswith("first")
        assert "bytes left out" in shown[1]
        assert shown[2].endswith("last")
        assert sorted(path.suffix for path in result.spilled) == [".html", ".txt"]


async def test_an_image_that_is_too_large_is_left_out_and_not_cut(host: Host, tmp_path: Path) -> None:
    async with host.session(images_dir=tmp_path / "images", limits=SMALL) as session:
        code = "from IPython.display import Image\ndisplay(Image(b'\\x89PNG\\r\\n\\x1a\\n' + bytes(3_000_000), format='png'))"
        result = await ok(session, code)
        assert result.truncated
        assert result.images == []
        assert all("image/png" not in item.data for item in result.outputs)


@pytest.mark.slow
async def test_a_flood_of_displays_keeps_the_first_ones(host: Host, tmp_path: Path) -> None:
    async with host.session(images_dir=tmp_path, limits=SMALL) as session:
        result = await ok(session, "for i in range(5000): display(i)")
        assert result.truncated
        assert [item.text for item in result.outputs[:3]] == ["0", "1", "2"]
        assert len(result.outputs) == SMALL.displays + 1
        assert result.stderr == "[cellblock] displays after the first 50 are left out (Limits.displays)\n"
        assert not (await ok(session, "display(1)")).truncated


@pytest.mark.slow
async def test_tiny_prints_to_alternating_streams_are_bounded(host: Host, tmp_path: Path) -> None:
    async with host.session(images_dir=tmp_path, limits=SMALL) as session:
        code = "import sys\nfor i in range(40_000):\n    print('o', end='')\n    print('e', end='', file=sys.stderr)"
        result = await ok(session, code)
        assert result.truncated
        assert len(result.outputs) < 4 * SMALL.text // 100
        assert result.output.startswith("oooo") or result.stderr.startswith("eee")


async def test_output_of_c_code_and_subprocesses_is_bounded_too(host: Host, tmp_path: Path) -> None:
    async with host.session(images_dir=tmp_path, limits=SMALL) as session:
        result = await ok(session, "!seq 1 300000")
        assert result.truncated
        assert result.output.startswith("1\n2\n")
        assert result.output.endswith("300000\n")


@pytest.mark.slow
async def test_a_slow_reader_of_a_stream_slows_the_cell_down(host: Host, tmp_path: Path) -> None:
    async with host.session(images_dir=tmp_path, limits=SMALL) as session:
        stream = session.stream(
            "import time\nbegan = time.monotonic()\nfor i in range(200_000): print(i, 'x' * 20)\ndone = True"
        )
        first = await anext(stream)
        assert isinstance(first, CodeExecutionChunk)
        await asyncio.sleep(0.5)
        # It is still printing: what nobody reads is not gathered without end.
        rest = [event async for event in stream]
        chunks = [event for event in rest if isinstance(event, CodeExecutionChunk)]
        result = rest[-1]
        assert isinstance(result, CodeExecutionResult)
        assert result.status == "success"
        text = first.text + "".join(chunk.text for chunk in chunks)
        assert text == "".join(f"{i} {'x' * 20}\n" for i in range(200_000))


@pytest.mark.slow
async def test_a_cell_whose_stream_nobody_reads_can_still_be_timed_out(host: Host, tmp_path: Path) -> None:
    async with host.session(images_dir=tmp_path, limits=SMALL) as session:
        stream = session.stream("n = 0\nwhile True:\n    n += 1\n    print(n)", timeout=0.5)
        await anext(stream)
        await asyncio.sleep(0.8)
        *_chunks, result = [event async for event in stream]
        assert isinstance(result, CodeExecutionResult)
        assert result.status == "timeout"
        assert result.recovery == "interrupted"
        assert await value(session, "1") == 1


@pytest.mark.slow
async def test_an_endless_chain_of_errors_is_cut(session: Session) -> None:
    code = """
error = None
for i in range(1000):
    try:
        raise ValueError(i) from error
    except ValueError as e:
        error = e
raise error
"""
    result = await session.execute(code, timeout=60)
    assert result.status in ("error", "timeout")
    assert await value(session, "1") == 1


@pytest.mark.slow
async def test_deep_recursion_is_an_error(session: Session) -> None:
    result = await session.execute("def f():\n    f()\nf()")
    assert result.error is not None
    assert result.error.ename == "RecursionError"
    assert await value(session, "1") == 1


@pytest.mark.stress
@pytest.mark.slow
async def test_of_a_thousand_cells_that_print_none_loses_a_line(session: Session) -> None:
    for number in range(1_000):
        result = await session.execute(f"print({number})")
        assert result.text == str(number)
