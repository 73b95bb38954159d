"""Operations on environments: packages with a name, for new sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from cellblock.operations.base import Request, Route

if TYPE_CHECKING:
    from cellblock.model import environments
    from cellblock.operations.data import Data

_ONE = "/environments/{name}"


def _by_name(answers: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the environments of a cluster. Each node has its own store; the first one counts."""
    return sorted({one["name"]: one for answer in reversed(answers) for one in answer}.values(), key=lambda one: one["name"])


def _first(answers: Sequence[Any]) -> Any:
    return answers[0]


class ListEnvironments(
    Request["list[Data[environments.EnvironmentRecord]]"],
    op="environments",
    repeatable=True,
    route=Route("GET", "/environments", "List the environments", scope="read", within="environments"),
    join=_by_name,
):
    """List the environments with names, by name, without their locks."""


class ShowEnvironment(
    Request["Data[environments.EnvironmentRecord]"],
    op="show environment",
    repeatable=True,
    route=Route("GET", _ONE, "Show an environment", scope="read"),
    join=_first,
):
    """Return an environment with its lock.

    Attributes:
        name: Its name.
    """

    name: str


class CreateEnvironment(
    Request["Data[environments.EnvironmentRecord]"],
    op="create environment",
    route=Route("POST", _ONE, "Create an environment", scope="admin"),
    join=_first,
):
    """Create an environment, for the option ``environment`` of sessions. It is idempotent without `upgrade`.

    Attributes:
        name: Its name.
        environment: Its packages: ``{"packages": ["polars>=1"]}``, and ``hashes``, ``exact`` and ``base`` as in a lock. Empty
            for the packages that it was made from, with `upgrade`.
        upgrade: Whether an existing environment is replaced, by the newest versions. Its sessions keep their packages.
    """

    name: str
    environment: Mapping[str, Any] = field(default_factory=dict)
    upgrade: bool = False

    @property
    def may_repeat(self) -> bool:
        """Whether the answer of a repeated request is the same: an upgrade names the lock that it replaced."""
        return not self.upgrade


class RemoveEnvironment(
    Request[str],
    op="remove environment",
    route=Route("DELETE", _ONE, "Remove an environment", scope="admin", within="lock"),
    join=_first,
):
    """Remove an environment. Its sessions continue. Answered by its lock, from which it can be created again.

    Attributes:
        name: Its name.
    """

    name: str
