"""The kernel's interfaces. Most of these only try whether code reaches what others have exploited; they exploit nothing."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
from typing import Any

from bench.escape.prelude import NotHereError, call, first, libc, read, rewrite
from bench.escape.suite import attack


@attack("open a socket of the kernel's cryptography (AF_ALG)", "https://nvd.nist.gov/vuln/detail/CVE-2026-31431", reaches=True)
def cryptography_socket(given: dict[str, Any]) -> object:
    with socket.socket(38, socket.SOCK_SEQPACKET) as it:
        return f"descriptor {it.fileno()}"


@attack("splice a file into a pipe", "https://nvd.nist.gov/vuln/detail/CVE-2022-0847", reaches=True)
def splice(given: dict[str, Any]) -> object:
    with open(f"{given['workspace']}/piped", "w+") as file:
        file.write("x")
        file.flush()
        _, end = os.pipe()
        return call(given["numbers"]["splice"], file.fileno(), (ctypes.c_long * 1)(0), end, 0, 1, 0)


@attack("open a socket to the hypervisor (AF_VSOCK)", "https://nvd.nist.gov/vuln/detail/CVE-2025-21756", reaches=True)
def hypervisor_socket(given: dict[str, Any]) -> object:
    with socket.socket(40, socket.SOCK_STREAM) as it:
        return f"descriptor {it.fileno()}"


@attack("use io_uring", "https://security.googleblog.com/2023/06/learnings-from-kctf-vrps-42-linux.html", reaches=True)
def io_uring(given: dict[str, Any]) -> object:
    return f"descriptor {call(given['numbers']['io_uring_setup'], 2, ctypes.create_string_buffer(120))}"


@attack("create a user namespace and mount there", "https://nvd.nist.gov/vuln/detail/CVE-2022-0185", reaches=True)
def user_namespace(given: dict[str, Any]) -> object:
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        try:
            call(given["numbers"]["unshare"], 0x10000000 | 0x20000)
            call(given["numbers"]["mount"], b"none", b"/tmp", b"tmpfs", 0, 0)
            os.write(writer, b"0")
        except OSError as error:
            os.write(writer, str(error.errno).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    if number := int(os.read(reader, 10)):
        raise OSError(number, os.strerror(number))
    return "mounted a file system"


@attack("load into the kernel (bpf)", "https://nvd.nist.gov/vuln/detail/CVE-2021-3490", reaches=True)
def bpf(given: dict[str, Any]) -> object:
    attributes = (ctypes.c_uint32 * 32)(2, 4, 4, 1)  # an array of one element
    return f"descriptor {call(given['numbers']['bpf'], 0, attributes, 128)}"


@attack("use the kernel's keyrings", "https://nvd.nist.gov/vuln/detail/CVE-2016-0728", reaches=True)
def keyring(given: dict[str, Any]) -> object:
    return f"key {call(given['numbers']['add_key'], b'user', b'escape', b'x', 1, -2)}"


@attack("count events of the processor (perf_event_open)", "https://nvd.nist.gov/vuln/detail/CVE-2013-2094", reaches=True)
def performance_events(given: dict[str, Any]) -> object:
    attributes = (ctypes.c_uint64 * 14)(1 | 112 << 32, 0, 0, 0, 0, 1 << 5 | 1 << 6)
    return f"descriptor {call(given['numbers']['perf_event_open'], attributes, 0, -1, -1, 0)}"


@attack("handle page faults (userfaultfd)", "https://docs.kernel.org/admin-guide/mm/userfaultfd.html", reaches=True)
def page_faults(given: dict[str, Any]) -> object:
    return f"descriptor {call(given['numbers']['userfaultfd'], 1)}"


@attack("load another kernel (kexec)", "https://man7.org/linux/man-pages/man2/kexec_load.2.html")
def kexec(given: dict[str, Any]) -> object:
    try:
        call(given["numbers"]["kexec_load"], 0, 0, 0, 0x8000)  # flags that do not exist are looked at after the rights
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return "only the flags were wrong"


@attack("write to /proc/sys", "https://nvd.nist.gov/vuln/detail/CVE-2025-52881")
def kernel_settings(given: dict[str, Any]) -> object:
    return first(lambda name: rewrite(f"/proc/sys/{name}"), ("vm/swappiness", "kernel/printk", "fs/pipe-max-size"))


@attack("have the kernel start a program after a crash (core_pattern)", "https://nvd.nist.gov/vuln/detail/CVE-2025-31133")
def core_pattern(given: dict[str, Any]) -> object:
    return rewrite("/proc/sys/kernel/core_pattern")


@attack("have the kernel start a program for a cgroup (release_agent)", "https://nvd.nist.gov/vuln/detail/CVE-2022-0492")
def release_agent(given: dict[str, Any]) -> object:
    os.makedirs(place := f"{given['workspace']}/cgroup", exist_ok=True)
    call(given["numbers"]["mount"], b"cgroup", place.encode(), b"cgroup", 0, b"none,name=escape")
    try:
        return rewrite(f"{place}/release_agent")
    finally:
        libc.umount2(place.encode(), 2)


@attack("create a control group", "https://docs.kernel.org/admin-guide/cgroup-v2.html#delegation")
def control_group(given: dict[str, Any]) -> object:
    if not os.path.isdir("/sys/fs/cgroup"):
        raise NotHereError("no control groups are mounted")
    os.mkdir(path := f"/sys/fs/cgroup/escape-{os.getpid()}")
    os.rmdir(path)
    return f"made {path}"


@attack(
    "gain rights by programs with a set-user-ID bit", "https://docs.kernel.org/userspace-api/no_new_privs.html", reaches=True
)
def set_user_id(given: dict[str, Any]) -> object:
    status = read("/proc/self/status")
    return "no_new_privs is not set" if "NoNewPrivs:\t0" in status else ""
