"""The style that matters, as tests: layers, lengths, names, exports, and what ruff and mypy say.

Each failure is a list of sentences that say what to do. The layers are those of docs/design.md: a
module imports only from layers below its own and from its own, never in a circle. Everything here is read from
the sources by `ast`; nothing of mwpy is imported but for the test of its public names.
"""

from __future__ import annotations

import ast
import graphlib
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from attrs import frozen
from tests.wording import BANNED, pattern

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src" / "mwpy"

LONGEST_FUNCTION = 70
LONGEST_MODULE = 500

LAYERS = (
    ("values", ("_values",)),
    ("core", ("_core",)),
    ("system", ("_system",)),
    ("transport", ("_transport",)),
    ("files", ("audit", "resource_file", "run_database")),
    ("batch", ("_batch",)),
    ("roles", ("_roles", "master", "slave", "executor", "joblib")),
    ("doctor", ("_doctor",)),
    ("doors", ("app", "cli", "testing", "_simulation", "sweep", "farm", "web", "__init__", "__main__")),
)
"""Name of each layer and the folders (or single modules) in it, lowest first. A module imports from lower layers and
from its own."""

LAYER_OF = {folder: number for number, (_, folders) in enumerate(LAYERS) for folder in folders}

EDGES = ("system", "transport", "files", "batch")
"""Layers that touch something outside and decide nothing, so they do not know the core."""

OWNERS = {
    "zmq": "_transport.link",
    "msgspec": "_values.messagepack",
    "pickle": "_transport.codec",
    "cloudpickle": "_transport.codec",
    "marshal": "_transport.codec",
    "shelve": "_transport.codec",
    "subprocess": "_system.process",
    "multiprocessing": "_system.process",
    "time": "_system.clock",
    "sqlite3": "run_database",
    "htcondor2": "_batch._htcondor_calls",
    "classad2": "_batch._htcondor_calls",
    "packaging": "cli.pack",
    "pex": "cli.pack",
}
"""The one module that may import each outside thing."""

PROGRAMS = ("_batch._ssh_host",)
"""Sources that are sent to hosts without mwpy and run there on their own: they can import nothing of mwpy."""

EVERYWHERE = ("attrs", "attr", "msgspec.Struct", "msgspec.field", "msgspec.structs")
"""What is not of the standard library and may be imported by every module: all that makes classes."""

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
"""What would make the core depend on anything but its events: I/O, clocks, chance, threads, the process."""

FORBIDDEN_NAMES = ("utils", "util", "helpers", "helper", "common", "misc", "manager", "managers")
FORBIDDEN_WORDS = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|\b(?i:for now)\b")

SET_TYPES = ("set", "frozenset", "Set", "FrozenSet", "AbstractSet", "MutableSet")
IN_ANY_ORDER = (
    "list",
    "tuple",
    "iter",
    "next",
    "enumerate",
    "deque",
    "dict",
    "zip",
    "map",
    "filter",
    "islice",
)
"""What shows the order of what it is given; `sorted`, `len`, `sum`, `min` and `max` do not."""


@frozen
class Module:
    """One source file of mwpy."""

    path: Path
    tree: ast.Module
    text: str

    @property
    def name(self) -> str:
        """Its name within mwpy, without the package's: `_core.master.core`; that of a package is the package's."""
        return ".".join(self.path.relative_to(SOURCES).with_suffix("").parts).removesuffix(".__init__")

    @property
    def place(self) -> str:
        """The entry of the layer table that this file belongs to."""
        return self.name.partition(".")[0]

    @property
    def shown(self) -> str:
        return str(self.path.relative_to(ROOT))

    def imports(self) -> Iterator[tuple[int, str]]:
        """Each import as (line, dotted name); that of `from mwpy import records` is `mwpy._values.records`."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)

    def outside_imports(self) -> Iterator[tuple[int, str]]:
        """Those of what is neither mwpy's nor for every module."""
        allowed = tuple(f"{each}." for each in (*EVERYWHERE, "mwpy"))
        yield from ((line, name) for line, name in self.imports() if not f"{name}.".startswith(allowed))


def read(path: Path) -> Module:
    text = path.read_text(encoding="utf-8")
    return Module(path, ast.parse(text, str(path)), text)


MODULES = [read(path) for path in sorted(SOURCES.rglob("*.py"))]
BY_NAME = {module.name: module for module in MODULES}
CORE = [module for module in MODULES if module.place == "_core" or module.name == "_doctor.diagnosis"]
"""What decides, without I/O."""


def tell(faults: list[str]) -> None:
    """Fail with all faults, a sentence a line."""
    if faults:
        pytest.fail("\n".join(faults), pytrace=False)


# Layers


def place_of_import(name: str) -> str:
    """The entry of the layer table that an import of mwpy leads to; names of the package are `__init__`."""
    place = name.split(".")[1] if "." in name else "__init__"
    return place if place in LAYER_OF else "__init__"


def fault_of_import(module: Module, line: int, name: str) -> str:
    """What is wrong with an import of mwpy by mwpy, or an empty text."""
    mine, place = LAYER_OF[module.place], place_of_import(name)
    theirs = LAYER_OF[place]
    if theirs <= mine:
        return ""
    below = ", ".join(layer for layer, _ in LAYERS[:mine]) or "none"
    return (
        f"{module.shown}:{line} imports {name}, but {module.place} is of layer {mine} ({LAYERS[mine][0]}) "
        f"and {place} of layer {theirs} ({LAYERS[theirs][0]}): import only from the layers below ({below}), "
        f"or move what is needed there"
    )


def test_every_module_has_a_layer() -> None:
    """A new folder is put into the table of layers before anything else."""
    tell(
        [
            f"{module.shown} is in no layer: move it into a folder that has one, or add {module.place!r} to LAYERS in "
            f"{Path(__file__).name}"
            for module in MODULES
            if module.place not in LAYER_OF
        ]
    )


def test_modules_import_only_from_layers_below() -> None:
    """Values know nothing, the core knows values, edges know values, roles know both, doors know all."""
    faults = [
        fault_of_import(module, line, name)
        for module in MODULES
        for line, name in module.imports()
        if name.split(".")[0] == "mwpy" and module.place in LAYER_OF
    ]
    tell([fault for fault in faults if fault])


def imported_modules(module: Module) -> set[str]:
    """The modules of mwpy that a module imports, also those that it imports for types or inside a function."""
    found = set()
    for _, name in module.imports():
        inner = name.removeprefix("mwpy.")
        if name.split(".")[0] == "mwpy":
            found.add(inner if inner in BY_NAME else inner.rpartition(".")[0] or "__init__")
    return found - {module.name}


def test_no_module_imports_itself_through_others() -> None:
    """Whoever changes a module must understand only those below it."""
    try:
        graphlib.TopologicalSorter({name: imported_modules(module) for name, module in BY_NAME.items()}).prepare()
    except graphlib.CycleError as error:
        tell([f"{' imports '.join(reversed(error.args[1]))}: move what both need into a module below them"])


def test_edges_do_not_know_the_core() -> None:
    """An edge touches one outside thing and values; what to do is decided in the core and done by a role."""
    tell(
        [
            f"{module.shown}:{line} imports {name}: an edge imports no decisions; let a role join it with the core"
            for module in MODULES
            if module.place in LAYER_OF and LAYERS[LAYER_OF[module.place]][0] in EDGES
            for line, name in module.imports()
            if name.startswith("mwpy._core")
        ]
    )


def test_each_outside_thing_has_one_owner() -> None:
    """ZeroMQ is behind `_transport.link`, pickle behind `_transport.codec`, the clock behind `_system.clock`."""
    tell(
        [
            f"{module.shown}:{line} imports {name}: only {OWNERS[top]} may; use what it offers, or add to it"
            for module in MODULES
            if module.name not in PROGRAMS
            for line, name in module.outside_imports()
            if (top := name.split(".")[0]) in OWNERS and module.name not in OWNERS[top].split()
        ]
    )


def test_nothing_else_from_outside_is_imported() -> None:
    """The run-time dependencies are pyzmq, cloudpickle, attrs and msgspec, and no others."""
    known = {*sys.stdlib_module_names, *OWNERS}
    tell(
        [
            f"{module.shown}:{line} imports {name}, which is no dependency of mwpy: do without it, or give "
            f"it an owner in OWNERS and a place in pyproject.toml"
            for module in MODULES
            for line, name in module.outside_imports()
            if name.split(".")[0] not in known
        ]
    )


# The core


def test_the_core_touches_nothing_outside() -> None:
    """Same events in, same actions out: no I/O, clock, chance, thread, pickle or log in the core."""
    tell(
        [
            f"{module.shown}:{line} imports {name}: the core (layer 1) decides and does nothing else; take "
            f"the time as an argument, and let an edge (layer 2) or a shell (layer 3) do what is to be done"
            for module in CORE
            for line, name in module.imports()
            if name.split(".")[0] in NOT_IN_CORE
        ]
    )


def test_the_core_neither_prints_nor_opens() -> None:
    """What the user should see leaves the core as a record."""
    tell(
        [
            f"{module.shown}:{node.lineno} calls {node.func.id}, whose effect or value is not of the core "
            f"(layer 1): state a record (layer 0), or let a shell (layer 3) do it"
            for module in CORE
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("print", "open", "input", "id", "hash")
        ]
    )


def is_set_type(annotation: ast.expr | None) -> bool:
    """Whether an annotation is `set[...]`, or a union with one."""
    match annotation:
        case ast.Subscript(value=ast.Name(id=name)) | ast.Name(id=name):
            return name in SET_TYPES
        case ast.BinOp(left=left, right=right):
            return is_set_type(left) or is_set_type(right)
    return False


def names_of_sets(module: Module) -> set[str]:
    """Names and attributes that are annotated as sets, or to which a set is assigned."""
    names = set()
    for node in ast.walk(module.tree):
        match node:
            case ast.AnnAssign(target=target, annotation=annotation) if is_set_type(annotation):
                names.add(last_name(target))
            case ast.arg(arg=name, annotation=annotation) if is_set_type(annotation):
                names.add(name)
            case ast.FunctionDef(name=name, returns=annotation) if is_set_type(annotation):
                names.add(name)
            case ast.Assign(targets=[target], value=value) if is_set(value, set()):
                names.add(last_name(target))
    return names - {""}


def last_name(node: ast.expr) -> str:
    """`b` of the expressions `b`, `a.b` and `a.b(...)`."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=func):
            return last_name(func)
    return ""


def is_set(node: ast.expr, sets: set[str]) -> bool:
    """Whether an expression is a set, as far as can be told from its form and from names of sets."""
    match node:
        case ast.Set() | ast.SetComp() | ast.Call(func=ast.Name(id="set" | "frozenset")):
            return True
        case ast.BinOp(op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor(), left=left, right=right):
            return any(is_set(side, sets) or last_name(side) in ("keys", "items") for side in (left, right))
    return last_name(node) in sets


def ordered_uses(tree: ast.Module) -> Iterator[ast.expr]:
    """Every expression whose order of iteration shows."""
    for node in ast.walk(tree):
        match node:
            case ast.For(iter=iterated) | ast.comprehension(iter=iterated) | ast.Starred(value=iterated):
                yield iterated
            case ast.Call(func=ast.Name(id=name), args=arguments) if name in IN_ANY_ORDER:
                yield from arguments
            case ast.Call(func=ast.Attribute(attr="pop", value=popped), args=[]):
                yield popped
            case ast.Call(func=ast.Attribute(attr="extend" | "join" | "fromkeys"), args=arguments):
                yield from arguments


def test_the_core_iterates_over_no_set() -> None:
    """The order of a set changes from run to run, and so would the core's actions."""
    faults = []
    for module in CORE:
        sets = names_of_sets(module)
        faults += [
            f"{module.shown}:{node.lineno} goes through the set {ast.unparse(node)!r}, whose order is not "
            f"that of the next run: keep a dict to None in the core (layer 1), or say sorted(...)"
            for node in ordered_uses(module.tree)
            if is_set(node, sets)
        ]
    tell(faults)


@pytest.mark.parametrize(
    "source",
    [
        "for x in {1, 2}: pass",
        "for x in set(y): pass",
        "idle: set[int] = set()\nfor x in idle: pass",
        "class A:\n    idle: set[int]\n    def f(self):\n        return [x for x in self.idle]",
        "class A:\n    idle: set[int]\n    def f(self):\n        return self.idle.pop()",
        "def f(gone: frozenset[int]) -> None:\n    list(gone)",
        "for x in a.keys() - b.keys(): pass",
        "gone = {x for x in y}\nprint(*gone)",
    ],
)
def test_iteration_over_a_set_is_found(source: str) -> None:
    """The rule above sees what it is meant to see."""
    module = Module(SOURCES / "_core" / "made_up.py", ast.parse(source), source)
    sets = names_of_sets(module)
    assert any(is_set(node, sets) for node in ordered_uses(module.tree))


def test_what_does_not_show_the_order_of_a_set_is_let_through() -> None:
    """Membership, length and sorting are what sets are for."""
    source = "gone: set[int] = set()\nfor x in sorted(gone): print(x in gone, len(gone))\nfor y in [1]: pass"
    module = Module(SOURCES / "_core" / "made_up.py", ast.parse(source), source)
    sets = names_of_sets(module)
    assert not any(is_set(node, sets) for node in ordered_uses(module.tree))


# Lengths and names


def functions(module: Module) -> Iterator[tuple[str, int, int]]:
    """Each function as (name, line, lines from `def` to its end)."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield node.name, node.lineno, node.end_lineno - node.lineno + 1


def test_functions_fit_on_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    """No function is over 70 lines; how many are under 10 is told, not asserted."""
    faults, lengths = [], []
    for module in MODULES:
        for name, line, length in functions(module):
            lengths.append(length)
            if length > LONGEST_FUNCTION:
                faults.append(
                    f"{module.shown}:{line} {name} has {length} lines, {LONGEST_FUNCTION} are allowed: keep "
                    f"the branches in it, and move what they do into functions of their own"
                )
    short = sum(length < 10 for length in lengths)
    with capsys.disabled():
        print(f"\n{short} of {len(lengths)} functions ({short / len(lengths):.0%}) are under 10 lines")
    tell(faults)


def test_modules_are_short() -> None:
    """A module under 500 lines is about one thing."""
    tell(
        [
            f"{module.shown} has {length} lines, and {LONGEST_MODULE} is too many: find the two things that it is about"
            for module in MODULES
            if (length := module.text.count("\n")) >= LONGEST_MODULE
        ]
    )


def test_no_module_has_a_name_that_says_nothing() -> None:
    """`utils` and its like collect what has no place; everything here has one."""
    tell(
        [
            f"{path.relative_to(ROOT)} has a name that says nothing: name it after what is in it"
            for folder in ("src", "tests", "examples")
            for path in sorted((ROOT / folder).rglob("*.py"))
            if path.stem.strip("_") in FORBIDDEN_NAMES
        ]
    )


def test_nothing_is_left_for_later() -> None:
    """What should be done is done or is an issue; a remark in the source is neither."""
    tell(
        [
            f"{module.shown}:{number} says {found.group()!r}: do it, or open an issue and take the remark out"
            for module in MODULES
            for number, line in enumerate(module.text.splitlines(), 1)
            if (found := FORBIDDEN_WORDS.search(line))
        ]
    )


# Public names


def is_public(module: Module) -> bool:
    return not any(part.startswith("_") for part in module.path.relative_to(SOURCES).with_suffix("").parts)


PUBLIC_NAMES = (
    "AlgorithmUnavailable",
    "ArgumentNotPicklable",
    "ExitCode",
    "InternalError",
    "LoopCounts",
    "Master",
    "MwpyError",
    "ResourceFileError",
    "Result",
    "Slave",
    "SlaveId",
    "SlaveLoop",
    "TaskAlgorithm",
    "TaskCall",
    "TaskFailed",
    "TaskId",
    "UnrunnableTask",
    "UsageError",
    "local_master",
    "main",
    "master_algorithm",
    "slave_algorithm",
    "task",
    "task_algorithm",
    "version_string",
)
"""What an application may use: `import mwpy` offers these and nothing else."""


def test_the_package_offers_the_public_names() -> None:
    """A name is added to the interface, or taken from it, on purpose and here too."""
    import mwpy

    added = sorted({*mwpy.__all__} - {*PUBLIC_NAMES})
    gone = sorted({*PUBLIC_NAMES} - {*mwpy.__all__})
    assert not added, f"mwpy.__all__ has {added}: add them to PUBLIC_NAMES and docs/manual.md, or take them out"
    assert not gone, f"mwpy.__all__ lacks {gone}: offer them again, or say in CHANGELOG.md that they went"
    assert not [name for name in PUBLIC_NAMES if not hasattr(mwpy, name)]


@pytest.mark.parametrize("module", [m for m in MODULES if is_public(m)], ids=lambda m: m.path.stem)
def test_public_modules_say_what_they_offer(module: Module) -> None:
    """Each module without an underscore has an `__all__` of names that are there and not private."""
    dotted = ".".join(["mwpy", *module.path.relative_to(SOURCES).with_suffix("").parts])
    offered = getattr(importlib.import_module(dotted), "__all__", None)
    assert offered is not None, f"{module.shown} has no __all__: list the names that it is for"
    missing = [name for name in offered if not hasattr(importlib.import_module(dotted), name)]
    private = [name for name in offered if name.startswith("_")]
    assert not missing, f"{module.shown}: __all__ names {missing}, which it does not have: take them out"
    assert not private, f"{module.shown}: __all__ names {private}: a public name has no underscore"


# Language

PLAIN = (
    "README.md",
    "CHANGELOG.md",
    "docs/batch-systems.md",
    "docs/design.md",
    "docs/states.md",
    "condor",
    "slurm",
    "examples",
    "bench",
)
"""The files and folders in which no banned word is used."""

TEXTS = (".md", ".py", ".sbatch", ".sub", ".txt", "")
"""The suffixes of files with text."""


def texts(places: Sequence[str]) -> Iterator[Path]:
    """Each file with text in these places."""
    for place in places:
        path = ROOT / place
        for each in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if each.is_file() and each.suffix in TEXTS and each.name != "wording.py":
                yield each


def banned_words(text: str) -> Iterator[tuple[int, str, str]]:
    """The line of each banned word, the word, and the advice of `tests.wording`."""
    for phrase, advice in BANNED.items():
        for found in pattern(phrase).finditer(text):
            yield text.count("\n", 0, found.start()) + 1, found[0], advice


def test_no_banned_word_is_used() -> None:
    """Prose and identifiers use plain English; `tests.wording` lists the words that are not used."""
    tell(
        [
            f"{path.relative_to(ROOT)}:{line} uses {word!r}: {advice}"
            for path in texts(PLAIN)
            for line, word, advice in banned_words(path.read_text(encoding="utf-8"))
        ]
    )


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("the agent is told to end", "told"),
        ("Whoever reads this", "Whoever"),
        ("def f(_told_it: bool) -> None:", "told"),
        ("# a peer of\n# whose keys", "of\n# whose"),
    ],
)
def test_a_banned_word_is_found(text: str, word: str) -> None:
    """The test above finds a word in prose, in an identifier and over a line break."""
    assert [(line, found) for line, found, _ in banned_words(text)] == [(1, word)]


def test_a_part_of_a_longer_word_is_not_banned() -> None:
    """`untold` and `retold` are different words."""
    assert not list(banned_words("an untold number of retold stories"))


# What other tools say


def run(*command: str) -> str:
    """Run a tool over the repository; its complaints, or an empty text."""
    command = (sys.executable, "-m", *command)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).strip() if done.returncode else ""


CHECKED = ("src", "tests", "examples")


def test_ruff_finds_no_fault() -> None:
    """`ruff check` is clean under the rules of pyproject.toml."""
    found = run("ruff", "check", "--quiet", "--output-format=concise", *CHECKED)
    tell([f"{line}: mend it, or run `ruff check --fix {' '.join(CHECKED)}`" for line in found.splitlines()])


def test_ruff_would_format_nothing_otherwise() -> None:
    """All code is as `ruff format` lays it out."""
    found = run("ruff", "format", "--check", "--output-format=concise", *CHECKED)
    tell(
        [
            f"{line}: run `ruff format {' '.join(CHECKED)}`"
            for line in found.splitlines()
            if "unformatted" in line or "error" in line
        ]
    )


def test_mypy_is_content() -> None:
    """The library and the examples pass mypy's strict mode."""
    tell([f"{line}: give it its type" for line in run("mypy", "--no-error-summary").splitlines()])
