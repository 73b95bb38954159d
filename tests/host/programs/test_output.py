"""What is kept of what a program prints, by pipes without programs."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress

from cellblock.host.programs.output import ROOM, Output


async def test_what_was_printed_before_the_end_is_kept_for_a_slow_reader() -> None:
    """Nothing of the program is left when its output still waits in the pipe, because nobody has taken what came before."""
    output = Output("all")
    ours, theirs = os.pipe()
    output.follow(ours, "stdout")
    os.set_blocking(theirs, False)
    written = 0
    while output.end < ROOM:
        with suppress(BlockingIOError):
            written += os.write(theirs, b"x" * 1000)
        await asyncio.sleep(0)
    written += os.write(theirs, b"y" * 1000)
    os.close(theirs)
    output.program_ended()
    assert not output.finished
    output.close()
    found = b"".join(piece.data for piece in output.so_far(0))
    assert (output.end, output.finished) == (written, True)
    assert found.endswith(b"xy" + b"y" * 999)
    output.close()
    assert output.end == written


async def test_what_others_print_after_the_end_is_not_of_the_program() -> None:
    output = Output("all")
    ours, theirs = os.pipe()
    output.follow(ours, "stdout")
    os.write(theirs, b"own")
    output.program_ended()
    assert b"".join(piece.data for piece in await output.take(0)) == b"own"
    os.write(theirs, b"others'")
    output.close()
    os.close(theirs)
    assert output.end == len(b"own")
