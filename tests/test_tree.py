"""The tree of files in docs/contributing/design.md: one sentence for each file, the first one of its docstring."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src" / "mwpy"
DESIGN = ROOT / "docs" / "contributing" / "design.md"
HEADER = "| file | contents |"
LONGEST = 120


def sentence_of(file: Path) -> str:
    """Return the first sentence of a module's docstring."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return re.split(r"(?<=\.)\s", text, maxsplit=1)[0].replace("\n", " ")


def tree() -> str:
    """Return the rows of a table with all files, folder by folder."""
    rows = [HEADER, "|---|---|"]
    for folder in sorted({file.parent for file in SOURCES.rglob("*.py")}):
        name = folder.relative_to(SOURCES.parent).as_posix()
        init = folder / "__init__.py"
        rows.append(f"| **`{name.removeprefix('mwpy/')}/`** | **{cell(init)}** |")
        rows += [f"| `{file.name}` | {cell(file)} |" for file in sorted(folder.glob("*.py")) if file != init]
    return "\n".join(rows)


def cell(file: Path) -> str:
    return sentence_of(file).replace("|", "\\|")


def test_the_design_page_shows_each_file_with_a_sentence() -> None:
    """Write the tree with `python -m tests.test_tree` after a change."""
    assert f"\n\n{tree()}\n\n" in DESIGN.read_text(encoding="utf-8")


def test_every_sentence_is_whole() -> None:
    """A docstring begins with a sentence of one line, which no other file has."""
    sentences = [sentence_of(file) for file in sorted(SOURCES.rglob("*.py"))]
    assert [each for each in sentences if not each.endswith(".") or len(each) > LONGEST] == []
    assert len({*sentences}) == len(sentences)


if __name__ == "__main__":
    before, _, rest = DESIGN.read_text(encoding="utf-8").partition(HEADER)
    after = rest.partition("\n\n")[2]
    DESIGN.write_text(f"{before}{tree()}\n\n{after}", encoding="utf-8")
