"""Which policy a session gets from the ways in which a program can ask for one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cellblock import InvalidInputError
from cellblock.host import Policy, SrtPolicy
from cellblock.service.session.policy import requested_policy
from cellblock.walls.sandbox.policy import Network
from cellblock.walls.sandbox.tiers import NATIVE, NONE, SRT, Tier

SETTINGS = {"network": {"allowedDomains": ["a.example"]}, "filesystem": {"allowWrite": ["."]}}


def test_who_says_nothing_gets_the_policy_of_the_host() -> None:
    assert requested_policy(None, None, (), NATIVE) is None
    assert requested_policy(None, None, [], NONE) is None


def test_a_file_and_a_dict_mean_the_same(tmp_path: Path) -> None:
    path = tmp_path / "sandbox.json"
    path.write_text(json.dumps(SETTINGS))
    given = requested_policy(None, SETTINGS, (), NATIVE)
    assert given == requested_policy(None, path, (), NATIVE) == Policy.parse(SETTINGS)


def test_a_dict_is_given_to_srt_as_it_is(tmp_path: Path) -> None:
    given = requested_policy(None, {**SETTINGS, "new": True, "resources": {"processes": 20}}, (), SRT)
    assert isinstance(given, SrtPolicy)
    assert json.loads(given.given) == {**SETTINGS, "new": True}
    assert given.resources.processes == 20
    path = tmp_path / "sandbox.json"
    path.write_text(json.dumps(SETTINGS))
    assert requested_policy(None, SETTINGS, (), SRT) == requested_policy(None, path, (), SRT)


def test_hosts_are_added_to_what_the_policy_allows() -> None:
    policy = Policy(network=Network(allow=("a.example",), deny=("b.example",)))
    found = requested_policy(policy, None, ["c.example"], NATIVE)
    assert found is not None
    assert found.network == Network(allow=("a.example", "c.example"), deny=("b.example",))
    assert found.filesystem == policy.filesystem
    assert requested_policy(policy, None, (), NATIVE) is policy


@pytest.mark.parametrize(
    ("policy", "config", "hosts", "tier", "message"),
    [
        (None, None, "a.example", NATIVE, "must be a list of host names"),
        (None, None, [1], NATIVE, "must be a list of host names"),
        (Policy(), None, (), NONE, "sandbox=False turns it off"),
        (None, {}, (), NONE, "sandbox=False turns it off"),
        (None, None, ["a.example"], NONE, "sandbox=False turns it off"),
        (Policy(), {}, (), NATIVE, "not both"),
        ({}, None, (), NATIVE, "must be a Policy"),
        (Policy(), None, ["a.example"], SRT, "needs the native sandbox"),
        (None, {"network": {1}}, (), SRT, "sandbox_config is not valid JSON"),
        (None, {"resources": {"memory": "much"}}, (), SRT, "memory"),
        (None, {"netwrk": {}}, (), NATIVE, "netwrk"),
    ],
)
def test_what_makes_no_sense_is_refused(policy: Any, config: Any, hosts: Any, tier: Tier, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        requested_policy(policy, config, hosts, tier)
