"""GPUs in native sandboxes, without a GPU: a recorded CDI file, other device nodes under its names, and a stub library."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from cellblock import CheckpointError, ConflictError, Filesystem, Host, InvalidInputError, Policy, StateError, UnsupportedError
from cellblock.host.checks import fit_policy
from cellblock.host.doctor import explain_policy
from cellblock.walls.sandbox import gpus
from cellblock.walls.sandbox.gpus import GPU_SPAN, find_gpus, known_gpus
from cellblock.walls.sandbox.tiers import LANDLOCK, SRT, Tier
from cellblock.wire.sandbox import Bind, Link
from cells import value

HERE = Path(__file__).parent
ADDRESS = "0000:01:00.0"
MIB = 2**20
ONE = Policy(devices=("gpu:0",))

Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with two GPUs, as far as files go."""
    (tmp_path / "cdi").mkdir()
    (tmp_path / "driver").mkdir()
    (tmp_path / "driver" / "libstub.so").touch()
    slot = tmp_path / "sys" / "devices" / "pci0000:00" / ADDRESS
    slot.mkdir(parents=True)
    for name in ("numa_node", "vendor", "resource0", "remove"):
        (slot / name).write_text("0\n")
    (tmp_path / "sys" / "bus" / "pci" / "devices").mkdir(parents=True)
    (tmp_path / "sys" / "bus" / "pci" / "devices" / ADDRESS).symlink_to(slot)
    for address, minor in ((ADDRESS, 0), ("0000:02:00.0", 1)):
        (tmp_path / "proc" / address).mkdir(parents=True)
        (tmp_path / "proc" / address / "information").write_text(f"Model: \t\t NVIDIA T4\nDevice Minor: \t {minor}\n")
    monkeypatch.setattr(gpus, "_DIRECTORIES", (str(tmp_path / "cdi"),))
    monkeypatch.setattr(gpus, "_PROC", str(tmp_path / "proc"))
    monkeypatch.setattr(gpus, "_SYS", str(tmp_path / "sys"))
    describe(tmp_path)
    return tmp_path


def describe(machine: Path, change: Change = lambda _data: None) -> None:
    text = (HERE / "cdi" / "workstation.json").read_text().replace("DRIVER", str(machine / "driver"))
    data = json.loads(text)
    change(data)
    (machine / "cdi" / "nvidia.json").write_text(json.dumps(data))


def test_a_plan_has_the_nodes_of_one_gpu_and_what_a_session_does_not_see(machine: Path) -> None:
    steps = find_gpus(["gpu:0"], 64 * MIB, everything=False).steps
    nodes = {step.target: step.source for step in steps if isinstance(step, Bind) and step.target.startswith("/dev/nvidia")}
    assert nodes == dict.fromkeys(
        ("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"), "/dev/zero"
    )  # no display, no video, not the other GPU
    shown = {step.target for step in steps if isinstance(step, Bind) and step.access == "ro"}
    assert "/opt/nvidia/lib" in shown
    assert not [path for path in shown if path.startswith(("/etc", "/run", "/usr"))]
    inside = f"/sys/devices/pci0000:00/{ADDRESS}"
    assert Link(f"/sys/bus/pci/devices/{ADDRESS}", inside) in steps
    assert f"{inside}/numa_node" in shown
    assert not {f"{inside}/resource0", f"{inside}/remove"} & shown
    assert not [path for path in shown if "0000:02" in path]


def test_a_session_that_sees_all_of_the_file_system_has_its_sys_already(machine: Path) -> None:
    steps = find_gpus(["gpu:0", "gpu:1"], 64 * MIB, everything=True).steps
    assert not [step for step in steps if getattr(step, "target", "").startswith("/sys")]
    assert {"/dev/nvidia0", "/dev/nvidia1"} <= {step.target for step in steps if isinstance(step, Bind)}


def node(path: str, **more: str) -> Change:
    return lambda data: data["containerEdits"]["deviceNodes"].append({"path": path, **more})


def mount(source: str, target: str) -> Change:
    return lambda data: data["containerEdits"]["mounts"].append({"hostPath": source, "containerPath": target})


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (node("/dev/nvidiactl", hostPath="/dev/nothing"), "needs /dev/nothing: No such file.* Run nvidia-smi"),
        (node("/dev/nvidiactl", hostPath="/etc/passwd"), "not a character device"),
        (node("/dev/nvidiactl", hostPath="/dev/../etc"), "invalid hostPath"),
        (node("dev/nvidia5"), "invalid path"),
        (mount("/etc/passwd", "/proc/x"), "where a sandbox cannot show it"),
        (mount("/etc/passwd", "/usr/lib/nothing/there"), "where a sandbox cannot show it"),
        (mount("/etc/passwd", "/opt/../etc"), "invalid containerPath"),
        (lambda data: data["containerEdits"].update(mounts=5), "mounts in a CDI file must be a list"),
        (lambda data: data.update(containerEdits=[]), "containerEdits in a CDI file must be an object"),
        (lambda data: data.update(devices=[{"name": "0"}]), "names no device node"),
        (lambda data: data.update(devices=[]), "describes gpu:0"),
        (lambda data: data.update(devices=data["devices"][1:]), "no gpu:0, but gpu:1"),
        (lambda data: data.update(kind="amd.com/gpu"), "describes gpu:0"),
    ],
    ids=range(13),
)
def test_a_description_that_cannot_be_used_says_why(machine: Path, change: Change, complaint: str) -> None:
    describe(machine, change)
    with pytest.raises(UnsupportedError, match=complaint):
        find_gpus(["gpu:0"], 64 * MIB, everything=False)


def test_a_file_that_is_no_json_is_named(machine: Path) -> None:
    (machine / "cdi" / "nvidia.json").write_text("cdiVersion: 0.5.0\n")
    with pytest.raises(UnsupportedError, match=r"nvidia\.json cannot be read"):
        known_gpus()


def as_yaml(machine: Path) -> None:
    """Describe the machine as NVIDIA's toolkit does by default."""
    description = machine / "cdi" / "nvidia.json"
    data = json.loads(description.read_text())
    description.with_suffix(".yaml").write_text(yaml.safe_dump(data))
    description.unlink()


def test_a_description_can_be_yaml(machine: Path) -> None:
    expected = find_gpus(["gpu:0"], 64 * MIB, everything=False), known_gpus()
    as_yaml(machine)
    assert (find_gpus(["gpu:0"], 64 * MIB, everything=False), known_gpus()) == expected


def test_names_in_yaml_are_text_and_nothing_in_it_runs(machine: Path) -> None:
    as_yaml(machine)
    text = (machine / "cdi" / "nvidia.yaml").read_text()
    (machine / "cdi" / "nvidia.yaml").write_text(text.replace("name: '1'", "name: 0:1"))
    assert "gpu:0:1" in known_gpus()
    for wrong in ("kind: !!python/object/apply:os.mkdir ['ran']\n", "a: [", "? " * 5000):
        (machine / "cdi" / "nvidia.yaml").write_text(wrong)
        if wrong.startswith("kind"):
            assert known_gpus() == ()
            continue
        with pytest.raises(UnsupportedError, match=r"nvidia\.yaml cannot be read"):
            known_gpus()
    assert not Path("ran").exists()


def test_yaml_needs_its_parser_unless_json_describes_the_gpus(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    json_too = (machine / "cdi" / "nvidia.json").read_text()
    as_yaml(machine)
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(
        UnsupportedError, match=r"yaml is YAML, which needs PyYAML: .* or run 'nvidia-ctk cdi generate --format=json"
    ):
        known_gpus()
    (machine / "cdi" / "own.json").write_text(json_too)
    assert "gpu:1" in known_gpus()


def parts(data: dict[str, Any]) -> None:
    """Divide the first GPU into three parts, of which two share memory, as NVIDIA's toolkit describes them (MIG)."""
    caps = {"0:0": (3, 4), "0:1": (3, 5), "0:2": (12, 13)}
    data["devices"] = [
        {
            "name": name,
            "containerEdits": {
                "deviceNodes": [
                    {"path": "/dev/nvidia0", "hostPath": "/dev/zero"},
                    *({"path": f"/dev/nvidia-caps/nvidia-cap{cap}", "hostPath": "/dev/zero"} for cap in (1, 2, *mine)),
                ]
            },
        }
        for name, mine in caps.items()
    ] + data["devices"]


def test_parts_of_a_gpu_have_their_nodes_and_locks(machine: Path) -> None:
    describe(machine, parts)
    assert known_gpus()[:3] == ("gpu:0", "gpu:1", "gpu:0:0")
    found = find_gpus(["gpu:0:1"], 64 * MIB, everything=False)
    nodes = {step.target for step in found.steps if isinstance(step, Bind) and step.target.startswith("/dev/nvidia")}
    assert nodes == {
        *("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"),
        *("/dev/nvidia-caps/nvidia-cap3", "/dev/nvidia-caps/nvidia-cap5"),  # not those that configure all parts
    }
    spans = find_gpus(["gpu:0:0", "gpu:0:1", "gpu:0:2", "gpu:0", "gpu:1", "gpu:all"], 64 * MIB, everything=False).spans
    assert [spans[f"gpu:0:{part}"] for part in range(3)] == [((4, 1),), ((5, 1),), ((13, 1),)]
    assert spans["gpu:0"] == ((0, GPU_SPAN),)
    assert spans["gpu:all"] == (*spans["gpu:0"], *spans["gpu:1"])
    with pytest.raises(UnsupportedError, match="has no gpu:0:9, but gpu:0, gpu:1, gpu:0:0, gpu:0:1, gpu:0:2, gpu:all"):
        find_gpus(["gpu:0:9"], 64 * MIB, everything=False)


async def test_parts_of_a_gpu_belong_to_one_session_each(machine: Path, native_host: Host) -> None:
    describe(machine, parts)
    listing = "import os\nsorted(os.listdir('/dev/nvidia-caps'))"
    async with (
        native_host.session(policy=Policy(devices=("gpu:0:1",))) as first,
        native_host.session(policy=Policy(devices=("gpu:0:2",))) as second,
    ):
        assert await value(first, listing) == ["nvidia-cap3", "nvidia-cap5"]
        assert await value(second, listing) == ["nvidia-cap12", "nvidia-cap13"]
        for taken in ("gpu:0:1", "gpu:0", "gpu:GPU-955ef018-3bd9-5f27-80b3-fa20ee8d19c5", "gpu:all"):
            with pytest.raises(ConflictError, match=f"{taken} is used by another session"):
                await native_host.session(policy=Policy(devices=(taken,))).start()


def test_the_gpus_of_a_machine_are_listed(machine: Path) -> None:
    assert known_gpus() == ("gpu:0", "gpu:1", "gpu:all", "gpu:GPU-955ef018-3bd9-5f27-80b3-fa20ee8d19c5")


def test_other_names_are_refused() -> None:
    for name in ("gpu", "gpu:", "gpu:0:", "gpu:../0", "gpu:a b", "gpu:" + 101 * "0", "tpu:0", "/dev/kvm", "gpu:٣"):
        with pytest.raises(InvalidInputError, match="name GPUs, such as 'gpu:0'"):
            Policy(devices=(name,)).checked()


def test_a_policy_with_devices_can_be_written_read_and_narrowed() -> None:
    assert Policy.parse({"devices": ["gpu:0"]}).devices == ("gpu:0",)
    assert Policy.from_dict(json.loads(json.dumps(ONE.to_dict()))) == ONE
    assert Policy.from_dict({name: kept for name, kept in Policy().to_dict().items() if name != "devices"}) == Policy()
    assert ONE.narrow(Policy()).devices == ()
    assert ONE.narrow(ONE).devices == ("gpu:0",)
    with pytest.raises(InvalidInputError, match="'gpu:0' is not allowed by the host's policy"):
        Policy().narrow(ONE)
    with pytest.raises(InvalidInputError, match="need local sockets"):
        Policy.parse({"devices": ["gpu:0"], "defaults": "sandbox-runtime"})
    assert explain_policy(ONE)["devices"] == ["gpu:0"]


@pytest.mark.parametrize("tier", [LANDLOCK, SRT], ids=["landlock", "srt"])
def test_other_sandboxes_have_no_devices(tier: Tier) -> None:
    with pytest.raises(InvalidInputError, match="devices need isolate='native'"):
        fit_policy(ONE, tier)


async def test_only_the_session_that_names_a_gpu_has_it(machine: Path, native_host: Host) -> None:
    async with native_host.session() as plain, native_host.session(policy=ONE) as session:
        listing = "import os\nsorted(name for name in os.listdir('/dev') if name.startswith('nv'))"
        assert await value(plain, listing) == []
        assert await value(session, listing) == ["nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidiactl"]
        assert await value(session, "len(open('/dev/nvidia0', 'r+b', 0).read(5))") == 5
        assert await value(session, "sorted(os.listdir('/opt/nvidia/lib'))") == ["libstub.so"]
        assert await value(session, f"sorted(os.listdir('/sys/bus/pci/devices/{ADDRESS}'))") == ["numa_node", "vendor"]
        # All else of /dev works as before.
        code = "import multiprocessing as m, pty\nopen('/dev/null', 'w').write('x'); q = m.Queue(); pty.openpty(); 1"
        assert await value(session, code) == 1
        for path in ("/dev/new", "/sys/new", "/opt/nvidia/lib/new"):
            assert "Read-only" in str((await session.execute(f"open({path!r}, 'w')")).error)
        await session.reset()
        assert await value(session, "import os\nos.path.exists('/dev/nvidia0')")


async def test_hooks_of_a_description_do_not_run(machine: Path, native_host: Host) -> None:
    ran = machine / "ran"
    hook = {"hookName": "createContainer", "path": shutil.which("touch"), "args": ["touch", str(ran)]}
    describe(
        machine, lambda data: [one["containerEdits"].setdefault("hooks", []).append(hook) for one in (data, *data["devices"])]
    )
    async with native_host.session(policy=ONE) as session:
        assert await value(session, "import os\nos.path.exists('/dev/nvidia0')")
    assert not ran.exists()


async def test_a_gpu_belongs_to_one_session(machine: Path, native_host: Host) -> None:
    async with native_host.session(policy=ONE) as session:
        other = native_host.session(policy=ONE)
        with pytest.raises(ConflictError, match="gpu:0 is used by another session"):
            await other.start()
        async with native_host.session(policy=Policy(devices=("gpu:1",))) as second:
            assert await value(second, "import os\nos.path.exists('/dev/nvidia1')")
        with pytest.raises(StateError, match="cannot begin with the state of a session that has gpu:0"):
            await session.fork(2)
    async with native_host.session(policy=ONE) as session:
        assert await value(session, "1 + 1") == 2


async def test_a_machine_without_the_gpu_says_so(native_host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_DIRECTORIES", (str(tmp_path),))
    with pytest.raises(UnsupportedError, match=r"describes gpu:0 .*nvidia-ctk cdi generate"):
        await native_host.session(policy=ONE).start()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler for the stub")
async def test_a_library_like_cuda_finds_what_it_needs_and_ends_checkpoints(machine: Path, native_host: Host) -> None:
    target = machine / "driver" / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", target, HERE / "stub_libcuda.c"], check=True)
    load = "import ctypes\ncuda = ctypes.CDLL('/opt/nvidia/lib/libcuda.so.1')\n"
    async with native_host.session(policy=ONE) as session:
        assert await value(session, load + "cuda.cuInit(0)") == 0
        await session.checkpoint()  # nothing is open
        assert await value(session, "cuda.cuCtxCreate() > 2") is True
        with pytest.raises(CheckpointError, match="/dev/nvidia0 is open, and a GPU has state and threads"):
            await session.checkpoint()
    async with native_host.session(policy=Policy(Filesystem(read=(str(target.parent),)))) as plain:
        code = f"import ctypes\nctypes.CDLL('{target}').cuInit(0)"
        assert await value(plain, code) == 100
