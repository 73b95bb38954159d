"""What a run consists of: which case for which system, how often, and how large."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Step:
    """One case with its options.

    Attributes:
        name: What results and `--only` call it; what is before a colon in it is the part that it belongs to.
        case: The module and the function in it.
        systems: The options by system; a system that lacks the notion, or would take hours, is not there.
        quick: Options that a short run has instead.
        rounds: How often it is done in a full run; systems take turns in each.
    """

    name: str
    case: str
    systems: Mapping[str, Options]
    quick: Mapping[str, Options] = field(default_factory=dict)
    rounds: int = 3

    @property
    def part(self) -> str:
        """What `--only` calls this and the steps that belong with it."""
        return self.name.partition(":")[0]

    def options(self, system: str, quick: bool) -> Options:
        """Return the options for one system."""
        full = self.systems[system]
        return {**full, **self.quick.get(system, {})} if quick else full


def _counts(cellblock: int, ipybox: int, kernelbox: int, jupyter: int, **common: Any) -> dict[str, Options]:
    counts = {"cellblock": cellblock, "ipybox": ipybox, "kernelbox": kernelbox, "jupyter": jupyter}
    return {name: {"n": n, **common} for name, n in counts.items() if n}


_ONE: dict[str, Options] = {"cellblock": {"n": 5}, "ipybox": {"n": 1}, "kernelbox": {"n": 1}, "jupyter": {"n": 1}}
_PYTHON = {"python": sys.executable}  # runs the MCP servers that are written in Python, for whatever system
_TURNS: dict[str, Options] = {"cellblock": {"n": 5, "turns": 1}}


def _checkpoints(isolate: str, suffix: str) -> tuple[Step, ...]:
    def step(name: str, case: str, quick: dict[str, Any], rounds: int = 2, **options: Any) -> Step:
        full = {"cellblock": {**options, "isolate": isolate}}
        return Step(f"checkpoints: {name}{suffix}", f"checkpoints.{case}", full, {"cellblock": quick}, rounds)

    return (
        step(
            "restore",
            "restore",
            {"n": 5, "held": ["0 MB", "100 MB"]},
            n=40,
            held=["0 MB", "100 MB", "1000 MB", "10 M objects"],
        ),
        step("undo", "undo", {"n": 5}, n=40),
        step("fork", "fork", {"n": 3}, n=20, branches=8),
        step("rolling", "rolling", {"n": 20, "pauses": 5, "turns": 2}, n=250, pauses=15, turns=6),
        step("parked", "parked", {"n": 3}, n=8, rounds=1),
    )


def _exact() -> tuple[Step, ...]:
    workspaces: tuple[dict[str, Any], ...] = ({"files": 0}, {"files": 100}, {"files": 10_000}, {"files": 0, "large": 1000})
    names = ("empty", "100 files", "10,000 files", "1 GB")
    full: dict[str, Any] = {"n": 200, "isolate": "native", "waits": [0, 1, 10, 100]}
    short: dict[str, Any] = {"cellblock": {"n": 5, "waits": [0, 10]}}
    return tuple(
        Step(f"exact: {name}", "exact.cells", {"cellblock": {**full, **workspace}}, short, rounds=2)
        for name, workspace in zip(names, workspaces, strict=True)
    )


STEPS = (
    Step("floor", "floor.floor", {"floor": {"n": 2000}}, {"floor": {"n": 200}}),
    Step("skeleton", "skeleton.skeletons", {"floor": {"n": 1500}}, {"floor": {"n": 100}}),
    Step("create", "cases.create", _counts(100, 2, 8, 8), _ONE),
    Step("create with pauses", "cases.create", _counts(50, 0, 0, 0, pause=0.05), _ONE, rounds=2),
    Step("create preloaded", "cases.create", _counts(80, 1, 3, 3, preload=True), _ONE, rounds=2),
    Step("create preloaded with pauses", "cases.create", _counts(40, 0, 0, 0, preload=True, pause=0.05), _ONE, rounds=2),
    Step("life", "cases.life", _counts(40, 0, 8, 8, isolate="none"), _ONE, rounds=2),
    Step("life, sandboxed", "cases.life", _counts(40, 0, 0, 0, isolate="native"), _ONE, rounds=2),
    Step("round trip", "cases.roundtrip", _counts(2000, 60, 300, 500), _counts(200, 5, 20, 20)),
    Step("output lost", "cases.lost", _counts(10_000, 200, 500, 500), _counts(200, 10, 20, 20), rounds=1),
    Step(
        "stream",
        "cases.stream",
        {"cellblock": {"size": 100_000_000}, "ipybox": {"size": 2_000_000}, "jupyter": {"size": 20_000_000}},
        {"cellblock": {"size": 10_000_000}, "ipybox": {"size": 1_000_000}, "jupyter": {"size": 2_000_000}},
        rounds=2,
    ),
    Step("idle, 20 alive", "cases.idle", _counts(20, 0, 0, 0), _ONE, rounds=1),
    Step("idle, 100 alive", "cases.idle", _counts(100, 2, 8, 8), _counts(10, 1, 1, 1), rounds=1),
    Step("rate, one at a time", "cases.rate", _counts(100, 0, 0, 0, at_once=1), _ONE, rounds=2),
    Step("rate, 4 at once", "cases.rate", _counts(200, 4, 8, 8, at_once=4), _counts(8, 0, 4, 4), rounds=2),
    Step("rate, 8 at once", "cases.rate", _counts(200, 0, 0, 0, at_once=8), _counts(8, 0, 0, 0), rounds=2),
    Step("many", "cases.many", _counts(1000, 0, 0, 0), _counts(20, 0, 0, 0), rounds=1),
    Step("cold start", "cases.cold", _counts(8, 1, 2, 2), _counts(2, 0, 1, 1), rounds=2),
    Step("import", "cases.imports", _counts(30, 1, 5, 5), _counts(3, 1, 1, 1), rounds=2),
    Step("Jupyter channels", "channels.execute", {"cellblock": {"n": 1000}}, {"cellblock": {"n": 20}}, rounds=2),
    Step(
        "REST",
        "rest.execute",
        {"cellblock": {"n": 3000, "clients": 32}, "kernelbox": {"n": 300, "clients": 8}},
        {"cellblock": {"n": 100, "clients": 4}, "kernelbox": {"n": 20, "clients": 2}},
    ),
    Step("command line", "cli.execute", _counts(40, 0, 10, 0), _counts(3, 0, 1, 0)),
    Step("timeout", "cases.timeout", _counts(4, 1, 1, 0, seconds=6.0), _counts(1, 0, 0, 0, seconds=6.0), rounds=1),
    Step("sandbox: create", "sandbox.create", _counts(20, 0, 0, 0, turns=4), _TURNS),
    Step("sandbox: create by landlock", "sandbox.create", _counts(20, 0, 0, 0, turns=4, isolate="landlock"), _TURNS, rounds=2),
    Step("sandbox: create preloaded", "sandbox.create", _counts(15, 0, 0, 0, turns=4, preload=True), _TURNS, rounds=2),
    Step("sandbox: round trip", "sandbox.roundtrip", _counts(250, 0, 0, 0, turns=8), _TURNS),
    Step("sandbox: rate", "cases.rate", _counts(200, 0, 0, 0, at_once=4, isolate="native"), _counts(8, 0, 0, 0), rounds=2),
    Step(
        "sandbox: egress",
        "egress.egress",
        {"cellblock": {"n": 300, "size": 500_000_000, "transfers": 3}},
        {"cellblock": {"n": 10, "size": 10_000_000, "transfers": 1}},
        rounds=2,
    ),
    Step("sandbox: keys", "keys.keys", {"cellblock": {"n": 1000}}, {"cellblock": {"n": 10}}, rounds=2),
    Step("sandbox: srt", "sandbox.srt", _counts(20, 0, 0, 0, firsts=3), {"cellblock": {"n": 3, "firsts": 1}}, rounds=2),
    Step(
        "tools: call",
        "tools.call",
        {"cellblock": {"server": "echo", "n": 100, "turns": 10}, "ipybox": {"server": "echo", "n": 50, "turns": 4}},
        {"cellblock": {"n": 20, "turns": 2}, "ipybox": {"n": 5, "turns": 1}},
    ),
    Step(
        "tools: call the clock",
        "tools.call",
        {
            "cellblock": {"server": "time", "n": 50, "turns": 6, **_PYTHON},
            "ipybox": {"server": "time", "n": 50, "turns": 2, **_PYTHON},
        },
        {"cellblock": {"n": 5, "turns": 2}, "ipybox": {"n": 5, "turns": 1}},
        rounds=2,
    ),
    Step("tools: rules", "tools.rules", {"cellblock": {"n": 2000, "count": 10}}, {"cellblock": {"n": 100}}),
    Step("tools: many", "tools.many", _counts(1000, 1000, 0, 0), _counts(20, 5, 0, 0), rounds=2),
    Step("mcp: server", "mcp.server", _counts(200, 20, 0, 0, starts=3), _counts(5, 2, 0, 0, starts=1), rounds=2),
    Step(
        "named: functions",
        "named.functions",
        {"cellblock": {"n": 2000, "sessions": 60}, "kernelbox": {"n": 300, "sessions": 6}},
        {"cellblock": {"n": 200, "sessions": 5}, "kernelbox": {"n": 20, "sessions": 1}},
    ),
    Step(
        "named: durability",
        "named.durability",
        {"cellblock": {"n": 1000, "undos": 30}},
        {"cellblock": {"n": 20, "undos": 2}},
        rounds=2,
    ),
    Step(
        "named: adoption",
        "adopting.adopt",
        {"cellblock": {"n": 100, "times": 3}},
        {"cellblock": {"n": 5, "times": 1}},
        rounds=1,
    ),
    Step(
        "files: undo",
        "snapshots.undo",
        {"cellblock": {"n": 20, "files": [10, 1000, 10_000]}},
        {"cellblock": {"n": 2, "files": [10, 1000]}},
        rounds=2,
    ),
    Step("files: first", "snapshots.first", {"cellblock": {"n": 3, "files": 10_000}}, {"cellblock": {"n": 1, "files": 1000}}),
    *_exact(),
    *_checkpoints("native", ""),
    *_checkpoints("none", ", unsandboxed"),
    Step(
        "programs",
        "programs.programs",
        {"cellblock": {"n": 200, "isolate": "native", "sessions": 100, "each": 30}},
        {"cellblock": {"n": 10, "sessions": 4, "each": 3}},
    ),
    Step("eager cells", "eager.eager", {"cellblock": {"n": 5}}, {"cellblock": {"n": 1}}, rounds=2),
    Step("tools: generate", "tools.generate", {"cellblock": _PYTHON, "ipybox": _PYTHON}, rounds=2),
)
