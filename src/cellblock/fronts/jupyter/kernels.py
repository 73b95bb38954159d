"""The kernels of a server by id, one for each named session."""

from __future__ import annotations

import uuid
from typing import Any

from cellblock.errors import NotFoundError
from cellblock.fronts.jupyter.execution import execute
from cellblock.fronts.jupyter.kernel import Handler, JupyterKernel
from cellblock.fronts.jupyter.request_handlers import KINDS, answer
from cellblock.model.sessions import SessionRecord
from cellblock.operations.sessions import List, Status
from cellblock.service.daemon.link import SessionLink

TAG = {"made by": "jupyter"}
"""The tag of sessions that Jupyter clients have made."""

HANDLERS: dict[str, Handler] = {"execute_request": execute, **dict.fromkeys(KINDS, answer)}
"""Handlers for the requests that involve the session, by type."""


def kernel_id(session: str) -> str:
    """Return a session's id in the form of Jupyter's kernel ids."""
    return str(uuid.UUID(hex=session))


def session_id(kernel: str) -> str:
    """Return the session's id for a kernel's id.

    Raises:
        NotFoundError: It is not the id of a kernel.
    """
    try:
        return uuid.UUID(kernel).hex
    except ValueError:
        raise NotFoundError(f"there is no kernel {kernel[:100]!r}") from None


class JupyterKernels:
    """The kernels of one server, created on first use."""

    def __init__(self, daemon: SessionLink) -> None:
        self._daemon = daemon
        self._kernels: dict[str, JupyterKernel] = {}

    async def find(self, session: str) -> JupyterKernel:
        """Return the kernel of a session, by its name or id.

        Raises:
            NotFoundError: The session does not exist.
        """
        try:
            return self._known(SessionRecord.from_dict(await self._daemon.call(Status(session))))
        except NotFoundError:
            if (gone := self._kernels.pop(session, None)) is not None:
                gone.gone.set()
                gone.status("dead", {})
            raise

    async def models(self) -> list[dict[str, Any]]:
        """Describe all kernels."""
        records = [SessionRecord.from_dict(found) for found in await self._daemon.call(List())]
        living = {record.kernel_id for record in records}
        for gone in self._kernels.keys() - living:
            del self._kernels[gone]
        return [self.model(record) for record in records]

    async def close(self) -> None:
        """Detach from all sessions, which continue."""
        for kernel in self._kernels.values():
            await kernel.close()

    def _known(self, record: SessionRecord) -> JupyterKernel:
        known = self._kernels.get(record.kernel_id)
        if known is None:
            known = self._kernels[record.kernel_id] = JupyterKernel(self._daemon, record, HANDLERS)
        return known

    def model(self, record: SessionRecord) -> dict[str, Any]:
        """Describe a kernel in the form of Jupyter's servers."""
        kernel = self._kernels.get(record.kernel_id)
        running = "busy" if record.status == "running" else "idle"
        return {
            "id": kernel_id(record.kernel_id),
            "name": record.kernel_type,
            "last_activity": record.last_used_at.replace("+00:00", "Z"),
            "execution_state": running if kernel is None or running == "busy" else kernel.state,
            "connections": 0 if kernel is None else len(kernel.clients),
            "session_name": record.name,
        }
