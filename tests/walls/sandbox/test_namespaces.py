from __future__ import annotations

import subprocess
import sys

import pytest

from cellblock.walls.sandbox.namespaces import kernel_version

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")

SIGNALS = """
import os, resource, signal, sys
from cellblock.walls.sandbox.namespaces import enter_mount_namespace

def send():
    \"\"\"Queue signals until there is no room, and return their number.\"\"\"
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGRTMIN})
    me = __import__('threading').get_ident()
    for number in range(100_000):
        try:
            signal.pthread_kill(me, signal.SIGRTMIN)
        except OSError:
            return number

resource.setrlimit(resource.RLIMIT_SIGPENDING, (4000, 4000))
ends, told = os.pipe(), os.pipe()
if os.fork() == 0:
    enter_mount_namespace(os.getuid(), os.getgid())
    resource.setrlimit(resource.RLIMIT_SIGPENDING, (4000, 4000))
    os.write(ends[1], str(send()).encode())
    os.read(told[0], 1)  # the queue stays full
    os._exit(0)
inside = int(os.read(ends[0], 100))
outside = send()
os.write(told[1], b'x')
os.wait()
print(inside, outside)
"""
INOTIFY = """
import os
from cellblock.walls.sandbox.namespaces import enter_mount_namespace
def most(name):
    with open(f'/proc/sys/{name}') as file:
        return int(file.read())
shared = most('fs/inotify/max_user_instances')
enter_mount_namespace(os.getuid(), os.getgid())
print(shared, most('user/max_inotify_instances'))
"""


def numbers(code: str) -> list[int]:
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [int(word) for word in found.stdout.split()]


def test_what_a_user_namespace_uses_leaves_a_part_to_its_user() -> None:
    """From Linux 5.14 on: before, such limits were those of the user alone."""
    if kernel_version() < (5, 14):
        pytest.skip("this Linux has no such maxima")
    inside, outside = numbers(SIGNALS)
    assert inside <= 3500
    assert outside >= 400


def test_half_of_inotify_is_left_to_the_user() -> None:
    shared, inside = numbers(INOTIFY)
    assert inside == shared // 2
