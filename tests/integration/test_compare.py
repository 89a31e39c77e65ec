"""`mwpy compare` with images and texts: as pixels, and on a page."""

from __future__ import annotations

import base64
import io
import json
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

from mwpy import UsageError
from mwpy.cli import compare
from mwpy.cli import sweep as command_line

SIDES = ("old", "new")


def square(color: str, size: int = 40, corner: tuple[int, int, int] | None = None) -> Image.Image:
    image = Image.new("RGB", (size, size), color)
    if corner is not None:
        image.putpixel((size - 1, 0), corner)
    return image


def draw(folder: Path, is_new: bool) -> None:
    """Make what the runs write: a folder for each row."""
    white, black = (255, 255, 255), (0, 0, 0)
    images = {
        "same": square("white"),
        "faint": square("white", corner=(250, 255, 255) if is_new else white),
        "large": square("white", 2000, black if is_new else white),
        "sized": square("white", 40 + is_new),
    }
    for name in (*images, "packed", "paged", "deep", "damaged", "text", "binary", "various"):
        (folder / name).mkdir(parents=True)
    for name, image in images.items():
        image.save(folder / name / "o.png")
    square("red").save(folder / "packed" / "o.png", compress_level=9 * is_new)
    pages = [square("white"), square("white", corner=black if is_new else white)]
    pages[0].save(folder / "paged" / "o.tif", save_all=True, append_images=pages[1:])
    Image.new("I;16", (9, 9), 1000 + is_new).save(folder / "deep" / "o.png")
    (folder / "damaged" / "o.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes([is_new]))
    lines = [f"line {number}" for number in range(500)]
    lines[250] = "<script>alert('new')</script>" if is_new else "<b>old"
    (folder / "text" / "o.txt").write_text("\n".join(lines))
    (folder / "binary" / "o.bin").write_bytes(bytes([is_new]))
    for number in range(60):
        (folder / "various" / f"o.{number:02}").write_text(f"{is_new}\n" * 30)


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sweeps `old` and `new`, and with what they copied."""
    folder = tmp_path_factory.mktemp("sweeps")
    for side in SIDES:
        draw(folder / "drawn" / side, side == "new")
        copying = f"cp {folder}/drawn/{side}/{{row}}/* ."
        rows = "row=" + ",".join(sorted(path.name for path in (folder / "drawn" / side).iterdir()))
        options = ("--shell", "--values", rows, "--values", "tag=<i>", "--output", "o.*", "--slaves", "2")
        assert command_line.main([copying + " # {tag}", *options, "--folder", str(folder / side)]) == 0
    return folder


@pytest.fixture
def compared(sweeps: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., dict[str, str]]:
    """Compares both sweeps, and returns what is said about the pixels of the first output of each row that differs."""

    def run(*options: str) -> dict[str, str]:
        assert compare.main([*(str(sweeps / side) for side in SIDES), "--json", *options]) == 1
        said = json.loads(capfd.readouterr().out)
        pixels = {each["row"].split(",")[0].removeprefix("row="): each["pixels"] for each in said["differences"]}
        assert (said["changed"], said["same"]) == (len(pixels), 11 - len(pixels))
        return pixels

    return run


def test_images_are_compared_as_pixels_if_this_is_asked_for(compared: Callable[..., dict[str, str]]) -> None:
    assert set(compared().values()) == {""}
    assert "packed" in compared()
    exact = compared("--pixels", "0")
    assert exact.pop("damaged").startswith("the pixels cannot be compared: ")
    assert exact == {
        "faint": "pixels that differ by more than 0: 1, by at most 5",
        "large": "pixels that differ by more than 0: 1, by at most 255",
        "sized": "sizes: 40x40 -> 41x41 pixels",
        "paged": "pixels that differ by more than 0: 1, by at most 255",
        "deep": "compared by content: a value has more than 8 bits",
        "text": "",
        "binary": "",
        "various": "",
    }
    tolerant = compared("--pixels", "5")
    assert exact.keys() - tolerant.keys() == {"faint"}
    assert tolerant["large"] == "pixels that differ by more than 5: 1, by at most 255"
    assert "faint" in compared("--pixels", "4.5")


class Shown(HTMLParser):
    """What a page shows: texts by the heading above them, and pictures."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.heading, self.tag = "", ""
        self.texts: dict[str, str] = {}
        self.pictures: dict[str, list[Image.Image]] = {}
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tag = tag
        self.tags.add(tag)
        for name, value in attrs:
            assert tag == "meta" or (tag, name) in (("html", "lang"), ("div", "class"), ("img", "src"))
            if name == "src":
                assert value is not None
                head, content = value.split(",")
                assert head == "data:image/png;base64"
                picture = Image.open(io.BytesIO(base64.b64decode(content))).convert("RGB")
                self.pictures.setdefault(self.heading, []).append(picture)

    def handle_data(self, data: str) -> None:
        if self.tag == "h2" and data.strip():
            self.heading, self.tag = data, ""
        else:
            self.texts[self.heading] = self.texts.get(self.heading, "") + data


def page_of(sweeps: Path, *options: str) -> Shown:
    path = sweeps / "page.html"
    assert compare.main([*(str(sweeps / side) for side in SIDES), "--html", str(path), *options]) == 1
    return Shown(path.read_text())


def test_the_page_shows_both_pictures_and_their_difference(sweeps: Path) -> None:
    """The part that differs is shown as it is. A single pixel is also seen where a picture is made smaller."""
    page = page_of(sweeps)
    large, sized, paged, packed = (
        page.pictures.get(f"row={row}, tag=<i>: output o.*: o.{end}", [])
        for row, end in (("large", "png"), ("sized", "png"), ("paged", "tif"), ("packed", "png"))
    )
    for old, new, difference in (large, paged):
        corner = old.width - 1, 0
        assert (old.getpixel(corner), new.getpixel(corner)) == ((255, 255, 255), (0, 0, 0))
        reds = [
            (x, y) for x in range(old.width) for y in range(old.height) if difference.getpixel((x, y)) == (200, 0, 0)
        ]
        assert reds == [corner]
    assert large[0].size == (51, 51)
    assert [picture.size for picture in sized] == [(40, 40), (41, 41)]
    assert packed == []
    assert "pixels that differ by more than 0: 0" in page.texts["row=packed, tag=<i>: output o.*: o.png"]


def test_far_differences_are_seen_on_a_small_picture(tmp_path: Path) -> None:
    from mwpy.sweep.files import File
    from mwpy.sweep.images import image_change

    files = []
    for color in ("white", "black"):
        image = square("white", 3000)
        for place in ((0, 0), (2999, 2999)):
            image.putpixel(place, (255, 255, 255) if color == "white" else (0, 0, 0))
        image.save(tmp_path / "o.bmp")
        files.append(File("o.bmp", (tmp_path / "o.bmp").read_bytes()))
    differs, _, pictures = image_change(files[0], files[1], 0)
    assert differs
    difference = Image.open(io.BytesIO(pictures[2]))
    assert difference.size == (600, 600)
    assert [difference.getpixel(place) for place in ((0, 0), (599, 599))] == [(200, 0, 0)] * 2


def test_the_page_shows_changed_lines_and_runs_nothing(sweeps: Path) -> None:
    page = page_of(sweeps)
    assert page.tags.isdisjoint({"script", "i", "b"})
    text = page.texts["row=text, tag=<i>: output o.*: o.txt"]
    assert "\n line 249\n-<b>old\n+<script>alert('new')</script>\n line 251\n" in text
    assert "line 240" not in text
    assert "no text" in page.texts["row=binary, tag=<i>: output o.*: o.bin"]
    many = page.texts["row=various, tag=<i>: output o.*: o.00"]
    assert many.count("-False") == 30
    assert "23 more lines are not shown" in many


def test_the_page_is_bounded_and_says_what_is_not_shown(sweeps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    differing = 60 + 9  # those of `various`, and one of each other row
    page = page_of(sweeps)
    assert len(page.texts) - 1 == 50
    assert (
        page.texts[page.heading]
        .strip()
        .endswith(f"Not shown: 0 rows of the table, and {differing - 50} outputs below it. mwpy compare lists all.")
    )
    monkeypatch.setattr("mwpy.sweep.compare.MAX_ROWS", 5)
    assert f"Not shown: {differing - 5} rows" in (page := page_of(sweeps)).texts[page.heading]


def test_without_pillow_the_message_says_what_to_install(sweeps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.delitem(sys.modules, "mwpy.sweep.images", raising=False)
    folders = [str(sweeps / side) for side in SIDES]
    assert compare.main(folders) == 1
    for options in (["--pixels", "0"], ["--html", str(sweeps / "no.html")]):
        with pytest.raises(UsageError, match=r"^o\.png needs Pillow \(.*\): pip install 'mwpy-cluster\[images\]'$"):
            compare.main([*folders, *options])
    assert not (sweeps / "no.html").exists()


def test_a_page_that_cannot_be_written_is_a_wrong_command(sweeps: Path) -> None:
    path = sweeps / "none" / "page.html"
    with pytest.raises(UsageError, match=r"page\.html cannot be written \(No such file or directory\)"):
        compare.main([*(str(sweeps / side) for side in SIDES), "--html", str(path)])


def test_rows_with_the_same_parameters_are_compared_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for side, factor, count in (("old", 1, 2), ("new", 10, 3)):
        line = f"echo E=$(({factor} * {{#}}))"
        options = ("--shell", "--result", "e=E=(.*)", "--folder", side, "--slaves", "1", ":::")
        assert command_line.main([line, *options, *["a"] * count]) == 0
    capfd.readouterr()
    assert compare.main(["old", "new"]) == 1
    assert capfd.readouterr().out == (
        "a: e: 1 -> 10\n"
        "a (2): e: 2 -> 20\n"
        "0 rows are the same, 2 differ, 0 are only in the old sweep, 1 only in the new\n"
    )
    assert compare.main(["new", "new"]) == 0
