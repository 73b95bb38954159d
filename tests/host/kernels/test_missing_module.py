"""A module that is not there: how to install it is said once, and only if the session may."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellblock import Host, Policy, Resources, Session
from cellblock.host.kernels.missing_module import advice


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("cv2", "to install it: %pip install opencv-python-headless"),
        ("sklearn", "to install it: %pip install scikit-learn"),
        ("PIL", "to install it: %pip install pillow"),
        ("yaml", "to install it: %pip install pyyaml"),
        ("bs4", "to install it: %pip install beautifulsoup4"),
        ("helpers", "if it is a package, install it: %pip install helpers"),
        ("tkinter", ""),  # a part of Python that this Python does not have
        ("pandas.nothing", ""),
        ("mcptools", ""),
        ("a'b", ""),
        ("--index-url", ""),
        ("größe", ""),
        ("x" * 101, ""),
    ],
)
def test_the_package_is_named_by_which_it_is_installed(module: str, said: str) -> None:
    assert advice("ModuleNotFoundError", f"No module named '{module}'", installs=True) == said


def test_other_exceptions_and_other_messages_are_left_alone() -> None:
    assert advice("ImportError", "No module named 'cv2'", installs=True) == ""
    assert advice("ModuleNotFoundError", "No module named 'json.x'; 'json' is not a package", installs=True) == ""
    assert advice(None, "", installs=True) == ""


@pytest.mark.parametrize("code", ["import tabula", "%run {path}"])
async def test_a_result_says_it_once_to_people_and_to_models(session: Session, tmp_path: Path, code: str) -> None:
    (tmp_path / "script.py").write_text("import tabula")
    result = await session.execute(code.format(path=tmp_path / "script.py"))
    assert result.error is not None
    assert result.error.evalue == "No module named 'tabula' (to install it: %pip install tabula-py)"
    assert (result.text or "").count("%pip install") == result.for_model().count("%pip install") == 1
    assert len([item for item in result.outputs if item.kind == "error"]) == 1


async def test_code_that_handles_the_exception_sees_pythons_own(session: Session) -> None:
    result = await session.execute("try:\n    import tabula\nexcept ImportError as error:\n    print(error, error.name)")
    assert result.text == "No module named 'tabula' tabula"


async def test_a_session_that_may_not_install_is_told_so(zygote_host: Host) -> None:
    async with zygote_host.session(policy=Policy(resources=Resources(packages=0))) as session:
        error = (await session.execute("import tabula")).error
    assert error is not None
    assert error.evalue == "No module named 'tabula' (it is not installed, and this session may not install packages)"
