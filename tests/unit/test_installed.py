"""The versions of packages: the same as those of `importlib.metadata`, which is only asked where it may know more."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from mwpy._values.installed import home_of, is_standard, origin_of, owner_of, versions


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The packages for which `importlib.metadata` was asked."""
    names: list[str] = []
    version = metadata.version

    def noted(name: str) -> str:
        names.append(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", noted)
    return names


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


def test_all_packages_have_the_versions_that_importlib_knows(asked: list[str]) -> None:
    names = {each.name for each in metadata.distributions()}
    expected = {name: metadata.version(name) for name in names}
    asked.clear()
    assert versions(names) == expected
    assert asked == []


@pytest.mark.parametrize("name", ["a-package", "A_Package", "a.-_package"])
def test_names_are_compared_as_pip_compares_them(name: str, folder: Path, asked: list[str]) -> None:
    content = "Metadata-Version: 2.1\r\nName: a-package\r\nversion:\t 1!2.0 \r\n\r\nVersion: 3\r\n"
    install(folder, "A.package-1!2.0.dist-info", content)
    assert versions([name, "package"]) == {name: "1!2.0 ", "package": ""}
    assert asked == []
    assert metadata.version(name) == "1!2.0 "


def test_a_package_that_is_installed_later_is_found(folder: Path) -> None:
    assert versions(["later"]) == {"later": ""}
    install(folder, "later-1.dist-info", "Version: 1\n")
    assert versions(["later"]) == {"later": "1"}


def test_an_empty_entry_is_the_current_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(folder, "here-1.dist-info", "Version: 1\n")
    monkeypatch.setattr(sys, "path", [""])
    assert versions(["here"]) == {"here": ""}
    monkeypatch.chdir(folder)
    assert versions(["here"]) == {"here": "1"}


def as_egg(folder: Path) -> None:
    install(folder, "it-1.egg-info", "Metadata-Version: 1\nName: it\nVersion: 1\n", "PKG-INFO")


def twice(folder: Path) -> None:
    for version in ("1", "1.0"):
        install(folder, f"it-{version}.dist-info", "Version: 1\n")


def without_metadata(folder: Path) -> None:
    install(folder, "it-1.dist-info", "", "RECORD")


def without_a_version(folder: Path) -> None:
    install(folder, "it-1.dist-info", "Name: it\n\nVersion: 1\n")


def in_another_encoding(folder: Path) -> None:
    install(folder, "it-1.dist-info", "")
    (folder / "it-1.dist-info" / "METADATA").write_bytes(b"Summary: \xff\nVersion: 1\n")


def in_a_file_of_eggs(folder: Path) -> None:
    egg = folder / "it-1-py3.11.egg"
    install(egg, "EGG-INFO", "Name: it\nVersion: 1\n", "PKG-INFO")
    sys.path.append(str(egg))


def in_a_zip_file(folder: Path) -> None:
    with zipfile.ZipFile(folder / "some.zip", "w") as packed:
        packed.writestr("it-1.dist-info/METADATA", "Name: it\nVersion: 1\n")
    sys.path.append(str(folder / "some.zip"))


class Finder:
    """An importer that knows a package which is in no folder."""

    class Known(metadata.Distribution):
        def read_text(self, filename: str) -> str | None:
            return "Name: it\nVersion: 1\n" if filename == "METADATA" else None

        def locate_file(self, path: Any) -> Any:
            return path

    @staticmethod
    def find_spec(*_: object) -> None:
        return None

    @classmethod
    def find_distributions(cls, context: metadata.DistributionFinder.Context) -> list[metadata.Distribution]:
        return [cls.Known()] if context.name in (None, "it") else []


def found_by_an_importer(_: Path) -> None:
    sys.meta_path.append(Finder)


@pytest.mark.parametrize(
    "make",
    [
        as_egg,
        twice,
        without_metadata,
        without_a_version,
        in_another_encoding,
        in_a_file_of_eggs,
        in_a_zip_file,
        found_by_an_importer,
    ],
)
def test_importlib_is_asked_in_doubt(
    make: Callable[[Path], None], folder: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    make(folder)
    try:
        expected = metadata.version("it") or ""
    except (metadata.PackageNotFoundError, UnicodeDecodeError, KeyError):
        expected = ""
    asked.clear()
    assert versions(["it"]) == {"it": expected}
    assert asked == ["it"]


def test_the_import_of_a_package_of_the_user_loads_no_parser_of_mail() -> None:
    """To load `importlib.metadata` takes longer than to load the core of a master."""
    code = (
        "import sys; from mwpy._values.installed import home_of, versions\n"
        "assert (home_of('users'), home_of('msgspec')) == ('', 'msgspec')\n"
        "print(bool(versions(['msgspec'])['msgspec']), 'email' in sys.modules, 'importlib.metadata' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "True False False\n"


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
        ("it-1-py3.11.egg/mine/__init__.py", True),
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
