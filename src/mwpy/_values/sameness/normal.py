"""Source without what cannot change a result: its normal form.

Comments, formatting and line numbers are not in the syntax tree. This module leaves out of the tree:

- docstrings, and other statements that have no effect: constants and `pass`;
- the annotations of a function's arguments and of its local variables, unless a decorator may read them. Those in the
  body of a class stay, because dataclasses and the like are made from them;
- the decorators that declare algorithms for mwpy, because they do not change the function.

Fields that are empty are left out, so a tree is the same in all versions of Python that can parse the source, except
where a version reads the source in another way.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any

from mwpy._values.plain import hash_of

__all__ = ["normal_digest"]

_DECLARING = frozenset({"task_algorithm", "master_algorithm", "slave_algorithm"})
"""The decorators of mwpy."""

_IGNORANT = frozenset({"cache", "cached_property", "classmethod", "contextmanager", "lru_cache", "property"}) | {
    *("abstractmethod", "getter", "override", "setter", "staticmethod", "wraps")
}
"""Decorators that do not read annotations."""

_LEFT_OUT = frozenset({"ctx", "kind", "type_comment", "type_ignores"})

Item = tuple[Any, bool]
"""A node, a list or another value in the tree, and whether it is in a function."""


def normal_digest(node: ast.AST, without: frozenset[str] = frozenset()) -> bytes:
    """Return the digest of the normal form of a tree.

    Args:
        node: the tree, which stays as it is.
        without: names of functions; those directly in the body of the node do not count.
    """
    body = getattr(node, "body", None)
    if without and isinstance(body, list):
        kept = [each for each in body if not (_is_function(each) and each.name in without)]
        node = type(node)(**{**dict(ast.iter_fields(node)), "body": kept})
    return hash_of(b"source", "\0".join(_tokens(node)).encode(errors="surrogatepass"))


def _is_function(node: object) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def _tokens(root: ast.AST) -> Iterator[str]:
    """Yield the tree as texts. A stack is used instead of recursion, because generated source can be deep."""
    stack: list[Item] = [(root, _is_function(root))]
    while stack:
        item, local = stack.pop()
        if isinstance(item, list):
            yield "["
            stack.append((_END, local))
            stack.extend((each, local) for each in reversed(item))
        elif isinstance(item, ast.Constant):
            yield _constant(item.value)
        elif isinstance(item, ast.AST):
            yield type(item).__name__
            stack.append((_END, local))
            inside = not isinstance(item, ast.ClassDef) and (local or _is_function(item))
            for name, value in reversed(_fields(item, local)):
                stack.append((value, inside if name == "body" else local))
                stack.append((f".{name}", local))
        else:
            yield str(item)


_END = "]"


def _fields(node: ast.AST, local: bool) -> list[tuple[str, Any]]:
    """Return the fields of a node that count and are not empty."""
    fields = {name: value for name, value in ast.iter_fields(node) if name not in _LEFT_OUT}
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        decorators = [each for each in node.decorator_list if _name(each) not in _DECLARING]
        fields["decorator_list"] = decorators
        if all(_name(each) in _IGNORANT for each in decorators):
            fields["args"] = _without_annotations(node.args)
            del fields["returns"]
    elif isinstance(node, ast.AnnAssign) and local and node.simple:
        del fields["annotation"]
    elif isinstance(node, ast.JoinedStr):
        fields["values"] = _merged(node.values)
    for name in ("body", "orelse", "finalbody"):
        if isinstance(fields.get(name), list):
            fields[name] = [each for each in fields[name] if not _is_idle(each)]
    return [(name, value) for name, value in fields.items() if value is not None and value != []]


def _merged(values: list[ast.expr]) -> list[ast.expr]:
    """Return the parts of an f-string. Versions of Python divide the texts in it in different ways."""
    merged: list[ast.expr] = []
    for each in values:
        last = merged[-1] if merged else None
        if isinstance(each, ast.Constant) and isinstance(last, ast.Constant):
            merged[-1] = ast.Constant(f"{last.value}{each.value}")  # type: ignore[str-bytes-safe]
        elif not (isinstance(each, ast.Constant) and each.value == ""):
            merged.append(each)
    return merged


def _is_idle(node: ast.AST) -> bool:
    return isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


def _name(decorator: ast.expr) -> str:
    """Return the last name of a decorator: `wraps` for `@functools.wraps(f)`."""
    named = decorator.func if isinstance(decorator, ast.Call) else decorator
    return str(getattr(named, "attr", "") or getattr(named, "id", ""))


def _without_annotations(arguments: ast.arguments) -> ast.arguments:
    """Return a copy of the arguments of a function without their annotations."""
    bare: Callable[[ast.arg], ast.arg] = lambda each: ast.arg(arg=each.arg)  # noqa: E731
    changed: dict[str, Any] = {}
    for name, value in ast.iter_fields(arguments):
        if isinstance(value, list):
            changed[name] = [bare(each) if isinstance(each, ast.arg) else each for each in value]
        else:
            changed[name] = bare(value) if isinstance(value, ast.arg) else value
    return ast.arguments(**changed)


def _constant(value: Any) -> str:
    """Return a constant as a text. Numbers are hexadecimal, because a very long decimal is refused."""
    return f"{type(value).__name__} {value:x}" if type(value) is int else f"{type(value).__name__} {value!a}"
