"""Why a process cannot be copied, and what a copy has to be told. What libraries do in a copy: tests/fork."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import Script, printed
from suite import first_quick


def test_a_process_with_one_thread_can_be_copied(refusals: Script) -> None:
    assert refusals("print(refusal())") == ["None"]


def test_nothing_is_imported_for_it() -> None:
    script = """
before = set(sys.modules)
refusal(), prepare(), part(2), repair()
print(set(sys.modules) - before)
"""
    assert printed(f"import sys\nfrom cellblock.worker.forks.safety import *\n{script}") == ["set()"]


@pytest.mark.parametrize("used", [True, False])
def test_cuda_is_refused_once_it_has_been_used(refusals: Script, used: bool) -> None:
    script = f"""
import types
sys.modules["torch.cuda"] = types.SimpleNamespace(is_initialized=lambda: {used})
print(refusal())
"""
    (said,) = refusals(script)
    assert said.startswith("CUDA has state and threads, which do not survive" if used else "None")


def test_a_thread_is_named(refusals: Script) -> None:
    script = """
go = threading.Event()
thread = threading.Thread(target=go.wait, name="watcher")
thread.start()
print(refusal())
print(refusal(ours=[thread.native_id]))
go.set()
thread.join()
print(refusal())
"""
    assert refusals(script) == [
        'the thread "watcher" is running, and checkpoints cannot contain threads: stop it, or wait until it ends',
        "None",
        "None",
    ]


def test_a_name_is_shown_without_what_a_terminal_would_obey_and_not_at_any_length(refusals: Script) -> None:
    script = """
go = threading.Event()
thread = threading.Thread(target=go.wait, name="\\x1b]52;c;AAAA\\a" + "x" * 10_000, daemon=True)
thread.start()
print(refusal())
go.set()
"""
    (reason,) = refusals(script)
    assert reason.startswith('the thread "\\x1b]52;c;AAAA\\x07xxx')
    assert len(reason) < 500


@pytest.mark.slow
def test_a_thread_that_threading_does_not_know_is_seen(refusals: Script) -> None:
    script = """
import _thread
go = _thread.allocate_lock()
go.acquire()
_thread.start_new_thread(go.acquire, ())
print(refusal())
go.release()
"""
    (reason,) = refusals(script)
    assert reason.startswith("a thread without a name is running")


def test_a_thread_of_an_unknown_library_is_named_by_its_file(refusals: Script) -> None:
    """Such as the thread that glibc itself starts for notifications of timers."""
    script = """
import ctypes
libc = ctypes.CDLL(None)
thread = ctypes.c_void_p()
assert libc.pthread_create(ctypes.byref(thread), None, libc.sleep, 600) == 0
print(refusal())
os._exit(0) if not sys.stdout.flush() else None
"""
    (reason,) = refusals(script)
    assert reason.startswith("libc.so.6 has started 1 thread, ")
    assert "save()" in reason


def test_a_copy_is_told_of_processes_and_does_not_wait_for_them(refusals: Script, tmp_path: Path) -> None:
    script = f"""
import subprocess
process = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
try:
    assert refusal() is None
    prepare()
    if not (copy := os.fork()):
        try:
            open({str(tmp_path)!r} + "/said", "w").write(f"{{repair()}} {{process.poll()}}")
        finally:
            os._exit(0)
    os.waitpid(copy, 0)
finally:
    process.kill()
print(process.wait())
"""
    assert refusals(script) == ["-9"]
    assert (tmp_path / "said").read_text() == "['Background processes are not restored; start them again: sleep.'] -9"


def test_what_cannot_be_repaired_is_told_and_the_rest_is_repaired(refusals: Script) -> None:
    script = """
from cellblock.worker.forks import safety as fork_safety
class Pool: pass
def broken(): raise RuntimeError("broken by the code")
refusal()
prepare()
fork_safety._prepared.resets = [broken, lambda: "The pool is closed."]
print(repair())
"""
    assert refusals(script) == [
        "['Part of the restored state could not be repaired: RuntimeError: broken by the code', 'The pool is closed.']"
    ]


@pytest.mark.parametrize(
    ("memory", "shared"),
    first_quick(
        [
            ("memory = mmap.mmap(-1, 10)", True),
            ("memory = multiprocessing.Value('i', 1)", True),
            ("memory = multiprocessing.Lock()", False),
            ("memory = mmap.mmap(-1, 10, flags=mmap.MAP_PRIVATE)", False),
            ("memory = open('/etc/passwd', 'rb'); mapped = mmap.mmap(memory.fileno(), 0, prot=mmap.PROT_READ)", False),
        ],
        2,
    ),
)
def test_memory_that_copies_share_is_told(refusals: Script, memory: str, shared: bool) -> None:
    script = f"""
import mmap, multiprocessing
{memory}
refusal()
prepare()
print(repair())
"""
    (line,) = refusals(script)
    assert ("Shared memory (mmap, multiprocessing) was not copied" in line) is shared


def test_a_memory_map_of_a_file_that_was_replaced_is_told(refusals: Script, tmp_path: Path) -> None:
    script = f"""
import mmap
for name in "same", "other":
    path = {str(tmp_path)!r} + "/" + name
    with open(path, "wb") as file:
        file.write(b"1234")
    file = open(path, "r+b")
    globals()[name] = mmap.mmap(file.fileno(), 0)
with open(path + ".new", "wb") as file:
    file.write(b"5678")
os.replace(path + ".new", path)
refusal()
prepare()
print(*repair())
"""
    expected = f"The file {tmp_path}/other was replaced, but its memory map still shows the old content: map it again."
    assert refusals(script) == [expected]
