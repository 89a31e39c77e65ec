"""The tool that draws sentences finds each kind of text, with the right line."""

from __future__ import annotations

from pathlib import Path

from tests.sentences import Text, all_sentences, of_file

PYTHON = """\
'''Add two numbers. The sum is exact.

    python add.py 1 2

Args:
    left: the first of both numbers
'''
LIMIT = 3
'''The largest sum that is allowed.'''
print(f"the sum of {LIMIT} is too large", "no sentence")  # tell the user about
# the limit of the sum
"""

DOCUMENT = """\
# A long heading here

The first sentence goes over
two lines. The second does not.

```sh
this is not read
```

| the first cell is read | x |
| --- | --- |
- an item of a list
"""


def sentences(path: Path, text: str) -> list[tuple[int, str, str]]:
    path.write_text(text)
    return [(each.line, each.kind, sentence) for each in of_file(path) for sentence in each.sentences()]


def test_the_texts_of_a_program_are_found(tmp_path: Path) -> None:
    """The tool finds docstrings, messages and comments. It leaves out the code in a docstring."""
    assert sorted(sentences(tmp_path / "add.py", PYTHON)) == [
        (1, "docstring", "Add two numbers."),
        (1, "docstring", "The sum is exact."),
        (6, "docstring", "left: the first of both numbers"),
        (9, "docstring", "The largest sum that is allowed."),
        (10, "comment", "tell the user about the limit of the sum"),
        (10, "message", "the sum of {...} is too large"),
    ]


def test_the_texts_of_a_document_are_found(tmp_path: Path) -> None:
    """The tool finds headings, sentences over several lines, table cells and list items. It leaves out fenced code."""
    assert sentences(tmp_path / "page.md", DOCUMENT) == [
        (1, "document", "# A long heading here"),
        (3, "document", "The first sentence goes over two lines."),
        (3, "document", "The second does not."),
        (10, "document", "the first cell is read"),
        (12, "document", "- an item of a list"),
    ]


def test_a_sentence_needs_three_words_besides_code() -> None:
    """Names, options and paths are not words of a sentence."""
    assert Text("message", 1, "see `the code here`, --an-option, src/mwpy").sentences() == []


def test_all_places_are_read() -> None:
    """The sentences of the whole repository come from sources, tests, documents and submit files."""
    places = {
        sentence.partition("/")[0].partition(".")[0] for sentence in all_sentences(("src", "tests", "docs", "condor"))
    }
    assert places == {"src", "tests", "docs", "condor"}
