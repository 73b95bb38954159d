"""The host's package index, from its pip configuration."""

from __future__ import annotations

import configparser
import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LISTS = ("index-url", "extra-index-url", "find-links", "trusted-host")
_SETTINGS = (*_LISTS, "no-index", "cert", "proxy", "pre")
_YES = ("1", "true", "yes", "on")


@dataclass(frozen=True, slots=True)
class PackageIndex:
    """The sources of packages.

    Attributes:
        indexes: Indexes, the main one first: URLs (``http``, ``https``, ``file``) or directories. They may contain
            credentials.
        links: Pages and directories that list files, likewise.
        trusted: Hosts, or ``host:port``, whose certificates are not checked.
        certificates: A file of certificates to check the others; None for the system's.
        proxy: The proxy; None for the environment's.
        prereleases: Whether pip considers pre-releases.
        age: Minimum age of files on pages, in seconds; 0 for none. Directories are not limited.
    """

    indexes: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    trusted: tuple[str, ...] = ()
    certificates: str | None = None
    proxy: str | None = None
    prereleases: bool = False
    age: float = 0.0

    @classmethod
    def configured(cls, environment: Mapping[str, str], files: Iterable[Path]) -> PackageIndex:
        """Return pip's configuration.

        Args:
            environment: The host's environment, whose ``PIP_`` variables take precedence.
            files: pip's configuration files; later ones take precedence.
        """
        values: dict[str, str] = {}
        for file in files:
            parser = configparser.RawConfigParser()
            try:
                parser.read(file, encoding="utf-8")
            except (configparser.Error, UnicodeDecodeError):
                continue
            for section in ("global", "install"):
                if parser.has_section(section):
                    values |= {name.replace("_", "-"): value for name, value in parser.items(section)}
        for name, value in environment.items():
            if name.startswith("PIP_"):
                values[name[4:].lower().replace("_", "-")] = value
        kept = {name: value for name, value in values.items() if name in _SETTINGS}
        main, extra, links, trusted = (tuple(kept.get(name, "").split()) for name in _LISTS)
        indexes = () if _yes(kept.get("no-index")) else tuple(dict.fromkeys((*(main or _default_index()), *extra)))
        return cls(indexes, tuple(dict.fromkeys(links)), trusted, kept.get("cert"), kept.get("proxy"), _yes(kept.get("pre")))

    @property
    def directories(self) -> tuple[str, ...]:
        """The local directories among the sources, which pip reads itself."""
        paths = [path for path in map(local_path, (*self.indexes, *self.links)) if path is not None]
        # An index on disk usually refers to files next to it: ../files next to simple.
        paths = [os.path.dirname(path.rstrip("/")) if path.rstrip("/").endswith("/simple") else path for path in paths]
        return tuple(os.path.realpath(path) for path in dict.fromkeys(paths) if os.path.isabs(path) and os.path.exists(path))

    def contains(self, path: str) -> bool:
        """Return whether a file is in one of the local directories."""
        real = os.path.realpath(path)
        return any(os.path.commonpath((real, directory)) == directory for directory in self.directories)


def local_path(source: str) -> str | None:
    """Return the directory of a source of packages; None if it is on the network."""
    if source.startswith("file:"):
        return unquote(urlsplit(source).path)
    return None if "://" in source else source


def configuration_files(environment: Mapping[str, str], home: str) -> list[Path]:
    """Return pip's configuration files, in pip's documented order of precedence."""
    config = environment.get("XDG_CONFIG_HOME") or f"{home}/.config"
    files = [
        Path("/etc/pip.conf"),
        Path("/etc/xdg/pip/pip.conf"),
        Path(home, ".pip", "pip.conf"),
        Path(config, "pip", "pip.conf"),
    ]
    files.append(Path(sys.prefix, "pip.conf"))
    named = environment.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return []
    return [*files, Path(named)] if named else files


def _yes(value: str | None) -> bool:
    return (value or "").lower() in _YES


def _default_index() -> tuple[str, ...]:
    """Return pip's default index, from pip's own code: installed, or bundled with Python."""
    try:
        from pip._internal.models.index import PyPI
    except ImportError:
        return tuple(_bundled_index())
    return (PyPI.simple_url,)


def _bundled_index() -> Iterable[str]:
    import ensurepip
    import sysconfig
    import zipfile

    # Some distributions bundle no wheels with Python, but have them all in one directory.
    elsewhere = sysconfig.get_config_var("WHEEL_PKG_DIR")
    directory = Path(elsewhere) if elsewhere else Path(ensurepip.__file__).with_name("_bundled")
    for wheel in directory.glob("pip-*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            text = archive.read("pip/_internal/models/index.py").decode()
        if match := re.search(r'PackageIndex\(\s*"([^"]+)"', text):
            yield f"{match[1].rstrip('/')}/simple"
            return
