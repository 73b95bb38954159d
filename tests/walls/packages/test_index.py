"""What this host's pip is configured for."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from cellblock.walls.packages.index import PackageIndex, _bundled_index, configuration_files


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_without_settings_the_public_index_is_used() -> None:
    (index,) = PackageIndex.configured({}, []).indexes
    assert urlsplit(index).scheme == "https"
    assert tuple(_bundled_index()) == (index,)


def test_settings_of_files_and_environment_are_joined_and_the_environment_wins(tmp_path: Path) -> None:
    first = write(tmp_path / "a.conf", "[global]\nindex-url = https://index.example:8443/simple\nproxy = http://one.example\n")
    second = write(tmp_path / "b.conf", "[install]\nextra_index_url = https://more.example/simple\npre = true\n")
    index = PackageIndex.configured({"PIP_PROXY": "http://two.example", "HOME": "/nowhere"}, [first, second])
    assert index == PackageIndex(
        indexes=("https://index.example:8443/simple", "https://more.example/simple"),
        proxy="http://two.example",
        prereleases=True,
    )


def test_directories_of_packages_are_seen_by_pip(tmp_path: Path) -> None:
    (tmp_path / "index" / "simple").mkdir(parents=True)
    (tmp_path / "wheels").mkdir()
    settings = {"PIP_INDEX_URL": f"file://{tmp_path}/index/simple", "PIP_FIND_LINKS": f"{tmp_path}/wheels"}
    assert PackageIndex.configured(settings, []).directories == (str(tmp_path / "index"), str(tmp_path / "wheels"))


def test_an_index_that_is_switched_off_is_not_used() -> None:
    assert PackageIndex.configured({"PIP_NO_INDEX": "1", "PIP_EXTRA_INDEX_URL": "https://more.example"}, []).indexes == ()


def test_a_broken_configuration_file_is_passed_over(tmp_path: Path) -> None:
    broken = write(tmp_path / "pip.conf", "no section here\n")
    assert PackageIndex.configured({"PIP_NO_INDEX": "1"}, [broken]) == PackageIndex()


def test_a_configuration_file_that_is_named_counts_last(tmp_path: Path) -> None:
    files = configuration_files({"PIP_CONFIG_FILE": str(tmp_path / "own.conf")}, "/home/somebody")
    assert files[-1] == tmp_path / "own.conf"
    assert configuration_files({"PIP_CONFIG_FILE": os.devnull}, "/home/somebody") == []
