"""The resolver's own parser, and pip's messages in few words. `host/environments/test_build.py` resolves."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellblock.worker import resolve_packages
from cellblock.worker.resolve_packages import is_local, read_requirements
from suite import first_quick

CLASH = """
ERROR: Cannot install numpy>=2 and pandas==3.0 because these package versions have conflicting dependencies.

The conflict is caused by:
    pandas 3.0 depends on numpy>=2
    The user requested (constraint) numpy==1.26.0

ERROR: ResolutionImpossible: for help visit the documentation
"""
MISSING = """
ERROR: Could not find a version that satisfies the requirement x==9 (from versions: 1.0, 1.1, 1.2, 1.3)
ERROR: No matching distribution found for x==9
"""


@pytest.mark.parametrize(
    ("requirement", "local"),
    [
        ("x", False),
        ("x>=1", False),
        ("x[y]>=1", False),
        ("./x", True),
        ("/x", True),
        ("dir/x.whl", True),
        ("x ; a == '/'", False),
    ],
)
def test_paths_are_told_from_names(requirement: str, local: bool) -> None:
    assert is_local(requirement) is local


def test_files_are_read_with_those_that_they_name(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("a>=1 \\\n  --hash=sha256:00\n# comment\n-r more/two.txt\n./local\n")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "two.txt").write_text("b # because\n")
    assert [*read_requirements(str(tmp_path / "one.txt"))] == ["a>=1", "b", f"{tmp_path}/./local"]
    (tmp_path / "one.txt").write_text("-r one.txt\n")
    with pytest.raises(ValueError, match="name each other"):
        [*read_requirements(str(tmp_path / "one.txt"))]


@pytest.mark.parametrize(
    ("text", "said"),
    first_quick(
        [
            (CLASH, "its interpreter has numpy 1.26.0: pandas 3.0 depends on numpy>=2; to install it anyway: %pip"),
            (MISSING, "No matching distribution found for x==9 (there is 1.1, 1.2, 1.3)"),
            (CLASH.replace(" (constraint)", ""), "pandas 3.0 depends on numpy>=2; The user requested numpy==1.26.0"),
            ("odd", "odd"),
        ]
    ),
)
def test_pips_reason_is_found(text: str, said: str, tmp_path: Path) -> None:
    request = {"options": [], "layers": [], "requirements": [], "files": [], "uv": "", "index": []}
    assert resolve_packages._Resolver(request, str(tmp_path))._why(text).startswith(said)
