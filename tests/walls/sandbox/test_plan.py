"""Plans: a pure function of policy and facts, in an order in which each step can be done."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest

from cellblock import InvalidInputError
from cellblock.walls.linux import seccomp
from cellblock.walls.sandbox.plan import (
    BASE,
    ENVIRONMENT_PLACE,
    HOME,
    base_steps,
    check_unnamed_workspace,
    check_workspace,
    environment_steps,
    grafts,
    make_plan,
    usual_beginning,
)
from cellblock.walls.sandbox.policy import MAKEABLE, PROTECTED, Filesystem, Network, Policy, Resources
from cellblock.wire.control import TO_NEW_INIT, Setup
from cellblock.wire.datagrams import encode_control
from cellblock.wire.sandbox import Bind, Devpts, Graft, Link, Mask, Plan, Proc, Protect, ReadOnly, Sysctl, Tmpfs

from .model import FACTS, INTERPRETER, NOTHING, READ, WORKSPACE, WRITE, access, inside


def plan(filesystem: Filesystem | None = None, workspace: str = WORKSPACE, interpreter: tuple[str, ...] = INTERPRETER) -> Plan:
    return make_plan(Policy(filesystem or Filesystem()), FACTS, workspace, interpreter)


def test_the_steps_of_a_small_policy() -> None:
    policy = Policy(
        Filesystem(read=("/data",), write=(".",), deny_read=(".env",), deny_write=(".vscode",)), resources=Resources(tmp=2**20)
    )
    steps = make_plan(policy, FACTS, WORKSPACE, INTERPRETER).steps
    assert [step for step in steps if isinstance(step, Sysctl) or not step.target.startswith("/proc/")] == [
        Tmpfs("/tmp", 2**20, 0o1777),
        Tmpfs(HOME, 2**20, 0o755),
        Graft("/usr"),
        Graft("/py"),
        Graft("/etc"),
        Graft("/sys"),
        Graft("/dev"),
        Link("/bin", "usr/bin"),
        Tmpfs("/dev/shm", 2**20, 0o1777),
        Devpts("/dev/pts"),
        Proc("/proc"),
        Sysctl("kernel/pid_max", "812", 6, 14),
        Sysctl("kernel/ns_last_pid", "299", 6, 14, optional=True),
        Sysctl("user/max_inotify_instances", "16", 5, 12),
        Sysctl("user/max_inotify_watches", "16384", 5, 12),
        Bind("/data", "/data", "ro"),
        Bind("/w", "/w", "rw"),
        Mask("/data/.env", None),
        Mask("/w/.env", "/w"),
        Protect("/w", "/w/.vscode"),
    ]


def test_plans_begin_with_what_was_done_ahead_unless_their_policy_is_unusual() -> None:
    usual = usual_beginning(FACTS, INTERPRETER)

    def begins(policy: Policy) -> bool:
        return bool(make_plan(policy, FACTS, WORKSPACE, INTERPRETER).steps[: len(usual)] == usual)

    assert begins(Policy())
    assert begins(Policy(Filesystem(read=("/data",), deny_read=("secret",)), Network(("x.org",)), Resources(processes=400)))
    assert not begins(Policy(resources=Resources(tmp=2**20)))
    assert not begins(Policy(Filesystem(read=("/",))))


def test_what_is_mounted_into_proc_is_below_its_seals() -> None:
    steps = plan(Filesystem(read=("/proc",))).steps
    assert steps.index(Bind("/proc", "/proc", "ro")) < len(steps) - 1 - steps[::-1].index(Mask("/proc/kcore"))
    assert isinstance(steps[-1], ReadOnly)


def test_the_steps_that_all_sessions_share() -> None:
    steps = base_steps(FACTS, ("/py", "/py/lib", "/usr/lib/python3"))
    binds = [step for step in steps if isinstance(step, Bind)]
    assert [step.source for step in binds if step.access == "ro" and not step.optional] == [
        "/usr",
        "/py",
        "/etc/fonts",
        "/usr/share/zoneinfo/UTC",
    ]
    assert {step.access for step in binds} == {"ro", "dev"}
    assert grafts(steps) == ["/usr", "/py", "/etc", "/sys", "/dev"]


def test_a_plan_is_plain_data_and_the_same_each_time() -> None:
    policy = Policy(network=Network(allow=("example.org",)))
    first = make_plan(policy, FACTS, WORKSPACE, INTERPRETER)
    make_plan.cache_clear()
    assert make_plan(policy, FACTS, WORKSPACE, INTERPRETER) == first
    sent = Setup({}, "/w", None, "/tmp/p", plan=first)
    assert TO_NEW_INIT.decode(encode_control(sent)) == sent


def test_what_lies_in_a_directory_is_mounted_after_it() -> None:
    steps = plan(Filesystem(read=("/a/b/c", "/a"), write=("/x/y", ".", "/x", "/x/y/z"), deny_read=("/x/y/s", "/a/b"))).steps
    targets = [step.target for step in steps if isinstance(step, Bind | Tmpfs | Graft | Mask)]
    for at, target in enumerate(targets):
        assert not [later for later in targets[at + 1 :] if inside(target, later) and later != target], target


def test_an_interpreter_in_what_is_denied_is_there_all_the_same() -> None:
    made = plan(Filesystem(read=("/",), deny_read=("/opt",)), interpreter=("/opt/py", "/usr"))
    steps = made.steps
    assert steps.index(Mask("/opt")) < steps.index(Bind("/opt/py", "/opt/py", "ro"))
    assert (access(made, "/opt/py/bin/python"), access(made, "/opt/other")) == (READ, NOTHING)
    assert Bind("/usr", "/usr", "ro") not in steps
    assert Bind("/tmp/py", "/tmp/py", "ro") in plan(Filesystem(read=("/",)), interpreter=("/tmp/py",)).steps


def test_who_denies_everything_shows_the_system_and_what_is_allowed_again() -> None:
    made = plan(Filesystem(read=("/", "/data"), deny_read=("/", ".env")))
    assert made == plan(Filesystem(read=("/data",), deny_read=(".env",)))
    assert not made.everything


def test_a_plan_without_a_workspace_has_nothing_of_the_host() -> None:
    steps = make_plan(Policy(Filesystem(write=(".", "/data"))), FACTS, None, INTERPRETER).steps
    assert [step.target for step in steps if isinstance(step, Bind)] == ["/data"]


def test_the_home_directory_can_be_a_name_of_the_workspace() -> None:
    """Of a link, nothing else needs to know: what is masked and protected is so by both names."""
    made, usual = plan(Filesystem(home_is_workspace=True)), plan()
    assert (made.home, usual.home) == ("/tmp/home", HOME)
    assert Link(HOME, WORKSPACE) in made.steps
    assert {*made.steps} - {*usual.steps} == {Link(HOME, WORKSPACE), replace(_tmpfs(usual, HOME), target="/tmp/home")}
    assert {*usual.steps} - {*made.steps} == {_tmpfs(usual, HOME)}


def _tmpfs(made: Plan, target: str) -> Tmpfs:
    return next(step for step in made.steps if isinstance(step, Tmpfs) and step.target == target)


def test_a_name_that_is_needed_for_something_else_is_not_given() -> None:
    cases: list[tuple[Filesystem, str, tuple[str, ...]]] = [
        (Filesystem(read=("/",)), WORKSPACE, INTERPRETER),
        (Filesystem(read=("/home/user/.cache",)), WORKSPACE, INTERPRETER),
        (Filesystem(), "/home/user/project", INTERPRETER),
        (Filesystem(), WORKSPACE, ("/home/user/venv",)),
    ]
    for filesystem, workspace, interpreter in cases:
        with pytest.raises(InvalidInputError, match="home_is_workspace"):
            plan(replace(filesystem, home_is_workspace=True), workspace, interpreter)


def test_settings_are_written_before_they_are_sealed() -> None:
    steps = make_plan(Policy(), FACTS, WORKSPACE, INTERPRETER).steps
    settings = [steps.index(step) for step in steps if isinstance(step, Sysctl)]
    assert steps.index(Proc("/proc")) < min(settings) < max(settings) < steps.index(ReadOnly("/proc/sys"))


def test_an_interpreter_in_the_workspace_stays_read_only() -> None:
    for lies in ("/w/.venv", "/w/tools/venv"):
        made = plan(interpreter=(lies,))
        assert access(made, f"{lies}/bin/python") == READ
        assert access(made, "/w/file") == WRITE
        assert Protect("/w", lies) in made.steps


def test_a_workspace_inside_of_an_interpreters_directory_can_be_written() -> None:
    made = plan(workspace="/py/project", interpreter=("/py",))
    assert access(made, "/py/project/file") == WRITE
    assert access(made, "/py/lib") == READ


def test_a_workspace_that_packages_are_imported_from_is_read_only() -> None:
    assert access(plan(interpreter=("/w",)), "/w/file") == READ


def test_the_system_is_no_workspace() -> None:
    cases: list[str] = [
        "/",
        "/tmp",
        "/usr",
        "/usr/local",
        "/etc",
        "/etc/ssl",
        "/proc/1",
        "/dev/shm/x",
        "/sys/x",
        "/home",
        "/var",
        "/run",
        HOME,
    ]
    for workspace in cases:
        with pytest.raises(InvalidInputError, match=r"cannot have .* as its workspace"):
            check_workspace(workspace)
        with pytest.raises(InvalidInputError):
            plan(Filesystem(write=(workspace,)))


def test_no_spelling_of_the_system_is_writable() -> None:
    for pattern in ("//", "/./", "/x/..", "/x/../etc", "//etc", "../usr"):
        with pytest.raises(InvalidInputError):
            plan(Filesystem(write=(pattern,)))


def test_denials_are_kept_inside_of_a_narrower_workspace() -> None:
    made = plan(Filesystem(write=("sub",), deny_write=("sub/secret", ".vscode")))
    assert access(made, "/w/sub/secret") == access(made, "/w/sub/.vscode") == READ
    assert access(made, "/w/sub/file") == WRITE
    assert access(made, "/w/file") == READ


def test_a_workspace_that_is_not_writable_is_readable() -> None:
    cases: list[tuple[str, ...]] = [(), ("/elsewhere",)]
    for write in cases:
        made = plan(Filesystem(write=write))
        assert access(made, "/w/file") == READ
        assert access(made, "/w/.env") == NOTHING


def reserved(filesystem: Filesystem) -> object:
    return plan(filesystem).reserve


def test_names_are_reserved_in_every_writable_directory() -> None:
    names = tuple(name for name in PROTECTED if name not in MAKEABLE)
    assert {".vscode", ".mcp.json", ".cursor"} <= {*names}
    assert reserved(Filesystem(write=(".", "/data"))) == {"/w": (*names, ".env"), "/data": (*names, ".env")}
    assert reserved(Filesystem(write=())) == reserved(Filesystem(deny_write=(), deny_read=())) == {}


def test_what_sessions_may_make_is_not_reserved_unless_it_is_said() -> None:
    assert reserved(Filesystem(deny_write=(*MAKEABLE,))) == {"/w": (".env",)}
    assert reserved(Filesystem(deny_write=(".git", "./.bashrc", ".git/config"))) == {"/w": (".bashrc", ".git/config", ".env")}


def test_paths_are_reserved_where_they_lie() -> None:
    denied = ("a/b/../c", "/w/x", "~/y", "/elsewhere", "../out", ".")
    assert reserved(Filesystem(write=(".", "~/", "/w/sub"), deny_write=denied, deny_read=())) == {
        "/w": ("x", "a/c", "sub/a/c", "out", "sub"),
        "/h/u": ("y", "a/c"),
        "/w/sub": ("a/c",),
    }


def test_an_interpreter_is_not_reserved() -> None:
    assert plan(Filesystem(deny_write=(), deny_read=()), interpreter=("/w/venv",)).reserve == {}


def test_what_a_home_lacks_is_no_error_but_what_is_named_is() -> None:
    steps = plan(Filesystem(write=(".", "~/.ipython", "/data"))).steps
    optional = {step.target: step.optional for step in steps if isinstance(step, Bind)}
    assert optional == {"/w": False, "/h/u/.ipython": True, "/data": False}


def test_limits_are_those_of_the_policy() -> None:
    policy = Policy(resources=Resources(memory=2**30, processes=50, open_files=100, file_size=2**21))
    limits = make_plan(policy, FACTS, WORKSPACE, INTERPRETER).restrictions.limits
    assert (limits["DATA"], limits["NPROC"], limits["NOFILE"], limits["FSIZE"], limits["CORE"]) == (2**30, 50, 100, 2**21, 0)


def test_local_sockets_are_forbidden_where_everything_can_be_read() -> None:
    cases: list[tuple[tuple[str, ...], bool, bool]] = [((), False, True), (("/",), False, False), (("/",), True, True)]
    for read, unix_sockets, allowed in cases:
        policy = replace(Policy(Filesystem(read=read)), unix_sockets=unix_sockets)
        program = base64.b64decode(make_plan(policy, FACTS, WORKSPACE, INTERPRETER).restrictions.seccomp)
        assert program == seccomp.program("x86_64", unix_sockets=allowed)


def test_where_a_program_happens_to_run_is_no_workspace_if_the_home_directory_is_in_it() -> None:
    for workspace in ("/homes/me", "/homes", "/", "/tmp"):
        with pytest.raises(InvalidInputError, match="working_dir="):
            check_unnamed_workspace(workspace, "/homes/me")


def test_where_a_program_runs_is_its_workspace_otherwise() -> None:
    for workspace in ("/homes/me/project", "/homes/meadow", "/srv/project"):
        check_unnamed_workspace(workspace, "/homes/me")


def test_a_zygote_has_a_trusted_environment_where_sessions_have_it() -> None:
    assert environment_steps("") == []
    assert environment_steps("/store/key") == [Bind("/store/key", ENVIRONMENT_PLACE.removeprefix(BASE), "ro")]
