"""What a policy comes to under Landlock, and what is refused because it cannot come to that."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from cellblock.errors import InvalidInputError
from cellblock.walls.sandbox import landlock_rules
from cellblock.walls.sandbox.landlock_rules import rules
from cellblock.walls.sandbox.policy import Filesystem, Policy
from cellblock.wire.sandbox import Allow

from .model import FACTS, INTERPRETER


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A workspace."""
    path = tmp_path / "work"
    path.mkdir()
    return path


def read(allowed: tuple[Allow, ...], access: str = "read") -> list[str]:
    return [item.path for item in allowed if item.access == access]


def test_the_workspace_is_written_and_the_system_is_read(work: Path) -> None:
    allowed = rules(Policy(), FACTS, str(work), INTERPRETER)
    assert read(allowed, "write") == [str(work)]
    assert {"/usr", "/py", "/etc/fonts", "/etc/passwd"} <= {*read(allowed)}
    assert not {"/", "/etc", "/proc", "/dev", "/dev/shm", "/dev/pts", "/tmp", "/home", "/root", "/run"} & {*read(allowed)}
    assert read(allowed, "device") == ["/dev/full", "/dev/null", "/dev/random", "/dev/urandom", "/dev/zero"]


def test_around_a_denied_path_everything_else_is_allowed(tmp_path: Path, work: Path) -> None:
    data = tmp_path / "data"
    for name in ("one", "two/deep", "two/secret", "three"):
        (data / name).mkdir(parents=True)
    (data / "link").symlink_to("two/secret")
    policy = Policy(Filesystem(read=(str(data),), deny_read=(str(data / "two" / "secret"),)))
    below = [path for path in read(rules(policy, FACTS, str(work), INTERPRETER)) if path.startswith(str(data))]
    assert below == [str(data / name) for name in ("one", "three", "two/deep")]


def test_where_a_denied_link_leads_is_denied(tmp_path: Path, work: Path) -> None:
    data = tmp_path / "data"
    (data / "real").mkdir(parents=True)
    (data / "link").symlink_to("real")
    policy = Policy(Filesystem(read=(str(data),), deny_read=(str(data / "link"),)))
    assert not [path for path in read(rules(policy, FACTS, str(work), INTERPRETER)) if path.startswith(str(data))]


def test_everything_leaves_out_devices_processes_sockets_and_temporary_files(work: Path) -> None:
    allowed = read(rules(Policy(Filesystem(read=("/",))), FACTS, str(work), INTERPRETER))
    assert "/etc" in allowed
    assert not {"/", "/dev", "/proc", "/run", "/sys", "/tmp"} & {*allowed}


@pytest.mark.parametrize("name", [".env", ".ssh", "here"])
def test_a_secret_in_what_is_writable_is_refused_if_it_exists(work: Path, name: str) -> None:
    policy = Policy(Filesystem(deny_read=(".env", ".ssh", "here")))
    rules(policy, FACTS, str(work), INTERPRETER)
    (work / name).write_text("x")
    with pytest.raises(InvalidInputError, match=f"cannot protect {work}/{name} from .* move it elsewhere"):
        rules(policy, FACTS, str(work), INTERPRETER)
    rules(Policy(Filesystem(write=(), deny_read=())), FACTS, str(work), INTERPRETER)


def test_a_secret_behind_a_link_is_refused_where_it_lies(tmp_path: Path, work: Path) -> None:
    (work / "kept").write_text("x")
    (tmp_path / "link").symlink_to(work / "kept")
    with pytest.raises(InvalidInputError, match="cannot protect"):
        rules(Policy(Filesystem(deny_read=(str(tmp_path / "link"),))), FACTS, str(work), INTERPRETER)


def test_what_a_policy_names_in_deny_write_is_refused_whether_or_not_it_exists(work: Path) -> None:
    files = Policy().filesystem
    policy = Policy(replace(files, deny_write=(*files.deny_write, "config/keys")))
    with pytest.raises(InvalidInputError, match="deny_write names it"):
        rules(policy, FACTS, str(work), INTERPRETER)


@pytest.mark.parametrize("place", ["work/.venv", "work", "."], ids=["in it", "itself", "around it"])
def test_the_interpreter_is_not_the_sessions_to_change(tmp_path: Path, work: Path, place: str) -> None:
    interpreter = os.path.normpath(tmp_path / place)
    with pytest.raises(InvalidInputError, match=r"another working_dir|part of the interpreter"):
        rules(Policy(), FACTS, str(work), (interpreter,))


def test_rules_without_end_are_refused(tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock_rules, "_MOST", 40)
    data = tmp_path / "data"
    data.mkdir()
    for number in range(50):
        (data / str(number)).touch()
    with pytest.raises(InvalidInputError, match="the limit is 40"):
        rules(Policy(Filesystem(read=(str(data),), deny_read=(str(data / "7"),))), FACTS, str(work), INTERPRETER)


def test_only_the_zygote_of_such_sandboxes_has_an_example(monkeypatch: pytest.MonkeyPatch) -> None:
    assert landlock_rules.example() is None
    monkeypatch.setattr(landlock_rules, "_prepared", 3)
    found = landlock_rules.example()
    assert found is not None
    assert found.landlock == 3
    assert landlock_rules.writable(found) == ["/nowhere"]
