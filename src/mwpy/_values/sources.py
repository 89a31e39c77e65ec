"""The source of code that runs in this process, and its normal form.

A file can change after Python has loaded it: a user edits a script while it runs. Therefore the file is compiled, and
its source counts only for code that compiles to the same instructions. Otherwise the code has no source here, and
counts by its instructions.

A file is read through `linecache`, which also has the cells of a notebook. It is read once, and again only when it does
not have the code that runs.
"""

from __future__ import annotations
import __future__

import ast
import dis
import linecache
from collections.abc import Callable, Iterator
from functools import reduce
from operator import or_
from types import CodeType
from typing import Any

from msgspec import Struct, field

from mwpy._values.functions import codes_in
from mwpy._values.phrases import compiling, parsed
from mwpy._values.shares import hash_of
from mwpy._values.structure import digest_of

_FUTURES = reduce(or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names))
"""The flags of code that say how its source is compiled."""

_HAS_DOCSTRING = 0x4000000
"""A flag of code, since Python 3.13."""

FILES_KEPT = 1000
"""How many files are kept compiled."""


class _File(Struct, eq=False):
    """The source in a file at one time."""

    tree: ast.Module
    codes: dict[str, list[CodeType]]
    """The code of its functions and classes, by qualified name."""
    functions: dict[tuple[str, int], list[ast.AST]]
    """Its functions and classes, by name and first line."""
    lambdas: dict[int, list[ast.Lambda]]
    """Its lambdas, by first line."""

    @classmethod
    def of(cls, text: str, name: str, flags: int) -> _File:
        """Compile a source.

        Raises:
            SyntaxError, ValueError, RecursionError: it cannot be compiled.
        """
        tree = parsed(text)
        with compiling():
            compiled = compile(text, name, "exec", flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        file = cls(tree, {}, {}, {})
        for code in codes_in(compiled):
            file.codes.setdefault(code.co_qualname, []).append(code)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                line = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                file.functions.setdefault((node.name, line), []).append(node)
            elif isinstance(node, ast.Lambda):
                file.lambdas.setdefault(node.lineno, []).append(node)
        return file

    def definition(self, code: CodeType) -> ast.AST | None:
        """Return the definition that compiles to some code, if there is one."""
        wanted = None
        for each in self.codes.get(code.co_qualname, ()):
            wanted = wanted or instructions_digest(code)
            if instructions_digest(each) == wanted:
                return self._node(each)
        return None

    def class_definition(self, qualname: str) -> tuple[ast.AST, CodeType] | None:
        """Return the last definition of a class, and the code of its body."""
        codes = self.codes.get(qualname, [])
        node = self._node(codes[-1]) if codes else None
        return None if node is None else (node, codes[-1])

    def _node(self, code: CodeType) -> ast.AST | None:
        line = code.co_firstlineno
        if code.co_name != "<lambda>":
            found = self.functions.get((code.co_name, line), [])
            return found[0] if len(found) == 1 else None
        around = [each for each in self.lambdas.get(line, ()) if _contains(each, code)]
        return min(around, key=_extent, default=None)


def _extent(node: Any) -> tuple[int, int]:
    return node.end_lineno - node.lineno, node.end_col_offset - node.col_offset


def _contains(node: Any, code: CodeType) -> bool:
    """Whether a lambda contains all instructions of some code. Those without a place have empty columns."""
    start, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
    for line, end_line, column, end_column in code.co_positions():
        if line is None or end_line is None or column is None or not end_column:
            continue
        if not (start <= (line, column) and (end_line, end_column) <= end):
            return False
    return True


class Sources(Struct, eq=False):
    """The files that were read."""

    _files: dict[str, tuple[str, _File | None]] = field(default_factory=dict)
    """Their texts, and what they contain; None if they cannot be compiled."""

    def of_function(self, code: CodeType, space: dict[str, Any]) -> ast.AST | None:
        """Return the definition of a function; None if it has no source, or if its source was changed.

        Args:
            space: its globals. They say how to read a file inside a zip file.
        """
        linecache.lazycache(code.co_filename, space)
        for again in (False, True):
            file = self._file(code.co_filename, code.co_flags & _FUTURES, again)
            found = file.definition(code) if file is not None else None
            if found is not None:
                return found
        return None

    def of_class(self, name: str, qualname: str, codes: list[CodeType]) -> tuple[ast.AST, CodeType] | None:
        """Return the definition of a class, and the code of its body.

        Args:
            name: the name of its file.
            codes: those of its methods; the source counts only if it has them all.
        """
        flags = codes[0].co_flags & _FUTURES if codes else 0
        for again in (False, True):
            file = self._file(name, flags, again)
            found = file.class_definition(qualname) if file is not None else None
            if file is not None and found is not None and all(map(file.definition, codes)):
                return found
        return None

    def of_file(self, name: str) -> ast.Module | None:
        """Return the content of a file."""
        file = self._file(name, 0, False)
        return None if file is None else file.tree

    def _file(self, name: str, flags: int, again: bool) -> _File | None:
        """Read a file, if it is not known or should be read again."""
        if name in self._files and not again:
            return self._files[name][1]
        if again:
            linecache.checkcache(name)
        text = "".join(linecache.getlines(name))
        if name in self._files and self._files[name][0] == text:
            return self._files[name][1]
        try:
            file = _File.of(text, name, flags) if text else None
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            file = None
        if len(self._files) >= FILES_KEPT:
            self._files.clear()
        self._files[name] = text, file
        return file


SOURCES = Sources()
"""The files of this process. It is global because a file should be remembered as it was when it was first needed."""


def instructions_digest(code: CodeType) -> bytes:
    """Return a digest of code: its instructions, names and constants.

    Lines, the name of its file and its docstring do not count. It is the same only in the same minor version of Python.
    """
    instructions, constants = [], []
    for each in dis.get_instructions(code):
        constant = each.opcode in dis.hasconst
        instructions += [each.opcode, None if constant else each.arg]
        if constant:
            value = each.argval
            constants.append(instructions_digest(value) if isinstance(value, CodeType) else value)
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & ~_HAS_DOCSTRING
    names = code.co_name, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    return hash_of(b"instructions", digest_of((instructions, constants, counts, names, code.co_exceptiontable)))


# Source without what cannot change a result: its normal form.
#
# Comments, formatting and line numbers are not in the syntax tree. This module leaves out of the tree:
#
# - docstrings, and other statements that have no effect: constants and `pass`;
# - the annotations of a function's arguments and of its local variables, unless a decorator may read them. Those in the
#   body of a class stay, because dataclasses and the like are made from them;
# - the decorators that declare algorithms for mwpy, because they do not change the function.
#
# Fields that are empty are left out, so a tree is the same in all versions of Python that can parse the source, except
# where a version reads the source in another way.


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
