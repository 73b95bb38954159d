"""What tests do with named sessions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cellblock import Host
from cellblock.model.sessions import SessionRecord
from cellblock.service.named.ended_executions import EndedExecution
from cellblock.service.named.executions import Execution
from cellblock.service.named.named_sessions import NamedSessions
from cellblock.service.named.session import NamedSession
from cellblock.service.store.named import NamedStore
from processes import eventually

OPTIONS = {"sandbox": False}


def submit(sessions: NamedSessions, named: NamedSession, code: str, **options: Any) -> Execution | EndedExecution:
    """Have code run in a session."""
    return sessions.executions.submit(named, Execution(named.record.kernel_id, named.record.name, code, **options))


async def saved(named: NamedSession) -> Path:
    """Wait until the present state of a durable session is saved, at its URL, too, and return the file here.

    It is saved as soon as it is due: the loop of the sessions looks once a second.
    """
    durable = named.durable
    assert durable is not None

    def up_to_date() -> bool:
        named.save_if_due()
        return named.session.saving.last_state.number == durable._saved

    await eventually(up_to_date, 20)
    assert durable.last is not None
    return durable.last


def records(sessions: NamedSessions) -> list[SessionRecord]:
    """Return the records of all sessions, oldest first."""
    return [named.shown() for named in sessions.all()]


async def after_a_kill(
    sessions: NamedSessions, host: Host, state: Path, before: Callable[[Path], object] = lambda _: None
) -> NamedSessions:
    """What another process would see if this one were killed now. The old one is of no more use.

    `before` is called with the new state directory before the process begins.
    """
    sessions.store.writer.flush()
    copied = state.parent / f"{state.name}-later"
    copied.mkdir(mode=0o700)
    for path in state.iterdir():
        if path.is_file():
            (copied / path.name).write_bytes(path.read_bytes())
    (state / "named").rename(copied / "named")
    (state / "named").mkdir()
    before(copied)
    return NamedSessions(host, NamedStore(copied))
