"""Advice about a module that a cell could not import: how to install it, and whether this session may."""

from __future__ import annotations

import re
import sys

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
    "cv2": "opencv-python-headless",  # the other one needs libraries of a window system
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


def advice(name: str | None, message: str, *, installs: bool) -> str:
    """Return advice for an exception; empty if it is not about a module that could be installed.

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
    # With any other name it is unknown whether it is a package at all: it may be a file in another directory.
    return f"to install it: %pip install {package}" if package else f"if it is a package, install it: %pip install {module}"
