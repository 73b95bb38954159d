"""Where control groups are found and how they are used, on directories that look like the kernel's."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from cellblock.walls.sandbox import cgroups
from cellblock.walls.sandbox.policy import Resources

USER = "user.slice/user-1000.slice/user@1000.service"


@dataclass
class Machine:
    """A machine of files: what of /proc and /sys/fs/cgroup is looked at."""

    top: Path
    proc: Path

    def group(self, path: str, enabled: str = "", processes: str = "") -> Path:
        """Make a group, which hands down what its parent has handed to it."""
        directory = self.top / path
        directory.mkdir(exist_ok=True)
        available = "memory pids cpu" if directory == self.top else (directory.parent / "cgroup.subtree_control").read_text()
        files = {"cgroup.controllers": available, "cgroup.subtree_control": enabled, "cgroup.procs": processes}
        if "memory" in available and directory != self.top:
            files |= {"memory.max": "max\n", "memory.high": "max\n"}
        if "cpu" in available and directory != self.top:
            files |= {"cpu.max": "max 100000\n"}
        for name, content in files.items():
            (directory / name).write_text(content)
        return directory

    def run_in(self, path: str, mount: str = "/", hierarchies: str = "") -> None:
        (self.proc / "self" / "cgroup").write_text(f"{hierarchies}0::{path}\n")
        point = str(self.top).replace(" ", "\\040")
        lines = f"24 1 0:22 / /proc rw - proc proc rw\n31 24 0:27 {mount} {point} rw,nosuid shared:9 - cgroup2 cgroup2 rw\n"
        (self.proc / "self" / "mountinfo").write_text(lines)

    def run_alone_in(self, path: str) -> Path:
        """Run in a new group, without other processes."""
        directory = self.group(path, processes="77\n")
        self.run_in(f"/{path}")
        return directory

    def find(self) -> cgroups.Availability:
        return cgroups.find(str(self.proc))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path / "sys fs" / "cgroup", tmp_path / "proc")
    made.top.mkdir(parents=True)
    (made.proc / "77").mkdir(parents=True)
    (made.proc / "self").symlink_to("77")
    made.group("", enabled="memory pids cpu")
    return made


@pytest.fixture
def desktop(machine: Machine) -> Machine:
    """A user's part of a machine with systemd: everything above user@1000.service belongs to somebody else."""
    for path in ("user.slice", "user.slice/user-1000.slice", USER, f"{USER}/app.slice"):
        machine.group(path, enabled="memory pids")
    for path in ("", "user.slice", "user.slice/user-1000.slice"):
        forbid(machine.top / path)
    return machine


def forbid(directory: Path) -> None:
    """Take a group away from this user, who may be root, to whom nothing but an owner tells whose a file is."""
    if os.geteuid() == 0:
        os.chown(directory / "cgroup.procs", 12345, 12345)
    else:
        (directory / "cgroup.procs").chmod(0o444)


def test_a_scope_of_the_users_own_has_groups_beside_it(desktop: Machine) -> None:
    desktop.group(f"{USER}/app.slice/run-1.scope", processes="76\n77\n")
    desktop.run_in(f"/{USER}/app.slice/run-1.scope")
    assert desktop.find() == cgroups.Availability(str(desktop.top / USER / "app.slice"))


def test_the_nearest_group_that_hands_memory_down_is_taken(desktop: Machine) -> None:
    (desktop.top / USER / "app.slice" / "cgroup.subtree_control").write_text("pids\n")
    (desktop.top / USER / "app.slice" / "cgroup.controllers").write_text("pids\n")
    desktop.run_alone_in(f"{USER}/app.slice/run-1.scope")
    assert desktop.find().directory == str(desktop.top / USER)


def test_a_shell_on_a_console_has_none_and_is_told_how(desktop: Machine) -> None:
    forbid(desktop.run_alone_in("user.slice/user-1000.slice/session-3.scope"))
    found = desktop.find()
    assert found.directory is None
    assert "is delegated to this user" in found.why
    assert "systemd-run --user --scope" in found.remedy


def test_a_delegated_service_with_a_subgroup_can_hand_memory_down_when_asked(desktop: Machine) -> None:
    service = desktop.group(f"{USER}/app.slice/own.service")
    desktop.run_alone_in(f"{USER}/app.slice/own.service/main")
    (service / "cgroup.subtree_control").write_text("")
    assert desktop.find().directory == str(service)


def test_a_group_with_processes_hands_nothing_down(desktop: Machine) -> None:
    desktop.group(f"{USER}/app.slice/own.service", processes="5\n")
    desktop.run_alone_in(f"{USER}/app.slice/own.service/main")
    assert desktop.find().directory == str(desktop.top / USER / "app.slice")


@pytest.mark.parametrize(("name", "value"), [("memory.max", "1073741824"), ("memory.high", "5"), ("cpu.max", "50000 100000")])
def test_no_group_is_made_past_a_limit(desktop: Machine, name: str, value: str) -> None:
    scope = desktop.run_alone_in(f"{USER}/app.slice/run-1.scope")
    (desktop.top / USER / "app.slice" / "cpu.max").write_text("max 100000\n")
    (scope / name).write_text(value)
    found = desktop.find()
    assert found.directory is None
    assert f"{scope} has a {name}" in found.why


def test_a_limit_above_the_place_holds_anyway(desktop: Machine) -> None:
    (desktop.top / USER / "app.slice" / "memory.max").write_text("1073741824")
    desktop.run_alone_in(f"{USER}/app.slice/run-1.scope")
    assert desktop.find().directory == str(desktop.top / USER / "app.slice")


def test_the_root_may_have_processes_and_groups(machine: Machine) -> None:
    (machine.top / "cgroup.procs").write_text("1\n77\n")
    machine.run_in("/")
    assert machine.find().directory == str(machine.top)


def test_nothing_is_enabled_for_the_whole_machine(machine: Machine) -> None:
    machine.run_alone_in("main")
    (machine.top / "cgroup.subtree_control").write_text("")
    found = machine.find()
    assert found.directory is None
    assert "cgroup.subtree_control" in found.remedy


def test_a_hybrid_hierarchy_has_no_memory_controller(machine: Machine) -> None:
    (machine.top / "cgroup.controllers").write_text("\n")
    machine.run_in("/", hierarchies="4:memory:/x\n1:name=systemd:/x\n")
    assert "without the memory controller" in machine.find().why


def test_no_cgroup_v2_at_all(machine: Machine) -> None:
    (machine.proc / "self" / "cgroup").write_text("4:memory:/x\n")
    (machine.proc / "self" / "mountinfo").write_text("24 1 0:22 / /proc rw - proc proc rw\n")
    assert machine.find().why == "there is no cgroup v2"
    assert cgroups.find(str(machine.proc / "none")).why == "there is no cgroup v2"


def test_a_mount_of_a_part_is_followed(machine: Machine) -> None:
    machine.group("inner", processes="77\n")
    machine.run_in("/docker/abc/inner", mount="/docker/abc")
    assert machine.find().directory == str(machine.top)


@pytest.mark.parametrize(("path", "mount"), [("/docker/abcd", "/docker/abc"), ("/other", "/docker/abc")])
def test_a_mount_of_another_part_is_none_of_ours(machine: Machine, path: str, mount: str) -> None:
    machine.run_in(path, mount=mount)
    assert machine.find().directory is None


def test_a_path_that_is_another_groups_is_not_believed(machine: Machine) -> None:
    machine.group("main", processes="5\n")
    machine.run_in("/main")
    assert "another cgroup namespace" in machine.find().why


def test_where_clone3_is_filtered_there_are_none(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "_can_clone_into", lambda: False)
    machine.run_alone_in("main")
    assert "clone3 is forbidden" in machine.find().why


# -- making and removing -------------------------------------------------------------------------------------------------


@pytest.fixture
def place(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place for groups, which fills with files what is made in it, and removes directories that look empty."""
    mkdir, rmdir = os.mkdir, os.rmdir

    def make(path: str, mode: int = 0o777) -> None:
        mkdir(path, mode)
        machine.group(os.path.relpath(path, machine.top))
        # The kernel takes one write for one controller, and keeps what it was told before.
        (Path(path) / "memory.events").write_text("low 0\nhigh 0\nmax 3\noom 0\noom_kill 0\noom_group_kill 0\n")

    def remove(path: str) -> None:
        if not os.path.isdir(path):
            raise FileNotFoundError(path)
        if any(entry.is_dir() for entry in os.scandir(path)) or (Path(path) / "cgroup.procs").read_text():
            raise OSError(16, "busy")
        for entry in os.scandir(path):
            os.unlink(entry)
        rmdir(path)

    monkeypatch.setattr(os, "mkdir", make)
    monkeypatch.setattr(os, "rmdir", remove)
    monkeypatch.setattr(os, "makedirs", lambda path, exist_ok: make(path))
    return machine.group("place", enabled="memory pids cpu")


def test_a_group_limits_all_of_it(place: Path) -> None:
    groups = cgroups.Groups(str(place))
    group = groups.make()
    group.limit(Resources(memory=300 << 20, processes=40, cpu=50))
    written = {entry.name: entry.read_text() for entry in Path(group.path).iterdir()}
    assert written["memory.max"] == str(300 << 20)
    assert written["memory.swap.max"] == "0"
    assert written["memory.oom.group"] == "1"
    assert (written["pids.max"], written["cpu.weight"]) == ("40", "50")


def test_its_name_tells_whose_it_is(place: Path) -> None:
    group = cgroups.Groups(str(place)).make()
    name = Path(group.path).parent.name
    assert name.startswith(f"cellblock-{os.getpid()}-")
    assert Path(group.path).parent.parent == place


def test_controllers_are_enabled_below_ours_and_nothing_changes_above(place: Path) -> None:
    group = cgroups.Groups(str(place)).make()
    assert (place / "cgroup.subtree_control").read_text() == "memory pids cpu"
    assert (Path(group.path).parent / "cgroup.subtree_control").read_text().startswith("+")
    # Except in a service with a subgroup.
    (place / "cgroup.subtree_control").write_text("")
    cgroups.Groups(str(place)).make()
    assert (place / "cgroup.subtree_control").read_text().startswith("+")


def test_groups_of_two_hosts_are_apart_and_closing_removes_all_of_one(place: Path) -> None:
    first, second = cgroups.Groups(str(place)), cgroups.Groups(str(place))
    assert Path(first.make().path).parent != Path(second.make().path).parent
    first.make()
    first.close()
    assert len(list(place.glob("cellblock-*"))) == 1
    second.close()
    assert not list(place.glob("cellblock-*"))


def test_a_group_with_somebody_in_it_is_killed_and_not_gone_yet(place: Path) -> None:
    group = cgroups.Groups(str(place)).make()
    (Path(group.path) / "cgroup.procs").write_text("9\n")
    assert not group.remove()
    assert (Path(group.path) / "cgroup.kill").read_text() == "1"
    (Path(group.path) / "cgroup.procs").write_text("")
    assert group.remove()
    assert group.remove()


def test_what_a_killed_host_left_is_swept_and_nothing_else(place: Path) -> None:
    living = cgroups.Groups(str(place)).make()
    started = Path(living.path).parent.name.split("-")[2]
    for name in (f"cellblock-{os.getpid()}-{int(started) + 1}-1", "cellblock-4194304-5-1", "cellblock-1-x-1", "somebody"):
        os.mkdir(place / name)
        os.mkdir(place / name / "1")
    os.mkdir(place / "cellblock-4194304-5-2")
    (place / "cellblock-4194304-5-2" / "cgroup.procs").write_text("7\n")
    cgroups.Groups(str(place))
    assert {entry.name for entry in place.iterdir() if entry.is_dir()} == {
        Path(living.path).parent.name,
        "cellblock-4194304-5-2",  # somebody is in it
        "cellblock-1-x-1",
        "somebody",
    }
    assert not (place / "cellblock-4194304-5-2" / "cgroup.kill").exists()


def test_a_group_that_was_swept_by_mistake_is_made_again(place: Path) -> None:
    groups = cgroups.Groups(str(place))
    path = groups.make().path
    os.rmdir(path)
    os.rmdir(os.path.dirname(path))
    assert os.path.isdir(groups.make().path)


@pytest.mark.parametrize(
    ("events", "ran_out"),
    [
        ("low 0\noom 1\noom_kill 2\noom_group_kill 1\n", True),
        ("low 0\noom 1\noom_kill 0\noom_group_kill 0\n", False),
        ("", False),
        (None, False),
    ],
)
def test_what_the_kernel_has_killed_is_read(tmp_path: Path, events: str | None, ran_out: bool) -> None:
    if events is not None:
        (tmp_path / "memory.events").write_text(events)
    assert cgroups.Group(str(tmp_path)).ran_out_of_memory() is ran_out
