"""Continues a killed host's kernel from its journal."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from cellblock.host.kernels.cell import Cell, OnInput
from cellblock.host.survival.recording import Standing, TapedChannel, TapeRecording, read_trusted, sent_message
from cellblock.host.survival.tape import Kind, piece
from cellblock.wire.messages import Execute
from cellblock.wire.protocol import State

if TYPE_CHECKING:
    from cellblock.host.kernels.kernel import Kernel

_TURN = 0.005  # seconds of one event loop turn for replayed messages


async def recover(kernel: Kernel, recording: TapeRecording, on_input: OnInput | None) -> Cell | None:
    """Continue a kernel, which is not listened to yet, as if it had always been this host's.

    `on_input` answers `input()` of a cell that had a handler.

    Returns:
        The last cell, running or ended; None if there was none.

    Raises:
        ValueError, ProtocolError: The journal is invalid.
    """
    records = recording.recover(kernel.wanted.spill_to)
    channel = recording.taped
    cell = _stand_as_written(kernel, recording.standing, on_input)
    last = kernel.output.cell
    exited: int | None = None
    for record in records:
        await _replay_until(channel, record.messages)
        match record.kind:
            case Kind.SENT:
                message = sent_message(record)
                channel.replay_sent(message)
                recording.told(message)
                if isinstance(message, Execute) and cell is not None:
                    last = cell
                    kernel.attach(cell)
            case Kind.PIECE:
                channel.replay_piece(*piece(record.content))
            case Kind.EXTRA:
                kernel.output.add_extra(read_trusted(record))
            case Kind.STOP if last is not None:
                reason, means = read_trusted(record)
                last.stopped_for(reason)
                last.stopped_by(means)
            case Kind.BEGUN:
                recording.standing.begun = True
            case Kind.EXITED:
                exited = int(record.content)
    if cell is not None and last is not cell:
        kernel.cells -= 1  # that host was killed while it wrote the frame: the cell was not sent
    recording.replaying = False
    channel.go_live()
    _go_live(kernel, recording.standing, exited)
    return last


def _stand_as_written(kernel: Kernel, saved: Standing, on_input: OnInput | None) -> Cell | None:
    """Restore a kernel's state from the last base of its journal. Return the cell that ran or was about to begin, if any."""
    output = kernel.output
    output.collector = saved.collector or output.collector
    output.after_death, kernel.count, kernel.cells = saved.after_death, saved.count, saved.cells
    cell = None if saved.cell is None else Cell.restored(saved.cell, on_input)
    if cell is not None and kernel.state in (State.BUSY, State.ASKING):
        kernel.attach(cell)
    if kernel.state is not State.STARTING:
        kernel.ready.set_result(None)
    return cell


async def _replay_until(channel: TapedChannel, messages: int) -> None:
    loop = asyncio.get_running_loop()
    until = loop.time() + _TURN
    while channel.replay(messages):
        if loop.time() >= until:
            await asyncio.sleep(0)
            until = loop.time() + _TURN


def _go_live(kernel: Kernel, standing: Standing, exited: int | None) -> None:
    if exited is not None:
        kernel.exited(exited)
    kernel.control.read()
    kernel.memory.look_soon()
    if standing.question is not None:
        kernel.resume_request(standing.question, begun=standing.begun, decided=standing.decided)
