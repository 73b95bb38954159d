"""Entry point of process 1 of a session: enters the namespaces and starts the worker. `serving` does the rest.

When the host or the worker has ended, it kills all child processes and exits. It outlives its zygote.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import traceback
from typing import TYPE_CHECKING, NoReturn

from cellblock.launch.init import processes
from cellblock.launch.init.refusing import refusal, refuse_session
from cellblock.launch.init.serving import Init
from cellblock.launch.init.worker import EXIT_BROKEN, example, run_worker, wait_until_apart
from cellblock.launch.init.worker import rehearse as rehearse_worker
from cellblock.walls.sandbox.ground import Ground
from cellblock.walls.sandbox.steps import step
from cellblock.wire.codec import decoder, encoder
from cellblock.wire.control import (
    FROM_INIT,
    TO_INIT,
    TO_MAKER,
    TO_NEW_INIT,
    Held,
    Setup,
)
from cellblock.wire.copies import FROM_COPY, FROM_FAMILY, TO_COPY, TO_FAMILY
from cellblock.wire.datagrams import encode_control
from cellblock.wire.program_messages import FROM_WATCHER, SPECIFICATION, TO_WATCHER
from cellblock.wire.sandbox import Plan, Restrictions, Step

if TYPE_CHECKING:
    from cellblock.worker.outbox import Outbox
    from cellblock.worker.shell import Shell


_HANDOVER, _HOST, _PARENT = 3, 4, 5
_OTHERS = (TO_INIT, FROM_INIT, TO_FAMILY, FROM_FAMILY, TO_COPY, FROM_COPY, SPECIFICATION, TO_WATCHER, FROM_WATCHER)


def run_init(
    handover: int,
    host: int | None,
    warmed: tuple[Shell, Outbox] | None,
    preload: tuple[str, ...],
    ground: Ground | None,
    places: str | None = None,
    parent: int | None = None,
    environment: str = "",
) -> NoReturn:
    """Become a session's init, and start its worker; never returns.

    Both can be created in advance. They then belong to no session yet, and wait for a session's connections.

    Args:
        handover: A socket on which ``fork`` arrives, with the descriptors of the session.
        host: A pidfd of the host, or None if pidfds are not supported.
        warmed: The result of `warm`, or None to let the worker do that.
        preload: Modules for the worker to import, if `warmed` is None.
        ground: The basis of the native sandbox; then this is process 1 of new namespaces. None: no sandbox.
        places: Prefix of the host's paths for its sessions, if nothing else removes them after the host.
        parent: A pidfd of the parent process, unless that is the host.
        environment: The directory of a trusted environment that `preload` is imported from, if any.
    """
    try:
        wanted = {_HANDOVER: handover, _HOST: host, _PARENT: parent}
        try:
            prepared = ground.enter_namespaces() if ground is not None else ()
            with step("worker"):
                processes.keep_only({place: descriptor for place, descriptor in wanted.items() if descriptor is not None})
                handover = _HANDOVER
                if os.getsid(0) != os.getpid():
                    os.setsid()
                processes.become_subreaper()
                processes.resume_after_parent()
                inner, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                wake = processes.wake_on_signals()
                worker = os.fork()
            if worker == 0:
                run_worker(theirs, warmed, preload, ground is not None, environment)
            theirs.close()
            if ground is not None:
                wait_until_apart(inner)
        except OSError as error:
            refuse_session(handover, refusal(error, "worker"))
        if not select.select([_HANDOVER], [], [], 0)[0]:  # nothing waits
            _touch_pages()
        host, parent = (place if wanted[place] is not None else None for place in (_HOST, _PARENT))
        Init(socket.socket(fileno=_HANDOVER), inner, wake, worker, ground, prepared, places, host, parent).run()
    except BaseException:  # nothing may return from here into the code that forked us
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(EXIT_BROKEN)


_example, _ready = b"", example()
"""An example of what init receives, encoded, and of what it sends to the worker."""


def rehearse(beginning: tuple[Step, ...]) -> None:
    """Build all message codecs of inits and workers, as a zygote, so that none of them needs to.

    Args:
        beginning: The first steps of most plans.
    """
    global _example
    restrictions = Restrictions({}, 0, "")
    plan = Plan(everything=False, home="", steps=beginning, reserve={}, restrictions=restrictions)
    _example = encode_control(Setup({}, "", None, "", plan=plan))
    _touch_pages()
    rehearse_worker()
    TO_MAKER.decode(encode_control(Held(())))
    for way in _OTHERS:
        for kind in way.kinds.values():
            decoder(kind)
            encoder(kind)


def _touch_pages() -> None:
    """Touch, before a session waits, the pages that init writes to when a session arrives, so that they are copied early."""
    if _example:  # not without a zygote
        TO_NEW_INIT.decode(_example)
        encode_control(_ready)
