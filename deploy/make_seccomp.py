"""Makes seccomp.json: Docker's default profile, and the calls that the native sandbox needs.

    python deploy/make_seccomp.py default.json >deploy/seccomp.json

``default.json`` is Docker's profile as Debian ships it, at
usr/share/gocode/src/github.com/docker/docker/profiles/seccomp/default.json of golang-github-docker-docker-dev 26.1.5.

Docker lets these calls through for processes with CAP_SYS_ADMIN only. Here nobody has it: the kernel checks capabilities as
before, so that all but the first two calls work only for who has entered a user namespace of its own.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

DEFAULT_SHA256 = "9c1025c88ccaa517b648da571961838744ea2137f176bfe6a48b21294cae9c76"
"""Of Docker's profile. The test that compares takes what is added away and must get these bytes."""

CLONE_NEWUSER, CLONE_NEWCGROUP = 0x10000000, 0x02000000

_NEW_USER = {"index": 0, "value": CLONE_NEWUSER, "valueTwo": CLONE_NEWUSER, "op": "SCMP_CMP_MASKED_EQ"}
_NEW_CGROUP = {"index": 0, "value": CLONE_NEWCGROUP, "op": "SCMP_CMP_EQ"}

ADDED: tuple[tuple[str, dict[str, Any] | None, str], ...] = (
    ("clone", _NEW_USER, "makes process 1 of a session's namespaces; a new user namespace must be among them"),
    ("unshare", _NEW_USER, "gives the fork server a mount namespace, in a new user namespace"),
    ("unshare", _NEW_CGROUP, "makes the session's own control group the root of what it sees of them"),
    ("sethostname", None, "gives the session a host name of its own"),
    ("fsopen fsconfig fsmount", None, "make the session's file systems: tmpfs, devpts, proc"),
    ("open_tree", None, "takes hold of the directories that the session is to see"),
    ("mount_setattr", None, "makes them read-only, and keeps mounts from leaving the session's namespace"),
    ("move_mount", None, "puts them into the session's tree"),
    ("pivot_root umount2", None, "make that tree the session's root, and take the old one away"),
)
"""Names, what the arguments must be, and the reason."""


def added() -> list[dict[str, Any]]:
    """Return the rules that Docker's profile does not have."""
    return [
        {
            "names": names.split(),
            "action": "SCMP_ACT_ALLOW",
            **({"args": [argument]} if argument else {}),
            "comment": f"cellblock: {reason}",
        }
        for names, argument, reason in ADDED
    ]


def written(profile: dict[str, Any]) -> str:
    """Return a profile as text, laid out as Docker's."""
    return json.dumps(profile, indent="\t")


def main() -> None:
    """Write the profile to standard output."""
    default = Path(sys.argv[1]).read_bytes()
    if hashlib.sha256(default).hexdigest() != DEFAULT_SHA256:
        raise SystemExit(f"{sys.argv[1]} is not the profile that this program knows: look at what has changed first")
    profile = json.loads(default)
    profile["syscalls"] += added()
    sys.stdout.write(written(profile) + "\n")


if __name__ == "__main__":
    main()
