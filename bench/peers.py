"""The environment of the peers: one of its own, made once, with the same Python, IPython, pandas and matplotlib as ours."""

from __future__ import annotations

import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

_HOME = Path(__file__).parent / ".venv-peers"
_SAME = ("ipython", "pandas", "matplotlib")
_PEERS = ("ipybox==0.9.2", "mcp<2", "kernelbox==0.1.2", "jupyter_client", "ipykernel")


def python() -> Path:
    """Return the interpreter of the peers' environment, which is made first where it is not there as it should be.

    Raises:
        subprocess.CalledProcessError: pip could not install it.
    """
    packages = [*_PEERS, *(f"{name}=={version(name)}" for name in _SAME)]
    wanted = [platform.python_version(), *packages]
    interpreter, stamp = _HOME / "bin" / "python", _HOME / "installed.txt"
    if stamp.exists() and stamp.read_text().split("\n") == wanted:
        return interpreter
    print(f"Making the peers' environment: {' '.join(_PEERS)} (once; takes a minute)", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", _HOME], check=True)
    subprocess.run([interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages], check=True)
    stamp.write_text("\n".join(wanted))
    return interpreter


def versions(interpreter: Path, names: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of some packages in an environment."""
    program = "import sys\nfrom importlib.metadata import version\nfor name in sys.argv[1:]: print(version(name))"
    done = subprocess.run([interpreter, "-c", program, *names], stdout=subprocess.PIPE, text=True, check=True)
    return dict(zip(names, done.stdout.split(), strict=True))
