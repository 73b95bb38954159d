"""Attacks from inside several sandboxes, and writes docs/escape-benchmark.md.

python bench/escape/run.py                                  everything, in about half an hour
python bench/escape/run.py --sandbox bubblewrap --attack io_uring --attack bpf
python bench/escape/run.py --programs DIRECTORY             only write the programs, to run them elsewhere

Results take the place of older ones of the same kind of user: root or another.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import platform
import pty
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

from bench.escape import report  # noqa: E402
from bench.escape.attacks import PARTS  # noqa: E402
from bench.escape.sandboxes import SANDBOXES, AbsentError, Sandbox  # noqa: E402
from bench.escape.suite import ATTACKS, Attack, program  # noqa: E402
from bench.escape.world import MARK, World  # noqa: E402

_LIMIT = 120  # seconds for one attack
RESULTS = ROOT / "bench" / "results" / "escape.json"


def judge(sandbox: Sandbox, attack: Attack) -> dict[str, str]:
    """Make an attack in a sandbox.

    Returns:
        ``verdict``: ``escaped``, ``held``, ``nothing`` if it is about something that this sandbox does not have, or
        ``no verdict`` if the program gave none, mostly because the sandbox does not start; and ``evidence``.
    """
    with World(dotenv=attack.secret == "dotenv") as world:
        verdicts, errors = _verdicts(sandbox, attack, world)
        if len(verdicts) != attack.sessions:
            return {"verdict": "no verdict", "evidence": errors[-300:]}
        said = verdicts[0]
        found = {"evidence": str(said["evidence"])[:200]}
        if not said.get("applies", True):
            return {"verdict": "nothing", **found}
        if attack.proof:
            escaped = attack.proof(world)
        elif attack.secret:
            escaped = world.secrets[attack.secret] in said["evidence"]
            found["evidence"] = "the secret" if escaped else found["evidence"]
        elif attack.sessions > 1:
            escaped = said["escaped"] and len({verdict["evidence"] for verdict in verdicts}) == 1
        else:
            escaped = said["escaped"]
        return {"verdict": "escaped" if escaped else "held", **found}


def _verdicts(sandbox: Sandbox, attack: Attack, world: World) -> tuple[list[dict[str, Any]], str]:
    """Return the verdicts that the programs print, and what else was printed."""
    own = attack.environment(world) if attack.environment else {}
    environment = {**os.environ, **sandbox.environment(world), **own}
    environment |= {"HOME": str(world.home), "ESCAPE_API_KEY": world.secrets["environment"]}
    verdicts, errors = [], ""
    runs = 1 if _has_own_sessions(sandbox) else attack.sessions
    for _ in range(runs):
        command = sandbox.command(program(attack, world.given), attack, world)
        try:
            with _terminal(world) as terminal:
                done = subprocess.run(
                    command,
                    cwd=world.workspace,
                    env=environment,
                    stdin=terminal,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=_LIMIT,
                    check=False,
                    start_new_session=True,
                    preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # no threads are in the way
                    pass_fds=world.descriptors,
                )
        except subprocess.TimeoutExpired:
            errors += f"no answer in {_LIMIT} s"
            continue
        errors += done.stdout[-200:] + done.stderr
        for line in done.stdout.splitlines():
            with contextlib.suppress(ValueError):
                verdicts += [found] if "escaped" in (found := json.loads(line)) else []
    return verdicts, errors


def _has_own_sessions(sandbox: Sandbox) -> bool:
    return hasattr(sandbox, "isolate")


@contextlib.contextmanager
def _terminal(world: World) -> Iterator[int]:
    """Give a process a terminal, and note whether something was typed into it."""
    ours, theirs = pty.openpty()
    try:
        yield theirs
        os.set_blocking(theirs, False)
        with contextlib.suppress(BlockingIOError, OSError):
            world.typed = MARK.encode() in os.read(theirs, 4096)
    finally:
        os.close(theirs)
        os.close(ours)


def versions() -> dict[str, str]:
    """Return the version of each sandbox, or ``not present`` and why."""
    found = {}
    for sandbox in SANDBOXES:
        try:
            found[sandbox.name] = sandbox.version()
        except AbsentError as error:
            found[sandbox.name] = f"not present: {error}"
    return found


def measure(sandboxes: list[Sandbox], attacks: list[Attack]) -> dict[str, dict[str, dict[str, str]]]:
    """Make attacks in sandboxes, and return the verdicts by sandbox and attack."""
    results: dict[str, dict[str, dict[str, str]]] = {}
    for sandbox in sandboxes:
        began = time.monotonic()
        for attack in attacks:
            found = results.setdefault(sandbox.name, {})[attack.name] = judge(sandbox, attack)
            print(f"{sandbox.name:28} {attack.name:26} {found['verdict']:10} {found['evidence'][:100]!r}", flush=True)
        print(f"{sandbox.name}: {time.monotonic() - began:.0f} s", flush=True)
    return results


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sandbox", action="append", default=[], choices=[sandbox.name for sandbox in SANDBOXES])
    parser.add_argument("--attack", action="append", default=[], choices=[*ATTACKS])
    parser.add_argument("--programs", type=Path)
    arguments = parser.parse_args()
    attacks = [attack for attack in ATTACKS.values() if not arguments.attack or attack.name in arguments.attack]
    if arguments.programs:
        with World() as world:
            for attack in attacks:
                (arguments.programs / f"{attack.name}.py").write_text(program(attack, world.given))
        return
    present = versions()
    wanted = [sandbox for sandbox in SANDBOXES if not arguments.sandbox or sandbox.name in arguments.sandbox]
    for sandbox in wanted:
        if not present[sandbox.name].startswith("not present"):
            keep(measure([sandbox], attacks), present)


def keep(results: dict[str, dict[str, dict[str, str]]], present: dict[str, str]) -> None:
    """Put results in the place of older ones, and write the tables."""
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    ours = kept.setdefault("root" if os.geteuid() == 0 else "user", {"results": {}})
    ours |= {"date": datetime.now(UTC).date().isoformat(), "system": f"Linux {platform.release()}, {platform.machine()}"}
    ours["versions"] = present
    for name, found in results.items():
        ours["results"].setdefault(name, {}).update({attack: end["verdict"] for attack, end in found.items()})
    RESULTS.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    report.write(ROOT / "docs" / "escape-benchmark.md", kept, PARTS)


if __name__ == "__main__":
    main()
