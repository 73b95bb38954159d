"""Turns a fork of the zygote into a session's kernel: environment, directory, random state and home."""

from __future__ import annotations

import contextlib
import os
import random
import site
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping

from cellblock.wire.control import WorkerSetup
from cellblock.worker.environment_packages import hide_packages, is_alone


def specialise(setup: WorkerSetup) -> None:
    """Apply a kernel's setup.

    Raises:
        OSError: The directory cannot be entered.
    """
    env = setup.env
    os.environ.clear()
    os.environ.update(env)
    os.chdir(setup.cwd)
    time.tzset()
    if setup.environment and is_alone(setup.environment):
        hide_packages(setup.environment)
    # Settings that a starting interpreter would have read from its environment.
    if path := env.get("PYTHONPATH"):
        sys.path[1:1] = [entry for entry in path.split(os.pathsep) if entry]
    if env.get("PYTHONDONTWRITEBYTECODE"):
        sys.dont_write_bytecode = True
    for action in filter(None, env.get("PYTHONWARNINGS", "").split(",")):
        warnings.simplefilter(action.partition(":")[0])  # type: ignore[arg-type]  # an invalid name raises a clear error
    _find_packages(tuple(filter(None, (installation(setup.packages), setup.environment))))
    reseed()


def package_directories(setup: WorkerSetup) -> tuple[str, ...]:
    """Return the directories of a session's packages for its programs, those that its code has installed last first."""
    return tuple(filter(None, (setup.packages and f"{setup.packages}/current", setup.environment)))


def installation(packages: str) -> str:
    """Return the directory of the last installation. A kernel keeps it: it is a part of its state."""
    number = "0"
    with contextlib.suppress(OSError):
        number = os.readlink(f"{packages}/current")
    return packages and f"{packages}/{number if number.isdecimal() else 0}"


def _find_packages(places: tuple[str, ...]) -> None:
    """Prefer packages of this session, also in child processes. This process is confined: ``.pth`` files run code."""
    directories = [f"{place}/site-packages" for place in places]
    sys.path[1:1] = directories
    os.environ.update(package_variables(os.environ, places))
    for directory in directories:
        _process_pth_files(directory)


def _process_pth_files(directory: str) -> None:
    """Do what a starting interpreter does with a directory of packages. Errors are shown, and end only their file."""
    with contextlib.suppress(OSError):
        for name in sorted(name for name in os.listdir(directory) if name.endswith(".pth") and not name.startswith(".")):
            try:
                site.addpackage(directory, name, None)
            except SystemExit as error:
                sys.stderr.write(f"{name} was ignored: it raised SystemExit({error.code!r})\n")


def package_variables(env: Mapping[str, str], places: tuple[str, ...]) -> dict[str, str]:
    """Return the variables by which programs prefer the session's own packages.

    Args:
        env: Their environment without these.
        places: The directories of the packages.
    """
    inherited = env.get("PYTHONPATH")
    paths = [*(f"{place}/site-packages" for place in places), *([inherited] if inherited else [])]
    path = os.pathsep.join((*(f"{place}/bin" for place in places), env.get("PATH", "")))
    variables = {"PYTHONPATH": os.pathsep.join(paths), "PATH": path}
    alone = next(filter(is_alone, places), None)
    return variables if alone is None else {**variables, "VIRTUAL_ENV": alone}


def reseed(seed: int | None = None) -> None:
    """Renew all random state that this process has inherited, so that no two kernels share it.

    Args:
        seed: The seed of generators that take one; None for a new one.
    """
    random.seed(seed)
    setattr(tempfile, "_name_sequence", None)  # noqa: B010  # private, and the only way to draw new names
    tempfile.tempdir = None
    # Modules that were not preloaded will seed themselves when they are imported.
    if (process := sys.modules.get("multiprocessing.process")) is not None:
        process.current_process().authkey = os.urandom(32)
    seed_unloaded(seed)
    if (numpy := sys.modules.get("numpy.random")) is not None:
        numpy.seed(None if seed is None else seed % 2**32)
    if (torch := sys.modules.get("torch")) is not None:
        torch.seed() if seed is None else torch.manual_seed(seed)


def seed_unloaded(seed: int | None) -> None:
    """Seed NumPy's generator if NumPy has not loaded it yet. Otherwise NumPy would seed it randomly at its first use.

    Args:
        seed: The seed; None to leave it to NumPy.
    """
    if seed is None or "numpy.random" in sys.modules:
        return
    if (generators := getattr(sys.modules.get("numpy"), "random", None)) is not None:
        generators.seed(seed % 2**32)
