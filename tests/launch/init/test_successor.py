"""A process that goes on in a successor: with its memory, below another parent, and as the C library knows it."""

from __future__ import annotations

import subprocess
import sys
import textwrap

BEGIN = """
import ctypes, os, signal, threading
from cellblock.launch.init import processes, successor
from cellblock.launch.init.successor import go_on_in_successor
from cellblock.worker.forks import threads as fork_threads
reader, writer = os.pipe()
def kept_id():
    return ctypes.c_int.from_address(fork_threads.place_of_id()).value
def fork():
    ctypes.pythonapi.PyOS_BeforeFork()
    if child := successor.fork():
        ctypes.pythonapi.PyOS_AfterFork_Parent()
        return os.waitpid(child, 0)[1]
    between = os.getpid()
    go_on_in_successor()
    while os.getppid() == between:
        os.sched_yield()
    ctypes.pythonapi.PyOS_AfterFork_Child()
"""


def run(code: str) -> str:
    """Run code in a process that takes in its descendants' orphans; return what it prints."""
    code = f"{BEGIN}\nprocesses.become_subreaper()\n{textwrap.dedent(code)}"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


def test_it_has_the_memory_and_is_a_child_of_who_takes_in_orphans() -> None:
    said = run(
        """
        top, kept = os.getpid(), ["kept"]
        if (status := fork()) is None:
            os.write(writer, repr((kept, os.getppid() == top)).encode())
            os._exit(3)
        print(os.read(reader, 100).decode(), os.WTERMSIG(status), os.waitstatus_to_exitcode(os.wait()[1]))
        """
    )
    assert said == "(['kept'], True) 9 3\n"


def test_the_c_library_and_python_know_the_new_process() -> None:
    """Otherwise locks that check their owner fail, and robust ones are never freed."""
    said = run(
        """
        def robust():
            return successor._robust_list()
        before, hooks = robust(), []
        os.register_at_fork(after_in_child=lambda: hooks.append(os.getpid()))
        if fork() is None:
            own = os.getpid()
            libc = ctypes.CDLL(None)
            facts = [
                kept_id() == own, hooks == [own], robust() == before,
                libc.sched_getcpu() in os.sched_getaffinity(0),
            ]
            thread = threading.Thread(target=lambda: facts.append(threading.get_native_id() != own))
            thread.start(); thread.join()
            again = os.fork()  # the C library's own fork works in it
            if not again:
                os._exit(0 if kept_id() == os.getpid() else 1)
            facts.append(os.waitpid(again, 0)[1] == 0)
            os.write(writer, repr(facts).encode())
            os._exit(0)
        os.wait()
        print(os.read(reader, 1000).decode())
        """
    )
    assert said == f"{[True] * 6}\n"


def test_the_system_notes_its_processor_again() -> None:
    """Libraries that keep data for each processor rely on it."""
    said = run(
        """
        libc = ctypes.CDLL(None)
        offset, size = ctypes.c_ssize_t.in_dll(libc, "__rseq_offset"), ctypes.c_uint.in_dll(libc, "__rseq_size")
        if fork() is None:
            place = fork_threads.thread_pointer() + offset.value
            again = successor._syscall(*successor._call("rseq", place, max(size.value, 32), 0, 0x53053053))
            os.write(writer, os.strerror(ctypes.get_errno()).encode() if again < 0 else b"not registered")
            os._exit(0)
        os.wait()
        print(os.read(reader, 1000).decode())
        """
    )
    assert said in ("Device or resource busy\n", "Invalid argument\n")


def test_without_room_for_a_process_it_goes_on_itself() -> None:
    said = run(
        """
        import resource
        real = successor._syscall
        def none(number, *arguments):
            from cellblock.walls.linux.syscall_numbers import number as of
            if number.value == of("clone"):
                ctypes.set_errno(11)
                return -1
            return real(number, *arguments)
        successor._syscall = none
        child = os.fork()
        if not child:
            try:
                go_on_in_successor()
            except OSError as error:
                os.write(writer, f"{error.strerror}, {os.getppid()}, {kept_id() == os.getpid()}".encode())
            os._exit(5)
        print(os.read(reader, 100).decode() == f"Resource temporarily unavailable, {os.getpid()}, True", os.wait()[1] >> 8)
        """
    )
    assert said == "True 5\n"


def test_with_a_c_library_that_says_nothing_of_threads_it_is_a_fork_more() -> None:
    said = run(
        """
        def unknown():
            raise ValueError
        successor.place_of_id = unknown
        top = os.getpid()
        if (status := fork()) is None:
            os.write(writer, repr(os.getppid() == top).encode())
            os._exit(0)
        os.wait()
        print(os.read(reader, 100).decode(), status)
        """
    )
    assert said == "True 0\n"


def test_what_was_looked_up_before_the_fork_is_not_looked_up_again() -> None:
    """In the fork, each look copies pages that it shares with the original."""
    said = run(
        """
        def fail(*_arguments):
            os._exit(9)
        top = os.getpid()
        successor.look_up()
        successor.place_of_id = successor.thread_pointer = successor._robust_list = fail
        if (status := fork()) is None:
            os.write(writer, repr((os.getppid() == top, kept_id() == os.getpid())).encode())
            os._exit(0)
        os.wait()
        print(os.read(reader, 100).decode() if os.WTERMSIG(status) == 9 else os.waitstatus_to_exitcode(status))
        """
    )
    assert said == "(True, True)\n"
