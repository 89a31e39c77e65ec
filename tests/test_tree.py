"""The tree of files in docs/design.md: one sentence for each file, the first one of its docstring."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src" / "mwpy"
DESIGN = ROOT / "docs" / "design.md"
NAME_WIDTH = 20
LONGEST = 120


def sentence_of(file: Path) -> str:
    """Return the first sentence of a module's docstring."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return re.split(r"(?<=\.)\s", text, maxsplit=1)[0].replace("\n", " ")


def tree() -> str:
    """Return the lines of all files, folder by folder."""
    lines: list[str] = []
    folders = sorted({file.parent for file in SOURCES.rglob("*.py")})
    for folder in folders:
        name = folder.relative_to(SOURCES).as_posix()
        init = folder / "__init__.py"
        lines += ["", f"{'mwpy' if name == '.' else name}/  {sentence_of(init)}"]
        for file in sorted(folder.glob("*.py")):
            if file != init:
                lines.append(f"  {file.name:{NAME_WIDTH}}  {sentence_of(file)}")
    return "\n".join(lines).strip()


def test_the_design_page_shows_each_file_with_a_sentence() -> None:
    """Write the tree with `python -m tests.test_tree` after a change."""
    assert f"```text\n{tree()}\n```" in DESIGN.read_text(encoding="utf-8")


def test_every_sentence_is_whole() -> None:
    """A docstring begins with a sentence of one line, which no other file has."""
    sentences = [sentence_of(file) for file in sorted(SOURCES.rglob("*.py"))]
    assert [each for each in sentences if not each.endswith(".") or len(each) > LONGEST] == []
    assert len({*sentences}) == len(sentences)


if __name__ == "__main__":
    before, _, rest = DESIGN.read_text(encoding="utf-8").partition("```text\n")
    DESIGN.write_text(f"{before}```text\n{tree()}\n```{rest.partition('```')[2]}", encoding="utf-8")
