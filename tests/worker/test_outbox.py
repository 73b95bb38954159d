"""What a kernel shows leaves in order and whole, whoever writes and whatever interrupts."""

from __future__ import annotations

from cellblock.wire.fields import PIECE
from cellblock.wire.messages import Clear
from worker_end import run, worker_end

LINES = "".join(f"{number}\n" for number in range(50_000))


def test_both_streams_and_messages_leave_in_the_order_of_the_code() -> None:
    end = run(
        """
        for number in range(20):
            print(number)
            print(number, file=sys.stderr)
        sys.stdout.write('no newline'); outbox.send(Clear(True)); print('after')
        """
    )
    assert [(stream.name, stream.text) for stream in end.streams][:40] == [
        (name, b"%d\n" % number) for number in range(20) for name in ("stdout", "stderr")
    ]
    assert [type(message).__name__ for message in end.messages[-3:]] == ["Stream", "Clear", "Stream"]
    assert [stream.text for stream in end.streams[40:]] == [b"no newline", b"after\n"]
    assert end.messages[-2] == Clear(True)


def test_messages_do_not_overtake_what_another_thread_has_taken_to_send() -> None:
    end = run(
        """
        import threading

        taken, go, channel = threading.Event(), threading.Event(), outbox._channel

        class Held:
            def send(self, message):
                if threading.current_thread() is gathering:
                    taken.set()
                    go.wait()
                channel.send(message)

        outbox._channel = Held()
        sys.stdout.write("text")
        gathering = threading.Thread(target=outbox.tick)
        gathering.start()
        taken.wait()
        threading.Timer(0.1, go.set).start()
        outbox.send(Clear(True))
        gathering.join()
        outbox._channel = channel
        """
    )
    assert [type(message).__name__ for message in end.messages] == ["Ready", "Stream", "Clear"]


def test_a_line_leaves_at_once() -> None:
    """The code waits until the line was heard, each time: also of one after a burst, and of what a burst leaves over."""
    cases = {
        "print('text')": "text",
        "print('no end', end='')": "no end",
        "sys.stdout.write('return\\r')": "return",
        "sys.stdout.write('prompt> '); sys.stdout.flush()": "prompt> ",
        "print('one'); print('two'); print('three')": "one\ntwo\nthree\n",
        "tasks(1); print('x'); print('x'); tasks(2); tasks(1); print('y')": "y",
    }
    with worker_end("\n".join(f"{code}\nsys.__stdin__.readline(); tasks(1)" for code in cases)) as end:
        for text in cases.values():
            end.hear(text)
            end.go_on()
        end.finish()


def test_lines_of_a_burst_are_gathered() -> None:
    end = run("for number in range(50_000): print(number)")
    assert end.text() == LINES
    assert len(end.streams) < 1000


def test_no_thread_is_left_after_settling() -> None:
    """And the thread of a burst ends by itself."""
    run(
        """
        for _ in range(1000): print("x")
        tasks(2)
        assert threading.enumerate() == [threading.main_thread()]
        outbox.settle()
        assert outbox._ticker is None
        tasks(1)
        print("x"); print("x")
        tasks(2)
        tasks(1)
        print("y"); print("z")
        """
    )


def test_lines_of_threads_are_all_there_and_whole() -> None:
    end = run(
        """
        def write(number):
            for line in range(1000):
                sys.stdout.write(f"{number}:{line}\\n")
        threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        """
    )
    lines = end.text().splitlines()
    assert sorted(lines) == sorted(f"{number}:{line}" for number in range(8) for line in range(1000))
    for number in range(8):
        own = [line for line in lines if line.startswith(f"{number}:")]
        assert own == [f"{number}:{line}" for line in range(1000)]


def test_signal_handlers_may_print_in_the_middle_of_printing() -> None:
    end = run(
        """
        ticks = 0
        def tick(*_):
            global ticks
            ticks += 1
            sys.stdout.write("tick\\n")
        signal.signal(signal.SIGALRM, tick)
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        number = 0
        while ticks < 50:
            sys.stdout.write(f"{number}\\n")
            number += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.__stdout__.write(f"{ticks} {number}")
        sys.__stdout__.flush()
        """
    )
    ticks, number = map(int, end.said.split())
    lines = end.text().splitlines()
    assert lines.count("tick") == ticks
    assert [line for line in lines if line != "tick"] == [str(line) for line in range(number)]


def test_signal_handlers_that_raise_cut_no_frame_and_lose_no_line() -> None:
    end = run(
        """
        class Hit(Exception): pass
        hits = written = 0
        ready = False  # no hit where nothing catches it
        def hit(*_):
            global hits, ready
            if ready:
                hits += 1
                ready = False
                raise Hit
        signal.signal(signal.SIGALRM, hit)
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        while hits < 50:
            try:
                ready = True
                sys.stdout.write(f"{written + 1}\\n")
                written += 1
                ready = False
            except Hit:
                pass
        signal.setitimer(signal.ITIMER_REAL, 0)
        print("end")
        sys.__stdout__.write(str(written))
        sys.__stdout__.flush()
        """
    )
    lines = end.text().splitlines()
    assert lines.pop() == "end"
    # A hit between the writing and the counting makes the code write the same line again.
    assert list(dict.fromkeys(map(int, lines)))[: int(end.said)] == [*range(1, int(end.said) + 1)]


def test_signal_handlers_that_raise_while_the_host_catches_up_leave_no_lock_behind() -> None:
    end = run(
        """
        import threading
        class Hit(Exception): pass
        hits = 0
        ready = False
        def hit(*_):
            global hits, ready
            if ready:
                hits += 1
                ready = False
                raise Hit
        signal.signal(signal.SIGALRM, hit)
        signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)
        while hits < 150:
            try:
                ready = True
                sys.stdout.write("x\\n")
                outbox.let_host_catch_up()
                ready = False
            except Hit:
                pass
        signal.setitimer(signal.ITIMER_REAL, 0)
        def take():
            if outbox._lock.acquire(timeout=5):
                sys.__stdout__.write("free")
                sys.__stdout__.flush()
                outbox._lock.release()
        other = threading.Thread(target=take)
        other.start()
        other.join()
        """
    )
    assert end.said == b"free"


def test_finalizers_may_print_in_the_middle_of_printing() -> None:
    end = run(
        """
        import gc
        class Loud:
            def __init__(self): self.me = self
            def __del__(self): sys.stdout.write("gone\\n")
        gc.set_threshold(5)
        for number in range(2000):
            Loud()
            sys.stdout.write(f"{number}\\n")
        gc.collect()
        """
    )
    lines = end.text().splitlines()
    assert lines.count("gone") == 2000
    assert [line for line in lines if line != "gone"] == [str(number) for number in range(2000)]


def test_a_forked_child_writes_to_descriptors_and_never_to_the_channel() -> None:
    """A fork in the middle of a burst loses and doubles nothing."""
    end = run(
        """
        print("before")
        sys.stdout.write("pending")
        if os.fork() == 0:
            print("child out")
            print("child err", file=sys.stderr)
            sys.stdout.buffer.write(b"child bytes\\n")
            outbox.send(Display("display_data", {"text/plain": b"child shows"}))
            outbox.send(Clear(False))
            outbox.settle()
            os._exit(0)
        os.wait()
        print(" and after")
        for number in range(200):
            print(number)
            if number % 20 == 0:
                if os.fork() == 0:
                    os._exit(0)
                os.wait()
        """
    )
    assert end.text() == "before\npending and after\n" + "".join(f"{number}\n" for number in range(200))
    assert [type(message).__name__ for message in end.messages if type(message).__name__ != "Stream"] == ["Ready"]
    assert end.said == b"child out\nchild bytes\nchild shows\n"
    assert end.complained == b"child err\n"


def test_pieces_have_whole_characters_and_no_more_than_their_limit() -> None:
    end = run("sys.stdout.write('😀' * 200_000 + '\\ud800' * 100_000)")
    assert end.text() == "😀" * 200_000 + "\\ud800" * 100_000
    assert all(len(stream.text) <= PIECE for stream in end.streams)
    for stream in end.streams:
        stream.text.decode()
