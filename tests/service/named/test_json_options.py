"""The options of a named session as JSON data: each is read by its name and type, and what is wrong is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cellblock import Filesystem
from cellblock.common.environments import PackageSet
from cellblock.errors import InvalidInputError, NotFoundError
from cellblock.host.environments.store import Store
from cellblock.service.named.json_options import read_options, with_real_paths


def test_options_go_to_whom_they_are_for(tmp_path: Path) -> None:
    read = read_options({"working_dir": str(tmp_path), "approve": "auto", "approve_shell_cmds": True, "idle_timeout": None})
    assert (read.named.approve, read.named.idle_timeout) == ("auto", None)
    assert read.services.approve_shell_cmds
    assert read.session.images_dir == str(tmp_path / "images")  # not in the directory of the daemon


def test_what_is_wrong_is_named() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"working_dri": "."}, "there is no option 'working_dri'; did you mean 'working_dir'"),
        ({"timeout": 5}, "there is no option 'timeout' of a session: each execution has its own"),
        ({"cwd": "."}, "there is no option 'cwd'; did you mean 'working_dir'"),
        (
            {"workspace": "."},
            "workspace must be 'clone', 'dirty-clone' or None, not '.': the option for a dir",
        ),
        ({"processes": 1}, r"the sandbox's policy limits it: sandbox_config=\{'resources': \{'processes': …\}\}$"),
        ({"memory": 1}, "memory must be from 64 MiB to"),
        ({"read": 1}, "read must be a path"),
        ({"nothing like it": 1}, "there is no option 'nothing like it'$"),
        ({"policy": {}}, "there is no option 'policy'"),  # an object of Python, and no data
        ({"on_command": "x"}, "there is no option 'on_command'"),
        ({"approve": "never"}, "approve: "),
        ({"idle_timeout": "soon"}, "idle_timeout: "),
        ({"idle_timeout": -1}, "idle_timeout must be a positive number of seconds, or 0 for never, not -1"),
        ({"idle_timeout": float("nan")}, "not nan"),
        ({"limits": {"tetx": 1}}, "limits can be .*, not tetx"),
        ({"rules": "/missing"}, "missing"),
    ]
    for given, complaint in cases:
        with pytest.raises(InvalidInputError, match=complaint):
            read_options(given)


def test_the_home_directory_can_be_the_workspace_in_a_sandbox() -> None:
    assert read_options({}).session.policy is None
    read = read_options({"home_is_workspace": True, "allow_hosts": ["a.example"]})
    assert read.session.policy is not None
    assert read.session.policy.filesystem == Filesystem(home_is_workspace=True)
    assert read.session.policy.network.allow == ("a.example",)
    with pytest.raises(InvalidInputError, match="home_is_workspace describes a sandbox"):
        read_options({"home_is_workspace": True, "sandbox": False})


def test_limits_are_given_by_name() -> None:
    limits = read_options({"limits": {"text": 1000}}).session.limits
    assert limits is not None
    assert limits.text == 1000


def test_a_string_is_no_list_of_hosts() -> None:
    with pytest.raises(InvalidInputError, match=r"allow_hosts must be a list of host names, not 'example\.org'"):
        read_options({"allow_hosts": "example.org"})


def test_a_made_session_gets_real_paths_and_one_that_goes_on_keeps_them(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to("data")
    given = {"current_dir": str(tmp_path), "read": ["link"], "write": str(tmp_path / "data"), "memory": "1G"}
    made = with_real_paths(given)
    assert made == {**given, "read": [str(tmp_path / "data")], "write": [str(tmp_path / "data")]}
    (tmp_path / "data").rmdir()
    (tmp_path / "data").symlink_to("/")
    policy = read_options(made).session.policy
    assert policy is not None
    assert (policy.filesystem.read, policy.resources.memory) == ((str(tmp_path / "data"),), 2**30)
    with pytest.raises(InvalidInputError, match=r"read: .*/missing does not exist"):
        with_real_paths({"read": str(tmp_path / "missing")})
    with pytest.raises(InvalidInputError, match="write: 'data' is relative to an unknown directory"):
        with_real_paths({"write": "data"})


def test_without_a_sandbox_there_is_none() -> None:
    assert read_options({"sandbox": False}).session.isolate == "none"
    with pytest.raises(InvalidInputError):
        read_options({"sandbox": False, "allow_hosts": ["example.org"]})


def test_a_session_works_where_its_maker_runs(tmp_path: Path) -> None:
    session = read_options({"current_dir": str(tmp_path), "working_dir": None}).session
    assert (session.working_dir, session.images_dir) == (str(tmp_path), str(tmp_path / "images"))
    assert read_options({"current_dir": "/elsewhere", "working_dir": str(tmp_path)}).session.working_dir == str(tmp_path)


def test_a_home_directory_that_nobody_has_named_is_no_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, link = tmp_path / "home", tmp_path / "link"
    home.mkdir()
    link.symlink_to(home)
    monkeypatch.setenv("HOME", str(link))
    for place in (tmp_path, home, link):
        with pytest.raises(InvalidInputError, match="where this program runs, contains your home directory"):
            read_options({"current_dir": str(place)})
        read_options({"current_dir": str(place), "sandbox": False})
        read_options({"working_dir": str(place)})


def test_a_made_session_keeps_the_packages_of_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELLBLOCK_HOME", str(tmp_path))
    lock = PackageSet(("six==1.17",), {"six": ("0" * 64,)}, exact=True, base="empty", title="environment data")
    record = {"environments": "key", "answers": "key", "made": 0.0, "asked": lock.to_dict(), "lock": lock.to_dict()}
    Store().add_name("data", record)
    made = with_real_paths({"environment": "data"})
    Store().remove_name("data")
    assert read_options(with_real_paths(made)).session.environment == lock
    with pytest.raises(NotFoundError, match="there is no environment 'data'"):
        with_real_paths({"environment": "data"})
