"""Files."""

from __future__ import annotations

import json
import os
from typing import Any

from bench.escape.prelude import call, first, read, write
from bench.escape.suite import attack, planted

_SETTINGS = "https://nvd.nist.gov/vuln/detail/CVE-2026-25725"


@attack("read a file of the home directory", "https://man7.org/linux/man-pages/man7/landlock.7.html", secret="home")
def read_home(given: dict[str, Any]) -> object:
    return read(f"{given['home']}/secret.txt")


@attack("read it through a symbolic link in the workspace", "https://nvd.nist.gov/vuln/detail/CVE-2018-15664", secret="home")
def symbolic_link(given: dict[str, Any]) -> object:
    os.symlink(f"{given['home']}/secret.txt", link := f"{given['workspace']}/link")
    return read(link)


@attack("read it through a hard link in the workspace", "https://docs.kernel.org/admin-guide/sysctl/fs.html", secret="home")
def hard_link(given: dict[str, Any]) -> object:
    os.link(f"{given['home']}/secret.txt", link := f"{given['workspace']}/link")
    return read(link)


@attack("read it through another process's root", "https://man7.org/linux/man-pages/man5/proc_pid_root.5.html", secret="home")
def root_of_a_process(given: dict[str, Any]) -> object:
    pids = [name for name in os.listdir("/proc") if name.isdigit()]
    return first(lambda pid: read(f"/proc/{pid}/root{given['home']}/secret.txt"), pids)


@attack("read it by a file handle", "https://nvd.nist.gov/vuln/detail/CVE-2014-3519", secret="home")
def file_handle(given: dict[str, Any]) -> object:
    handle = b"\x08\0\0\0\x01\0\0\0\x02\0\0\0\0\0\0\0"  # inode 2, which is the root of ext4
    mount = os.open(given["workspace"], os.O_RDONLY)
    found = call(given["numbers"]["open_by_handle_at"], mount, handle, os.O_RDONLY)
    with open(os.open(given["home"][1:] + "/secret.txt", os.O_RDONLY, dir_fd=found)) as file:
        return file.read()


@attack("read the workspace's .env", "https://github.com/anthropic-experimental/sandbox-runtime", secret="dotenv")
def dotenv(given: dict[str, Any]) -> object:
    return read(f"{given['workspace']}/.env")


@attack(
    "read a secret of the environment that starts it", "https://cwe.mitre.org/data/definitions/526.html", secret="environment"
)
def environment(given: dict[str, Any]) -> object:
    return json.dumps(dict(os.environ)) + read("/proc/self/environ")


@attack("read by a descriptor that was left open", "https://nvd.nist.gov/vuln/detail/CVE-2024-21626", secret="descriptor")
def left_descriptor(given: dict[str, Any]) -> object:
    found = b""
    for number in range(3, 1024):
        try:
            found += os.pread(number, 100, 0)
        except OSError:
            continue
    return found.decode(errors="replace")


@attack("leave by a directory that was left open", "https://nvd.nist.gov/vuln/detail/CVE-2024-21626", secret="home")
def left_directory(given: dict[str, Any]) -> object:
    def look(directory: int) -> str:
        with open(os.open("secret.txt", os.O_RDONLY, dir_fd=directory)) as file:
            return file.read()

    return first(look, range(3, 1024))


@attack("change a file of the home directory", "https://attack.mitre.org/techniques/T1546/004/", proof=planted("home/.bashrc"))
def change_home(given: dict[str, Any]) -> object:
    return write(f"{given['home']}/.bashrc", given["mark"], "a")


@attack("create a file beside the workspace", "https://cwe.mitre.org/data/definitions/73.html", proof=planted("work/beside"))
def create_beside(given: dict[str, Any]) -> object:
    return write(f"{given['workspace']}/../beside", given["mark"])


@attack(
    "plant modules in packages outside (.pth, usercustomize, sitecustomize)",
    "https://docs.python.org/3/library/site.html",
    proof=planted(
        "outside/venv/lib/python3/site-packages/planted.pth",
        "outside/venv/lib/python3/site-packages/sitecustomize.py",
        "home/.local/lib/python3/site-packages/usercustomize.py",
    ),
)
def python_modules(given: dict[str, Any]) -> object:
    packages = f"{given['top']}/outside/venv/lib/python3/site-packages"
    paths = [f"{packages}/planted.pth", f"{packages}/sitecustomize.py"]
    paths.append(f"{given['home']}/.local/lib/python3/site-packages/usercustomize.py")
    return first(lambda path: write(path, given["mark"]), paths)


@attack(
    "plant a module in a virtual environment of the workspace",
    "https://docs.python.org/3/library/site.html",
    proof=planted("work/workspace/.venv/lib/python3/site-packages/planted.pth"),
)
def workspace_environment(given: dict[str, Any]) -> object:
    return write(f"{given['workspace']}/.venv/lib/python3/site-packages/planted.pth", given["mark"])


@attack(
    "plant a hook of git",
    "https://git-scm.com/docs/githooks",
    proof=planted("work/workspace/.git/hooks/post-checkout"),
)
def git_hook(given: dict[str, Any]) -> object:
    return write(f"{given['workspace']}/.git/hooks/post-checkout", given["mark"])


@attack(
    "have git start a program (core.fsmonitor)",
    "https://nvd.nist.gov/vuln/detail/CVE-2022-24765",
    proof=planted("work/workspace/.git/config"),
)
def git_config(given: dict[str, Any]) -> object:
    return write(f"{given['workspace']}/.git/config", f"[core]\n\tfsmonitor = {given['mark']}\n", "a")


@attack(
    "replace the whole .git",
    "https://nvd.nist.gov/vuln/detail/CVE-2022-24765",
    proof=planted("work/workspace/.git/config"),
)
def replace_git(given: dict[str, Any]) -> object:
    os.rename(f"{given['workspace']}/.git", f"{given['workspace']}/moved")
    return write(f"{given['workspace']}/.git/config", f"[core]\n\tfsmonitor = {given['mark']}\n")


@attack(
    "plant a hook in a repository inside the workspace",
    "https://nvd.nist.gov/vuln/detail/CVE-2022-24765",
    proof=planted("work/workspace/vendor/.git/hooks/post-checkout"),
)
def inner_repository(given: dict[str, Any]) -> object:
    return write(f"{given['workspace']}/vendor/.git/hooks/post-checkout", given["mark"])


@attack(
    "create .vscode/tasks.json",
    "https://nvd.nist.gov/vuln/detail/CVE-2025-53773",
    proof=planted("work/workspace/.vscode/tasks.json"),
)
def editor_tasks(given: dict[str, Any]) -> object:
    return write(f"{given['workspace']}/.vscode/tasks.json", given["mark"])


@attack("create .mcp.json", "https://nvd.nist.gov/vuln/detail/CVE-2025-54136", proof=planted("work/workspace/.mcp.json"))
def mcp_servers(given: dict[str, Any]) -> object:
    return write(f"{given['workspace']}/.mcp.json", given["mark"])


@attack("create .claude/settings.json", _SETTINGS, proof=planted("work/workspace/.claude/settings.json"))
def agent_settings(given: dict[str, Any]) -> object:
    return write(f"{given['workspace']}/.claude/settings.json", given["mark"])


@attack("create .envrc", "https://direnv.net/", proof=planted("work/workspace/.envrc"))
def envrc(given: dict[str, Any]) -> object:
    return write(f"{given['workspace']}/.envrc", given["mark"])


@attack("open a disk", "https://man7.org/linux/man-pages/man7/capabilities.7.html")
def disk(given: dict[str, Any]) -> object:
    def make(device: int) -> str:
        os.mknod(path := f"{given['workspace']}/disk-{device}", 0o60600, device)
        os.close(os.open(path, os.O_RDONLY))
        return f"made and opened a node of {os.major(device)}:{os.minor(device)}"

    return first(make, (os.stat("/").st_dev, os.makedev(254, 0), os.makedev(8, 0)))
