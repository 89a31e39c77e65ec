"""Each module's docstring begins with a sentence of its own. `python -m tests.test_tree` prints the tree of files."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src" / "mwpy"
LONGEST = 120


def sentence_of(file: Path) -> str:
    """Return the first sentence of a module's docstring."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return re.split(r"(?<=\.)\s", text, maxsplit=1)[0].replace("\n", " ")


def tree() -> Iterator[str]:
    """Yield a line for each folder and each file, with its sentence."""
    for folder in sorted({file.parent for file in SOURCES.rglob("*.py")}):
        init = folder / "__init__.py"
        yield f"\n{folder.relative_to(SOURCES.parent).as_posix()}/  {sentence_of(init)}"
        yield from (f"  {file.name:22} {sentence_of(file)}" for file in sorted(folder.glob("*.py")) if file != init)


def test_every_sentence_is_whole() -> None:
    """A docstring begins with a sentence of one line, which no other file has."""
    sentences = [sentence_of(file) for file in sorted(SOURCES.rglob("*.py"))]
    assert [each for each in sentences if not each.endswith(".") or len(each) > LONGEST] == []
    assert len({*sentences}) == len(sentences)


if __name__ == "__main__":
    print(*tree(), sep="\n")
