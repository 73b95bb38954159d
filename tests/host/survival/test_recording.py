"""What a host writes down of a kernel: read again, it is what it was."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cellblock.host import Host
from cellblock.host.kernels.channel import Extra
from cellblock.host.session import Session
from cellblock.host.survival.recording import TapeRecording, read_trusted
from cellblock.host.survival.tape import Kind
from cellblock.launch.custody.custodian_client import Custodian
from cellblock.model.decisions import CommandRequest


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    """A host whose kernels are held."""
    state = tmp_path / "state"
    state.mkdir(0o700)
    custodian = Custodian.connect(state)
    made = Host(isolate="none", custodian=custodian)
    await made.adopt()
    yield made
    await made.close()
    custodian.end()


def recording(session: Session) -> TapeRecording:
    """Return the recording of a session's kernel."""
    kernel = session._kernels.current
    assert kernel is not None
    assert isinstance(kernel.recording, TapeRecording)
    return kernel.recording


async def test_what_was_begun_is_not_begun_again(host: Host, tmp_path: Path) -> None:
    begun = []

    async def install(*_: object) -> int:
        begun.append(recording(session).standing.begun)
        return 0

    session = host.session(working_dir=tmp_path, images_dir=tmp_path)
    async with session:
        kernel = session._kernels.current
        assert kernel is not None
        object.__setattr__(kernel.wanted, "installer", install)
        await session.execute("%pip install nothing-at-all")
        assert begun == [True]
        kinds = [record.kind for record in recording(session).tape.recover()[1]]
        assert kinds == [Kind.SENT, Kind.BEGUN, Kind.SENT]


async def test_what_was_not_decided_is_asked_again(host: Host, tmp_path: Path) -> None:
    begun = []

    async def decide(request: CommandRequest) -> bool:
        begun.append(recording(session).standing.begun)
        return False

    session = host.session(working_dir=tmp_path, images_dir=tmp_path, on_command=decide)
    async with session:
        await session.execute("!true")
        assert begun == [False]
        assert [record.kind for record in recording(session).tape.recover()[1]] == [Kind.SENT, Kind.SENT]


@pytest.mark.slow
async def test_what_the_host_adds_is_written_down(host: Host, tmp_path: Path) -> None:
    session = host.session(working_dir=tmp_path, images_dir=tmp_path)
    async with session:
        await session.execute("1")
        session.cells.note("a note")
        session.cells.show({"text/html": b"<b>"})
        records = [record for record in recording(session).tape.recover()[1] if record.kind is Kind.EXTRA]
        assert [read_trusted(record) for record in records] == [
            Extra(text=b"a note\n", ours=True),
            Extra(shown={"text/html": b"<b>"}),
        ]
