"""Validation of arguments before anything starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cellblock.common import config
from cellblock.common.secret import parse_secrets
from cellblock.errors import InvalidInputError, SandboxError, UnsupportedError, shown
from cellblock.host.launch_failures import launch_error
from cellblock.model.checkpoints import check_seeds
from cellblock.walls.sandbox.paths import is_inside
from cellblock.walls.sandbox.plan import check_unnamed_workspace
from cellblock.walls.sandbox.policy import Policy
from cellblock.walls.sandbox.srt import SrtPolicy
from cellblock.walls.sandbox.steps import Failure
from cellblock.walls.sandbox.tiers import NATIVE, SRT, TIERS, Tier

if TYPE_CHECKING:
    from cellblock.common.secret import Secrets
    from cellblock.model.overview import SecretRecord

MAX_REQUIREMENTS = 32 * 1024
"""Characters of all requirements of one call together. They become one line of a cell."""

_MAX_BRANCHES = 1000
_SHOWN = 200  # maximum characters of an invalid value in a message
DEFAULT_TIMEOUT = 120.0
"""Default time limit of a cell in seconds, in every front."""

INSTALL_TIMEOUT = 600.0
"""Time limit for installing packages, in seconds."""


def find_tier(name: object) -> Tier:
    """Return the isolation tier with a name.

    Raises:
        InvalidInputError: The name is unknown.
    """
    tier = TIERS.get(name) if isinstance(name, str) else None
    if tier is None:
        raise InvalidInputError(f"isolate must be {_listed(TIERS)}, not {name!r}")
    return tier


def find_sandbox(name: object, option: str, advice: str) -> Tier:
    """Return the isolation tier of a sandbox. ``none`` is not a sandbox.

    Args:
        name: The name.
        option: The option's name, for the error message.
        advice: How to run without a sandbox.

    Raises:
        InvalidInputError: The name is unknown.
    """
    tier = TIERS.get(name) if isinstance(name, str) else None
    if tier is None or not tier.sandboxed:
        names = _listed(name for name, tier in TIERS.items() if tier.sandboxed)
        raise InvalidInputError(f"{option} must be {names}, not {name!r}; {advice}")
    return tier


def _listed(names: Iterable[str]) -> str:
    *first, last = map(repr, names)
    return f"{', '.join(first)} or {last}"


def names_of_ours() -> str:
    """Return the names of cellblock's own sandboxes, for messages."""
    return _listed(name for name, tier in TIERS.items() if tier.ours)


def default_tier() -> Tier:
    """Return the tier in ``CELLBLOCK_ISOLATE``, or the default for this platform.

    Raises:
        InvalidInputError: The variable's value is not the name of a sandbox.
    """
    if not (chosen := config.isolation()):
        return NATIVE if sys.platform == "linux" else SRT
    return find_sandbox(chosen, "CELLBLOCK_ISOLATE", "to run without a sandbox, pass sandbox=False in the program")


def check_possible(tier: Tier) -> None:
    """Check that this machine supports a tier.

    Raises:
        SandboxError: It does not. The message names the alternatives.
    """
    missing = tier.missing()
    if isinstance(missing, Failure):
        raise launch_error(f"this machine cannot run {tier.described}", missing)
    if missing:
        raise SandboxError(f"this machine cannot run {tier.described}: {missing}")


def fit_policy(policy: Policy, tier: Tier) -> Policy:
    """Return a policy for a tier, with the restrictions that no policy can lift (`Tier.fit`).

    Raises:
        InvalidInputError: The policy is for another kind, or impossible in this tier.
    """
    if not isinstance(policy, Policy):
        raise InvalidInputError(f"policy must be a Policy, not {policy!r}: Policy.parse() makes one of a dict")
    policy.checked()
    if isinstance(policy, SrtPolicy) and tier.policy_type is not SrtPolicy:
        raise InvalidInputError("an SrtPolicy is for isolate='srt' only: use Policy.load() for the same file")
    return tier.fit(policy)


def check_maker_directory(directory: str, tier: Tier) -> None:
    """Check that a session without a named directory can work in the current directory of its creator.

    Raises:
        InvalidInputError: The session is sandboxed, and the directory contains the user's home directory.
    """
    if tier.sandboxed:
        check_unnamed_workspace(os.path.realpath(directory), os.path.expanduser("~"))


def check_state_apart(writable: Iterable[str]) -> None:
    """Check that no session works in or around cellblock's own state and settings.

    A session that can write a parent directory of them could replace them.

    Args:
        writable: The session's writable directories and its workspace, without symbolic links.

    Raises:
        InvalidInputError: A directory contains them or lies in them.
    """
    state, file = os.path.realpath(config.state_directory()), config.settings_file()
    # The file may be a link: neither its location nor its target may be writable.
    settings = {os.path.realpath(file), os.path.join(os.path.realpath(file.parent), file.name)}
    for place in writable:
        found = ""
        if is_inside(state, place) or is_inside(place, state):
            found = f"state is in {state} (CELLBLOCK_HOME can name another directory)"
        elif any(is_inside(path, place) for path in settings):
            found = f"settings are in {file} (CELLBLOCK_CONFIG can name another file)"
        if found and is_inside(os.path.realpath(os.path.expanduser("~")), place):
            raise InvalidInputError(
                f"a sandboxed session cannot work in {place}: it contains your home directory and cellblock's own files. "
                "Change to the directory of a project, or name one (working_dir=, --workspace, allowWrite)"
            )
        if found:
            raise InvalidInputError(
                f"a sandboxed session cannot work in {place}: cellblock's own {found}, and a session that can write "
                "to them controls what the host starts. Give the session another directory (working_dir, allowWrite)"
            )


def check_requests(tier: Tier) -> None:
    """Check that a sandbox can restrict requests.

    Raises:
        UnsupportedError: It cannot.
    """
    if not tier.own_network:
        raise UnsupportedError(
            f"request lines and rules of kind 'http' need isolate='native': with isolate={tier.name!r}, cellblock cannot read "
            "requests. Use the native sandbox, or leave them out (http=, --allow-http, network.http)"
        )


def check_secrets(tier: Tier) -> None:
    """Check that a sandbox can keep secrets outside.

    Raises:
        UnsupportedError: It cannot.
    """
    if tier.own_network:
        return
    instead = " For srt, use 'credentials' in its own settings." if tier.wrapped else ""
    raise UnsupportedError(
        f"secrets need isolate='native': with isolate={tier.name!r}, cellblock cannot insert them into requests. Use the "
        f"native sandbox, or leave out secrets (--secret).{instead}"
    )


def only_names(options: Mapping[str, Any]) -> bool:
    """Return whether a session's options name entries of ``secrets.toml`` (docs/keys.md) and an environment, and nothing else.

    Raises:
        InvalidInputError: ``secrets.toml`` is invalid.
    """
    names = options.get("secrets", [])
    if options.keys() - {"secrets", "environment"} or not isinstance(names, list):
        return False
    if not isinstance(options.get("environment", ""), str):
        return False
    if not names:
        return True
    from cellblock.walls.keys.sources import entries

    known = entries()
    return all(isinstance(name, str) and name in known for name in names)


def list_secrets(declared: Secrets) -> list[SecretRecord]:
    """Return declared secrets without their values.

    Raises:
        InvalidInputError: A secret has no host, or ``secrets.toml`` is invalid.
        UnsupportedError: The extra ``keys`` is not installed.
    """
    if not declared:
        return []
    from cellblock.walls.keys.session_keys import bindings_of

    return [binding.record() for binding in bindings_of(parse_secrets(declared))]


def store_secret(name: str, value: str) -> None:
    """Store the value of a secret in the keyring of this machine, where sessions find it by its name.

    Raises:
        InvalidInputError: The name or the value is invalid, or there is no keyring.
    """
    from cellblock.walls.keys.sources import store

    parse_secrets({name: {}})
    store(name, value)


def check_forbidding(tier: Tier, asked: bool) -> None:
    """Check that kernels can be prevented from executing programs.

    Raises:
        InvalidInputError: The tier cannot do it, or there is no `on_command` to decide about commands.
    """
    if not tier.ours:
        raise InvalidInputError(
            f"forbid_programs needs isolate={names_of_ours()}: with isolate={tier.name!r} nothing can prevent code from "
            "executing programs"
        )
    if not asked:
        raise InvalidInputError("forbid_programs needs on_command=, which decides about the commands that are run instead")


def check_branches(n: int, seeds: Sequence[int] | None) -> None:
    """Validate the number of branches and their seeds.

    Raises:
        InvalidInputError: They are invalid.
    """
    if type(n) is not int or not 1 <= n <= _MAX_BRANCHES:
        raise InvalidInputError(f"n must be a number of branches from 1 to {_MAX_BRANCHES}, not {shown(n)}")
    if seeds is None:
        return
    if not isinstance(seeds, Sequence) or len(seeds) != n:
        raise InvalidInputError(f"seeds must be a list of {n} seeds, one per branch, not {seeds!r}"[:_SHOWN])
    check_seeds(seeds)


def check_requirements(requirements: tuple[object, ...]) -> None:
    """Validate the arguments of `install`.

    Raises:
        InvalidInputError: They are invalid or missing.
    """
    if not requirements:
        raise InvalidInputError("name the packages to install: install('package>=1')")
    for requirement in requirements:
        if not isinstance(requirement, str):
            raise InvalidInputError(
                f"install() takes strings, one for each package: install('a', 'b>=1'), not {shown(requirement)}"
            )
    if (size := len(" ".join(map(str, requirements)))) > MAX_REQUIREMENTS:
        raise InvalidInputError(
            f"what to install has {size:,} characters, and the limit is {MAX_REQUIREMENTS:,}: "
            "put it in a file, for install('-r', file)"
        )
