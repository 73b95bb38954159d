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
    """List the last requests to hosts with secrets or request lines, oldest first, without queries, headers and bodies."""

    session: str
    count: Annotated[int, Limits(ge=1, le=1000)] = 200


class ListSecrets(
    Request["list[Data[overview.SecretRecord]]"],
    op="secrets",
    repeatable=True,
    route=Route("GET", "/sessions/{session}/secrets", "List the secrets of a session", scope="read", within="secrets"),
):
    """List the secrets of a session without their values: names, sources, hosts, places in requests, and times of last use."""

    session: str


class RefreshSecret(
    Request[bool],
    op="refresh secret",
    repeatable=True,
    route=Route("POST", "/sessions/{session}/secrets/{name}/refresh", "Read the value of a secret again", scope="approve"),
):
    """Read the value of a secret again from its source, for a session and its branches. The placeholder stays.

    Attributes:
        session: The session's name or id.
        name: The secret's name.
    """

    session: str
    name: str


class RemoveSecret(
    Request[bool],
    op="remove secret",
    route=Route("DELETE", "/sessions/{session}/secrets/{name}", "Remove a secret", scope="approve"),
):
    """Remove a secret from a session and its branches. Undo does not reverse it.

    Attributes:
        session: The session's name or id.
        name: The secret's name.
    """

    session: str
    name: str
