"""Which policy a session gets from the ways in which a program can ask for one."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cellblock import CodeExecutor, Filesystem, Host, InvalidInputError, Network, Policy, Resources
from cellblock.common.sandbox_options import SandboxOptions
from cellblock.host import SrtPolicy
from cellblock.host.requested_policy import as_in_ipybox, requested_policy
from cellblock.walls.sandbox.tiers import NATIVE, NONE, SRT, Tier

MIB = 2**20
NOTHING = SandboxOptions()
SETTINGS = {"network": {"allowedDomains": ["a.example"]}, "filesystem": {"allowWrite": ["."]}}
COMPLETE = {**SETTINGS, "filesystem": {"denyRead": ["~/.ssh"], "allowWrite": ["."], "denyWrite": []}}


def test_who_says_nothing_gets_the_policy_of_the_host() -> None:
    assert requested_policy(None, None, NOTHING, NATIVE) is None
    assert requested_policy(None, None, NOTHING, NONE) is None


def test_a_file_and_a_dict_mean_the_same(tmp_path: Path) -> None:
    path = tmp_path / "sandbox.json"
    path.write_text(json.dumps(SETTINGS))
    given = requested_policy(None, SETTINGS, NOTHING, NATIVE)
    assert given == requested_policy(None, path, NOTHING, NATIVE) == Policy.parse(SETTINGS)


@pytest.mark.parametrize("tier", [NATIVE, SRT])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"network": {"allowedDomains": ["a.example"]}},
        {"network": {}},
        {"filesystem": {}},
        {"filesystem": {"denyRead": ["x"]}},
        {"filesystem": {"denyRead": []}},
        {"filesystem": {"denyRead": [], "denyWrite": []}},
        {"filesystem": {"allowWrite": ["."]}},
        {"filesystem": {"allowRead": ["/data"]}},
        {"resources": {"processes": 100}},
        {"enableWeakerNestedSandbox": True},
        {**COMPLETE, "defaults": "cellblock"},
    ],
)
def test_a_setting_widens_only_what_it_names(settings: dict[str, Any], tier: Tier) -> None:
    policy = requested_policy(None, settings, NOTHING, tier)
    assert type(policy) is Policy
    assert policy.filesystem.read == tuple(settings.get("filesystem", {}).get("allowRead", ()))
    assert policy.filesystem.write == (".",)
    assert set(Filesystem().deny_read) <= set(policy.filesystem.deny_read)
    assert set(Filesystem().deny_write) <= set(policy.filesystem.deny_write)
    assert policy.network.allow == tuple(settings.get("network", {}).get("allowedDomains", ()))


def test_named_sessions_show_what_complete_settings_name_and_srt_gets_them_unchanged() -> None:
    ours = requested_policy(None, COMPLETE, NOTHING, NATIVE)
    assert ours is not None
    assert ours.filesystem.read == ()
    given = requested_policy(None, {**COMPLETE, "new": True, "resources": {"processes": 20}}, NOTHING, SRT)
    assert isinstance(given, SrtPolicy)
    assert json.loads(given.given) == {**COMPLETE, "new": True}
    assert given.resources.processes == 20


def test_who_wants_the_meaning_of_sandbox_runtime_names_it() -> None:
    named = requested_policy(None, {"defaults": "sandbox-runtime", "filesystem": {"denyRead": ["x"]}}, NOTHING, NATIVE)
    assert named is not None
    assert named.filesystem == Filesystem(("/",), (), ("x", ".env"), Filesystem().deny_write)
    own = requested_policy(None, {"defaults": "sandbox-runtime", "filesystem": {"denyRead": ["x"]}}, NOTHING, SRT)
    assert isinstance(own, SrtPolicy)
    assert json.loads(own.given) == {"filesystem": {"denyRead": ["x"]}}


def test_options_change_what_they_name_and_nothing_else() -> None:
    policy = Policy(network=Network(allow=("a.example",), deny=("b.example",)), resources=Resources(processes=99))
    given = SandboxOptions(memory="1G", read="/r", write="/w", hosts="c.example:8443", allow_hosts=["*.d.example"])
    found = requested_policy(policy, None, given, NATIVE)
    assert found is not None
    assert found.network == Network(allow=("a.example", "*.d.example", "c.example:8443"), deny=("b.example",))
    assert found.filesystem == Filesystem(("/r",), (".", "/w"))
    assert found.resources == Resources(memory=1024 * MIB, processes=99)
    assert requested_policy(policy, None, NOTHING, NATIVE) is policy
    assert requested_policy(None, None, SandboxOptions(memory="1G"), SRT) == Policy(resources=Resources(memory=1024 * MIB))


def test_options_are_added_to_settings_of_srt() -> None:
    given = SandboxOptions(memory="1G", read="/r", write="/w", hosts="c.example")
    found = requested_policy(None, COMPLETE, given, SRT)
    assert isinstance(found, SrtPolicy)
    settings = json.loads(found.given)
    assert settings["filesystem"] == {
        "denyRead": ["~/.ssh"], "allowRead": ["/r"], "allowWrite": [".", "/w"], "denyWrite": []
    }  # fmt: skip
    assert settings["network"] == {"allowedDomains": ["a.example", "c.example"]}
    assert found.resources.memory == 1024 * MIB


@pytest.mark.parametrize(
    ("policy", "config", "options", "tier", "message"),
    [
        (Policy(), None, {}, NONE, "^policy describes the sandbox, but sandbox=False turns it off"),
        (None, {}, {}, NONE, "sandbox=False turns it off"),
        (None, None, {"hosts": ["a"], "memory": "1G"}, NONE, "^memory and hosts describe the sandbox, but sandbox=False"),
        (Policy(), {}, {}, NATIVE, "not both"),
        ({}, None, {}, NATIVE, "must be a Policy"),
        (None, {**COMPLETE, "network": {1}}, {}, SRT, "sandbox_config is not valid JSON"),
        (None, {"resources": {"memory": "much"}}, {}, SRT, "memory"),
        (None, {"netwrk": {}}, {}, NATIVE, "netwrk"),
        (None, {"network": None}, {}, NATIVE, "network must be an object"),
        (None, {"filesystem": {"allowRead": None}}, {}, NATIVE, "allowRead must be a list"),
        (None, {"defaults": "srt"}, {}, NATIVE, "defaults must be 'cellblock' or 'sandbox-runtime', not 'srt'"),
        (None, [], {}, NATIVE, "must be the path of a file, or a dict"),
        (None, None, {"memory": 2}, NATIVE, "memory must be from 64 MiB .*, not 2 bytes: write a size with its unit"),
        (None, None, {"memory": "2000T"}, NATIVE, "memory must be from 64 MiB to"),
        (None, None, {"hosts": "http://a.example"}, NATIVE, "^hosts: .*Write a host, not a URL"),
        (None, None, {"allow_hosts": ["a b c"]}, NATIVE, "^allow_hosts: "),
        (None, None, {"write": "/"}, NATIVE, "write: / belongs to the system"),
        (None, None, {"write": "/etc/x"}, NATIVE, "write: /etc/x belongs to the system"),
    ],
)
def test_what_makes_no_sense_is_refused(policy: Any, config: Any, options: Any, tier: Tier, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        requested_policy(policy, config, SandboxOptions(**options), tier)


async def test_a_session_gets_no_more_than_its_host_has(tmp_path: Path) -> None:
    (tmp_path / "data" / "part").mkdir(parents=True)
    ceiling = Policy(
        Filesystem(read=(str(tmp_path / "data"),)), Network(("*.a.example",)), Resources(memory=512 * MIB, processes=99)
    )
    async with Host(policy=ceiling, launch="spawn") as host:
        for name, given, message in (
            ("memory", "1G", "memory must be from 64 MiB to 512 MiB here"),
            ("read", tmp_path, "not allowed by the host's policy"),
            ("write", tmp_path, "not allowed by the host's policy"),
            ("hosts", "b.example", "not allowed by the host's policy"),
        ):
            with pytest.raises(InvalidInputError, match=message):
                host.session(
                    policy=requested_policy(None, None, SandboxOptions(**{name: given}), NATIVE, host)  # type: ignore[arg-type]
                )
        options = SandboxOptions(memory="256M", read=tmp_path / "data" / "part", hosts="x.a.example")
        assert requested_policy(None, None, options, NATIVE, host) == replace(
            host.defaults.policy, resources=Resources(memory=256 * MIB, processes=99)
        )


def test_ipybox_shows_everything_by_complete_settings_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (".ssh", ".aws"):
        (tmp_path / name).mkdir()
    config, warning = as_in_ipybox(COMPLETE)
    assert config == {**COMPLETE, "defaults": "sandbox-runtime"}
    assert "every file that this user can read, except ~/.ssh, .env; among them ~/.aws." in warning
    path = tmp_path / "complete.json"
    path.write_text(json.dumps(COMPLETE))
    assert as_in_ipybox(path) == (config, warning)
    for silent in (SETTINGS, {}, {**COMPLETE, "defaults": "cellblock"}, {**COMPLETE, "defaults": "sandbox-runtime"}):
        assert as_in_ipybox(silent) == (silent, "")
    with pytest.warns(UserWarning, match="among them ~/.aws"):
        CodeExecutor(sandbox_config=COMPLETE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CodeExecutor(sandbox_config=SETTINGS)


READ = """
import os
for path in {paths!r}:
    try:
        print(open(path).read())
    except OSError as error:
        print(type(error).__name__)
"""


async def test_a_file_about_hosts_shows_no_file(native_host: Host, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "home" / ".ssh").mkdir(parents=True)
    key = tmp_path / "home" / ".ssh" / "id_rsa"
    key.write_text("KEY")
    settings = tmp_path / "sandbox.json"
    settings.write_text('{"network": {"allowedDomains": ["a.example"]}}')
    async with CodeExecutor(host=native_host, working_dir=tmp_path / "work", sandbox_config=settings) as executor:
        result = await executor.execute(READ.format(paths=[str(key)]))
    assert result.text == "FileNotFoundError"


async def test_what_is_read_and_written_has_its_secrets_masked_and_its_names_protected(
    native_host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("work", "home/.ssh", "project/.git", "project/sub"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("home/.ssh/id_rsa", "home/notes", "project/.env", "project/sub/.env", "project/a"):
        (tmp_path / name).write_text(name)
    monkeypatch.chdir(tmp_path)
    code = READ.format(
        paths=[str(tmp_path / name) for name in ("home/notes", "home/.ssh/id_rsa", "project/a", "project/.env")]
    )
    code += """
for name in ("new", ".git/config", ".vscode", ".env", ".claude/x"):
    try:
        print(open(f"{project}/" + name, "w").write("x"))
    except OSError as error:
        print(type(error).__name__)
""".replace("{project}", str(tmp_path / "project")).replace('f"', '"')
    async with CodeExecutor(host=native_host, working_dir="work", read="home", write=["project"]) as executor:
        result = await executor.execute(code)
    assert result.text is not None
    said = result.text.split()
    assert said[:6] == ["home/notes", "PermissionError", "project/a", "PermissionError", "1", "OSError"]
    assert all(word.endswith("Error") for word in said[6:]), said
    assert (tmp_path / "project" / "new").read_text() == "x"


async def test_a_limit_of_memory_names_the_option(native_host: Host, tmp_path: Path) -> None:
    async with CodeExecutor(host=native_host, working_dir=tmp_path, memory="256M") as executor:
        result = await executor.execute("b = bytearray(400 << 20)", check=False)
    assert result.error is not None
    assert (
        'may use 256 MiB; for more, make a session with memory="512M" (on the command line: --memory 512M)'
        in result.error.evalue
    )
