"""Shows GPUs of NVIDIA in a native sandbox, as a CDI file of the machine describes them.

The Container Device Interface (CDI) names device nodes, libraries and hooks. The nodes that computing needs are mounted, and
libraries outside the system's directories. Hooks never run. It was never tried on a machine with a GPU.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cellblock.errors import UnsupportedError, shown
from cellblock.model.untrusted import parse_json
from cellblock.walls.sandbox.paths import is_inside
from cellblock.walls.sandbox.plan import device_tree, own_devices, system_tree
from cellblock.wire.sandbox import Bind, Link, Step

_KIND = "nvidia.com/gpu"
_DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
_YAML = (".yaml", ".yml")
_PROC, _SYS = "/proc/driver/nvidia/gpus", "/sys"
_MAX_FILE = 4 * 2**20
_MAX_MOUNTS = 500

# What computing needs, without displays and video. Others are more attack surface.
_NODE = re.compile(r"/dev/(nvidia\d{1,3}|nvidiactl|nvidia-uvm|nvidia-uvm-tools|nvidia-caps/nvidia-cap\d{1,5})", re.ASCII)
_GPU = re.compile(r"/dev/nvidia(\d+)", re.ASCII)
_PART = re.compile(r"/dev/nvidia-caps/nvidia-cap(\d+)", re.ASCII)
_MANAGEMENT = frozenset(f"/dev/nvidia-caps/nvidia-cap{number}" for number in (0, 1, 2))
"""Nodes that configure and monitor the parts of all GPUs (MIG)."""
_MINOR = re.compile(r"^Device Minor:\s*(\d+)\s*$", re.MULTILINE | re.ASCII)
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE)
_ATTRIBUTES = (
    *("boot_vga", "class", "config", "device", "local_cpulist", "local_cpus", "numa_node", "resource", "revision"),
    *("subsystem_device", "subsystem_vendor", "uevent", "vendor"),
)
"""Files about a PCI device. Others, such as ``resource0``, give root access to its memory."""
_MODULES = ("nvidia", "nvidia_uvm")
GPU_SPAN = 1 << 20
"""The length of the range of numbers that a lock of a whole GPU covers. A part (MIG) covers one number in the range."""

_SYSTEM = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/libx32", "/sbin")
_OURS = ("/dev", "/proc", "/sys", "/tmp", "/home")
_LEFT_OUT = ("/etc", "/run", "/var")
"""Settings of displays and sockets of services."""

_COMMAND = "run 'nvidia-ctk cdi generate --format=json --output=/etc/cdi/nvidia.json'"
ADVICE = f"install NVIDIA's container toolkit, and {_COMMAND}"
"""How to describe the GPUs of a machine."""


@dataclass(frozen=True, slots=True)
class SessionGpus:
    """The GPUs of a session.

    Attributes:
        steps: The steps that give them to it, with a ``/dev`` and a ``/sys`` of its own.
        spans: Each name's ranges of numbers, as first number and length. Overlapping ranges are the same hardware.
    """

    steps: tuple[Step, ...]
    spans: Mapping[str, tuple[tuple[int, int], ...]]


def find_gpus(names: Iterable[str], shared_memory: int, *, everything: bool) -> SessionGpus:
    """Return the GPUs with these names.

    Args:
        names: Names of devices (`Policy.devices`).
        shared_memory: Size of its shared memory, in bytes.
        everything: Whether the session sees the whole file system.

    Raises:
        UnsupportedError: This machine has no such GPU, or its description cannot be used.
    """
    nodes: dict[str, Bind] = {}
    mounts: dict[str, Bind] = {}
    spans: dict[str, tuple[tuple[int, int], ...]] = {}
    described = _described()
    for name in dict.fromkeys(names):
        own: list[str] = []
        for edits in _edits(described, name):
            found = {node.target: node for node in _nodes(edits, name)}
            own += found
            nodes |= found
            mounts |= {mount.target: mount for mount in _mounts(edits, name)}
        spans[name] = _spans(own)
        if not spans[name]:
            raise UnsupportedError(f"devices: the CDI file names no device node /dev/nvidia… for {name}: {ADVICE}")
    system = [] if everything else system_tree(_system(nodes))
    steps = (*system, *device_tree(nodes.values()), *own_devices(shared_memory), *mounts.values())
    return SessionGpus(steps, spans)


def _spans(nodes: Iterable[str]) -> tuple[tuple[int, int], ...]:
    """Return the ranges of numbers for the hardware behind device nodes.

    The nodes of a part (MIG) are its GPU, its memory, and its own, whose number is the highest. More nodes are several parts.
    """
    gpus = sorted({int(match[1]) for match in map(_GPU.fullmatch, nodes) if match})
    parts = sorted({int(match[1]) for match in map(_PART.fullmatch, nodes) if match})
    if len(gpus) == 1 and 0 < len(parts) <= 2:
        return ((gpus[0] * GPU_SPAN + parts[-1], 1),)
    return tuple((number * GPU_SPAN, GPU_SPAN) for number in gpus)


def known_gpus() -> tuple[str, ...]:
    """Return the names of the GPUs, and of their parts, that sessions of this machine can have: numbers first.

    Raises:
        UnsupportedError: A description cannot be read.
    """
    found = {str(device.get("name")) for data in _described() for device in _objects(data, "devices")}
    return tuple(f"gpu:{name}" for name in sorted(found, key=lambda name: (not name.isdecimal(), len(name), name)))


def _described() -> list[dict[str, Any]]:
    """Return the machine's descriptions of GPUs."""
    found, unread = [], ""
    for path in (path for directory in _DIRECTORIES for path in sorted(Path(directory).glob("*"))):
        if path.suffix not in (".json", *_YAML):
            continue
        try:
            with path.open("rb") as file:
                text = file.read(_MAX_FILE)
            data = parse_json(text, what="it") if path.suffix == ".json" else _parse_yaml(text)
        except ImportError:
            unread = unread or str(path)
            continue
        except (OSError, ValueError, RecursionError) as error:
            raise UnsupportedError(f"devices: the CDI file {path} cannot be read: {error}") from None
        if isinstance(data, dict) and data.get("kind") == _KIND:
            found.append(data)
    if unread and not found:
        raise UnsupportedError(
            f"devices: the CDI file {unread} is YAML, which needs PyYAML: pip install pyyaml, or {_COMMAND}"
        )
    return found


def _parse_yaml(text: bytes) -> Any:
    """Parse YAML, in which every scalar is text: otherwise the name ``0:1`` would be a number.

    Raises:
        ImportError: PyYAML is not installed.
        ValueError: It is invalid.
    """
    import yaml

    try:
        return yaml.load(text, yaml.BaseLoader)  # noqa: S506  # it makes text, lists and dictionaries only
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def _edits(described: list[dict[str, Any]], name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a device needs: for all devices of its file, and for itself."""
    wanted = name.removeprefix("gpu:")
    for data in described:
        for device in _objects(data, "devices"):
            if device.get("name") == wanted:
                return _object(data, "containerEdits"), _object(device, "containerEdits")
    known = ", ".join(known_gpus())
    if known:
        raise UnsupportedError(f"devices: this machine has no {name}, but {known}")
    raise UnsupportedError(
        f"devices: no file *.json or *.yaml in {' or '.join(_DIRECTORIES)} describes {name} (of kind {_KIND}): {ADVICE}"
    )


def _nodes(edits: dict[str, Any], name: str) -> Iterator[Bind]:
    for node in _objects(edits, "deviceNodes"):
        path = _path(node, "path", name)
        if not _NODE.fullmatch(path) or path in _MANAGEMENT:
            continue
        source = _path(node, "hostPath", name) if node.get("hostPath") else path
        try:
            mode = os.stat(source).st_mode
        except OSError as error:
            raise UnsupportedError(
                f"devices: {name} needs {source}: {error.strerror}. Run nvidia-smi, which loads the driver; then, {ADVICE}"
            ) from None
        if not stat.S_ISCHR(mode):
            raise UnsupportedError(f"devices: {name} needs {source}, which is not a character device")
        yield Bind(source, path, "dev")


def _mounts(edits: dict[str, Any], name: str) -> Iterator[Bind]:
    """Yield mounts of files that a session does not see anyway."""
    for mount in _objects(edits, "mounts")[:_MAX_MOUNTS]:
        source, target = _path(mount, "hostPath", name), _path(mount, "containerPath", name)
        in_system = any(is_inside(target, top) for top in _SYSTEM)
        if (source == target and in_system) or any(is_inside(target, top) for top in _LEFT_OUT):
            continue
        if any(is_inside(target, top) for top in _OURS) or target == "/" or (in_system and not os.path.exists(target)):
            raise UnsupportedError(f"devices: {name} needs {source} at {target}, where a sandbox cannot show it")
        if os.path.isfile(source) or os.path.isdir(source):
            yield Bind(source, target, "ro")


def _system(nodes: Iterable[str]) -> Iterator[Step]:
    """Yield the steps for the parts of ``/sys`` about the GPUs with these nodes, and about their driver."""
    minors = {path.removeprefix("/dev/nvidia") for path in nodes}
    for information in sorted(Path(_PROC).glob("*/information")):
        address = information.parent.name
        minor = _MINOR.search(information.read_text(errors="replace")[:_MAX_FILE])
        if minor is None or minor[1] not in minors or not _ADDRESS.fullmatch(address):
            continue
        real = os.path.realpath(f"{_SYS}/bus/pci/devices/{address}")
        inside = f"/sys{real.removeprefix(_SYS)}"
        yield from (Bind(f"{real}/{name}", f"{inside}/{name}", "ro", optional=True) for name in _ATTRIBUTES)
        yield Link(f"/sys/bus/pci/devices/{address}", inside)
    for module in _MODULES:
        for name in ("initstate", "version"):
            yield Bind(f"{_SYS}/module/{module}/{name}", f"/sys/module/{module}/{name}", "ro", optional=True)


def _path(data: dict[str, Any], key: str, name: str) -> str:
    path = data.get(key)
    if not isinstance(path, str) or not path.startswith("/") or "\0" in path or os.path.normpath(path) != path:
        raise UnsupportedError(f"devices: the CDI file has an invalid {key} for {name}: {shown(path)}")
    return path


def _object(data: dict[str, Any], key: str) -> dict[str, Any]:
    value = data.get(key, {})
    if not isinstance(value, dict):
        raise UnsupportedError(f"devices: {key} in a CDI file must be an object, not {shown(value)}")
    return value


def _objects(data: dict[str, Any], key: str) -> list[dict[str, Any]]:
    value = data.get(key) or []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise UnsupportedError(f"devices: {key} in a CDI file must be a list of objects, not {shown(value)}")
    return value
