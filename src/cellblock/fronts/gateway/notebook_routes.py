"""Notebooks and their kernels, which Jupyter calls sessions."""

from __future__ import annotations

import contextlib
import uuid
from typing import Literal

from fastapi import APIRouter, Depends
from fastapi.requests import HTTPConnection
from pydantic import BaseModel, Field

from cellblock.errors import AccessError, NotFoundError
from cellblock.fronts.gateway.access import needs
from cellblock.fronts.gateway.bodies import CheckedRoute
from cellblock.fronts.gateway.jupyter import Kernel, allowed, end_kernel, get_kernel, start
from cellblock.fronts.jupyter.kernels import kernel_id
from cellblock.model.sessions import OWN_KERNEL

router = APIRouter(prefix="/api", tags=["Jupyter"], route_class=CheckedRoute)

_read = Depends(needs("read", any_session=True))
_run = Depends(needs("run", any_session=True))


class WantedKernel(BaseModel):
    """The kernel of a notebook: one that runs, by its id, or a new one."""

    id: str | None = None
    name: str | None = None


class WantedNotebook(BaseModel):
    """A notebook and its kernel."""

    path: str = Field("", max_length=4096)
    name: str = Field("", max_length=4096)
    type: str = Field("notebook", max_length=100)
    kernel: WantedKernel = WantedKernel()


class Notebook(BaseModel):
    """A notebook that has a kernel. Jupyter calls this a session."""

    id: str
    path: str
    name: str
    type: str
    kernel: Kernel


class Notebooks:
    """The notebooks that have kernels, as reported by clients. They are lost with this process."""

    def __init__(self) -> None:
        self.known: dict[str, dict[str, str]] = {}

    def add(self, wanted: WantedNotebook, kernel: str) -> str:
        number = str(uuid.uuid4())
        self.known[number] = {"path": wanted.path, "name": wanted.name, "type": wanted.type, "kernel": kernel}
        while len(self.known) > 10_000:
            del self.known[next(iter(self.known))]
        return number


async def _notebook(connection: HTTPConnection, number: str) -> Notebook:
    known = connection.app.state.notebooks.known.get(number)
    if known is None:
        raise NotFoundError(f"there is no session {number[:100]!r}")
    try:
        return Notebook(id=number, **{**known, "kernel": await get_kernel(connection, known["kernel"])})
    except NotFoundError:
        connection.app.state.notebooks.known.pop(number, None)
        raise


@router.get("/sessions", summary="List the notebooks that have kernels", dependencies=[_read])
async def list_notebooks(connection: HTTPConnection) -> list[Notebook]:
    """List the notebooks whose kernels the caller may use."""
    found = []
    for number in [*connection.app.state.notebooks.known]:
        with contextlib.suppress(NotFoundError, AccessError):
            found.append(await _notebook(connection, number))
    return found


@router.post("/sessions", summary="Give a notebook a kernel", status_code=201, dependencies=[_run])
async def start_notebook(connection: HTTPConnection, wanted: WantedNotebook) -> Notebook:
    """Give a notebook a kernel: its current one, another running one, or a new one."""
    notebooks: Notebooks = connection.app.state.notebooks
    for number, known in [*notebooks.known.items()]:
        if wanted.path and (known["path"], known["type"]) == (wanted.path, wanted.type):
            with contextlib.suppress(NotFoundError):
                return await _notebook(connection, number)
    return await _notebook(connection, notebooks.add(wanted, await _kernel(connection, wanted.kernel)))


async def _kernel(connection: HTTPConnection, wanted: WantedKernel) -> str:
    """Return the id of a running kernel that the caller may use, or of a new one."""
    if wanted.id:
        return kernel_id((await allowed(connection, wanted.id)).kernel_id)
    return (await start(connection, wanted.name or OWN_KERNEL)).id


@router.get("/sessions/{number}", summary="Describe a notebook and its kernel", dependencies=[_read])
async def get_notebook(connection: HTTPConnection, number: str) -> Notebook:
    """Describe a notebook and its kernel."""
    return await _notebook(connection, number)


class Change(BaseModel):
    """The changes to a notebook."""

    path: str | None = Field(None, max_length=4096)
    name: str | None = Field(None, max_length=4096)
    type: Literal["notebook", "console", "file"] | None = None
    kernel: WantedKernel | None = None


@router.patch("/sessions/{number}", summary="Rename a notebook, or give it another kernel", dependencies=[_run])
async def change_notebook(connection: HTTPConnection, number: str, change: Change) -> Notebook:
    """Rename a notebook, or give it another kernel."""
    await _notebook(connection, number)
    known = connection.app.state.notebooks.known[number]
    known.update({name: value for name, value in change.model_dump(exclude={"kernel"}).items() if value is not None})
    if change.kernel is not None and (change.kernel.id or change.kernel.name):
        known["kernel"] = await _kernel(connection, change.kernel)
    return await _notebook(connection, number)


@router.delete("/sessions/{number}", summary="End a notebook's kernel", status_code=204, dependencies=[_run])
async def end_notebook(connection: HTTPConnection, number: str) -> None:
    """End a notebook's kernel."""
    notebook = await _notebook(connection, number)
    connection.app.state.notebooks.known.pop(number, None)
    await end_kernel(connection, notebook.kernel.id)
