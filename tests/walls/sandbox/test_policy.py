"""Policies: what is read from JSON, what is refused by name, and that narrowing never widens."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock import InvalidInputError
from cellblock.walls.sandbox.plan import make_plan
from cellblock.walls.sandbox.policy import MIB, PROTECTED, Filesystem, Network, Policy, Resources

from .model import FACTS, INTERPRETER, NOTHING, READ, WORKSPACE, access

# Verbatim, as ipybox documents them.
DOCUMENTED = {
    "default": """{ "enableWeakerNestedSandbox": false, "filesystem": { "denyRead": [".env"],
        "allowWrite": [".", "~/Library/Jupyter", "~/.ipython"], "denyWrite": [] },
        "network": { "allowedDomains": [], "deniedDomains": [], "allowLocalBinding": true } }""",
    "sandbox-kernel.json": """{ "enableWeakerNestedSandbox": false, "filesystem": { "denyRead": [".env"],
        "allowWrite": [".", "~/Library/Jupyter", "~/.ipython"], "denyWrite": [] },
        "network": { "allowedDomains": ["example.org"], "deniedDomains": [], "allowLocalBinding": true } }""",
    "sandbox-mcp.json": """{ "enableWeakerNestedSandbox": false, "filesystem": { "denyRead": [".env"],
        "allowWrite": [".", "~/.npm"], "denyWrite": [] }, "network": { "allowedDomains": ["packages.example.org"],
        "deniedDomains": [], "allowLocalBinding": true } }""",
}


@pytest.mark.parametrize("text", DOCUMENTED.values(), ids=DOCUMENTED)
def test_documented_configurations_are_understood(text: str, tmp_path: Path) -> None:
    path = tmp_path / "sandbox.json"
    data = json.loads(text)
    path.write_text(json.dumps({**data, "defaults": "sandbox-runtime"}))
    policy = Policy.load(path)
    assert policy.filesystem.read == ("/",)
    assert policy.filesystem.write == tuple(data["filesystem"]["allowWrite"])
    assert ".env" in policy.filesystem.deny_read
    assert set(PROTECTED) <= set(policy.filesystem.deny_write)
    assert policy.network.allow == tuple(data["network"]["allowedDomains"])
    assert not policy.unix_sockets
    assert make_plan(policy, FACTS, WORKSPACE, INTERPRETER).everything


def test_what_is_not_said_is_the_default() -> None:
    cases: list[dict[str, Any]] = [{}, {"filesystem": {}, "network": {}, "resources": {}}, {"defaults": "cellblock"}]
    for data in cases:
        assert Policy.parse(data) == Policy()


def test_a_key_changes_its_own_part_only() -> None:
    default = Filesystem()
    for key, value, wanted in (
        ("denyRead", ["x"], replace(default, deny_read=("x", *default.deny_read))),
        ("allowRead", ["/x"], replace(default, read=("/x",))),
        ("allowWrite", ["x"], replace(default, write=("x",))),
        ("allowWrite", [], replace(default, write=())),
        ("denyWrite", ["x"], replace(default, deny_write=("x", *default.deny_write))),
    ):
        assert Policy.parse({"filesystem": {key: value}}) == Policy(wanted), key


def test_nothing_said_in_the_words_of_sandbox_runtime_is_all_reading_and_no_writing() -> None:
    files = Policy.parse({"defaults": "sandbox-runtime"}).filesystem
    assert files == Filesystem(("/",), (), (".env",))


def test_secrets_are_masked_at_the_top_of_all_that_is_shown() -> None:
    for home in ("/h/u", "/h"):
        policy = Policy(Filesystem(read=(home, "/h/u/.aws/config"), write=(".", "/x")))
        plan = make_plan(policy, replace(FACTS, home="/h/u"), WORKSPACE, INTERPRETER)
        for place in ("/h/u/.ssh", "/h/u/.env", "/x/.env", f"{WORKSPACE}/.env"):
            assert access(plan, place) == NOTHING, place
        for place in ("/h/u/.aws/config", "/h/u/notes", "/h/u/x/.env"):
            assert access(plan, place) == READ, place
        named = Policy(Filesystem(read=("/h/u", "/h/u/.ssh")))
        assert access(make_plan(named, replace(FACTS, home="/h/u"), WORKSPACE, INTERPRETER), "/h/u/.ssh") == READ


def test_a_typo_is_named_and_the_right_key_suggested() -> None:
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"filesytem": {}}, "filesytem", "filesystem"),
        ({"filesystem": {"allowWrit": []}}, "filesystem.allowWrit", "allowWrite"),
        ({"filesystem": {"denyread": []}}, "filesystem.denyread", "denyRead"),
        ({"network": {"allowedDomain": []}}, "network.allowedDomain", "allowedDomains"),
        ({"network": {"allowUnixSockets": []}}, "network.allowUnixSockets", "allowAllUnixSockets"),
        ({"resources": {"memroy": 1}}, "resources.memroy", "memory"),
        ({"resources": {"open_files": 100}}, "resources.open_files", "openFiles"),
    ]
    for data, named, meant in cases:
        with pytest.raises(InvalidInputError) as caught:
            Policy.parse(data, "here.json")
        assert "here.json" in str(caught.value)
        assert named in str(caught.value)
        assert repr(meant) in str(caught.value)


def test_a_key_that_resembles_nothing_is_told_what_there_is() -> None:
    with pytest.raises(InvalidInputError, match=r"filesystem, network, resources"):
        Policy.parse({"zzz": 1})


def test_a_value_of_the_wrong_kind_is_named() -> None:
    cases: list[tuple[Any, str]] = [
        ([], "here.json"),
        ({"filesystem": []}, "filesystem"),
        ({"filesystem": {"denyRead": ".env"}}, "filesystem.denyRead"),
        ({"filesystem": {"denyRead": [1]}}, "filesystem.denyRead"),
        ({"filesystem": {"allowWrite": [""]}}, "filesystem.allowWrite"),
        ({"network": {"allowedDomains": None}}, "network.allowedDomains"),
        ({"network": {"allowAllUnixSockets": "yes"}}, "network.allowAllUnixSockets"),
        ({"resources": {"memory": "4G"}}, "resources.memory"),
        ({"resources": {"memory": 1.5e9}}, "resources.memory"),
        ({"resources": {"processes": True}}, "resources.processes"),
    ]
    for data, named in cases:
        with pytest.raises(InvalidInputError) as caught:
            Policy.parse(data, "here.json")
        assert named in str(caught.value)


def test_an_impossible_limit_is_named_with_what_is_possible() -> None:
    cases: list[tuple[str, int]] = [
        ("memory", 0),
        ("memory", -1),
        ("memory", 2**51),
        ("processes", 1),
        ("processes", 10**6),
        ("openFiles", 3),
        ("tmp", 0),
        ("fileSize", 1),
        ("cpu", 0),
        ("cpu", 101),
    ]
    for key, value in cases:
        with pytest.raises(InvalidInputError, match=rf"must be an integer from \d+ to \d+, not {value}"):
            Policy.parse({"resources": {key: value}})


# -- narrowing -----------------------------------------------------------------------------------------------------------


def test_a_policy_that_allows_more_is_refused_by_name() -> None:
    cases: list[tuple[Policy, str]] = [
        (Policy(filesystem=Filesystem(read=("/",))), "filesystem.read"),
        (Policy(filesystem=Filesystem(read=("/etc",))), "filesystem.read"),
        (Policy(filesystem=Filesystem(write=("~",))), "filesystem.write"),
        (Policy(filesystem=Filesystem(write=("..",))), "filesystem.write"),
        (Policy(filesystem=Filesystem(write=("./../x",))), "filesystem.write"),
        (Policy(filesystem=Filesystem(write=("a/../../x",))), "filesystem.write"),
        (Policy(filesystem=Filesystem(write=("/",))), "filesystem.write"),
        (Policy(network=Network(allow=("example.org",))), "network.allow"),
        (Policy(unix_sockets=True), "unix_sockets"),
    ]
    for wider, named in cases:
        with pytest.raises(InvalidInputError, match=named):
            Policy().narrow(wider)


def test_a_pattern_covers_no_more_than_it_says() -> None:
    for wanted in ("*.example.org", "evil.org", "aexample.org", "a.example.org:22", "*", "example.org"):
        host = Policy(network=Network(allow=("*.a.example.org", "example.org:443")))
        with pytest.raises(InvalidInputError, match=r"network\.allow"):
            host.narrow(Policy(network=Network(allow=(wanted,))))


def test_narrowing_keeps_what_both_deny_and_the_smaller_limits() -> None:
    host = Policy(
        Filesystem(deny_read=("a",), deny_write=("b",)), Network(("x.org", "y.org"), ("z.org",)), Resources(memory=512 * MIB)
    )
    wanted = Policy(Filesystem(deny_read=("c",), deny_write=("d",)), Network(("x.org",), ()), Resources(processes=10))
    narrowed = host.narrow(wanted)
    assert narrowed.filesystem == Filesystem((), (".",), ("a", "c"), ("b", "d"))
    assert narrowed.network == Network(("x.org",), ("z.org",))
    assert narrowed.resources == replace(Resources(), memory=512 * MIB, processes=10)


PARTS = st.sampled_from(["a", "b", ".git", "..", ".", "c d"])
PATHS = st.builds(
    lambda start, parts: start + "/".join(parts) if parts else (start.rstrip("/") or "/" if start else "."),
    st.sampled_from(["", "/", "/w/", "~/", "/h/u/", "//"]),
    st.lists(PARTS, max_size=3),
).filter(bool)
FILESYSTEMS = st.builds(Filesystem, *[st.lists(PATHS, max_size=3).map(tuple)] * 4)
LIMITS = st.builds(Resources, memory=st.integers(64 * MIB, 2**40), processes=st.integers(8, 30000), cpu=st.integers(1, 100))
POLICIES = st.builds(Policy, FILESYSTEMS, st.just(Network()), LIMITS, st.booleans())
PLACES = [
    "/",
    "/etc/shadow",
    "/h/u",
    "/h/u/a",
    "/h/u/a/b",
    "/h/x",
    "/w",
    "/w/a",
    "/w/a/b",
    "/w/b",
    "/w/a/.git",
    "/w/.git",
    "/w/a/b/c d",
    "/x",
    "/a/b",
]


@given(POLICIES, POLICIES)
def test_narrowing_never_widens(host: Policy, wanted: Policy) -> None:
    try:
        narrowed = host.narrow(wanted)
        before = make_plan(host, FACTS, WORKSPACE, INTERPRETER)
        after = make_plan(narrowed, FACTS, WORKSPACE, INTERPRETER)
    except InvalidInputError:
        return
    for place in PLACES:
        assert access(after, place) <= access(before, place), place
    for name in ("memory", "processes", "open_files", "tmp", "file_size", "cpu"):
        assert getattr(narrowed.resources, name) <= getattr(host.resources, name)
    assert narrowed.unix_sockets <= host.unix_sockets


@given(POLICIES)
def test_a_policy_is_narrower_than_itself(policy: Policy) -> None:
    narrowed = policy.narrow(policy)
    assert (narrowed.filesystem.read, narrowed.filesystem.write) == (policy.filesystem.read, policy.filesystem.write)


@given(POLICIES)
def test_a_denial_always_wins(policy: Policy) -> None:
    denying = replace(policy, filesystem=replace(policy.filesystem, deny_write=("/w/a",), deny_read=("/w/b",)))
    try:
        plan = make_plan(denying, FACTS, WORKSPACE, INTERPRETER)
    except InvalidInputError:
        return
    assert access(plan, "/w/a/b") <= {"read"}


def test_a_session_cannot_open_again_what_the_host_denies() -> None:
    for denial in (".", "a", "/w/a", "./a"):
        with pytest.raises(InvalidInputError, match=r"filesystem\.read"):
            Policy(Filesystem((".",), (), (denial,), ())).narrow(Policy(Filesystem(("a/b",), (), (), ())))


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["", ".", "/", "~", "a/../..", "a\0b", "*", "\ud800"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=6,
)


def _section(*keys: str) -> st.SearchStrategy[Any]:
    return VALUES | st.fixed_dictionaries({}, optional=dict.fromkeys(keys, VALUES))


SOURCES = _section("other") | st.fixed_dictionaries(
    {},
    optional={
        "filesystem": _section("denyRead", "allowRead", "allowWrite", "denyWrite", "allowGitConfig"),
        "network": _section("allowedDomains", "deniedDomains", "allowLocalBinding"),
        "resources": _section("memory", "processes", "cpu", "open_files"),
        "enableWeakerNestedSandbox": VALUES,
    },
)


@given(SOURCES)
def test_settings_of_any_form_are_refused_or_planned(data: Any) -> None:
    try:
        policy = Policy.parse(data)
        make_plan(policy, FACTS, WORKSPACE, INTERPRETER)
    except InvalidInputError:
        return
    assert Policy.from_dict(policy.to_dict()) == policy


def test_a_key_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text('{"network": {"allowedDomains": []}, "network": {"allowedDomains": ["evil.example"]}}')
    with pytest.raises(InvalidInputError, match="cannot be parsed: it is not valid JSON: the key 'network' occurs twice"):
        Policy.load(tmp_path / "p.json")


def test_a_repository_is_left_to_sessions_by_the_name_that_sandbox_runtime_has() -> None:
    usual = Policy.parse({}).filesystem.deny_write
    asked = Policy.parse({"filesystem": {"allowGitConfig": True}}).filesystem.deny_write
    assert {*usual} - {*asked} == {".git"}
    assert Policy.parse({"filesystem": {"allowGitConfig": False}}).filesystem.deny_write == usual
    with pytest.raises(InvalidInputError, match=r"filesystem.allowGitConfig must be true or false, not 'yes'"):
        Policy.parse({"filesystem": {"allowGitConfig": "yes"}})


def test_the_weaker_proc_is_asked_for_by_the_name_that_sandbox_runtime_has() -> None:
    assert not Policy.parse({}).weaker_proc
    assert not Policy().weaker_proc
    asked = Policy.parse({"enableWeakerNestedSandbox": True})
    assert asked.weaker_proc
    assert Policy.from_dict(asked.to_dict()) == asked
    with pytest.raises(InvalidInputError, match="enableWeakerNestedSandbox must be true or false, not 'yes'"):
        Policy.parse({"enableWeakerNestedSandbox": "yes"})


def test_a_session_gets_the_weaker_proc_only_if_its_host_has_it() -> None:
    weaker = Policy(weaker_proc=True)
    assert weaker.narrow(weaker).weaker_proc
    assert not weaker.narrow(Policy()).weaker_proc
    with pytest.raises(InvalidInputError, match="weaker_proc is not allowed by the host's policy"):
        Policy().narrow(weaker)
