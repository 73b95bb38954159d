"""The kernels that Jupyter clients can start: cellblock's own, and the installed ones of other languages."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Depends

from cellblock.errors import NotFoundError
from cellblock.fronts.gateway.access import needs
from cellblock.fronts.gateway.bodies import CheckedRoute
from cellblock.fronts.jupyter.kernelspecs import read_spec
from cellblock.model.sessions import OWN_KERNEL

router = APIRouter(prefix="/api", tags=["Jupyter"], route_class=CheckedRoute)

_read = Depends(needs("read", any_session=True))

_PLACES = ("/usr/local/share/jupyter/kernels", "/usr/share/jupyter/kernels")
"""Directories of kernelspecs that every sandbox can read, besides the interpreter's own environment."""


def installed(places: list[Path] | None = None) -> dict[str, dict[str, Any]]:
    """Return the kernelspecs that sessions can start, by name. Kernels other than cellblock's need jupyter_client.

    Args:
        places: The directories to search; by default those that every sandbox can read.
    """
    found = {OWN_KERNEL: {"display_name": "Python 3 (cellblock)", "language": "python", "metadata": {"debugger": False}}}
    if find_spec("jupyter_client") is None:
        return found
    for place in places_of(sys.prefix) if places is None else places:
        for name, spec in _specs_in(place):
            found.setdefault(name, spec)
    return found


def places_of(prefix: str) -> list[Path]:
    """Return the directories of kernelspecs that sessions of an environment can read."""
    return [Path(prefix, "share/jupyter/kernels"), *map(Path, _PLACES)]


def _specs_in(place: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the kernelspecs of a directory. Every name that begins with ``python`` means cellblock's own kernel."""
    with suppress(OSError):
        for directory in sorted(place.iterdir()):
            spec = None if directory.name.startswith("python") else read_spec(directory)
            if spec is not None and isinstance(argv := spec.get("argv"), list) and "cellblock.jupyter" not in argv:
                shown = {"display_name": spec.get("display_name", directory.name), "language": spec.get("language", "")}
                yield directory.name, {**shown, "metadata": spec.get("metadata", {})}


async def check_installed(name: str) -> None:
    """Check that a kernelspec can be started.

    Raises:
        NotFoundError: It cannot.
    """
    known = await asyncio.to_thread(installed)
    if name not in known:
        raise NotFoundError(f"there is no kernelspec {name[:100]!r}, only {', '.join(map(repr, sorted(known)))}")


def _model(name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a kernelspec in the form of Jupyter's servers, without the start command, which clients cannot use."""
    return {"name": name, "spec": {"argv": [], "env": {}, "interrupt_mode": "message", **spec}, "resources": {}}


@router.get("/kernelspecs", summary="What kernels can be started", dependencies=[_read])
async def list_kernelspecs() -> dict[str, Any]:
    """List the kernelspecs."""
    found = await asyncio.to_thread(installed)
    return {"default": OWN_KERNEL, "kernelspecs": {name: _model(name, spec) for name, spec in found.items()}}


@router.get("/kernelspecs/{name}", summary="One kernelspec", dependencies=[_read])
async def get_kernelspec(name: str) -> dict[str, Any]:
    """Describe a kernelspec."""
    await check_installed(name)
    return _model(name, (await asyncio.to_thread(installed))[name])
