"""Tests of the style that matters: layers, lengths, names, exports and language.

Each failure is a list of sentences that say what to do. docs/design.md describes the layers: a module imports only from
lower layers and from its own layer, and there are no import cycles. The tests read the sources with `ast`. Only
the test of the public names imports mwpy.
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
    ("roles", ("_roles", "master", "local", "slave", "executor", "joblib")),
    ("doctor", ("_doctor",)),
    ("doors", ("app", "cli", "testing", "_simulation", "sweep", "farm", "web", "__init__", "__main__")),
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
    "pickle": "_transport.codec",
    "cloudpickle": "_transport.by_value _transport.by_value",
    "marshal": "_transport.codec",
    "shelve": "_transport.codec",
    "subprocess": "_system.process",
    "multiprocessing": "_system.process",
    "time": "_system.clock",
    "sqlite3": "_database.opening",
    "joblib": "_roles.joblib_backend",
    "htcondor2": "_batch._htcondor_calls",
    "classad2": "_batch._htcondor_calls",
    "packaging": "cli.pack",
    "pandas": "_roles.replay",
    "pex": "cli.pack",
    "tqdm": "_roles.progress",
}
"""The modules that may import each outside thing."""

BUILT_ON_PUBLIC_NAMES = ("sweep",)
"""Folders that use mwpy as its users do: they import public names only, and anything from outside. `mwpy` itself offers
some of their names, and imports them when they are used."""

PROGRAMS = ("_batch._ssh_host",)
"""Sources that are sent to hosts without mwpy and run there. They import nothing from mwpy."""

EVERYWHERE = ("msgspec.Struct", "msgspec.Meta", "msgspec.field", "msgspec.structs")
"""Modules outside the standard library that every module may import, because they define classes."""

ATTRS = ("attr", "attrs")

NOT_IN_CORE = (
    "asyncio",
    "concurrent",
    "ctypes",
    "datetime",
    "fcntl",
    "io",
    "logging",
    "mmap",
    "multiprocessing",
    "os",
    "pathlib",
    "pickle",
    "queue",
    "random",
    "secrets",
    "select",
    "selectors",
    "shutil",
    "signal",
    "socket",
    "subprocess",
    "sys",
    "tempfile",
    "threading",
    "time",
    "uuid",
    "warnings",
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

    def outside_imports(self) -> Iterator[tuple[int, str]]:
        """Yield the imports of modules outside mwpy, except those that every module may import."""
        allowed = tuple(f"{each}." for each in (*EVERYWHERE, "mwpy"))
        yield from ((line, name) for line, name in self.imports() if not f"{name}.".startswith(allowed))


def read(path: Path) -> Module:
    text = path.read_text(encoding="utf-8")
    return Module(path, ast.parse(text, str(path)), text)


MODULES = [read(path) for path in sorted(SOURCES.rglob("*.py"))]
BY_NAME = {module.name: module for module in MODULES}
CORE = [module for module in MODULES if module.place == "_core" or module.name == "_doctor.diagnosis"]
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


def fault_of_import(module: Module, line: int, name: str) -> str:
    """Return what is wrong with an import inside mwpy, or an empty text."""
    mine, place = LAYER_OF[module.place], place_of_import(name)
    theirs = LAYER_OF[place]
    if theirs <= mine:
        return ""
    below = ", ".join(layer for layer, _ in LAYERS[:mine]) or "none"
    return (
        f"{module.shown}:{line} imports {name}, but {module.place} is in layer {mine} ({LAYERS[mine][0]}) "
        f"and {place} is in layer {theirs} ({LAYERS[theirs][0]}): import only from lower layers ({below}), "
        f"or move the imported code to a lower layer"
    )


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


def test_modules_import_only_from_layers_below() -> None:
    """Values import no other layer, the core and the edges import values, roles import both, and doors import all."""
    faults = [
        fault_of_import(module, line, name)
        for module in MODULES
        for line, name in module.imports()
        if name.split(".")[0] == "mwpy" and module.place in LAYER_OF
    ]
    tell([fault for fault in faults if fault])


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


def test_edges_do_not_know_the_core() -> None:
    """An edge uses values and one outside thing. The core decides what to do, and a role does it."""
    tell(
        [
            f"{module.shown}:{line} imports {name}: an edge makes no decisions; connect it with the core in a role"
            for module in MODULES
            if module.place in LAYER_OF and LAYERS[LAYER_OF[module.place]][0] in EDGES
            for line, name in module.imports()
            if name.startswith("mwpy._core")
        ]
    )


def is_in(module: Module, owners: str) -> bool:
    """Whether a module is one of the given modules, or in one of the given packages."""
    return any(f"{module.name}.".startswith(f"{owner}.") for owner in owners.split())


def test_each_outside_thing_has_one_owner() -> None:
    """Only its owner imports an outside module: `_transport.link` imports ZeroMQ, `_system.clock` imports `time`."""
    tell(
        [
            f"{module.shown}:{line} imports {name}: only {OWNERS[top]} may import it; use or extend the functions there"
            for module in MODULES
            if module.name not in PROGRAMS and module.place not in BUILT_ON_PUBLIC_NAMES
            for line, name in module.outside_imports()
            if (top := name.split(".")[0]) in OWNERS and not is_in(module, OWNERS[top])
        ]
    )


def test_what_is_built_on_public_names_imports_no_private_ones() -> None:
    """If it needs something private, then the API lacks a feature, which users would miss, too."""
    tell(
        [
            f"{module.shown}:{line} imports {name}: use public names, and add one if it is missing"
            for module in MODULES
            if module.place in BUILT_ON_PUBLIC_NAMES
            for line, name in module.imports()
            if name.startswith("mwpy.") and any(part.startswith("_") for part in name.split("."))
        ]
    )


def test_nothing_else_from_outside_is_imported() -> None:
    """The only run-time dependencies are pyzmq, cloudpickle and msgspec."""
    known = {*sys.stdlib_module_names, *OWNERS, *ATTRS}
    tell(
        [
            f"{module.shown}:{line} imports {name}, which is not a dependency of mwpy: avoid it, or add "
            f"it to OWNERS and to pyproject.toml"
            for module in MODULES
            for line, name in module.outside_imports()
            if name.split(".")[0] not in known
        ]
    )


def test_no_class_is_made_with_attrs() -> None:
    """It would write and compile the methods of each class again in each process that starts."""
    tell(
        [
            f"{module.shown}:{line} imports {name}, which is not a dependency of mwpy: make the class with "
            f"msgspec.Struct, or as a plain class with __init__ if some of its fields are made from its other fields"
            for module in MODULES
            for line, name in module.imports()
            if name.split(".")[0] in ATTRS
        ]
    )


# The core


def test_the_core_touches_nothing_outside() -> None:
    """The same events give the same actions: the core has no I/O, clock, randomness, threads, pickle or logging."""
    tell(
        [
            f"{module.shown}:{line} imports {name}: the core only decides; pass the time as "
            f"an argument, and do everything else in an edge or a role"
            for module in CORE
            for line, name in module.imports()
            if name.split(".")[0] in NOT_IN_CORE
        ]
    )


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


def test_functions_fit_on_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    """No function has over 60 lines, without its docstrings. The test prints the share of functions under 10 lines."""
    faults, lengths = [], []
    for module in MODULES:
        for name, line, length in functions(module):
            lengths.append(length)
            if length > LONGEST_FUNCTION:
                faults.append(
                    f"{module.shown}:{line} {name} has {length} lines, but {LONGEST_FUNCTION} are allowed: keep "
                    f"the branches in it, and move their bodies into new functions"
                )
    short = sum(length < 10 for length in lengths)
    with capsys.disabled():
        print(f"\n{short} of {len(lengths)} functions ({short / len(lengths):.0%}) are under 10 lines")
    tell(faults)


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


def classes(module: Module) -> Iterator[ast.ClassDef]:
    yield from (node for node in module.nodes if isinstance(node, ast.ClassDef))


def methods(node: ast.ClassDef) -> list[ast.FunctionDef]:
    return [each for each in node.body if isinstance(each, ast.FunctionDef)]


def is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def private_names_of(node: ast.ClassDef) -> set[str]:
    """Return the private names that a class defines: methods, fields, and attributes that it assigns to `self`."""
    found = {each.name for each in methods(node)}
    for each in ast.walk(node):
        match each:
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                found.add(name)
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                found.add(name)
    return {name for name in found if is_private(name)}


def foreign_private_names(module: Module) -> Iterator[tuple[int, str]]:
    """Find private names that are used, but not defined in the class (or, outside of classes, in the module)."""
    modules = {name.split(".")[-1] for _, name in module.imports()} | {
        name.split(".")[0] for _, name in module.imports()
    }
    own_of: dict[int, set[str]] = {}
    for node in classes(module):
        own_of |= dict.fromkeys(map(id, ast.walk(node)), private_names_of(node))
    in_module = {name for node in classes(module) for name in private_names_of(node)}
    for each in module.nodes:
        if isinstance(each, ast.Attribute) and is_private(each.attr):
            own = own_of.get(id(each), in_module)
            of_module = isinstance(each.value, ast.Name) and each.value.id in modules
            if each.attr not in own and not of_module:
                yield each.lineno, ast.unparse(each)


ALLOWED_PRIVATE_NAMES = ("_replace", "_asdict", "_fields", "_mwpy_algorithm", "_actions")
"""Names that are public despite their underscore: those of named tuples, the mark that mwpy puts on functions, and what
a parser of argparse offers, which has no other name."""


def test_no_class_uses_private_names_of_another() -> None:
    """A class that needs another class's private names belongs to that class."""
    tell(
        [
            f"{module.shown}:{line} uses {name}, a private name of another class: call a public method of "
            f"that class, or move this code there"
            for module in MODULES
            for line, name in foreign_private_names(module)
            if name.rpartition(".")[2] not in ALLOWED_PRIVATE_NAMES
        ]
    )


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
