"""Tests of the style that matters: layers, lengths, names, exports and language.

Each failure is a list of sentences that say what to do. docs/contributing/design.md describes the layers: a module
imports only from lower layers and from its own layer, and there are no import cycles. The tests read the sources with
`ast`. Only the test of the public names imports mwpy.
"""

from __future__ import annotations

import ast
import graphlib
import importlib
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import pytest
from attrs import frozen
from tests.wording import banned_words

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src" / "mwpy"

LONGEST_FUNCTION = 60

LAYERS = (
    ("values", ("_values",)),
    ("core", ("_core",)),
    ("system", ("_system",)),
    ("transport", ("_transport",)),
    ("files", ("audit", "resource_file", "run_database", "_database")),
    ("batch", ("_batch",)),
    ("roles", ("_roles", "master", "slave", "executor", "joblib")),
    ("doctor", ("_doctor",)),
    ("doors", ("app", "cli", "testing", "_simulation", "sweep", "page", "_queue", "__init__", "__main__")),
)
"""The name of each layer and the folders or modules in it, lowest first. A module imports only from lower layers and
from its own layer."""

LAYER_OF = {folder: number for number, (_, folders) in enumerate(LAYERS) for folder in folders}

EDGES = ("system", "transport", "files", "batch")
"""Layers of edges: a module uses one outside thing and makes no decisions. They do not import the core."""

OWNERS = {
    "PIL": "sweep.images",
    "zmq": "_transport.link",
    "msgspec": "_values.messagepack",
    "pickle": "_transport.codec _transport.by_value",
    "cloudpickle": "_transport.by_value",
    "marshal": "_transport.codec",
    "shelve": "_transport.codec",
    "subprocess": "_system.process",
    "multiprocessing": "_system.process",
    "time": "_system.clock",
    "sqlite3": "_database.opening",
    "joblib": "_roles.joblib_backend",
    "packaging": "cli.pack",
    "pandas": "_roles.replay",
    "pex": "cli.pack",
    "threadpoolctl": "_system.offers",
    "prometheus_client": "page.metrics",
    "starlette": "page.server sweep.door",
    "uvicorn": "page.server",
}
"""The modules that may import each outside thing."""

BUILT_ON_PUBLIC_NAMES = ("sweep", "page")
"""Folders that use mwpy as its users do: they import public names only, and anything from outside. `mwpy` itself offers
some of their names, and imports them when they are used."""

PROGRAMS = ("_batch._host",)
"""Sources that are sent to hosts without mwpy and run there. They import nothing from mwpy."""

EVERYWHERE = ("attrs", "msgspec.Struct", "msgspec.Meta", "msgspec.field", "msgspec.structs")
"""Modules outside the standard library that every module may import, because they define classes."""

STRUCTS_WITH_METHODS = {
    *("InVariable", "LastWords", "Death", "Requires", "TaskRange", "TaskPolicy"),
    *("Consultation", "Known", "Job"),
    *("Span", "Stretch", "_Whole", "Report", "Result", "UnrunnableTask", "SharedFile", "WaitingTasks", "Codec"),
}
"""They are encoded, or there is one for each task or group of tasks, which msgspec makes faster."""

NOT_IN_CORE = (
    *("asyncio", "concurrent", "ctypes", "datetime", "fcntl", "io", "logging", "mmap", "multiprocessing", "os"),
    *("pathlib", "pickle", "queue", "random", "secrets", "select", "selectors", "shutil", "signal", "socket"),
    *("subprocess", "sys", "tempfile", "threading", "time", "uuid", "warnings"),
)
"""Modules that would make the core depend on more than its events: I/O, clocks, randomness, threads, the process."""

FORBIDDEN_NAMES = ("utils", "util", "helpers", "helper", "common", "misc", "manager", "managers")


@frozen
class Module:
    """One source file of mwpy."""

    path: Path
    tree: ast.Module
    text: str

    @property
    def name(self) -> str:
        """The dotted name without `mwpy`, such as `_core.master.core`. An `__init__` has the name of its package."""
        return ".".join(self.path.relative_to(SOURCES).with_suffix("").parts).removesuffix(".__init__")

    @property
    def place(self) -> str:
        """The entry of this file in the table of layers."""
        return self.name.partition(".")[0]

    @property
    def shown(self) -> str:
        return str(self.path.relative_to(ROOT))

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree."""
        return [*ast.walk(self.tree)]

    def imports(self) -> Iterator[tuple[int, str]]:
        """Yield each import as (line, dotted name). `from mwpy import audit` gives `mwpy.audit`."""
        for node in self.nodes:
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def read(path: Path) -> Module:
    text = path.read_text(encoding="utf-8")
    return Module(path, ast.parse(text, str(path)), text)


MODULES = [read(path) for path in sorted(SOURCES.rglob("*.py"))]
BY_NAME = {module.name: module for module in MODULES}
CORE = [module for module in MODULES if module.place == "_core"]
"""The modules that make decisions, without I/O."""


def tell(faults: list[str]) -> None:
    """Fail with all faults, one sentence per line."""
    if faults:
        pytest.fail("\n".join(faults), pytrace=False)


# Layers


def place_of_import(name: str) -> str:
    """Return the entry in the table of layers for an import of mwpy. Names of the package itself are in `__init__`."""
    place = name.split(".")[1] if "." in name else "__init__"
    return place if place in LAYER_OF else "__init__"


def faults_of_import(module: Module, name: str) -> Iterator[str]:
    """Yield what is wrong with an import, and what to do instead."""
    top, place = name.split(".", maxsplit=1)[0], place_of_import(name)
    layer = LAYERS[LAYER_OF[module.place]][0]
    if top == "mwpy":
        if LAYER_OF[place] > LAYER_OF[module.place]:
            yield f"{place} is in a layer above {layer}: import from lower layers, or move the imported code there"
        if layer in EDGES and place == "_core":
            yield "an edge makes no decisions: connect it with the core in a role"
        if module.place in BUILT_ON_PUBLIC_NAMES and any(part.startswith("_") for part in name.split(".")):
            yield "use public names, and add one if it is missing: users would miss it, too"
        return
    if module in CORE and top in NOT_IN_CORE:
        yield "the core only decides: pass the time as an argument, and do everything else in an edge or a role"
    if top not in {*sys.stdlib_module_names, *OWNERS, *EVERYWHERE}:
        yield "it is not a dependency of mwpy: avoid it, or add it to OWNERS and to pyproject.toml"
    is_free = module.name in PROGRAMS or module.place in BUILT_ON_PUBLIC_NAMES
    is_for_all = f"{name}.".startswith(tuple(f"{each}." for each in EVERYWHERE))
    if top in OWNERS and not (is_free or is_for_all or is_in(module, OWNERS[top])):
        yield f"only {OWNERS[top]} may import it: use or extend the functions there"


def is_in(module: Module, owners: str) -> bool:
    """Whether a module is one of the given modules, or in one of the given packages."""
    return any(f"{module.name}.".startswith(f"{owner}.") for owner in owners.split())


def test_every_module_has_a_layer() -> None:
    """Add a new folder to the table of layers first."""
    tell(
        [
            f"{module.shown} is in no layer: move it into a folder of a layer, or add {module.place!r} to LAYERS in "
            f"{Path(__file__).name}"
            for module in MODULES
            if module.place not in LAYER_OF
        ]
    )


def test_each_import_is_allowed() -> None:
    """A module imports from its own layer and lower ones. Each outside thing has one owner, and the core uses none."""
    tell(
        [
            f"{module.shown}:{line} imports {name}: {fault}"
            for module in MODULES
            if module.place in LAYER_OF
            for line, name in module.imports()
            for fault in faults_of_import(module, name)
        ]
    )


def imported_modules(module: Module) -> set[str]:
    """Return the modules of mwpy that a module imports, including imports for types and inside functions."""
    found = set()
    for _, name in module.imports():
        inner = name.removeprefix("mwpy.")
        if module.name == "__init__" and inner.partition(".")[0] in BUILT_ON_PUBLIC_NAMES:
            continue
        if name.split(".")[0] == "mwpy":
            found.add(inner if inner in BY_NAME else inner.rpartition(".")[0] or "__init__")
    return found - {module.name}


def test_no_module_imports_itself_through_others() -> None:
    """There are no import cycles, so that a change of a module needs knowledge only of the modules below it."""
    try:
        graphlib.TopologicalSorter({name: imported_modules(module) for name, module in BY_NAME.items()}).prepare()
    except graphlib.CycleError as error:
        tell([f"{' imports '.join(reversed(error.args[1]))}: move the shared code into a module below them"])


# The core


def test_the_core_neither_prints_nor_opens() -> None:
    """Everything that the user sees leaves the core as a record."""
    tell(
        [
            f"{module.shown}:{node.lineno} calls {node.func.id}, which has an effect or an unpredictable "
            f"value: add a record instead, or call it in a role"
            for module in CORE
            for node in module.nodes
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("print", "open", "input", "id", "hash")
        ]
    )


SET_TYPES = ("set[", "frozenset[", "AbstractSet[")
WITHOUT_ORDER = ("all", "any", "frozenset", "len", "max", "min", "set", "sorted", "sum")
"""Functions whose result does not depend on the order of what they get."""


def loops_over_sets(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Find loops over sets, and calls with them, as (line, set): sets by their form, and names that stand for sets."""
    nodes = [*ast.walk(tree)]
    named: set[str] = set()
    for each in nodes:
        match each:
            case ast.AnnAssign(target=target, annotation=kind) | ast.arg(arg=target, annotation=ast.expr() as kind):
                if ast.unparse(kind).startswith(SET_TYPES):
                    named.add(target if isinstance(target, str) else ast.unparse(target).split(".")[-1])
            case ast.Assign(targets=[target], value=value) if is_set(value, set()):
                named.add(ast.unparse(target).split(".")[-1])
    allowed: set[ast.AST] = set()
    for each in nodes:
        match each:
            case ast.Call(func=ast.Name(id=name), args=[*arguments]) if name in WITHOUT_ORDER:
                allowed.update(arguments)
            case ast.Set(elts=[*elements]):
                allowed.update(elements)
    for each in nodes:
        found: list[ast.expr] = []
        match each:
            case ast.For(iter=found_in) | ast.YieldFrom(value=found_in):
                found = [found_in]
            case ast.ListComp() | ast.DictComp() | ast.GeneratorExp() if each not in allowed:
                found = [part.iter for part in each.generators]
            case ast.Starred(value=found_in) if each not in allowed:
                found = [found_in]
            case ast.Call(func=ast.Name(id="list" | "tuple" | "iter" | "enumerate" | "map"), args=[*arguments]):
                found = arguments if each not in allowed else []
            case ast.Call(func=ast.Attribute(value=found_in, attr="pop"), args=[]):
                found = [found_in]
        yield from ((one.lineno, ast.unparse(one)) for one in found if is_set(one, named))


def is_set(node: ast.AST, named: set[str]) -> bool:
    """Whether an expression is a set, by its form or by its name."""
    match node:
        case ast.Set() | ast.SetComp() | ast.Call(func=ast.Name(id="set" | "frozenset")):
            return True
        case ast.BinOp(left, ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor(), right):
            return is_set(left, named) or is_set(right, named)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in named
    return False


def test_the_core_iterates_over_no_set() -> None:
    """The order of a set differs from run to run, and would change the actions of the core."""
    for source in (
        "for x in {1, 2}: pass",
        "class A:\n    idle: set[int]\n    def f(self): return [x for x in self.idle]",
        "def f(gone: frozenset[int]): return list(gone)",
        "gone = set()\nfirst = gone.pop()",
    ):
        assert [*loops_over_sets(ast.parse(source))], f"not found: {source}"
    fine = "gone: set[int] = set()\nfor x in sorted(gone): print(x in gone, len(gone), {*gone}, {y for y in gone})"
    assert not [*loops_over_sets(ast.parse(fine))]
    tell(
        [
            f"{module.shown}:{line} iterates over the set {text!r}: sort it, or use a dict with None as values"
            for module in CORE
            for line, text in loops_over_sets(module.tree)
        ]
    )


# Lengths and names


def functions(module: Module) -> Iterator[tuple[str, int, int]]:
    """Yield each function as (name, line, number of lines without docstrings)."""
    for node in module.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno, _lines(node) - sum(map(_lines, _docstrings(node)))


def _docstrings(function: ast.AST) -> list[ast.Expr]:
    """Return the docstrings of a function, of those inside it, and of the attributes that they set."""
    expressions = [node for node in ast.walk(function) if isinstance(node, ast.Expr)]
    return [each for each in expressions if isinstance(each.value, ast.Constant) and isinstance(each.value.value, str)]


def _lines(node: ast.stmt) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def test_functions_fit_on_a_screen() -> None:
    """No function has over 60 lines, without its docstrings."""
    tell(
        [
            f"{module.shown}:{line} {name} has {length} lines, but {LONGEST_FUNCTION} are allowed: keep the branches "
            f"in it, and move their bodies into new functions"
            for module in MODULES
            for name, line, length in functions(module)
            if length > LONGEST_FUNCTION
        ]
    )


def test_no_module_has_an_empty_name() -> None:
    """Names like `utils` collect code without a subject. Every module here has a subject."""
    tell(
        [
            f"{path.relative_to(ROOT)} has a name without meaning: name it after its content"
            for folder in ("src", "tests", "examples")
            for path in sorted((ROOT / folder).rglob("*.py"))
            if path.stem.strip("_") in FORBIDDEN_NAMES
        ]
    )


# Classes


def is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def foreign_private_names(module: Module) -> Iterator[tuple[int, str]]:
    """Find private attributes that are used, and that no class of the module has as a method or a field."""
    of_modules = {part for _, name in module.imports() for part in (name.split(".")[0], name.split(".")[-1])}
    own = set()
    for each in module.nodes:
        match each:
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                own.add(name)
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.Attribute(ast.Name(id="self"), attr=name, ctx=ast.Store())
            ):
                own.add(name)
    for each in module.nodes:
        if isinstance(each, ast.Attribute) and is_private(each.attr) and each.attr not in own:
            is_of_module = isinstance(each.value, ast.Name) and each.value.id in of_modules
            if not is_of_module:
                yield each.lineno, ast.unparse(each)


ALLOWED_PRIVATE_NAMES = ("_replace", "_asdict", "_fields", "_mwpy_algorithm", "_actions")
"""Names that are public despite their underscore: those of named tuples, the mark that mwpy puts on functions, and what
a parser of argparse offers, which has no other name."""


def test_no_module_uses_private_names_of_another() -> None:
    """Code that needs the private names of a class belongs to the module of this class."""
    tell(
        [
            f"{module.shown}:{line} uses {name}, a private name of a class elsewhere: call a public method of "
            f"that class, or move this code there"
            for module in MODULES
            for line, name in foreign_private_names(module)
            if name.rpartition(".")[2] not in ALLOWED_PRIVATE_NAMES
        ]
    )


def is_property(function: ast.FunctionDef) -> bool:
    return any("property" in ast.unparse(each) for each in function.decorator_list)


def test_classes_with_methods_are_made_with_attrs() -> None:
    """msgspec makes what is encoded or has no methods."""
    found = {
        node.name: f"{module.shown}:{node.lineno}"
        for module in MODULES
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef) and "Struct" in map(ast.unparse, node.bases)
        if any(isinstance(each, ast.FunctionDef) and not is_property(each) for each in node.body)
    }
    tell(
        [
            f"{found[name]} {name} has methods: make it with attrs; if it is encoded, or if each task has one, add it "
            f"to STRUCTS_WITH_METHODS"
            for name in sorted({*found} - STRUCTS_WITH_METHODS)
        ]
    )
    tell([f"STRUCTS_WITH_METHODS names {name}, which is none" for name in sorted(STRUCTS_WITH_METHODS - {*found})])


# Public names


def is_public(module: Module) -> bool:
    if module.place in BUILT_ON_PUBLIC_NAMES:
        return False
    return not any(part.startswith("_") for part in module.path.relative_to(SOURCES).with_suffix("").parts)


@pytest.mark.parametrize("module", [m for m in MODULES if is_public(m)], ids=lambda m: m.path.stem)
def test_public_modules_list_their_names(module: Module) -> None:
    """Each module without an underscore has an `__all__` of names that exist and are not private."""
    dotted = ".".join(["mwpy", *module.path.relative_to(SOURCES).with_suffix("").parts])
    offered = getattr(importlib.import_module(dotted), "__all__", None)
    assert offered is not None, f"{module.shown} has no __all__: list its public names"
    missing = [name for name in offered if not hasattr(importlib.import_module(dotted), name)]
    private = [name for name in offered if name.startswith("_")]
    assert not missing, f"{module.shown}: __all__ names {missing}, which do not exist: remove them"
    assert not private, f"{module.shown}: __all__ names {private}: a public name has no underscore"


# Language

PLACES = (
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "pyproject.toml", ".ci", ".github"),
    *("docs", "condor", "slurm", "examples", "bench", "src", "tests"),
)
"""The files and folders in which no banned word is used."""

WITH_THE_WORDS = ("wording.py", "test_wording.py")
"""The table of the banned words and its test."""

TEXTS = (".md", ".py", ".sbatch", ".sub", ".toml", ".txt", ".yml", "")
"""The suffixes of files with text. The output of jobs in condor/ and slurm/ has other suffixes."""


def texts() -> Iterator[Path]:
    """Yield each file with text."""
    for place in PLACES:
        path = ROOT / place
        for each in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if each.is_file() and each.suffix in TEXTS and each.name not in WITH_THE_WORDS:
                yield each


def test_no_banned_word_is_used() -> None:
    """Prose and identifiers use plain English. `tests/wording.py` lists the words that are not used."""
    tell(
        [
            f"{path.relative_to(ROOT)}:{line} uses {word!r}: {advice}"
            for path in texts()
            for line, word, advice in banned_words(path.read_text(encoding="utf-8", errors="replace"))
        ]
    )
