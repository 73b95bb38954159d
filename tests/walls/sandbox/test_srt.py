"""What srt is asked for, and what is said when it cannot be asked: without running it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cellblock import InvalidInputError
from cellblock.walls.sandbox import srt
from cellblock.walls.sandbox.policy import Filesystem, Network, Policy, Resources
from cellblock.walls.sandbox.probe import Facts
from cellblock.walls.sandbox.srt import SrtDirectories, SrtPolicy
from cellblock.wire.control import Setup

FACTS = Facts(
    machine="x86_64",
    uid=1000,
    gid=1000,
    system=(("/bin", "usr/bin"), ("/usr", None)),
    etc=(),
    home="/home/me",
)
PLACE = SrtDirectories(workspace="/home/me/project", private="/tmp/own", readable=("/opt/python",), secret=("/etc/shadow",))


def made(policy: Policy, *, there: dict[str, tuple[str, ...]] | None = None, platform: str = "linux") -> dict[str, Any]:
    return srt.settings(policy, FACTS, PLACE, look=(there or {}).get, platform=platform)


def test_the_default_policy_hides_everything_but_the_system_the_interpreter_and_the_workspace() -> None:
    files = made(Policy())["filesystem"]
    assert files["denyRead"][0] == "/"
    assert ".env" in files["denyRead"]
    assert "/etc/shadow" in files["denyRead"]
    assert files["allowRead"] == [
        "/bin",
        "/usr",
        "/etc",
        "/home/me/project",
        "/opt/python",
        "/tmp/own/run",
        "/tmp/own/packages",
    ]
    assert files["allowWrite"] == [".", "/tmp/own/tmp", "/tmp/own/home"]


def test_the_default_policy_reaches_nothing() -> None:
    network = made(Policy())["network"]
    assert network["allowedDomains"] == []
    assert network["allowAllUnixSockets"] is False


def test_what_a_policy_allows_is_allowed() -> None:
    policy = Policy(
        Filesystem(read=("/data",), write=(".", "~/out"), deny_read=("keys",), deny_write=()),
        Network(("example.org", "*.index.example:443"), ("bad.index.example",)),
        unix_sockets=True,
    )
    settings = made(policy)
    assert settings["network"]["allowedDomains"] == ["example.org", "*.index.example:443"]
    assert settings["network"]["deniedDomains"] == ["bad.index.example"]
    assert settings["network"]["allowAllUnixSockets"] is True
    assert "/data" in settings["filesystem"]["allowRead"]
    assert settings["filesystem"]["allowWrite"][:2] == [".", "~/out"]
    assert "keys" in settings["filesystem"]["denyRead"]


def test_a_policy_that_reads_everything_hides_only_what_it_denies() -> None:
    files = made(Policy(Filesystem(read=("/",), deny_read=(".env",))))["filesystem"]
    assert files["denyRead"] == [".env", "/home/me/.env", "/etc/shadow"]
    assert "/" not in files["allowRead"]


def test_only_what_is_there_is_protected_from_writing() -> None:
    # srt puts an empty file into the workspace for everything else, for the time that it runs.
    policy = Policy(Filesystem(deny_write=(".vscode", ".zshenv", "~/.ssh", "/srv/data")))
    there = {"/home/me/project/.vscode": (), "/home/me/.ssh": ("id",), "/srv/data": ("",)}
    assert made(policy, there=there)["filesystem"]["denyWrite"] == [".vscode", "~/.ssh", "/srv/data"]


def test_a_repository_is_protected_as_a_whole_where_srt_can() -> None:
    cases: list[tuple[tuple[str, ...], list[str]]] = [
        (("HEAD", "config", "hooks"), [".git"]),
        # srt would put hooks there to protect them, and could not where all of it is read-only.
        (("HEAD", "config"), [".git/HEAD", ".git/config"]),
        ((), []),
        # That of a worktree is a file.
        (("",), [".git"]),
    ]
    for names, denied in cases:
        policy = Policy(Filesystem(deny_write=(".git",)))
        assert made(policy, there={"/home/me/project/.git": names})["filesystem"]["denyWrite"] == denied


def test_what_is_there_is_seen(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("x")
    (tmp_path / "a").symlink_to("nowhere")
    assert srt.entries(str(tmp_path)) == ("a", "b")
    assert srt.entries(str(tmp_path / "b")) == ("",)
    assert srt.entries(str(tmp_path / "a")) == ("",)
    assert srt.entries(str(tmp_path / "c")) is None


def test_who_denies_everything_shows_the_system_and_what_is_allowed_again() -> None:
    wide = Filesystem(read=("/", "/data"), deny_read=("/", ".env"))
    assert made(Policy(wide)) == made(Policy(Filesystem(read=("/data",), deny_read=(".env",))))


def test_on_macos_homes_are_hidden_and_the_system_is_left_alone() -> None:
    files = made(Policy(), platform="darwin")["filesystem"]
    assert files["denyRead"][:2] == ["/Users", "/Volumes"]
    assert files["allowRead"] == ["/home/me/project", "/opt/python", "/tmp/own/run", "/tmp/own/packages"]


# -- settings of srt's own ---------------------------------------------------------------------------------------------


def written(path: Path, data: object) -> Path:
    file = path / "sandbox.json"
    file.write_text(json.dumps(data))
    return file


def test_settings_that_are_given_reach_srt_with_keys_that_nobody_here_knows(tmp_path: Path) -> None:
    given = {
        "network": {"allowedDomains": ["example.org"], "deniedDomains": [], "strictAllowlist": True},
        "filesystem": {"denyRead": [".env"], "allowWrite": ["."], "denyWrite": []},
        "newInSomeVersion": {"a": [1, None]},
    }
    settings = made(SrtPolicy.load(written(tmp_path, given)))
    assert settings["newInSomeVersion"] == {"a": [1, None]}
    assert settings["network"] == given["network"]
    assert settings["filesystem"] == {
        "denyRead": [".env"],
        "allowRead": ["/tmp/own/run", "/tmp/own/packages"],
        "allowWrite": [".", "/tmp/own/tmp"],
        "denyWrite": [],
    }


def test_settings_that_are_given_are_not_repaired(tmp_path: Path) -> None:
    for given in ({}, {"filesystem": 3}, {"filesystem": {"allowWrite": "x", "allowRead": None}}):
        assert made(SrtPolicy.load(written(tmp_path, given))) == given


def test_resources_of_given_settings_are_ours(tmp_path: Path) -> None:
    policy = SrtPolicy.load(written(tmp_path, {"resources": {"memory": 1 << 30}, "network": {}}))
    assert policy.resources == Resources(memory=1 << 30)
    assert json.loads(policy.given) == {"network": {}}
    with pytest.raises(InvalidInputError, match=r"resources\.memroy"):
        SrtPolicy.load(written(tmp_path, {"resources": {"memroy": 1}}))


def test_given_settings_cannot_be_narrowed(tmp_path: Path) -> None:
    policy = SrtPolicy.load(written(tmp_path, {"network": {}}))
    assert policy.narrow(SrtPolicy.load(written(tmp_path, {"network": {}}))) == policy
    with pytest.raises(InvalidInputError, match="cannot be compared"):
        policy.narrow(Policy())


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_program_starts_outside_of_the_workspace_and_with_a_home_of_its_own() -> None:
    line = srt.command_line(Policy(), PLACE, ["/opt/my python/bin/python", "boot.py", "zygote"])
    assert (
        line
        == "cd / && HOME=/tmp/own/home CELLBLOCK_PACKAGES=/tmp/own/packages exec '/opt/my python/bin/python' boot.py zygote"
    )


def test_given_settings_leave_the_home_as_it_is(tmp_path: Path) -> None:
    line = srt.command_line(SrtPolicy.load(written(tmp_path, {})), PLACE, ["python"])
    assert line == "cd / && CELLBLOCK_PACKAGES=/tmp/own/packages exec python"


def run_keeper(private: Path, *fake: str) -> subprocess.CompletedProcess[str]:
    """Run what keeps srt's directory, with something else in the place of srt."""
    script = private.parent / "srt"
    script.write_text("\n".join(["#!/bin/sh", *fake]))
    script.chmod(0o755)
    place = SrtDirectories(workspace=str(private.parent), private=str(private), readable=(), secret=())
    arguments = srt.command(place, str(script), "/dev/fd/9", "inner 'line'")
    environment = {"PATH": "/usr/bin:/bin", "PRIVATE": str(private)}
    return subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False, start_new_session=True)


def test_srt_has_a_directory_of_its_own_which_goes_with_it(tmp_path: Path) -> None:
    private = tmp_path / "own"
    done = run_keeper(private, 'stat -c %a "$PRIVATE"; ls "$PRIVATE"; printf "%s|" "$@"; touch "$PRIVATE/tmp/x"; exit 65')
    assert done.stdout.split("\n") == ["700", "home", "packages", "run", "tmp", "--settings|/dev/fd/9|-c|inner 'line'|"]
    assert done.returncode == 65
    assert not private.exists()


def test_the_directory_goes_when_srt_is_killed(tmp_path: Path) -> None:
    run_keeper(tmp_path / "own", "kill -9 $$")
    assert not (tmp_path / "own").exists()


def test_a_directory_that_is_there_already_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    done = run_keeper(tmp_path / "own", "echo started")
    assert done.returncode != 0
    assert "started" not in done.stdout
    assert (tmp_path / "own").exists()


def test_srt_is_told_nothing_of_this_programs_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY", "a secret")
    found = srt.environment(FACTS, PLACE)
    assert sorted(found) == ["CLAUDE_CODE_TMPDIR", "HOME", "PATH", "TMPDIR"]
    assert found["CLAUDE_CODE_TMPDIR"] == "/tmp/own/tmp"


# -- what kernels are told ---------------------------------------------------------------------------------------------


def told(policy: Policy) -> Setup:
    return srt.complete(Setup({}, "/work", None, "packages"), policy, FACTS)


def test_kernels_learn_of_proxies_only_where_something_can_be_reached(tmp_path: Path) -> None:
    assert told(Policy()).inherit == ("HOME", "TMPDIR")
    assert {"HTTP_PROXY", "https_proxy", "NO_PROXY"} <= {*told(Policy(network=Network(("example.org",)))).inherit}
    reached = {"network": {"allowedDomains": ["example.org"]}}
    assert "HTTPS_PROXY" in told(SrtPolicy.load(written(tmp_path, reached))).inherit
    assert "HTTPS_PROXY" not in told(SrtPolicy.load(written(tmp_path, {}))).inherit


def test_kernels_restrict_themselves_as_in_a_native_sandbox() -> None:
    restrictions = told(Policy(resources=Resources(open_files=100))).restrictions
    assert restrictions is not None
    assert restrictions.limits["NOFILE"] == 100


# -- what is missing ---------------------------------------------------------------------------------------------------


def missing(*there: str, platform: str = "linux") -> str:
    return "; ".join(srt.missing(lambda name: f"/usr/bin/{name}" if name in there else None, platform))


def test_nothing_is_missing_where_everything_is_there() -> None:
    assert missing("srt", "node", "bwrap", "socat", "rg", "bash") == ""
    assert missing("srt", "node", "rg", "bash", platform="darwin") == ""


def test_what_is_missing_is_named_with_how_to_get_it() -> None:
    assert missing("npm", "node", "bwrap", "socat", "rg", "bash") == (
        "the srt command is not installed: 'npm install -g @anthropic-ai/sandbox-runtime@0.0.78'"
    )
    assert "install Node.js 20 or newer, which brings npm, then 'npm install" in missing("bwrap", "socat", "rg", "bash")
    assert missing("srt", "node", "rg", "bash") == "srt needs bwrap, socat: 'apt-get install -y bubblewrap socat', or the like"
    assert missing("srt", "node", "bash", platform="darwin") == "srt needs rg: 'brew install ripgrep', or the like"


def test_what_only_some_may_read_is_found(tmp_path: Path) -> None:
    for name, mode in (("open", 0o644), ("shadow", 0o640), ("keys/private", 0o600), ("keys/public", 0o644)):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("x")
        file.chmod(mode)
    (tmp_path / "closed").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("shadow")
    found = [os.path.relpath(path, tmp_path) for path in srt.closed_to_others(str(tmp_path))]
    assert found == ["closed", "keys/private", "shadow"]


def test_the_command_line_survives_two_shells() -> None:
    argument = "a 'b' \"c\" $d `e` \\f"
    line = srt.command_line(Policy(), PLACE, ["printf", "%s", argument])
    quoted = shlex.quote(line)
    done = subprocess.run(["/bin/sh", "-c", f"/bin/bash -c {quoted}"], capture_output=True, text=True, check=True)
    assert done.stdout == argument


def test_an_installation_sees_what_the_session_sees_and_writes_and_reaches_other_things() -> None:
    policy = Policy(Filesystem(read=("/data",), write=(".", "~/out"), deny_read=(".env",)), Network(("example.org",)))
    changed = srt.for_installing(policy, "/own/packages/1", ["/wheels"], ["index.example:8443"])
    settings = made(changed)
    assert {"/data", ".", "~/out", "/wheels"} <= {*settings["filesystem"]["allowRead"]}
    assert ".env" in settings["filesystem"]["denyRead"]
    assert settings["filesystem"]["allowWrite"] == ["/own/packages/1", "/tmp/own/tmp", "/tmp/own/home"]
    assert settings["network"]["allowedDomains"] == ["index.example:8443"]
    assert changed.resources == policy.resources


def test_an_installation_with_settings_of_ones_own_keeps_all_but_what_it_writes_and_reaches() -> None:
    given = {
        "filesystem": {"denyRead": [".env"], "allowWrite": ["."], "denyWrite": ["x"]},
        "network": {"allowedDomains": ["example.org"], "deniedDomains": ["index.example"], "httpProxyPort": 8080},
        "enableWeakerNestedSandbox": False,
    }
    changed = srt.for_installing(SrtPolicy(given=json.dumps(given)), "/own/packages/1", ["/wheels"], ["index.example"])
    assert isinstance(changed, SrtPolicy)
    assert json.loads(changed.given) == {
        "filesystem": {"denyRead": [".env"], "allowWrite": ["/own/packages/1"], "denyWrite": [], "allowRead": ["/wheels"]},
        "network": {"allowedDomains": ["index.example"], "deniedDomains": [], "httpProxyPort": 8080},
        "enableWeakerNestedSandbox": False,
    }
