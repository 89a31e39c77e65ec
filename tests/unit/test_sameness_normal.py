"""The normal form of source: what cannot change a result does not count."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mwpy._values.sources import normal_digest


def digest(source: str) -> bytes:
    return normal_digest(ast.parse(source))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x = 1", "x = (1)  # one"),
        ("x = 'a' 'b'", 'x = "ab"'),
        ("x = u'a'", "x = 'a'"),
        ("def f(): 'text'", "def f(): ..."),
        ("class A: 'text'", "class A:\n    pass"),
        ("def f(x: int = 1, *a: str, k: int, **b: str) -> None: pass", "def f(x=1, *a, k, **b): pass"),
        ("def f():\n    x: int = 1\n    return x", "def f():\n    x: float = 1\n    return x"),
        ("@property\ndef f(self) -> int: return 1", "@property\ndef f(self): return 1"),
        ("@functools.lru_cache(5)\ndef f(x: int): return 1", "@functools.lru_cache(5)\ndef f(x): return 1"),
        ("if x:\n    pass\nelse:\n    'nothing'", "if x: pass"),
        ("for x in y:\n    'text'\n    z = 1", "for x in y: z = 1"),
    ],
)
def test_these_sources_are_the_same(one: str, other: str) -> None:
    assert digest(one) == digest(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x = 1", "x = 2"),
        ("x = 1", "x = 1.0"),
        ("x = 1", "x = True"),
        ("x = 'a'", "x = b'a'"),
        ("x = 1", "y = 1"),
        ("x = y", "x = 'y'"),
        ("f(a, b)", "f([a, b])"),
        ("f(a)(b)", "f(a, b)"),
        ("x = a - b", "x = a + b"),
        ("x = a - (b - c)", "x = (a - b) - c"),
        ("class A:\n    x: int", "class A:\n    x: float"),
        ("x: int = 1", "x: float = 1"),
        ("@validated\ndef f(x: int): return 1", "@validated\ndef f(x: float): return 1"),
        ("@cache\ndef f(x): return 1", "def f(x): return 1"),
        ("def f():\n    self.x: int = 1", "def f():\n    self.x: float = 1"),
        ("def f():\n    class A:\n        x: int", "def f():\n    class A:\n        x: float"),
        ("if x: y = 1", "while x: y = 1"),
        ("x = 10 ** 20", "x = 10 ** 21"),
        ("x = f'{y}a'", "x = f'{y}b'"),
        ("x = f'{y}'", "x = f'{y!r}'"),
        ("try: x()\nexcept: y()", "try: x()\nfinally: y()"),
    ],
)
def test_these_sources_differ(one: str, other: str) -> None:
    assert digest(one) != digest(other)


@given(st.integers() | st.text() | st.binary() | st.floats(), st.integers() | st.text() | st.binary() | st.floats())
def test_different_constants_differ(one: object, other: object) -> None:
    same = (type(one), repr(one)) == (type(other), repr(other))
    assert (normal_digest(ast.Constant(one)) == normal_digest(ast.Constant(other))) == same  # type: ignore[arg-type]


def test_the_division_of_an_f_string_does_not_count() -> None:
    """It depends on the version of Python."""
    name = ast.FormattedValue(ast.Name("x"), -1)
    parts = [ast.Constant("a"), ast.Constant("b"), name, ast.Constant("")]
    assert normal_digest(ast.JoinedStr(parts)) == normal_digest(ast.JoinedStr([ast.Constant("ab"), name]))


def test_functions_of_a_body_can_be_left_out() -> None:
    """Only those directly in the body."""
    source = "class A:\n    x = 1\n    def f(self): return {}\n    def g(self): return {}"
    [one], [other], [third] = (ast.parse(source.format(*each)).body for each in ((1, 1), (2, 1), (1, 2)))
    without = frozenset({"f"})
    assert normal_digest(one, without) == normal_digest(other, without) != normal_digest(third, without)
    assert normal_digest(one) != normal_digest(other)


def test_deep_source_has_a_digest() -> None:
    assert len(digest(" + ".join(["x"] * 2000).replace("x + x", "x - x", 1))) == 16
