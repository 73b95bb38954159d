"""Attacks 1, 2, 6, 7, 9, 10, 21 and 42: what a session sees of the file system, what it can write, and how much."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from pathlib import Path

import pytest

from cellblock import Host, Policy, Session
from cellblock.host.output.limits import Limits
from cells import ok, value

from .conftest import armed_session

# What there is in every session (packages of its own lie in /opt); what leads to the interpreter comes on top.
TOP = {
    "bin",
    "dev",
    "etc",
    "home",
    "lib",
    "lib32",
    "lib64",
    "libx32",
    "proc",
    "sbin",
    "sys",
    "tmp",
    "usr",
    "nix",
    "gnu",
    "opt",
}


async def test_the_hosts_secrets_do_not_exist(cell: Session) -> None:
    paths = ["/etc/shadow", "/etc/sudoers", "/etc/ssh", "/root/.ssh", "/var", "/run", "/boot", "/mnt", "/srv", "/home/other"]
    assert await value(cell, f"{{read(path) for path in {paths}}}") == {"ENOENT"}


@pytest.mark.slow
@pytest.mark.parametrize("denied", ["/", "~", "the directory"])
async def test_in_what_is_denied_there_is_what_is_allowed_again_and_nothing_else(
    denied: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as top:
        for name in ("tool", "work", "other"):
            Path(top, name).mkdir()
            Path(top, name, "file").write_text(name)
        Path(top, "one").write_text("one")
        monkeypatch.setenv("HOME", top)
        files = {
            "denyRead": [top if "dir" in denied else denied],
            "allowRead": [f"{top}/tool", f"{top}/one"],
            "allowWrite": ["."],
        }
        async with (
            Host(policy=Policy.parse({"defaults": "sandbox-runtime", "filesystem": files})) as host,
            armed_session(host, Path(top, "work")) as session,
        ):
            code = f"[read('{top}/' + name) for name in ('tool/file', 'one', 'work/file', 'other/file')]"
            assert await value(session, code) == ["tool", "one", "work", "ENOENT"]
            assert await value(session, f"sorted(os.listdir({top!r}))") == ["one", "tool", "work"]
            code = f"[write('{top}/' + name) for name in ('new', 'other', 'tool/new', 'one', 'work/new')]"
            assert await value(session, code) == ["EROFS", "EROFS", "EROFS", "EROFS", None]


async def test_nothing_is_at_the_top_that_is_not_needed(cell: Session) -> None:
    leading = {str(path).split("/")[1] for path in (sys.prefix, os.path.realpath(sys.executable), *filter(None, sys.path))}
    assert set(await value(cell, "os.listdir('/')")) <= TOP | leading


async def test_other_homes_do_not_exist(cell: Session) -> None:
    assert await value(cell, "os.listdir('/home')") == ["user"]
    assert await value(cell, "os.listdir('/home/user')") == []


@pytest.mark.parametrize("place", ["/", "/usr", "/usr/bin", "/etc", "/etc/ssl", "/sys", "/dev", "/bin", "/proc/sys"])
async def test_the_system_is_read_only(cell: Session, place: str) -> None:
    answers = await value(
        cell, f"[write('{place}/planted'), answer(os.mkdir, '{place}/planted'), answer(os.chmod, '{place}', 0o777)]"
    )
    # The owner's own files give EROFS, others' EACCES or EPERM; in none of them is anything made.
    expected = {"/proc/sys": {"EROFS", "EACCES", "EPERM", "ENOENT"}}.get(place, {"EROFS", "EACCES", "EPERM"})
    assert set(answers) <= expected
    if os.geteuid() == 0 and place != "/proc/sys":
        assert answers == ["EROFS"] * 3


async def test_the_root_directory_is_read_only_to_its_owner(cell: Session) -> None:
    assert (
        await value(cell, "[write('/planted'), answer(os.mkdir, '/home/other'), answer(os.chmod, '/', 0o777)]")
        == ["EROFS"] * 3
    )


async def test_interpreter_and_packages_are_read_only(cell: Session) -> None:
    code = """
import sys, IPython
places = [os.path.dirname(path) for path in (sys.executable, os.path.realpath(sys.executable), os.__file__, IPython.__file__)]
[write(place + '/planted.py') for place in places]
"""
    answers = await value(cell, code)
    assert set(answers) <= {"EROFS", "EACCES"}
    owned = [os.stat(path).st_uid == os.geteuid() for path in (Path(sys.executable).parent, Path(os.__file__).parent)]
    if all(owned):
        assert set(answers) == {"EROFS"}


async def test_the_next_session_finds_the_system_as_it_was(attacked_host: Host, tmp_path: Path) -> None:
    workspaces = [tmp_path / name for name in ("first", "second")]
    for workspace in workspaces:
        workspace.mkdir()
    async with armed_session(attacked_host, workspaces[0]) as first:
        await ok(first, "for place in ('/tmp', '/dev/shm', '/home/user', '/home/user/.ipython'): write(place + '/planted')")
        async with armed_session(attacked_host, workspaces[1]) as second:
            code = "[os.listdir(place) for place in ('/tmp', '/dev/shm', '/home/user')]"
            # The second has a mark of its own only where its workspace lies below /tmp.
            found = await value(second, code)
            assert "planted" not in found[0]
            assert found[1:] == [[], []]


async def test_links_out_of_the_workspace_lead_nowhere(jail: Session, workspace: Path) -> None:
    (workspace / "planted").symlink_to("/etc/shadow")
    assert await value(jail, "read('planted')") == "ENOENT"
    assert await value(jail, "os.symlink('/root/.ssh', 'mine'); answer(os.listdir, 'mine')") == "ENOENT"


@pytest.mark.parametrize("start", ["/proc/self/cwd", "/proc/self/root", ".", "/tmp", "/proc/self/task/1/cwd"])
async def test_going_up_ends_at_the_sandboxs_root(cell: Session, start: str) -> None:
    code = f"""
start = '{start}'.replace('task/1', f'task/{{os.getpid()}}')
top, root = os.stat(start + '/..' * 40), os.stat('/')
(top.st_dev, top.st_ino) == (root.st_dev, root.st_ino)
"""
    assert await value(cell, code) is True


async def test_descriptors_of_directories_lead_no_further_up(cell: Session) -> None:
    code = """
found = []
places = ['.', '/usr', '/tmp', '/dev/shm', '/proc']
for place in places + [place for place in ('/sys/devices/system/cpu',) if os.path.exists(place)]:  # where users may look
    here = os.open(place, os.O_PATH)
    for _ in range(40):
        above = os.open('..', os.O_PATH, dir_fd=here)
        os.close(here)
        here = above
    found.append(os.path.samestat(os.fstat(here), os.stat('/')))
    os.close(here)
all(found)
"""
    assert await value(cell, code) is True


async def test_no_descriptor_leads_out(attacked_host: Host, workspace: Path, tmp_path: Path) -> None:
    async with attacked_host.session(working_dir=workspace, images_dir=tmp_path / "images") as session:
        code = """
import os
found = {}
for name in range(4096):
    try:
        found[name] = os.readlink(f'/proc/self/fd/{name}')
    except OSError:
        continue
found
"""
        found = await value(session, code)
    # Descriptor 3 is the channel, and on 4 copies tell init that they exist; what follows wakes the event loop up.
    assert found.pop(0) == "/dev/null"
    assert {found.pop(1).partition(":")[0], found.pop(2).partition(":")[0]} == {"pipe"}
    assert {name: kind.partition(":")[0] for name, kind in found.items()} in (
        {3: "socket", 4: "socket", 5: "socket", 6: "socket"},
        {3: "socket", 4: "socket", 5: "pipe", 6: "pipe"},
    )


async def test_the_null_device_of_standard_input_is_the_sandboxs(cell: Session) -> None:
    assert await value(cell, "os.path.samestat(os.fstat(0), os.stat('/dev/null')), answer(os.fchmod, 0, 0o600)") == (
        True,
        "EROFS",
    )


@pytest.mark.parametrize("device", ["null", "zero", "full", "random", "urandom", "tty"])
async def test_devices_keep_their_mode(cell: Session, device: str) -> None:
    code = f"[answer(os.chmod, '/dev/{device}', 0o600), answer(os.utime, '/dev/{device}', (1, 1)), answer(os.unlink, '/dev/{device}')]"
    answers = await value(cell, code)
    if os.geteuid() == 0:
        assert answers[:2] == ["EROFS", "EROFS"]
    assert set(answers) <= {"EROFS", "EPERM", "EBUSY", "EACCES"}
    assert stat.S_IMODE(os.stat(f"/dev/{device}").st_mode) == 0o666


async def test_devices_work(cell: Session) -> None:
    code = "[os.write(os.open('/dev/null', os.O_WRONLY), b'x'), len(os.read(os.open('/dev/urandom', os.O_RDONLY), 8)), answer(os.write, os.open('/dev/full', os.O_WRONLY), b'x')]"
    assert await value(cell, code) == [1, 8, "ENOSPC"]


async def test_the_running_interpreter_cannot_be_written(cell: Session) -> None:
    """ETXTBSY where the kernel guards running programs, which 6.11 and 6.12 do not; the mount is read-only all the same."""
    answers = await value(
        cell, "[answer(os.open, '/proc/self/exe', flags) for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC)]"
    )
    assert set(answers) <= {"ETXTBSY", "EROFS", "EACCES"}


@pytest.mark.parametrize(
    "change", ["os.chmod, it, 0o755", "os.utime, it, (1, 1)", "os.setxattr, it, 'user.x', b'x'", "os.truncate, it, 0"]
)
async def test_the_running_interpreter_keeps_its_attributes(cell: Session, change: str) -> None:
    """Of a file of one's own, that is: of another user's, they could not be changed outside either."""
    answers = await value(
        cell, f"it = '/proc/self/exe'\n[answer({change}), answer({change.replace('it', 'os.path.realpath(it)', 1)})]"
    )
    if os.stat("/proc/self/exe").st_uid == os.geteuid():
        assert set(answers) <= {"EROFS", "ETXTBSY", "ENOTSUP"}  # the last: attributes cannot be set anywhere
    else:
        assert set(answers) <= {"EROFS", "EPERM", "EACCES", "ETXTBSY", "ENOTSUP"}


async def test_the_mount_that_the_interpreter_runs_from_is_read_only(cell: Session) -> None:
    assert await value(cell, "bool(os.statvfs('/proc/self/exe').f_flag & os.ST_RDONLY)") is True


async def test_read_only_files_cannot_be_linked_into_the_workspace(jail: Session) -> None:
    code = """
import sys
[answer(os.link, path, 'mine') for path in (os.path.realpath(sys.executable), os.__file__, '/etc/hosts', '/proc/self/exe')]
"""
    assert set(await value(jail, code)) <= {"EXDEV", "EPERM"}  # EPERM: fs.protected_hardlinks, of another user's file
    if os.geteuid() == 0:
        assert set(await value(jail, code)) == {"EXDEV"}


async def test_a_program_in_memory_is_as_confined_as_any(jail: Session) -> None:
    code = """
import subprocess
memory = os.open('/dev/shm', os.O_TMPFILE | os.O_RDWR, 0o700)
with open('/bin/cat', 'rb') as file:
    os.write(memory, file.read())
memory = os.open(f'/proc/self/fd/{memory}', os.O_RDONLY), os.close(memory)
memory = memory[0]
subprocess.run([f'/proc/self/fd/{memory}', '/proc/self/status'], pass_fds=[memory], capture_output=True, text=True).stdout
"""
    status = await value(jail, code)
    assert "Seccomp:\t2" in status
    assert "NoNewPrivs:\t1" in status


@pytest.mark.slow
@pytest.mark.parametrize("place", ["/tmp", "/dev/shm", "/home/user"])
async def test_what_is_in_memory_can_be_filled_but_not_overfilled(attacked_host: Host, workspace: Path, place: str) -> None:
    from dataclasses import replace

    from cellblock.walls.sandbox.policy import Policy, Resources

    policy = replace(Policy(), resources=Resources(tmp=8 * 2**20))
    async with armed_session(attacked_host, workspace, policy=policy) as session:
        code = f"""
made = os.open('{place}/large', os.O_CREAT | os.O_WRONLY)
answers = [answer(os.posix_fallocate, made, 0, 16 * 2**20)]
os.close(made)
os.unlink('{place}/large')
count = 0
while (got := answer(os.mknod, f'{place}/{{count}}')) is None and count < 100_000:
    count += 1
answers + [got, count]
"""
        assert (await value(session, code))[:2] == ["ENOSPC", "ENOSPC"]


async def test_files_and_locked_memory_have_limits(attacked_host: Host, workspace: Path) -> None:
    from dataclasses import replace

    from cellblock.walls.sandbox.policy import Policy, Resources

    policy = replace(Policy(), resources=Resources(file_size=2**20))
    async with armed_session(attacked_host, workspace, policy=policy) as session:
        code = """
import mmap
made = os.open('large', os.O_CREAT | os.O_WRONLY)
page = mmap.mmap(-1, 64 * 2**20)
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
[answer(os.ftruncate, made, 2**50), answer(os.pwrite, made, b'x', 2**20), call(NR['mlock'], address, 64 * 2**20), call(NR['mlockall'], 1)]
"""
        # mlockall meets the same limit with whatever is mapped.
        assert await value(session, code) == ["EFBIG", "EFBIG", "ENOMEM", "ENOMEM"]


@pytest.mark.slow
async def test_odd_things_in_the_workspace_hang_nobody(attacked_host: Host, workspace: Path) -> None:
    """Attack 42: a pipe, a socket, a huge hole and a deep tree, where the next session looks for what it protects."""
    async with armed_session(attacked_host, workspace) as session:
        code = """
import socket
os.mkfifo('.env'), os.mkfifo('.zshrc'), os.mkfifo('.git')
socket.socket(socket.AF_UNIX).bind('.bashrc')
os.truncate(os.open('hole', os.O_CREAT | os.O_WRONLY), 2**32)
os.symlink('.profile', '.profile')
here = os.open('.', os.O_PATH)
for _ in range(1000):
    os.mkdir('deep', dir_fd=here)
    here = os.open('deep', os.O_PATH, dir_fd=here)
"""
        await ok(session, code)
    async with armed_session(attacked_host, workspace) as session:
        planted = {".env", ".zshrc", ".git", ".bashrc", "hole", ".profile", "deep"}
        assert planted <= set(await value(session, "os.listdir('.')"))
        assert await value(session, "answer(os.open, '.env', os.O_RDONLY | os.O_NONBLOCK)") == "EACCES"
        await ok(session, "import shutil; os.system('rm -rf deep')")


@pytest.mark.parametrize("already", [False, True], ids=["at work", "before"])
async def test_what_the_host_writes_follows_no_link_of_the_session(
    attacked_host: Host, workspace: Path, tmp_path: Path, already: bool
) -> None:
    """Images and spilled output go to directories in the workspace; the session leads both elsewhere, or one before it did."""
    victim = tmp_path / "victim"
    victim.mkdir()
    plant = f"import os\nfor name in ('images', 'spilled'): os.symlink({str(victim)!r}, name)\n"
    show = "from IPython.display import display, Image\ndisplay(Image(b'\\x89PNG\\r\\n\\x1a\\n', format='png'))\nprint('x' * 50_000)"
    if already:
        async with attacked_host.session(working_dir=workspace, images_dir=tmp_path / "images") as session:
            await ok(session, plant)
    images, spilled = workspace / "images", workspace / "spilled"
    async with attacked_host.session(
        working_dir=workspace, limits=Limits(text=2000), images_dir=images, spill_dir=spilled
    ) as session:
        result = await session.execute(show if already else plant + show)
    assert result.status == "success"
    assert (result.images, result.spilled) == ([], [])
    assert [*victim.iterdir()] == []
    assert result.stderr.count("the path has a symbolic link that a session could have created") == 2
