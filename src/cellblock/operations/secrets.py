"""Operations on the secrets of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cellblock.operations.base import Limits, Request, Route

if TYPE_CHECKING:
    from cellblock.model import overview
    from cellblock.operations.data import Data


class Requests(
    Request["list[Data[overview.RequestRecord]]"],
    op="requests",
    repeatable=True,
    route=Route("GET", "/sessions/{session}/requests", "List requests to hosts with secrets", scope="read", within="requests"),
):
    """List the last requests to hosts that receive secrets, oldest first, without queries, headers and bodies."""

    session: str
    count: Annotated[int, Limits(ge=1, le=1000)] = 200
