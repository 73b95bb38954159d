"""Advice for failed cells: a missing module, a file that the sandbox protects, or a lack of memory."""

from __future__ import annotations

import re
import sys

from cellblock.walls.sandbox.policy import ENV, PROTECTED

_MISSING = re.compile(r"No module named '([A-Za-z]\w{0,99})'", re.ASCII)

_NAMES = {
    "Bio": "biopython",
    "Crypto": "pycryptodome",
    "Levenshtein": "levenshtein",
    "MySQLdb": "mysqlclient",
    "OpenSSL": "pyopenssl",
    "PIL": "pillow",
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",  # opencv-python needs libraries of a window system
    "dateutil": "python-dateutil",
    "dns": "dnspython",
    "docx": "python-docx",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu",
    "fitz": "pymupdf",
    "git": "gitpython",
    "jose": "python-jose",
    "jwt": "pyjwt",
    "magic": "python-magic",
    "mpl_toolkits": "matplotlib",
    "multipart": "python-multipart",
    "nacl": "pynacl",
    "pkg_resources": "setuptools",
    "pptx": "python-pptx",
    "psycopg2": "psycopg2-binary",
    "serial": "pyserial",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "slugify": "python-slugify",
    "socks": "pysocks",
    "tabula": "tabula-py",
    "umap": "umap-learn",
    "yaml": "pyyaml",
    "zmq": "pyzmq",
}
"""Packages by module name, where the two names differ."""

_OURS = ("mcptools",)
"""Modules that are generated, not installed."""


_ERRORS = frozenset(("PermissionError", "IsADirectoryError", "FileExistsError", "NotADirectoryError", "OSError"))
_PATH = re.compile(r"\[Errno \d+\] [^:]{1,100}: '([^']{1,4096})'(?: -> '([^']{1,4096})')?")
_READ_ONLY = "Read-only file system"
_IN_GIT = re.compile(r"[\s'/]\.git/")
_MAX_LINE = 4096
_MAX_ERRORS = 100
_TAIL = 64 * 1024
"""Lines about a read-only file system that are looked at: a session can print any number of them."""

_OF_ENV = f"{ENV} holds secrets of this project: its sessions can neither read, write nor create it"
_OF_GIT = (
    "a session can read .git, not write it: its hooks and settings make git run programs outside the sandbox. Commit in a "
    "copy (git clone . /tmp/copy), or ask a person to commit; filesystem.allowGitConfig in a sandbox_config allows it"
)

_UNREACHED = re.compile(
    r"[Cc]ould(?:n't| not) resolve |[Tt]emporary failure (?:in name resolution|resolving)|[Nn]ame or service not known|"
    r"unable to resolve host|[Nn]etwork is unreachable|No address associated with hostname|EAI_AGAIN|ENETUNREACH|"
    r"failed to lookup address"
)
"""What curl, git, wget, ssh, apt, npm, cargo and programs in Python say when they reach no host."""

_READ_ONLY_HERE = (
    "a session can change only its workspace, /tmp and its home directory: to let it change another directory, make a session "
    'with write=["DIRECTORY"] (on the command line: --write DIRECTORY)'
)


def more_memory(limit: int) -> str:
    """Return how to raise a session's memory limit.

    Args:
        limit: The current limit in bytes.
    """
    more = f"{2 * limit >> 30}G" if limit >> 29 << 29 == limit else f"{2 * limit >> 20}M"
    return f"for more, make a session with {with_memory(more)}"


def with_memory(size: str) -> str:
    """Return the option that sets a session's memory limit, in Python and on the command line."""
    return f'memory="{size}" (on the command line: --memory {size})'


def on_missing_module(name: str | None, message: str, *, installs: bool) -> str:
    """Return advice for an exception; empty unless a missing module could be installed.

    Args:
        name: The exception's class.
        message: Its message.
        installs: Whether the session may install packages.
    """
    if name != "ModuleNotFoundError" or (match := _MISSING.fullmatch(message)) is None:
        return ""
    module = match[1]
    if module in sys.stdlib_module_names or module in _OURS:
        return ""
    if not installs:
        return "it is not installed, and this session may not install packages"
    package = _NAMES.get(module)
    # Any other name may not be a package at all, but a file in another directory.
    return f"to install it: %pip install {package}" if package else f"if it is a package, install it: %pip install {module}"


def on_kept_name(name: str | None, message: str) -> str:
    """Return advice for an exception; empty unless it concerns a protected file."""
    if name not in _ERRORS or (match := _PATH.fullmatch(message)) is None:
        return ""
    for path in filter(None, match.groups()):
        parts = path.split("/")
        if parts[-1] == ENV:
            return _OF_ENV
        if ".git" in parts and _READ_ONLY in message:
            return _OF_GIT
        protected = next((part for part in parts if part in PROTECTED), None)
        if protected is not None:
            return f"programs outside the sandbox execute what {protected} contains: a session cannot change or create it"
        if path.startswith("../") and name == "PermissionError":
            return _READ_ONLY_HERE
    return _READ_ONLY_HERE if _READ_ONLY in message else ""


def on_output(output: str, offline: str) -> str:
    """Return advice for a cell's output; empty unless a program reports a denied write or an unreachable host.

    Args:
        output: The printed text.
        offline: Why the session has no network; empty if it has one.
    """
    end = output.find(_READ_ONLY)
    for _ in range(_MAX_ERRORS):
        if end < 0:
            break
        begin = max(output.rfind("\n", 0, end), end - _MAX_LINE, 0)
        if _IN_GIT.search(output, begin, end):
            return _OF_GIT
        end = output.find(_READ_ONLY, end + 1)
    return offline if offline and offline not in output and _UNREACHED.search(output, max(len(output) - _TAIL, 0)) else ""
