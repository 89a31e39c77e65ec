"""Values take the places of placeholders: in words, in texts, and in the line of a shell."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mwpy import UsageError
from mwpy.sweep.placeholders import Line, Template

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@pytest.mark.parametrize(
    ("text", "values", "filled"),
    [
        ("{a} {a:.2f} {b}", {"a": 0.5, "b": "x y"}, "0.5 0.50 x y"),
        ("{{a}} { a } {1+} {'x': 1} {print $1} {}}", {"": 1}, "{a} { a } {1+} {'x': 1} {print $1} 1}"),
        ("{} {.} {/} {//} {/.}", {"": "d/e.f.gz"}, "d/e.f.gz d/e.f e.f.gz d e.f"),
        ("{//} {1.} {2/}", {"": "x", "1": "a.b", "2": "c/d"}, ". a d"),
        ("{#}", {"#": 3}, "3"),
        ("{a}", {"a": b"caf\xc3\xa9"}, "café"),
    ],
)
def test_only_names_and_operators_are_placeholders(text: str, values: dict[str, Any], filled: str) -> None:
    assert Template.of(text).filled(values) == filled


def test_the_line_is_divided_before_values_take_their_places() -> None:
    line = Line.of("run --x {x} '{x} and {y}' {files}")
    assert line.names == ["x", "y", "files"]
    words = line.filled({"x": "a b", "y": "'", "files": ["-c", "d e"]})
    assert words == ["run", "--x", "a b", "a b and '", "-c", "d e"]


@given(TEXTS)
def test_any_text_is_one_word(text: str) -> None:
    assert Line.of("run {x} a{x}").filled({"x": text}) == ["run", text, f"a{text}"]


@pytest.mark.parametrize("place", ["{x}", '"{x}"', "'{x}'", '"$(printf %s. {x})"', '"$(printf %s. "{x}")"'])
@pytest.mark.parametrize("value", ["a  b", "it's", 'say "hi"', "$HOME `id` \\ $(id)", "-n", "*", "", "é\n\tz", "!x #y"])
def test_a_shell_gets_the_value_as_it_is(place: str, value: str) -> None:
    """Placeholders may stand outside and inside of quotes, also within a command substitution."""
    shell = Line.of(f'printf "%s|" {place}', shell=True).filled({"x": value})
    found = subprocess.run(shell, capture_output=True, text=True, check=True).stdout
    assert found == f"{value}.|" if "$(" in place else f"{value}|"


def test_a_line_for_a_shell_needs_a_shell() -> None:
    """Otherwise the program would get the pipe as an argument."""
    for line in "a | b", "a > b", "a 2>&1", "a; b", "a && b", "echo $(a)", "echo `a`", "a 'b' > \"c\"":
        with pytest.raises(UsageError, match="which only a shell understands: let a shell run it"):
            Line.of(line)
    for line in "a '|' \"b > c\"", r"a \| b", r'it\'s "a \" | b"', "a 'b;c'":
        assert Line.of(line).words
    assert Line.of("a | b", shell=True).filled({}) == ["/bin/sh", "-c", "a | b"]
    assert Line.of(["a", "|"]).filled({}) == ["a", "|"]


@pytest.mark.parametrize(
    ("line", "shell", "said"),
    [("", False, "names no program"), ("a 'b", False, "cannot be read"), (["a"], True, "one text")],
)
def test_a_wrong_line_is_refused(line: Any, shell: bool, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Line.of(line, shell)


@pytest.mark.parametrize(
    ("value", "said"),
    [(None, "is None"), ({"a": 1}, "give a text"), ("a\0b", "zero byte")],
)
def test_what_is_no_value_is_refused_by_name(value: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        Template.of("--x={x}").filled({"x": value})
    assert "{x}" in str(refused.value)


def test_a_format_that_does_not_fit_is_refused() -> None:
    with pytest.raises(UsageError, match=r"cannot be written as \{x:d\}"):
        Template.of("{x:d}").filled({"x": "text"})
