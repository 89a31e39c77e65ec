"""Print how large mwpy is: lines of code, files, lines of tests, and words of documentation.

A line of code is a line with at least one token of Python. Blank lines, comments and docstrings do not count, and a
line counts once however much stands in it. A change that lets the lines of `src/mwpy` rise says why in CHANGELOG.md.

    python bench/size.py
"""

from __future__ import annotations

import ast
import tokenize
from pathlib import Path

ROOT = Path(__file__).parent.parent
NO_CODE = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}
TESTS_OF_SWEEP = ("test_programs", "test_sweeps", "test_compare", "test_parameters", "test_placeholders")
WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def main() -> None:
    """Print the table."""
    product, tests = _python("src/mwpy"), _python("tests")
    simulator = [file for file in product if "_simulation" in file.parts]
    sweep = [file for file in product if "sweep" in file.parts]
    of_sweep = [file for file in tests if file.stem in TESTS_OF_SWEEP]
    pages = sorted((ROOT / "docs").rglob("*.md"))
    inside = [page for page in pages if "contributing" in page.parts]
    outside = [page for page in pages if page not in inside]
    print(f"{code_lines(product):7,d}  lines of code in src/mwpy, in {len(product)} files")
    print(f"{code_lines(simulator):7,d}  of them in the simulator, in {len(simulator)} files")
    print(f"{code_lines(sweep):7,d}  of them in sweep/, in {len(sweep)} files")
    print(f"{code_lines(tests):7,d}  lines of code in tests, in {len(tests)} files")
    print(f"{code_lines(of_sweep):7,d}  of them for sweep/, in {len(of_sweep)} files")
    print(f"{_words(ROOT / 'README.md', *outside):7,d}  words for users, in README.md and {len(outside)} pages")
    contributing = _words(ROOT / "CONTRIBUTING.md", *inside)
    print(f"{contributing:7,d}  words for contributors, in CONTRIBUTING.md and {len(inside)} pages")


def _python(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def _words(*documents: Path) -> int:
    """Count the words of documents, with those in code. The bars of a table and the signs of a list are no words."""
    texts = [document.read_text(encoding="utf-8") for document in documents]
    return sum(any(each.isalnum() for each in word) for text in texts for word in text.split())


def code_lines(files: list[Path]) -> int:
    """Return the number of lines of code in Python files."""
    return sum(len(_lines_of(file)) for file in files)


def _lines_of(file: Path) -> set[int]:
    with file.open("rb") as source:
        lines = {
            line
            for token in tokenize.tokenize(source.readline)
            if token.type not in NO_CODE
            for line in range(token.start[0], token.end[0] + 1)
        }
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            lines.difference_update(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
    return lines


if __name__ == "__main__":
    main()
