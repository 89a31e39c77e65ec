"""Print random sentences of this repository, so that a reader can judge its language.

    .venv/bin/python -m tests.sentences --seed 7
    .venv/bin/python -m tests.sentences --seed 7 --count 20 src/mwpy/_core docs

The sentences come from docstrings, comments, messages and documents. A message is a string literal of a program; the
strings of tests are left out, because most of them are test data. A sentence has at least three words. Each sentence is
printed with its file, its line and its kind. The same seed and the same files give the same sentences.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from attrs import frozen

ROOT = Path(__file__).parent.parent
PLACES = ("src", "tests", "examples", "bench", "docs", "condor", "slurm", "Makefile", *sorted(ROOT.glob("*.md")))
"""The files and folders that are read if none is given."""

SENTENCE_END = re.compile(r"(?<=[.!?:])\s+(?=[A-Z`*(]|mwpy)")
CODE = re.compile(r"`[^`]*`|\S*[/=_]\S*|--\S+")
WORD = re.compile(r"\b[A-Za-z]{2,}\b")
LEAST_WORDS = 3
CODE_ROWS = (">>>", "...", "python ", ".venv/")
ITEM = re.compile(r"\s*(- |\||#|\d+\. )")
DIRECTIVE = re.compile(r"# ?(type:|noqa|-{4})")
"""Comments that are for tools, and lines that separate sections."""
ARGUMENT = re.compile(r"\s*\w+: ")
STRING_OR_COMMENT = re.compile(
    r"""("{3}|'{3})(?s:\\.|.)*?\1|"(?:\\(?s:.)|[^"\\\n])*"|'(?:\\(?s:.)|[^'\\\n])*'|(?P<comment>#.*)"""
)
"""Matches a string as a whole, because a `#` in it begins no comment."""


@frozen
class Text:
    """A paragraph, and the line where it begins."""

    kind: str
    line: int
    text: str

    def sentences(self) -> list[str]:
        """The sentences of this text that have enough words to be judged."""
        parts = SENTENCE_END.split(" ".join(self.text.split()))
        return [part for part in parts if len(WORD.findall(CODE.sub("", part))) >= LEAST_WORDS]


def paragraphs(kind: str, line: int, text: str) -> Iterator[Text]:
    """Split a text at empty lines, list items and table cells. Code blocks and doctests are left out."""
    block: list[str] = []
    fenced = False
    for number, row in enumerate([*text.splitlines(), ""]):
        code = row.lstrip().startswith(CODE_ROWS) or (kind == "document" and row.startswith("    "))
        fence = row.startswith("```")
        fenced ^= fence
        item = ITEM.match(row) or (kind == "docstring" and ARGUMENT.match(row))
        if (fence or fenced or code or item or not row.strip()) and block:
            yield Text(kind, line + number - len(block), "\n".join(block))
            block = []
        if row.startswith("|"):
            yield from (Text(kind, line + number, cell) for cell in row.split("|"))
        elif row.strip() and not (fence or fenced or code):
            block.append(row)


def of_python(source: str) -> Iterator[Text]:
    """The docstrings, messages and comments of a Python source."""
    nodes = [*ast.walk(ast.parse(source))]
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    parts_of_others = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        match node:
            case ast.Constant(value=str(text)) if id(node) in docstrings:
                yield from paragraphs("docstring", node.lineno, text)
            case ast.Constant(value=str(text)) if id(node) not in parts_of_others:
                yield Text("message", node.lineno, text)
            case ast.JoinedStr(values=values):
                parts = [str(value.value) if isinstance(value, ast.Constant) else "{...}" for value in values]
                yield Text("message", node.lineno, "".join(parts))
    yield from comments([(line, text) for line, text in comment_lines(source) if not DIRECTIVE.match(text)])


def comment_lines(source: str) -> Iterator[tuple[int, str]]:
    """The line and the text of each comment of a Python source. The module `tokenize` takes twenty times as long."""
    line, counted = 1, 0
    for found in STRING_OR_COMMENT.finditer(source):
        if found["comment"]:
            line, counted = line + source.count("\n", counted, found.start()), found.start()
            yield line, found["comment"]


def comments(lines: Sequence[tuple[int, str]]) -> Iterator[Text]:
    """Join the comments of consecutive lines."""
    block: list[str] = []
    last = 0
    for number, text in [*lines, (-1, "")]:
        if block and number != last + 1:
            yield Text("comment", last - len(block) + 1, "\n".join(block))
            block = []
        block.append(text.lstrip("# "))
        last = number


def of_file(path: Path) -> Iterator[Text]:
    """The texts of one file, according to its suffix."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        in_tests = path.is_relative_to(ROOT / "tests")
        yield from (text for text in of_python(source) if not (in_tests and text.kind == "message"))
    elif path.suffix == ".md":
        yield from paragraphs("document", 1, source)
    else:
        lines = enumerate(source.splitlines(), 1)
        yield from comments([(number, line) for number, line in lines if line.startswith("# ")])


def files(places: Sequence[str | Path]) -> list[Path]:
    """The files to read, below the given files and folders."""
    found: list[Path] = []
    for place in places:
        path = ROOT / place
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        found += [each for each in inside if each.suffix in (".py", ".md", ".sub", ".sbatch", "") and each.is_file()]
    return found


def all_sentences(places: Sequence[str | Path]) -> list[str]:
    """All sentences of some files, each with its file, its line and its kind."""
    return [
        f"{path.relative_to(ROOT)}:{text.line}: {text.kind}: {sentence}"
        for path in files(places)
        for text in of_file(path)
        for sentence in text.sentences()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Print random sentences of this repository.")
    parser.add_argument("places", nargs="*", default=PLACES, help="files and folders to read (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="the seed of the random choice (default: 0)")
    parser.add_argument("--count", type=int, default=50, help="the number of sentences (default: 50)")
    arguments = parser.parse_args()
    found = all_sentences(arguments.places)
    for sentence in sorted(random.Random(arguments.seed).sample(found, min(arguments.count, len(found)))):
        print(sentence)


if __name__ == "__main__":
    main()
