"""The options of named sessions, read from JSON data."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cellblock.common.sandbox_options import NAMES, PATHS, SandboxOptions
from cellblock.common.urls import check, is_url
from cellblock.errors import InvalidInputError
from cellblock.host.checks import check_maker_directory
from cellblock.host.options import SessionOptions, check_names
from cellblock.host.requested_policy import requested_policy
from cellblock.model.sessions import OWN_KERNEL
from cellblock.service.named.durable import EVERY
from cellblock.service.named.kernel_types import check_kernel_type
from cellblock.service.session.policy import requested_tier
from cellblock.service.session.service_options import ServiceOptions

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from cellblock.host import Host, Policy, Tier

Approve = Literal["auto", "ask"]

_FUNCTIONS = {"on_command", "on_host", "on_request", "forbid_programs", "policy", "limits", "rules", "on_elicitation"}
"""Options that are not JSON data, or are given in another way"""

_SESSION = {item.name for item in dataclasses.fields(SessionOptions)} - _FUNCTIONS
_SERVICES = {item.name for item in dataclasses.fields(ServiceOptions)} - _FUNCTIONS


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedOptions:
    """The options that only named sessions have, and those that JSON data spells differently.

    Attributes:
        approve: Who decides about tool calls, and about commands if they need approval: with ``ask``, they wait for a client's
            decision; ``auto`` allows them.
        ask_questions: Whether questions of MCP servers wait for a client's answer with ``approve="auto"``, too.
        idle_timeout: Seconds without use after which the session ends; None or 0: never.
        startup_code: Code to run in each kernel of the session.
        kernel_type: A Jupyter kernelspec; ``python3`` is cellblock's own kernel. Others need jupyter_client.
        sandbox: Whether to run the kernel in a sandbox. Without, it has all rights of this user.
        sandbox_config: The sandbox's configuration (docs/sandbox.md): a JSON file's path, or its content.
        home_is_workspace: Whether ``/home/user`` is another name of the workspace in the sandbox (`Filesystem`).
        rules: Rules that decide before people do (docs/approvals.md): a file's path, or its content.
        limits: Limits of a cell's output (`Limits`), by name.
        durable: Whether the session continues after a reboot: it is saved between its cells, with the files of its workspace
            (docs/named-sessions.md). A number is the least time between two saves, in seconds; 30 by default. With a URL, it
            is saved there, too, and other machines can continue it when this one is lost.
        save_every: The least time between two saves of a durable session, in seconds.
        current_dir: The current directory of the program that makes the session. The session works there if no ``working_dir``
            is given; for a sandboxed one, it must not be the user's home directory.
    """

    approve: Approve = "ask"
    ask_questions: bool = False
    idle_timeout: float | None = 1800.0
    startup_code: str = ""
    kernel_type: str = OWN_KERNEL
    sandbox: bool = True
    sandbox_config: Mapping[str, Any] | str | None = None
    home_is_workspace: bool = False
    rules: Mapping[str, Any] | str | None = None
    limits: Mapping[str, int] = dataclasses.field(default_factory=dict)
    durable: bool | float | str = False
    save_every: float | None = None
    current_dir: str | None = None

    @property
    def saved_every(self) -> float | None:
        """The least time between two saves, in seconds; None if the session is not saved."""
        if not self.durable:
            return None
        if self.save_every is not None:
            return self.save_every
        return EVERY if self.durable is True or isinstance(self.durable, str) else self.durable


_NAMED = {item.name for item in dataclasses.fields(NamedOptions)}
DECLARATIONS: Mapping[type[Any], Collection[str]] = {
    SessionOptions: _SESSION,
    ServiceOptions: _SERVICES,
    SandboxOptions: NAMES,
    NamedOptions: _NAMED,
}
"""Where the options are declared, and which of the fields are options of named sessions."""


@dataclass(frozen=True, slots=True)
class Options:
    """All options of a named session, parsed."""

    session: SessionOptions
    services: ServiceOptions
    named: NamedOptions


def read_options(data: Mapping[str, Any], host: Host | None = None) -> Options:
    """Parse a client's options.

    Args:
        data: The options by name.
        host: The host of the session.

    Raises:
        InvalidInputError: An option is unknown or invalid.
    """
    check_names(data, {name for names in DECLARATIONS.values() for name in names})
    named = NamedOptions(**_checked(data))
    tier = requested_tier(named.sandbox, data.get("isolate"), host)
    check_kernel_type(named.kernel_type, tier)
    policy = requested_policy(None, named.sandbox_config, _sandbox_options(data), tier, host)
    if named.home_is_workspace:
        policy = _with_name(policy, tier)
    session = SessionOptions(
        **_with_places({name: data[name] for name in _SESSION & data.keys() - {"isolate"}}, named.current_dir, tier),
        isolate=tier.name,
        policy=policy,
        limits=_limits(named.limits),
    )
    services = ServiceOptions(**{name: data[name] for name in _SERVICES & data.keys()}, rules=_rules(named.rules))
    return Options(session, services, named)


def with_real_paths(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a new session's options, with real paths of everything it may read and write outside its workspace.

    A named environment becomes its lock, so that the session keeps it when the name moves.

    Raises:
        InvalidInputError: A path is relative, or does not exist.
        NotFoundError: There is no environment of this name.
    """
    if isinstance(name := data.get("environment"), str):
        from cellblock.host.environments.named_environments import packages_of

        data = {**data, "environment": packages_of(name).to_dict()}
    given = _sandbox_options(data)
    directory = data.get("current_dir")
    for name in PATHS:
        paths = given.paths(name)
        if isinstance(directory, str):
            paths = tuple(os.path.join(directory, path) for path in paths)
        if relative := [path for path in paths if not os.path.isabs(path)]:
            raise InvalidInputError(f"{name}: {relative[0]!r} is relative to an unknown directory: name an absolute path")
        setattr(given, name, paths)
    real = given.resolved()
    return {**data, **{name: list(real.paths(name)) for name in PATHS if name in data}}


def _sandbox_options(data: Mapping[str, Any]) -> SandboxOptions:
    return SandboxOptions(**{name: data[name] for name in NAMES if name in data})


def _with_name(policy: Policy | None, tier: Tier) -> Policy:
    """Return a policy in which the home directory is the workspace.

    Raises:
        InvalidInputError: There is no sandbox.
    """
    from cellblock.host import Policy

    if not tier.sandboxed:
        raise InvalidInputError("home_is_workspace describes a sandbox, but sandbox=False turns it off")
    made = policy or Policy()
    return dataclasses.replace(made, filesystem=dataclasses.replace(made.filesystem, home_is_workspace=True))


def _with_places(given: dict[str, Any], current_dir: str | None, tier: Tier) -> dict[str, Any]:
    """Default the working directory and the image directory to the creator's, not this process's, current directory.

    Raises:
        InvalidInputError: The default workspace would be the home directory.
    """
    if given.get("working_dir") is None and current_dir is not None:
        check_maker_directory(current_dir, tier)
        given["working_dir"] = current_dir
    if given.get("images_dir") is None and isinstance(given.get("working_dir"), str):
        given["images_dir"] = os.path.join(given["working_dir"], "images")
    return given


def _checked(data: Mapping[str, Any]) -> dict[str, Any]:
    """Validate the fields of `NamedOptions` by its annotations, and return them."""
    from pydantic import ValidationError

    given = {name: data[name] for name in _NAMED & data.keys()}
    try:
        made = _adapter().validate_python(given)
    except ValidationError as error:
        wrong = error.errors()[0]
        what = "it must be a list, such as ['example.org']" if wrong["type"] == "tuple_type" else wrong["msg"]
        raise InvalidInputError(f"{'.'.join(map(str, wrong['loc']))}: {what}") from None
    if isinstance(made.durable, str):
        if not is_url(made.durable):
            raise InvalidInputError(f"durable must be true, false, a number of seconds or a URL, not {made.durable[:200]!r}")
        check(made.durable)
    every = made.saved_every
    for name, seconds in (("save_every", made.save_every), ("durable", every)):
        if seconds is not None and not 0 < seconds < 10**9:
            raise InvalidInputError(f"{name} must be a positive number of seconds, not {seconds:g}")
    if every is not None and made.kernel_type != OWN_KERNEL:
        raise InvalidInputError(f"durable needs a Python session, and kernel_type is {made.kernel_type!r}")
    seconds = made.idle_timeout
    if seconds is not None and not seconds >= 0:
        raise InvalidInputError(f"idle_timeout must be a positive number of seconds, or 0 for never, not {seconds:g}")
    return {item.name: getattr(made, item.name) for item in dataclasses.fields(made)}


@functools.cache
def _adapter() -> TypeAdapter[NamedOptions]:
    """Return the type adapter, cached because creating it takes longer than creating a kernel."""
    from pydantic import TypeAdapter

    return TypeAdapter(NamedOptions)


def option_types() -> dict[str, dict[str, Any]]:
    """Return the JSON schemas of those options that only JSON data spells like this."""
    properties: dict[str, dict[str, Any]] = _adapter().json_schema()["properties"]
    return properties


def _limits(given: Mapping[str, int]) -> Any:
    if not given:
        return None
    from cellblock.host import Limits

    try:
        return Limits(**given)
    except TypeError:
        names = ", ".join(item.name for item in dataclasses.fields(Limits))
        raise InvalidInputError(f"limits can be {names}, not {', '.join(given)}") from None


def _rules(given: Mapping[str, Any] | str | None) -> Any:
    if given is None:
        return None
    from cellblock.tools.approvals.rules import Rules

    return Rules.load(Path(given)) if isinstance(given, str) else Rules.parse(given)
