"""What callers pass is checked before anything is begun."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any, get_args

import pytest

from cellblock import Host, InvalidInputError, SandboxError
from cellblock.common.config import Isolate, SandboxName
from cellblock.host import Network, Policy, Resources
from cellblock.host.checks import (
    MAX_REQUIREMENTS,
    check_forbidding,
    check_possible,
    check_requirements,
    check_state_apart,
    default_tier,
    find_sandbox,
    find_tier,
    fit_policy,
    only_names,
)
from cellblock.host.kernels.cell import check_code, check_place, without_fence
from cellblock.walls.linux import landlock
from cellblock.walls.sandbox import probe, srt
from cellblock.walls.sandbox.srt import SrtPolicy
from cellblock.walls.sandbox.steps import Failure
from cellblock.walls.sandbox.tiers import LANDLOCK, NATIVE, NONE, SRT, TIERS
from cellblock.wire.fields import MAX_CODE


@pytest.mark.parametrize(
    ("requirements", "said"),
    [
        (("a" * MAX_REQUIREMENTS, "b"), "what to install has 32,770 characters, and the limit is 32,768"),
        (("a",) * MAX_REQUIREMENTS, "what to install has 65,535 characters"),
        (("a", 5), "one for each package"),
        ((), "name the packages to install"),
    ],
    ids=["long", "many", "a number", "nothing"],
)
def test_what_is_installed_is_checked(requirements: tuple[object, ...], said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        check_requirements(requirements)


def test_ordinary_code_passes() -> None:
    check_code("x = '\N{SNOWMAN}'")
    check_code("#" * MAX_CODE)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (b"1", "must be a string"),
        ("1\0", "NUL character at index 1"),
        ("'\ud800'", "index 1"),
        ("#" * (MAX_CODE + 1), "limit"),
    ],
)
def test_what_cannot_be_a_cell_is_refused(code: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        check_code(code)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\nx = 1\nx\n```", "x = 1\nx\n"),
        ("\n```\nx\n```\n", "x\n"),
        ("``` Py\r\nx\n```", "x\n"),
        ("```python\n```", ""),
        ("```bash\nls\n```", "```bash\nls\n```"),
        ("```python\nx", "```python\nx"),
        ("x = '```'", "x = '```'"),
        ("```", "```"),
    ],
)
def test_a_markdown_fence_around_a_cell_is_taken_off(text: str, code: str) -> None:
    assert without_fence(text) == code


def test_a_place_in_code_is_its_end_by_default() -> None:
    assert check_place("abc", None) == ("abc", 3)
    assert check_place("abc", 0) == ("abc", 0)
    for cursor in (-1, 4, True, 1.0, 10**6000):
        with pytest.raises(InvalidInputError, match="index from 0 to 3"):
            check_place("abc", cursor)  # type: ignore[arg-type]


def test_there_are_four_kinds_of_isolation() -> None:
    assert [find_tier(name) for name in get_args(Isolate)] == [*TIERS.values()]
    for unknown in ("docker", "Native", "", None, ["native"], NATIVE):
        with pytest.raises(InvalidInputError, match=r"^isolate must be 'native', 'landlock', 'srt' or 'none', not "):
            find_tier(unknown)


def test_no_sandbox_is_no_kind_of_sandbox() -> None:
    assert [find_sandbox(name, "isolate", "") for name in get_args(SandboxName)] == [NATIVE, LANDLOCK, SRT]
    for unknown in ("none", "docker", "", ["native"]):
        with pytest.raises(InvalidInputError, match=r"^kind must be 'native', 'landlock' or 'srt', not .*; do without$"):
            find_sandbox(unknown, "kind", "do without")


def test_who_starts_a_host_learns_what_this_machine_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "missing", lambda: ("one thing", "another"))
    monkeypatch.setattr(srt, "missing", lambda: ("srt itself",))
    monkeypatch.setattr(probe, "unsupported", lambda: None)
    monkeypatch.setattr(probe, "forbidden", lambda: Failure("user namespace", errno.EPERM, "not permitted"))
    for tier, message in (
        (LANDLOCK, "^this machine cannot run a sandbox made of Landlock: one thing; another$"),
        (SRT, "^this machine cannot run a sandbox of srt: srt itself$"),
        (NATIVE, "^this machine cannot run a sandbox: .*not permitted"),
    ):
        with pytest.raises(SandboxError, match=message):
            check_possible(tier)
        with pytest.raises(SandboxError, match=message):
            Host(isolate=tier.name)
    check_possible(NONE)
    monkeypatch.setattr(probe, "unsupported", lambda: "it is a toaster")
    with pytest.raises(SandboxError, match=r"^this machine cannot run a sandbox: it is a toaster$"):
        check_possible(NATIVE)


def test_programs_are_forbidden_only_in_a_native_sandbox_and_if_somebody_decides() -> None:
    check_forbidding(NATIVE, True)
    with pytest.raises(InvalidInputError, match="needs isolate='native'"):
        check_forbidding(NONE, True)
    with pytest.raises(InvalidInputError, match="needs on_command="):
        check_forbidding(NATIVE, False)


def test_no_policy_lets_a_session_write_this_program_or_read_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELLBLOCK_HOME", str(tmp_path))
    fitted = fit_policy(Policy.parse({"filesystem": {"allowWrite": ["/"]}}), NATIVE).filesystem
    assert str(tmp_path) in fitted.deny_read
    assert {*probe.own_directories(), str(tmp_path)} <= {*fitted.deny_write}


def test_a_policy_for_srt_is_for_srt() -> None:
    with pytest.raises(InvalidInputError, match="for isolate='srt' only"):
        fit_policy(SrtPolicy(), NATIVE)


def test_a_session_cannot_work_around_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELLBLOCK_HOME", str(tmp_path / "home" / "state"))
    check_state_apart([str(tmp_path / "work"), str(tmp_path / "home" / "state-of-others")])
    for place in (tmp_path, tmp_path / "home", tmp_path / "home" / "state", tmp_path / "home" / "state" / "work"):
        with pytest.raises(InvalidInputError, match="cellblock's own state"):
            check_state_apart([str(place)])


def test_who_starts_at_home_is_told_to_go_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.setenv("CELLBLOCK_HOME", str(tmp_path / "me" / ".local" / "state" / "cellblock"))
    for place in (tmp_path / "me", tmp_path):
        with pytest.raises(
            InvalidInputError, match=r"it contains your home directory .* Change to the directory of a project"
        ):
            check_state_apart([str(place)])
    with pytest.raises(InvalidInputError, match="cellblock's own state is in"):
        check_state_apart([str(tmp_path / "me" / ".local")])


def test_a_session_cannot_work_around_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELLBLOCK_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("CELLBLOCK_CONFIG", str(tmp_path / "settings" / "config.toml"))
    (tmp_path / "linked").mkdir()
    (tmp_path / "settings").mkdir()
    (tmp_path / "settings" / "config.toml").symlink_to(tmp_path / "linked" / "config.toml")
    check_state_apart([str(tmp_path / "work"), str(tmp_path / "settings" / "work")])
    for place in (tmp_path, tmp_path / "settings", tmp_path / "linked"):
        with pytest.raises(InvalidInputError, match="cellblock's own"):
            check_state_apart([str(place)])


def test_the_environment_chooses_the_sandbox_of_programs_that_do_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CELLBLOCK_ISOLATE", raising=False)
    assert default_tier() is NATIVE
    monkeypatch.setenv("CELLBLOCK_ISOLATE", "landlock")
    assert default_tier() is LANDLOCK


@pytest.mark.parametrize("value", ["none", "Landlock", "docker"])
def test_the_environment_does_not_turn_the_sandbox_off(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("CELLBLOCK_ISOLATE", value)
    with pytest.raises(InvalidInputError, match="CELLBLOCK_ISOLATE must be"):
        default_tier()


@pytest.mark.parametrize(
    "policy", [Policy(network=Network(allow=("example.org",))), Policy(network=Network(ask=True)), Policy(unix_sockets=True)]
)
def test_landlock_has_no_network_and_no_local_sockets(policy: Policy) -> None:
    with pytest.raises(InvalidInputError, match=r"isolate='landlock' (has|allows) no"):
        fit_policy(policy, LANDLOCK)


@pytest.mark.parametrize(
    ("policy", "complaint"),
    [
        ({"network": {}}, r"policy must be a Policy, not \{'network': \{\}\}: Policy.parse\(\) makes one"),
        (Policy(network={"allow": []}), "network must be a Network, not "),  # type: ignore[arg-type]
        (Policy(resources=Resources(memory=-1)), "resources.memory must be an integer from "),
    ],
)
def test_what_is_not_a_policy_is_refused(policy: Any, complaint: str) -> None:
    with pytest.raises(InvalidInputError, match=complaint):
        fit_policy(policy, NATIVE)


def test_secrets_by_the_names_of_entries_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CELLBLOCK_CONFIG", str(tmp_path / "config.toml"))
    file = tmp_path / "secrets.toml"
    file.write_text('[ACME]\nsource = "env:ACME"\nhosts = ["acme.test"]\n')
    file.chmod(0o600)
    assert only_names({"secrets": ["ACME"]})
    assert only_names({"secrets": ["ACME"], "environment": "data"})
    assert only_names({"environment": "data"})
    assert not only_names({"environment": {"packages": ["x"]}})
    others: list[dict[str, object]] = [
        {"secrets": "ACME"},
        {"secrets": {"ACME": {}}},
        {"secrets": ["ACME", "OTHER"]},
        {"secrets": [{"ACME": 1}]},
    ]
    for other in others:
        assert not only_names(other)
    for text in ("ACME=env:HOME", "ACME@evil.test", ""):
        assert not only_names({"secrets": [text]})
    assert not only_names({"secrets": ["ACME"], "sandbox": False})
