"""Routes for packages and tools."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from cellblock.errors import CellblockError, InvalidInputError
from cellblock.fronts.gateway.access import link_of
from cellblock.fronts.gateway.answers import json_response
from cellblock.fronts.gateway.bodies import CheckedRoute
from cellblock.fronts.gateway.execution_routes import milliseconds
from cellblock.fronts.gateway.models import MAX_SECONDS, ExecutionResultModel, Strict
from cellblock.fronts.gateway.session_routes import Run
from cellblock.model.untrusted import parse_json
from cellblock.operations.executions import Submit
from cellblock.operations.files import Install

router = APIRouter(prefix="/sessions/{session}", tags=["Sessions"], route_class=CheckedRoute)

_TOOLS = """
import json as _json
from cellblock.tools import search as _search
print(_json.dumps([_search.signatures(_name)[0] for _name in _search.names({words!r}, limit={limit})]))
del _json, _search
"""


class InstallRequest(Strict):
    """Packages."""

    requirements: list[str] = Field(min_length=1, max_length=1000, examples=[["pandas>=2", "rich"]])
    timeout: float | None = Field(None, ge=0.1, le=MAX_SECONDS, allow_inf_nan=False, description="Seconds; by default 600.")


class ToolsModel(BaseModel):
    """Tools, and how they are called."""

    tools: list[str]


@router.post("/install", response_model=ExecutionResultModel, summary="Install packages")
async def install(request: Request, session: str, wanted: InstallRequest, _: Run) -> Response:
    """Install packages for a session, as `pip install` does, from where the daemon's settings say."""
    limit = milliseconds(request, wanted.timeout or 600.0)
    return json_response(await link_of(request).call(Install(session, tuple(wanted.requirements), limit)))


@router.get("/tools", response_model=ToolsModel, summary="Search tools")
async def tools(
    request: Request,
    session: str,
    _: Run,
    query: Annotated[str, Query(max_length=1000, description="Words, in any order; none: all tools.")] = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 20,
) -> Response:
    """Search the tools that the code of a session can call. The session itself looks, when it runs nothing else."""
    asked = Submit(session, silent=True, wait=True, timeout=10_000, own=True)
    result = await link_of(request).call(asked, _TOOLS.format(words=query, limit=limit).encode("utf-8", "replace"))
    return json_response({"tools": _signatures(result)})


def _signatures(result: dict[str, Any]) -> list[str]:
    """Return the session's list of tools, as untrusted texts."""
    try:
        found = parse_json(result["output"], what="the answer")
    except InvalidInputError:
        found = None
    if result["status"] != "success" or not isinstance(found, list):
        raise CellblockError(f"the session could not look up its tools: {result['text'] or result['status']}"[:2000])
    return [str(one) for one in found]
