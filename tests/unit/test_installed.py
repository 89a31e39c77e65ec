"""Which package has a module, and the versions of packages."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

import pytest

from mwpy._values.installed import home_of, is_standard, origin_of, owner_of, versions


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, the only one in which modules are found."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [str(folder), str(tmp_path / "python311.zip")])
    return folder


def install(folder: Path, name: str, content: str, file: str = "METADATA") -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / file).write_text(content)


def test_a_package_that_is_installed_later_is_found(folder: Path) -> None:
    assert versions(["later"]) == {"later": ""}
    install(folder, "later-1.dist-info", "Version: 1\n")
    assert versions(["later"]) == {"later": "1"}


def test_to_find_out_whose_a_module_is_loads_no_parser_of_mail() -> None:
    """To load `importlib.metadata` takes longer than to load the core of a master, and each process asks this."""
    code = (
        "import sys; from mwpy._values.installed import home_of\n"
        "print(repr(home_of('users')), home_of('msgspec'), 'email' in sys.modules, 'importlib.metadata' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "'' msgspec False False\n"


def test_the_owner_of_each_installed_module_is_the_one_that_importlib_knows() -> None:
    folder = Path(sysconfig.get_path("purelib"))
    owners = metadata.packages_distributions()
    places = {name: [folder / name, folder / f"{name}.py"] for name in owners}
    found = {name: place for name, both in places.items() for place in both if place.exists() and name.isidentifier()}
    assert "msgspec" in found
    for name, place in found.items():
        assert owner_of(name, str(place)), name
        if name in sys.modules and name != "mwpy":  # its own name is short
            owner = home_of(name)
            assert owner.replace("_", "-").lower() in [each.replace("_", "-").lower() for each in owners[name]]


def in_site_packages(folder: Path) -> None:
    (folder / "it-1.dist-info").mkdir()
    (folder / "it-1.dist-info" / "RECORD").write_text("other_name/__init__.py,,\n")


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("dev-packages/mine.py", False),
        ("dev-packages/mine/__init__.py", False),
        ("lib/python3.11/site-packages/checkout/mine.py", False),
        ("site-packages/mine.py", False),
        ("dist-packages/mine/part/module.py", False),
        ("my-packages/site-packages/src/mine/__init__.py", False),
        ("records/mine.py", False),
        ("records/other_name/part/module.py", True),
        ("records/other_name/other_name.py", True),
        ("records/checkout/other_name/__init__.py", False),
        ("archive.zip/mine/__init__.py", False),
    ],
)
def test_a_module_is_installed_if_a_package_beside_it_says_so(place: str, expected: bool, tmp_path: Path) -> None:
    """The names of the folders above say nothing: a user may call them as Python does."""
    path = tmp_path / place
    if ".zip" not in place:
        path.parent.mkdir(parents=True)
        path.touch()
    if "records" in place:
        in_site_packages(tmp_path / "records")
    top = "other_name" if "other_name" in place else "mine"
    assert bool(owner_of(top, str(path))) is expected


def test_a_folder_with_egg_info_has_sources_that_stay_in_use(tmp_path: Path) -> None:
    """`pip install -e` makes it beside the sources."""
    install(tmp_path, "mine.egg-info", "mine\n", "top_level.txt")
    assert not owner_of("mine", str(tmp_path / "mine" / "__init__.py"))
    assert not owner_of("mine", str(tmp_path / "mine.py"))


def test_files_in_the_folders_of_packages_that_no_package_names_are_the_users(tmp_path: Path) -> None:
    """For example, somebody has copied them there."""
    folder = Path(sysconfig.get_path("purelib"))
    assert owner_of("msgspec", str(folder / "msgspec" / "__init__.py"))
    assert not owner_of("copied_module", str(folder / "copied_module.py"))
    assert not owner_of("msgspec", str(folder / "checkout" / "msgspec" / "__init__.py"))


def test_a_module_of_a_package_that_is_not_loaded_is_found(folder: Path) -> None:
    """Nothing is imported for this. A folder without `__init__.py` in such a package is only found without it."""
    install(folder / "outer", "inner", "", "__init__.py")
    (folder / "outer" / "inner" / "one.py").touch()
    install(folder, "spaced/spaces", "", "two.py")
    assert origin_of("outer.inner.one") == str(folder / "outer" / "inner" / "one.py")
    assert (origin_of("spaced.spaces.two"), origin_of("outer.none.one")) == ("", "")
    assert not {"outer", "spaced"} & {*sys.modules}


def test_pythons_own_modules_are_in_its_library() -> None:
    assert is_standard(json.__file__)
    assert not is_standard(pytest.__file__)
    assert not is_standard(__file__)
