"""The code of the user's modules, as this process has loaded it: what a task algorithm uses of it.

A user may edit files while a computation runs. The processes that have loaded the old files go on with the old code,
and a slave that starts later loads the new one. So that it computes nothing else without notice, a definition contains
what the algorithm uses: the text of each function, class and module variable of the user's own modules that can be
reached by names, and a digest of each of these files. A slave compares the digests first, because equal files are the
usual case. Only if a file differs does it compare the parts, so that an edit elsewhere in the file does not matter.

A file counts as it was when it was loaded. Therefore its text is kept: that of the modules that are loaded with the
script in `remember`, that of others when they are needed. In a notebook, modules can be loaded again, so there each
file is read again; `_roles/definitions.py` knows which ones were edited.

Values do not count, because they may differ between processes for good reasons. What cannot be followed: names that
exist only as texts, functions in containers, and what methods of unknown objects use.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import io
import linecache
import os
import sys
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from importlib.util import resolve_name
from types import CodeType, FunctionType, ModuleType
from typing import Any

from msgspec import Struct, field

from mwpy._system.packages import is_interactive, is_of_user, stamp_of
from mwpy._system.script import MAIN, is_same
from mwpy._values.functions import cells_of, codes_in, imports_in
from mwpy._values.installed import origin_of
from mwpy._values.messages import ModuleCode
from mwpy._values.phrases import parsed

DIGITS = 16
"""Hexadecimal digits of a digest."""

USES_KEPT = 1000
"""How many functions that travel by value have what they use kept: each call of a closure makes a new definition."""


class _Source(Struct, eq=False):
    """The text of a module."""

    file: str
    text: str
    digest: str
    _outline: _Outline | None = None

    @property
    def outline(self) -> _Outline:
        if self._outline is None:
            self._outline = _Outline.of(self.text)
        return self._outline


class OwnCode(Struct, eq=False):
    """The code of the user's modules in one process."""

    _sources: dict[str, _Source] = field(default_factory=dict)
    """By the names of the modules."""
    _stamps: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Time of modification and size of the file of each module that was loaded, as it was then."""
    _num_modules: int = 0
    """How many modules there were when new ones were looked for."""
    _by_value: dict[tuple[object, ...], dict[str, ModuleCode]] = field(default_factory=dict)
    """What functions use that travel by value, by what distinguishes them."""

    def remember(self) -> None:
        """Keep the text of all modules of the user that are loaded by now, and when their files were edited last."""
        if is_interactive() or len(sys.modules) == self._num_modules:
            return
        self._num_modules = len(sys.modules)
        for name, file in _loaded_files():
            self.source(name)
            if file not in self._stamps:
                self._stamps[file] = _stamp_of(file)

    def edited(self) -> str:
        """Return a file that was edited since it was remembered, or that was loaded later; empty if there is none."""
        return next((file for _, file in _loaded_files() if self._stamps.get(file) != _stamp_of(file)), "")

    def used_by(
        self, function: Callable[..., Any], by_value: bool, found: Mapping[str, object] | None = None
    ) -> dict[str, ModuleCode]:
        """Return the code that a function uses, by the names of the modules.

        Args:
            by_value: whether it travels by value. Then what slaves do not find of the script travels with it.
            found: what slaves find of the script, as `Codec.found`.
        """
        if not by_value:
            return self._used_by(function, None)
        if not isinstance(function, FunctionType):
            return self._used_by(function, found, travels=True)
        if is_interactive():  # the slaves are replaced when modules were edited
            return {}
        key = _identity(function)
        if key not in self._by_value:
            if len(self._by_value) >= USES_KEPT:
                self._by_value.clear()
            self._by_value[key] = self._used_by(function, found, travels=True)
        return self._by_value[key]

    def _used_by(
        self, function: Callable[..., Any], found: Mapping[str, object] | None, travels: bool = False
    ) -> dict[str, ModuleCode]:
        self.remember()
        walk = _Walk(self, found)
        walk.begin(function, travels)
        files = {name: (self.source(name), parts) for name, parts in walk.parts.items()}
        return {name: ModuleCode(source.digest, parts) for name, (source, parts) in files.items() if source is not None}

    def differences(self, function: Callable[..., Any], theirs: Mapping[str, ModuleCode]) -> list[str]:
        """Return the parts of the code that a function uses that are others here than on the master.

        Args:
            theirs: what the function uses on the master.
        """
        self.remember()
        files = {name: self.source(name) for name in theirs}
        other = {name: each for name, each in files.items() if each is not None and each.digest != theirs[name].digest}
        if not other:
            return []
        mine = self._used_by(function, None)
        return [
            f"{part} in {os.path.basename(source.file)}"
            for name, source in other.items()
            for part, digest in theirs[name].parts.items()
            if name not in mine or mine[name].parts.get(part) != digest
        ]

    def source(self, name: str) -> _Source | None:
        """Return the text of a module as it was loaded, or as it will be; None if there is none."""
        known = self._sources.get(name)
        if known is not None and not is_interactive():
            return known
        module = sys.modules.get(name)
        file = _file_of(name) if module is None else str(getattr(module, "__file__", None) or "")
        if is_interactive():
            linecache.checkcache(file)
        text = "".join(linecache.getlines(file, None if module is None else vars(module)))
        if not text:
            return None
        if known is None or known.text != text:
            known = self._sources[name] = _Source(file, text, _digest(text))
        return known


OWN_CODE = OwnCode()
"""The code of this process. It is global because files count as they were when this process loaded them."""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:DIGITS]


def _loaded_files() -> Iterator[tuple[str, str]]:
    """The script and the user's modules: their names and files."""
    for name, module in [*sys.modules.items()]:
        file = str(getattr(module, "__file__", None) or "")
        if file and _is_own(name, module):
            yield name, file


def _stamp_of(path: str) -> tuple[int, int]:
    """Return the stamp of a file, or of the archive in which it is."""
    while not os.path.exists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return stamp_of(path)


def _is_own(name: str, module: object) -> bool:
    return name == MAIN or is_of_user(name, module)


def _file_of(name: str) -> str:
    """Return the file of a module of the user that is not loaded; empty if it is not found."""
    found = ModuleType(name)
    found.__file__ = origin_of(name)
    return found.__file__ if is_of_user(name, found) else ""


# ---- the text of a module -------------------------------------------------------------------------------------------


class _Outline(Struct, eq=False):
    """Where a text defines what."""

    lines: list[str]
    definitions: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """The first and last lines of functions and classes, by qualified name. Lines count from 1."""
    variables: dict[str, list[ast.stmt]] = field(default_factory=dict)
    """The statements that set or change a variable of the module."""
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)
    """For each name that is imported from a module: the module, with dots if it is relative, and its name there."""

    @classmethod
    def of(cls, text: str) -> _Outline:
        outline = cls([*io.StringIO(text)])  # as Python counts lines; `splitlines` also splits at form feeds
        try:
            outline._add(parsed(text), "", is_top=True)
        except (SyntaxError, ValueError, RecursionError):
            pass
        return outline

    def _add(self, node: ast.AST, prefix: str, is_top: bool) -> None:
        for statement in _statements_in(node):
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                first = min([statement.lineno, *(each.lineno for each in statement.decorator_list)])
                name = prefix + statement.name
                self.definitions.setdefault(name, []).append((first, statement.end_lineno or first))
                inner = f"{name}." if isinstance(statement, ast.ClassDef) else f"{name}.<locals>."
                self._add(statement, inner, is_top=False)
                continue
            if isinstance(statement, ast.ImportFrom) and is_top:
                module = "." * statement.level + (statement.module or "")
                self.imports.update({each.asname or each.name: (module, each.name) for each in statement.names})
            for name in _set_by(statement) if is_top else ():
                self.variables.setdefault(name, []).append(statement)
            self._add(statement, prefix, is_top)

    def definition(self, qualname: str, line: int | None) -> str:
        """Return the text of a function or class; empty if it is not there.

        Args:
            line: its first line, if it is known. It may be wrong after `%autoreload`, so the name counts first.
        """
        found = self.definitions.get(qualname, [])
        chosen = [each for each in found if each[0] == line] or found
        return self._text(*chosen[-1]) if chosen else ""

    def variable(self, name: str) -> str:
        """Return the statements that set a variable."""
        return "".join(self._text(each.lineno, each.end_lineno or each.lineno) for each in self.variables[name])

    def _text(self, first: int, last: int) -> str:
        return "".join(self.lines[first - 1 : last])


def _statements_in(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements directly in a node, and those in its `except` and `case` parts."""
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.stmt):
            yield each
        elif isinstance(each, ast.ExceptHandler | ast.match_case):
            yield from each.body


def _set_by(statement: ast.stmt) -> set[str]:
    """Return the variables that a statement sets, or changes by an item, an attribute or a method."""
    if isinstance(statement, ast.Assign):
        targets: list[ast.expr] = statement.targets
    elif isinstance(statement, ast.AnnAssign | ast.AugAssign | ast.For):
        targets = [statement.target]
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        targets = [statement.value.func] if isinstance(statement.value.func, ast.Attribute) else []
    else:
        return set()
    names: set[str] = set()
    while targets:
        target: Any = targets.pop()
        if isinstance(target, ast.Tuple | ast.List):
            targets += target.elts
            continue
        while isinstance(target, ast.Attribute | ast.Subscript | ast.Starred | ast.Call):
            target = target.func if isinstance(target, ast.Call) else target.value
        if isinstance(target, ast.Name):
            names.add(target.id)
    return names


# ---- what a function uses -------------------------------------------------------------------------------------------


class _Walk(Struct, eq=False):
    """Follows the names that a function uses."""

    _own: OwnCode
    _found: Mapping[str, object] | None
    """What slaves find of the script; None for everything. What they do not find does not count."""
    parts: dict[str, dict[str, str]] = field(default_factory=dict)
    """The digest of each part, by module."""
    _waiting: list[tuple[Mapping[str, Any], str, frozenset[str]]] = field(default_factory=list)
    """Names that were not followed: where they mean something, and the other names beside them."""
    _seen: set[object] = field(default_factory=set)
    _kept: list[Mapping[str, Any]] = field(default_factory=list)
    """Where names mean something, so that nothing else gets the identity of one of these objects."""

    def begin(self, function: Any, travels: bool) -> None:
        """Follow everything that a function uses.

        Args:
            travels: whether its own code does not count if it is in the script.
        """
        while isinstance(function, functools.partial):
            function = function.func
        function = _unwrapped(getattr(function, "__func__", function))
        if isinstance(function, FunctionType):
            self._add(function, travels and str(function.__module__) == MAIN)
        else:
            self._add(function if isinstance(function, type) else type(function))
        while self._waiting:
            self._follow(*self._waiting.pop())

    def _add(self, thing: Any, travels: bool = False) -> bool:
        """Add a function or class. Return whether it has a definition.

        Args:
            travels: whether only what it uses counts.
        """
        module = str(thing.__module__)
        travels = travels or (module == MAIN and self._found == {})
        if not _is_own(module, sys.modules.get(module)):
            return False
        is_class = isinstance(thing, type)
        source = self._own.source(module)
        line = None if is_class else thing.__code__.co_firstlineno
        text = "" if source is None else source.outline.definition(thing.__qualname__, line)
        if id(thing) in self._seen:
            return bool(text)
        self._seen.add(id(thing))
        if text and not travels:
            self._note(module, f"{'class' if is_class else 'function'} {thing.__qualname__}", text)
        if is_class:
            for base in thing.__bases__:
                self._add(base)
        space = vars(sys.modules[module]) if is_class else _space_of(thing)
        self._kept.append(space)
        codes = [*_codes_of(thing)]
        names = frozenset(name for code in codes for name in (*code.co_names, *code.co_freevars))
        self._waiting += [(space, name, names) for name in names]
        for name in (each.module for code in codes for each in imports_in(code)):
            source = self._own.source(name) if name not in sys.modules else None
            if source is not None:
                self._note(name, f"module {name}", source.text)
        return bool(text)

    def _follow(self, space: Mapping[str, Any], name: str, beside: frozenset[str]) -> None:
        if (id(space), name, beside) in self._seen:
            return
        self._seen.add((id(space), name, beside))
        value = space.get(name, sys.modules.get(name))  # it may be imported inside the function
        if isinstance(value, ModuleType):
            if _is_own(value.__name__, value):
                inner = vars(value)
                self._waiting += [(inner, each, beside) for each in beside if each in inner and each != name]
        elif name in space and (id(space), name) not in self._seen:
            self._seen.add((id(space), name))
            self._follow_value(str(space.get("__name__")), name, value)

    def _follow_value(self, module: str, name: str, value: Any) -> None:
        thing = _unwrapped(value)
        travels = module == MAIN and not is_same(name, value, self._found)
        if not isinstance(thing, FunctionType | type):
            self._add(type(value))
        elif self._add(thing, travels):
            return
        if travels:
            return
        source = self._own.source(module) if _is_own(module, sys.modules.get(module)) else None
        if source is None:
            return
        outline = source.outline
        if name in outline.variables:
            self._note(module, f"variable {name}", outline.variable(name))
            used = frozenset(_loaded_in(outline.variables[name]))
            self._waiting += [(vars(sys.modules[module]), each, used) for each in used]
        elif name in outline.imports:
            self._follow_import(module, *outline.imports[name])
        elif name in outline.definitions:  # a decorator has made an object of a function
            self._note(module, f"function {name}", outline.definition(name, None))

    def _follow_import(self, module: str, relative: str, name: str) -> None:
        package = str(getattr(sys.modules[module], "__package__", None) or "")
        try:
            home = sys.modules.get(resolve_name(relative, package))
        except ImportError:
            return
        if home is not None:
            self._follow(vars(home), name, frozenset())

    def _note(self, module: str, part: str, text: str) -> None:
        self.parts.setdefault(module, {})[part] = _digest(text)


def _unwrapped(value: Any) -> Any:
    try:
        return inspect.unwrap(value)
    except Exception:  # an object of the script behaves strangely
        return value


def _accessed(value: Any) -> Any:
    """Return the function of a method or property."""
    try:
        return _unwrapped(getattr(value, "__func__", getattr(value, "fget", value)))
    except Exception:  # as above
        return value


def _identity(function: FunctionType) -> tuple[object, ...]:
    """What distinguishes a function that travels by value: its code, and the functions, classes and modules that the
    variables around it mean. Each call of the function around it makes another one, with the same code."""
    found: list[object] = []
    seen: set[int] = set()
    waiting: list[Any] = [function]
    while waiting:
        each = waiting.pop()
        if isinstance(each, FunctionType) and id(each) not in seen:
            seen.add(id(each))
            found += [each.__code__, str(each.__module__)]
            waiting += [cell.cell_contents for _, cell in cells_of(each)]
        else:
            found.append(each if isinstance(each, type | ModuleType) else type(each))
    return tuple(found)


def _space_of(function: FunctionType) -> Mapping[str, Any]:
    """Return what names mean in a function: its globals, and the variables of the functions around it."""
    cells = {name: cell.cell_contents for name, cell in cells_of(function)}
    return ChainMap(cells, function.__globals__) if cells else function.__globals__


def _codes_of(thing: Any) -> Iterator[CodeType]:
    """Yield the code of a function, or of the methods of a class, and all code inside it."""
    if isinstance(thing, type):
        found = [_accessed(each) for each in vars(thing).values()]
        codes = [each.__code__ for each in found if isinstance(each, FunctionType)]
    else:
        codes = [thing.__code__]
    for code in codes:
        yield from codes_in(code)


def _loaded_in(statements: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements read, with those of attributes."""
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                yield node.id
            elif isinstance(node, ast.Attribute):
                yield node.attr
