"""The texts of the user's modules, as this process has loaded them, and which statements of them define what.

A user may edit files while a computation runs. This process goes on with the code that it has loaded, so a file counts
as it was then. Its text is kept: that of the modules that are loaded with the script in `remember`, that of others when
they are needed. In a notebook modules can be loaded again, so there each file is read again.

Texts are read through `linecache`, which also has the cells of a notebook.
"""

from __future__ import annotations

import ast
import hashlib
import io
import linecache
import os
import sys
from collections.abc import Iterable, Iterator
from functools import cache, cached_property
from types import FunctionType
from typing import Any

from attrs import Factory, define

from mwpy._values.functions import Chain, Import, Use, chains_in, functions_in, import_uses
from mwpy._values.installed import is_interactive, is_own, origin_of
from mwpy._values.phrases import compiling, literals_in, parsed

DIGITS = 16
"""Hexadecimal digits of a digest."""


def text_digest(text: str) -> str:
    """Return the digest of a text."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:DIGITS]


class Text:
    """The text of a module. A text that cannot be parsed defines nothing."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.text = text
        self.digest = text_digest(text)
        self._lines = [*io.StringIO(text)]  # as Python counts lines; `splitlines` also splits at form feeds
        self.definition = cache(self._definition)
        self.class_at = cache(self._class_at)

    @cached_property
    def tree(self) -> ast.Module | None:
        """Its syntax tree; None if it cannot be parsed."""
        try:
            return parsed(self.text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None

    @cached_property
    def literals(self) -> dict[str, object]:
        """The variables to which it assigns a literal, with its value."""
        return dict(literals_in(self.tree)) if self.tree is not None else {}

    @cached_property
    def rebound(self) -> set[str]:
        """The variables that its functions bind."""
        nodes = ast.walk(self.tree) if self.tree is not None else ()
        return {name for each in nodes if isinstance(each, ast.Global) for name in each.names}

    @cached_property
    def _statements(self) -> dict[str, list[ast.stmt]]:
        """The statements of the module that define or change each of its variables, functions and classes."""
        found: dict[str, list[ast.stmt]] = {}
        for statement in _statements_in(self.tree):
            for name in _set_by(statement) - (_registered_by(statement) & self.imports.keys()):
                found.setdefault(name, []).append(statement)
        return found

    def imported_by(self, name: str) -> Iterator[Use]:
        """Yield all that it imports, also in functions, if it is the text of the module of this name. What it imports
        for the names of types only is never loaded."""
        package = name if os.path.basename(self.file).startswith("__init__.") else name.rpartition(".")[0]
        for each in _run_in(self.tree) if self.tree is not None else ():
            for _, module, there in _imported(each):
                yield from import_uses(Import(module, (there,) if there else ()), package)

    @cached_property
    def imports(self) -> dict[str, tuple[str, str]]:
        """For each name that is imported: the module, with dots if it is relative, and the name there; an empty name if
        it is the module itself. `*` has all modules from which everything is imported."""
        found: dict[str, tuple[str, str]] = {}
        for statement in _statements_in(self.tree):
            aliases = {each.asname for each in getattr(statement, "names", ()) if isinstance(each, ast.alias)}
            for name, module, there in _imported(statement):
                before = f"{found['*'][0]} " if name == "*" in found else ""
                is_top = not there and name not in aliases  # other imports may bind the same package
                found[name] = "" if is_top else f"{before}{module}", there
        return found

    def _definition(self, name: str) -> tuple[str, str, frozenset[Chain]]:
        """Return what kind of thing a name is, the digest of all statements that set it or of where it is imported
        from, and the names in these statements; for a name that it does not define, empty texts."""
        statements = self._statements.get(name, [])
        imported = self.imports.get(name) or (self.imports.get("*") if not statements else None)
        text = "".join("".join(self._lines[_first_line(each) - 1 : each.end_lineno]) for each in statements)
        own = [each for each in statements if getattr(each, "name", name) == name]
        kind = _KINDS.get(type((own or statements)[-1]), "variable") if statements else "import" if imported else ""
        digest = text_digest(" ".join((text, *(imported or ())))) if kind else ""
        return kind, digest, _chains_in(statements)

    def _class_at(self, qualname: str) -> ast.ClassDef | None:
        """Return the last definition of a class."""
        node: Any = self.tree
        for name in qualname.replace(".<locals>", "").split("."):
            found = [each for each in _statements_in(node) if getattr(each, "name", None) == name]
            if not found:
                return None
            node = found[-1]
        return node if isinstance(node, ast.ClassDef) else None


_KINDS: dict[type, str] = {
    ast.FunctionDef: "function",
    ast.AsyncFunctionDef: "function",
    ast.ClassDef: "class",
}


def _first_line(statement: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(each.lineno for each in decorators)])


def _chains_in(statements: list[ast.stmt]) -> frozenset[Chain]:
    """Return the global names that statements use. The code of functions in them counts where these are reached."""
    used: list[ast.stmt] = []
    for each in statements:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            called = *each.decorator_list, *each.args.defaults, *filter(None, each.args.kw_defaults)
            used += [ast.copy_location(ast.Expr(one), one) for one in called]
        else:
            used.append(each)
    try:
        with compiling():
            code = compile(ast.Module(used, []), "<statements>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):
        return frozenset()
    return frozenset(chains_in(code))


def _statements_in(node: ast.AST | None) -> Iterator[ast.stmt]:
    """Yield the statements of a module, class or function, also those inside of `if`, `try` and the like."""
    for each in ast.iter_child_nodes(node) if node is not None else ():
        if isinstance(each, ast.stmt):
            yield each
        if isinstance(each, ast.stmt | ast.ExceptHandler | ast.match_case) and type(each) not in _KINDS:
            yield from _statements_in(each)


def _run_in(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what is inside of a syntax tree, except what stands under `if TYPE_CHECKING:`."""
    waiting = [node]
    while waiting:
        each = waiting.pop()
        yield each
        is_for_types = isinstance(each, ast.If) and ast.unparse(each.test).rpartition(".")[2] == "TYPE_CHECKING"
        waiting += each.orelse if is_for_types else ast.iter_child_nodes(each)  # type: ignore[attr-defined]


def _imported(node: ast.AST) -> Iterator[tuple[str, str, str]]:
    """Yield each name that an import statement binds, the module, and the name there, as for `Text.imports`."""
    if isinstance(node, ast.ImportFrom):
        module = "." * node.level + (node.module or "")
        yield from ((each.asname or each.name, module, each.name) for each in node.names)
    elif isinstance(node, ast.Import):
        yield from ((each.asname or each.name.partition(".")[0], each.name, "") for each in node.names)


def _set_by(statement: ast.stmt) -> set[str]:
    """Return the variables that a statement sets, or changes by an item, an attribute or a method. A function sets its
    global variables, and changes an object whose method decorates it, such as `table.register`."""
    targets: list[ast.expr] = []
    if type(statement) in _KINDS:
        inside = ast.walk(statement)
        globals_set = (name for each in inside if isinstance(each, ast.Global) for name in each.names)
        return {statement.name, *globals_set} | _registered_by(statement)  # type: ignore[attr-defined]
    if isinstance(statement, ast.Assign):
        targets = [*statement.targets]
    elif isinstance(statement, ast.AnnAssign | ast.AugAssign | ast.For):
        targets = [statement.target]
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        targets = [statement.value.func] if isinstance(statement.value.func, ast.Attribute) else []
    return _names_of(targets)


def _registered_by(statement: ast.stmt) -> set[str]:
    """Return the objects whose methods decorate a function or class."""
    decorators = [getattr(each, "func", each) for each in getattr(statement, "decorator_list", ())]
    return _names_of([each for each in decorators if isinstance(each, ast.Attribute)])


def _names_of(targets: list[ast.expr]) -> set[str]:
    """Return the variables of which expressions are items, attributes or the like."""
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


def normal_text(statements: Iterable[ast.AST]) -> str:
    """Return statements as a text in which comments, format and their own docstring do not count. It is the same only
    in the same minor version of Python. Docstrings of functions and classes inside of them count."""
    return "\0".join(ast.dump(each) for each in statements if not _is_idle(each))


def _is_idle(node: ast.AST) -> bool:
    return isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


@define(eq=False, repr=False)
class Sources:
    """The texts of the modules of one process."""

    _texts: dict[str, Text] = Factory(dict)
    """By file."""
    _stamps: dict[str, tuple[int, int]] = Factory(dict)
    """Time of modification and size of the file of each module that was loaded, as it was then."""
    _num_modules: int = 0
    """How many modules there were when new ones were looked for."""

    def remember(self) -> None:
        """Keep the text of all modules of the user that are loaded by now, and when their files were edited last."""
        if is_interactive() or len(sys.modules) == self._num_modules:
            return
        self._num_modules = len(sys.modules)
        for name, file in _loaded_files():
            self.of(name)
            if file not in self._stamps:
                self._stamps[file] = stamp_of(file)

    def edited(self) -> str:
        """Return a file that was edited since it was remembered, or that was loaded later; empty if there is none."""
        return next((file for _, file in _loaded_files() if self._stamps.get(file) != stamp_of(file)), "")

    def of(self, name: str) -> Text | None:
        """Return the text of a module as it was loaded, or as it will be; None if there is none."""
        module = sys.modules.get(name)
        if module is not None:
            return self._at(str(getattr(module, "__file__", None) or ""), vars(module))
        return self._at(origin_of(name), None) if is_own(name) else None

    def of_class(self, kind: type) -> tuple[Text, ast.ClassDef] | None:
        """Return the text in which a class is defined, and its definition. In a notebook, its methods know the cell."""
        functions = [each for value in vars(kind).values() for _, each in functions_in(value)]
        files = dict.fromkeys(each.__code__.co_filename for each in functions if is_inside(each, kind))
        for text in (self.of(kind.__module__), *(self._at(file, None) for file in files)):
            node = text.class_at(kind.__qualname__) if text is not None else None
            if text is not None and node is not None:
                return text, node
        return None

    def _at(self, file: str, space: dict[str, Any] | None) -> Text | None:
        known = self._texts.get(file)
        if known is not None and not is_interactive():
            return known
        if is_interactive():
            linecache.checkcache(file)
        text = "".join(linecache.getlines(file, space))
        if text and (known is None or known.text != text):
            known = self._texts[file] = Text(file, text)
        return known if text else None


def is_inside(function: FunctionType, kind: type) -> bool:
    """Whether a function is defined in the body of a class."""
    return function.__code__.co_qualname.startswith(f"{kind.__qualname__}.")


SOURCES = Sources()
"""The texts of this process. It is global because files count as they were when this process loaded them."""


def _loaded_files() -> Iterator[tuple[str, str]]:
    """The script and the user's modules: their names and files."""
    for name, module in [*sys.modules.items()]:
        file = str(getattr(module, "__file__", None) or "")
        if file and is_own(name):
            yield name, file


def stamp_of(path: str) -> tuple[int, int]:
    """Return time of modification and size of a file, or of the archive in which it is; zeros if there is none."""
    while path:
        try:
            status = os.stat(path)
            return status.st_mtime_ns, status.st_size
        except NotADirectoryError:
            path = os.path.dirname(path)
        except OSError:
            break
    return 0, 0
