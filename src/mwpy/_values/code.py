"""The code that a function consists of, its digest and those of calls, and what changed between two runs.

The code that a function consists of: its own, and everything of the user that it reaches.

`code_of` begins at a function, and follows the names in its code: to other functions, classes and values of the user's
own modules, to what its closure and its default arguments contain, and to what these reach in turn. Installed packages
count by their version, the standard library by the minor version of Python, and mwpy not at all.

What it cannot follow: names that exist only as texts (`getattr(module, name)`, `eval`), and files that the code reads.
"""

from __future__ import annotations

import ast
import builtins
import os
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import cache, cached_property, partial, partialmethod
from pathlib import PurePath
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from msgspec import Struct, field

from mwpy._values.algorithm import Initialized
from mwpy._values.functions import Import, cells_of, chains_in, defaults_of, imports_in
from mwpy._values.installed import is_installed, is_standard, origin_of, package_of, versions
from mwpy._values.messagepack import NOT_ENCODABLE, PLAIN, encode
from mwpy._values.shares import DIGEST_BYTES, Shared, hash_of, may_have_nan, short_digest, without_nan
from mwpy._values.sources import SOURCES, instructions_digest, normal_digest
from mwpy._values.structure import COMPILED, NoStructure, digest_of, full_name, reason_of
from mwpy._values.task import Reference, ResultReference

# The graph of what a function reaches, and its digest.
#
# A node is a function, a class, a module or a value. An edge has the name by which one reaches the other. The digest
# says whether two graphs are the same for a walk that begins at the root and sees only the content of nodes and the
# names of edges. The names of modules do not count, so a script and its import as a module are the same.
#
# Graphs have cycles: functions call each other, methods use their class. Therefore each node gets a label: first its
# content alone, then, round by round, a digest of its content and of the labels of its neighbours. The rounds end when
# they tell no more nodes apart. This is the refinement of partitions by which finite automata are compared.


UNKNOWN = "?"
"""How the text of a part begins that cannot be compared. The reason follows."""

DIGITS = 16
"""Hexadecimal digits of a digest in the text of a part."""


class Node(Struct, eq=False):
    """Something that a function reaches."""

    part: str
    """How the parts of code name it; empty if it is not one."""
    text: str
    """Its content as a text: a digest, a short value, a version, or why it cannot be compared."""
    content: bytes
    """The digest of its content alone."""
    edges: dict[str, Node] = field(default_factory=dict)
    """The nodes that it reaches, by name. If it is a value, the nodes that it contains, by their places in one walk."""
    among: Callable[[Callable[[Node], bytes]], bytes] | None = None
    """If it is a value that contains other nodes: returns its content, with a label for each of them."""


def shown_digest(content: bytes) -> str:
    """Return the text of a digest."""
    return f"#{content.hex()[:DIGITS]}"


def reachable(root: Node) -> list[Node]:
    """Return all nodes that can be reached from a node, each once."""
    found = {id(root): root}
    waiting = [root]
    while waiting:
        node = waiting.pop()
        for other in node.edges.values():
            if id(other) not in found:
                found[id(other)] = other
                waiting.append(other)
    return [*found.values()]


def graph_digest(root: Node, every: Sequence[Node]) -> bytes:
    """Return the digest of a graph: of its root, and of all nodes that can be reached."""
    labels, before, distinct = {id(node): node.content for node in every}, 0, 1
    while distinct != before:
        before = len({*labels.values()})
        labels = {id(node): _label(node, labels) for node in every}
        distinct = len({*labels.values()})
    return hash_of(b"graph", b"".join((labels[id(root)], *sorted({*labels.values()}))))


def _label(node: Node, labels: Mapping[int, bytes]) -> bytes:
    if node.among is not None:
        return hash_of(b"value", node.among(lambda inside: labels[id(inside)]))
    edges = [hash_of(b"edge", name.encode(errors="surrogatepass")) + labels[id(to)] for name, to in node.edges.items()]
    return hash_of(b"node", node.content + b"".join(sorted(edges)))


def parts_in(nodes: Iterable[Node]) -> dict[str, str]:
    """Return the texts of nodes by the names of their parts. Parts with the same name are numbered."""
    texts: dict[str, set[str]] = {}
    for node in nodes:
        if node.part:
            texts.setdefault(node.part, set()).add(node.text)
    parts: dict[str, str] = {}
    for part in sorted(texts):
        for number, text in enumerate(sorted(texts[part]), 1):
            parts[part if number == 1 else f"{part} ({number})"] = text
    return parts


# Where code comes from: the user's own modules, installed packages, Python itself, or mwpy.
#
# Own modules count by their code. Installed packages count by their version: nobody edits them. A package that was
# installed from a folder that stays in use (`pip install -e`) is an own module.


_ABOUT_CYTHON, _ABOUT_NAMEDTUPLE = "_cython_", "namedtuple_"
"""How the names of modules begin that do not exist, but that generated types and functions name."""

PYTHON_MODULES = frozenset({*sys.stdlib_module_names, "builtins"})


class Home(Struct, frozen=True):
    """Where a module comes from."""

    part: str
    """What it is called in the parts of code; empty if it does not count by its version."""
    version: str = ""


OWN = Home("")
MWPY = Home("", "mwpy")
PYTHON = Home("Python", f"{sys.version_info.major}.{sys.version_info.minor}")


def home_of(name: str) -> Home:
    """Return where a module comes from."""
    top = name.partition(".")[0]
    if top == "mwpy" or top.startswith(_ABOUT_CYTHON):
        return MWPY
    if top.startswith(_ABOUT_NAMEDTUPLE):
        return PYTHON
    if name == "__main__" or top == "__mp_main__":
        return OWN
    module = sys.modules.get(name) or sys.modules.get(top)
    place = _place_of(module)
    if top in PYTHON_MODULES and (not place or is_standard(place)):
        return PYTHON
    return home_at(top, place)


@cache
def home_at(top: str, place: str) -> Home:
    """Return where a module comes from that is in a file or folder."""
    if not place or not is_installed(top, place):
        return OWN
    package = package_of(top) or top
    return Home(f"package {package}", versions([package])[package] or "of an unknown version")


def _place_of(module: Any) -> str:
    """Return the file or folder of a module; empty if it has none."""
    if not isinstance(module, ModuleType):
        return ""
    paths = [*vars(module).get("__path__", ())]
    return str(vars(module).get("__file__") or (paths[0] if paths else ""))


def name_of_module(name: str) -> str:
    """Return the name by which people know a module: that of the script, if it is `__main__`."""
    if name != "__main__":
        return name
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")
    known = isinstance(file, str) and not file.startswith("<")
    return os.path.splitext(os.path.basename(str(file)))[0] if known else "__main__"


# What a class of the user consists of: its source, its functions and its plain attributes.
#
# The source of the functions is left out of the source of the class, because they count alone: so a change is reported
# where it is. Functions that a decorator has generated, as that of dataclasses, follow from the source and do not
# count. Without source, everything in the class counts as it is.


_DATA = (*PLAIN, complex, tuple, list, dict, set, frozenset, range, bytearray, date, timedelta, Decimal, Fraction)
"""The types of attributes that count by their value. Others count by the source that makes them."""


class Members(Struct, frozen=True):
    """The members of a class."""

    content: bytes
    """The digest of its source, without its functions; or of its name if it has no source."""
    code: CodeType | None
    """The code of its body, if it has a source."""
    functions: list[tuple[str, Any]]
    data: list[tuple[str, Any]]
    space: dict[str, Any]
    """The globals of its module."""


def members_of(kind: type) -> Members:
    """Return the members of a class."""
    space = vars(sys.modules[kind.__module__]) if kind.__module__ in sys.modules else {}
    functions = [(name, each) for name, value in vars(kind).items() for each in _functions(value)]
    codes = [each.__code__ for _, each in functions if _is_inside(each, kind)]
    file = str(space.get("__file__") or (codes[0].co_filename if codes else ""))
    source = SOURCES.of_class(file, kind.__qualname__, [each for each in codes if each.co_filename == file])
    if source is None:
        content, code = hash_of(b"class", kind.__qualname__.encode()), None
    else:
        inside = frozenset(name for name, each in functions if _is_inside(each, kind))
        content, code = normal_digest(source[0], without=inside), source[1]
        functions = [(name, each) for name, each in functions if not _is_generated(each, file)]
    return Members(content, code, functions, [*_data(kind)], space)


def _is_inside(function: FunctionType, kind: type) -> bool:
    """Whether a function is defined in the body of a class."""
    return function.__code__.co_qualname.startswith(f"{kind.__qualname__}.")


def _is_generated(function: FunctionType, file: str) -> bool:
    """Whether a function was made from a text. Its name may be that of a function around it."""
    while isinstance(wrapped := vars(function).get("__wrapped__"), FunctionType):
        function = wrapped
    name = function.__code__.co_filename
    return name.startswith("<") and name != file


def _functions(value: Any) -> Iterator[FunctionType]:
    """Yield the functions in an attribute of a class."""
    if isinstance(value, FunctionType):
        yield value
    elif isinstance(value, classmethod | staticmethod):
        yield from _functions(value.__func__)
    elif isinstance(value, property):
        for each in (value.fget, value.fset, value.fdel):
            yield from _functions(each)
    elif isinstance(value, cached_property | partialmethod):
        yield from _functions(value.func)


def _data(kind: type) -> Iterator[tuple[str, Any]]:
    if issubclass(kind, Enum):
        yield "members", {name: each.value for name, each in kind.__members__.items()}
        return
    for name, value in vars(kind).items():
        hidden = name.startswith("__") and name.endswith("__")
        if not hidden and (type(value) in _DATA or isinstance(value, PurePath)):
            yield name, value


# Modules of the user as a whole: those that a function imports when it runs, or uses in a way that cannot be followed.
#
# A module that was not imported yet is found, but not imported.


Target = str | tuple[str, Any]
"""The name of a module; or the part and the value of an attribute of one."""


def import_targets(imports: Iterable[Import], space: dict[str, Any]) -> Iterator[tuple[str, Target]]:
    """Yield what import statements import, each with its name in them.

    Args:
        space: the globals of the code.
    """
    package = str(space.get("__package__") or "")
    for each in imports:
        name = _absolute(each, package)
        known = vars(sys.modules[name]) if name in sys.modules else {}
        own = home_of(name) == OWN
        if not (own and known and each.names):
            yield f"{'.' * each.level}{each.module}", name
        for attribute in each.names if own else ():
            if attribute in known:
                part = f"global {name_of_module(name)}.{attribute}"
                yield f"{each.module}.{attribute}", (part, known[attribute])
            elif known:
                yield f"{each.module}.{attribute}", f"{name}.{attribute}" if attribute != "*" else name


def _absolute(each: Import, package: str) -> str:
    """Return the full name of an imported module."""
    if not each.level:
        return each.module
    above = package.split(".")
    return ".".join([*above[: len(above) - each.level + 1], *([each.module] if each.module else [])])


def module_content(name: str) -> tuple[Home, bytes, list[tuple[str, Target]]]:
    """Return where a module comes from, the digest of its content, and what it imports.

    The digest and the imports are empty for a module that is not the user's own.
    """
    loaded = sys.modules.get(name)
    if loaded is not None:
        home, file = home_of(name), vars(loaded).get("__file__")
    else:
        home, file = _found(name)
    if home != OWN:
        return home, b"", []
    tree = SOURCES.of_file(file) if isinstance(file, str) else None
    if tree is None:
        return home, hash_of(b"file", _content(file) if isinstance(file, str) else b""), []
    return home, normal_digest(tree), [*import_targets(_imports(tree), _space_of(name, file))]


def _found(name: str) -> tuple[Home, str | None]:
    """Find a module that is not loaded."""
    known = home_of(name)
    if known != OWN:
        return known, None
    origin = origin_of(name)
    return (home_at(name.partition(".")[0], origin), origin) if origin else (OWN, None)


def _content(file: str) -> bytes:
    try:
        with open(file, "rb") as opened:
            return opened.read()
    except OSError:
        return b""


def _space_of(name: str, file: str | None) -> dict[str, Any]:
    """Return the globals that say to which package a module belongs."""
    of_package = os.path.basename(file or "").startswith("__init__.")
    return {"__package__": name if of_package else name.rpartition(".")[0]}


def _imports(tree: ast.Module) -> Iterator[Import]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (Import(each.name, 0, ()) for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield Import(node.module or "", node.level, tuple(each.name for each in node.names))


def folder_of(space: dict[str, Any]) -> str:
    """Return the folder of the module with these globals; empty if it has none."""
    file = space.get("__file__")
    return os.path.dirname(os.path.abspath(file)) if isinstance(file, str) else ""


# How values are shown to people who compare two runs: as they are if they are short, and otherwise as digests.


SHOWN_LENGTH = 60
"""How many characters of a text or bytes are shown at most. Longer values are shown as digests."""

SHOWN_BITS = 128
"""How many bits an integer has at most that is shown."""


def shown_value(value: Any, content: bytes) -> str:
    """Return a plain value as a text, or the text of its digest if it is long or no plain value."""
    kind = type(value)
    long = len(value) > SHOWN_LENGTH if kind in (str, bytes) else kind is int and value.bit_length() > SHOWN_BITS
    return shown_digest(content) if kind not in PLAIN or long else repr(value)


# Functions, classes and methods: their names, and where they come from.


def module_of(thing: Any) -> str:
    """Return the name of the module that has the code of a function, or that defines a class."""
    if isinstance(thing, FunctionType):
        return str(thing.__globals__.get("__name__"))
    return str(getattr(thing, "__module__", None) or type(thing).__module__)


def home_of_thing(thing: Any) -> Home:
    if isinstance(thing, BuiltinFunctionType | MethodType) and not isinstance(thing.__self__, ModuleType):
        thing = type(thing.__self__)
    return home_of(module_of(thing))


def library_name(thing: Any) -> str | None:
    """Return the name of a compiled function, or of a method that a module offers as a function; None for others.

    `random.random` is a method of a hidden object, whose state does not count.
    """
    if type(thing).__name__ in COMPILED:
        return f"{thing.__module__}:{thing.__qualname__}"
    if not isinstance(thing, BuiltinFunctionType | MethodType):
        return None
    owner = thing.__self__
    if owner is None or isinstance(owner, ModuleType):
        return f"{thing.__module__}:{thing.__qualname__}"
    module = type(owner).__module__
    offered = vars(sys.modules[module]).get(thing.__name__) if module in sys.modules else None
    same = isinstance(offered, type(thing)) and offered.__self__ is owner
    return f"{module}:{thing.__name__}" if same else None


def shown_name(thing: Any) -> str:
    """Return the name by which people know a function or class."""
    name = thing.__code__.co_qualname if isinstance(thing, FunctionType) else getattr(thing, "__qualname__", "?")
    module = module_of(thing)
    return f"{name_of_module(module)}.{name}" if module in sys.modules else str(name)


def wrapped_by_library(value: Any) -> Any:
    """Return the function that an object of a library stands for, such as that of `functools.cache`; None if none."""
    if isinstance(value, type) or home_of_thing(type(value)) == OWN:
        return None
    state = getattr(value, "__dict__", None)
    wrapped = state.get("__wrapped__") if type(state) is dict else None
    return wrapped if isinstance(wrapped, FunctionType | MethodType | type) else None


# Whether what a function reaches is still what it was a moment ago.
#
# To follow a function takes a millisecond, and a master may submit a hundred thousand tasks one by one. So the result
# is kept, with everything that it depends on in this process: the code of functions, and the variables with their
# values. Functions, classes and plain values are compared by identity. Other values can change in place, so their
# digests are compared. They are not kept themselves, because they may be large.


class _Gone:
    """Stands for the value of a variable that does not exist."""


_THINGS = (type, FunctionType, ModuleType, CodeType, Reference)


class Watch(Struct, eq=False):
    """What the code of one function depends on."""

    _facts: list[tuple[Callable[[], Any], Any]] = field(default_factory=list)
    """How each value is read, and by what it counts."""
    _kept: list[object] = field(default_factory=list)
    """The functions and classes in these values, so that nothing else gets the identity of one of them."""

    def add(self, read: Callable[[], Any]) -> None:
        """A value counts."""
        self._facts.append((read, _counted(read, self._kept)))

    def add_function(self, function: FunctionType) -> None:
        """The code and the default arguments of a function count."""
        for name in ("__code__", "__defaults__", "__kwdefaults__"):
            self.add(partial(getattr, function, name))

    def add_cell(self, cell: CellType) -> None:
        """A variable of a function around another one counts."""
        self.add(partial(getattr, cell, "cell_contents"))

    def add_variable(self, space: Mapping[str, Any], name: str) -> None:
        """A variable of a module or an attribute of a class counts."""
        self.add(partial(space.get, name, _Gone))

    def is_unchanged(self) -> bool:
        """Whether nothing has changed since it was added."""
        for read, before in self._facts:
            now = _counted(read, [])
            if now is not before and not (type(now) is type(before) is bytes and now == before):
                return False
        return True


def _counted(read: Callable[[], Any], kept: list[object]) -> Any:
    """Return a value if its identity counts, else its digest.

    Args:
        kept: gets the functions and classes in the value, which count by what they are in this process.
    """

    def by_identity(thing: Any) -> bytes | None:
        if isinstance(thing, _THINGS):
            kept.append(thing)
            return hash_of(b"identity", str(id(thing)).encode())
        name = library_name(thing)
        return None if name is None else hash_of(b"name", name.encode())

    try:
        value = read()
        if type(value) in PLAIN or isinstance(value, _THINGS):
            return value
        return digest_of(value, by_identity)
    except Exception as error:  # a cell is empty, or one of the user's own methods failed
        return hash_of(b"unknown", full_name(type(error)).encode())


# What a function reaches, as a graph.
#
# The names in the code of a function are followed to other functions, classes and values of the user's own modules. So
# are its closure and its default arguments, and what these reach in turn.


NOT_FOLLOWED = frozenset(
    {"__name__", "__file__", "__doc__", "__spec__", "__loader__", "__package__", "__cached__", "__builtins__"}
)
"""Names of modules that say where the module is."""

CONTAINERS = (dict, list, tuple, partial)

NOT_YET = bytes(DIGEST_BYTES)
"""What a node counts for in the value that contains it, until the nodes have labels."""


class Reached(Struct, eq=False):
    """What one function reaches."""

    watch: Watch = field(default_factory=Watch)
    """What this depends on."""
    _known: dict[object, Node] = field(default_factory=dict)
    """The nodes by what they are made from."""
    _kept: list[object] = field(default_factory=list)
    """What nodes are made from, so that nothing else gets the identity of one of these objects."""
    _watched: set[tuple[int, str]] = field(default_factory=set)
    """The variables that count, by the identity of their modules."""
    _waiting: deque[tuple[Callable[..., None], Node, Any]] = field(default_factory=deque)
    """The nodes that were not followed."""

    def follow_all(self) -> None:
        """Follow all nodes. An error in the user's code makes a part that cannot be compared."""
        while self._waiting:
            follow, node, thing = self._waiting.popleft()
            try:
                follow(node, thing)
            except Exception as error:
                node.text = f"{UNKNOWN}{reason_of(error)}"

    def root(self, function: Any) -> Node:
        """Return the node of the function itself."""
        if isinstance(function, partial):
            part = "arguments of functools.partial"
            return self._bound(b"partial", function.func, "arguments", part, (function.args, function.keywords))
        if isinstance(function, MethodType) and library_name(function) is None:
            part = f"object of the method {shown_name(function.__func__)}"
            return self._bound(b"method", function.__func__, "object", part, function.__self__)
        if isinstance(function, Initialized):
            given = function.initializer, function.initargs
            part = "arguments of the initializer"
            return self._bound(b"initialized", function.function, "initializer", part, given)
        return self.value(f"object of {shown_name(type(function))}", function)

    def _bound(self, kind: bytes, function: Any, name: str, part: str, value: Any) -> Node:
        """Return the node of a function with a value. If the value cannot be compared, the whole cannot, too."""
        node = Node("", "", hash_of(kind))
        node.edges["function"] = self.root(function)
        other = node.edges[name] = self.value(part, value)
        node.text = other.text if other.text.startswith(UNKNOWN) else node.edges["function"].text
        return node

    # ---- nodes ---------------------------------------------------------------------------------------------------

    def _add(self, node: Node, key: object, thing: object = None) -> Node:
        self._known[key] = node
        self._kept.append(thing)
        return node

    def named(self, thing: Any) -> Node | None:
        """Return the node of a function, class or module; None if it counts as a value."""
        known = self._known.get(id(thing))
        if known is not None:
            return known
        if isinstance(thing, type):
            return self._class(thing) if home_of_thing(thing) == OWN else self._library(thing, full_name(thing))
        if isinstance(thing, FunctionType):
            return self._function(thing)
        if isinstance(thing, ModuleType):
            own = home_of(thing.__name__) == OWN
            return self._module(thing.__name__) if own else self._library(thing, thing.__name__)
        name = library_name(thing)
        if name is None:
            return None
        return self._library(thing, name) if home_of_thing(thing) != OWN else self._module(name.partition(":")[0])

    def _library(self, thing: Any, name: str) -> Node:
        home = home_of(thing.__name__) if isinstance(thing, ModuleType) else home_of_thing(thing)
        content = hash_of(b"library", f"{name}\0{home.part}\0{home.version}".encode())
        return self._add(Node(home.part, home.version, content), id(thing), thing)

    def _function(self, function: FunctionType) -> Node:
        module = module_of(function)
        home = home_of(module)
        if home != OWN:
            node = self._library(function, f"{module}.{function.__code__.co_qualname}")
            self._waiting.append((self._follow_wrapper, node, function))
            return node
        tree = SOURCES.of_function(function.__code__, function.__globals__)
        if tree is None:
            content = hash_of(b"instructions", f"{PYTHON.version}".encode() + instructions_digest(function.__code__))
        else:
            content = normal_digest(tree)
        node = Node(f"function {shown_name(function)}", shown_digest(content), content)
        self._waiting.append((self._follow_function, node, function))
        return self._add(node, id(function), function)

    def _class(self, kind: type) -> Node:
        members = members_of(kind)
        node = Node(f"class {shown_name(kind)}", shown_digest(members.content), members.content)
        self._waiting.append((self._follow_class, node, (kind, members)))
        return self._add(node, id(kind), kind)

    def _module(self, name: str) -> Node:
        """Return the node of a whole module, which need not be loaded."""
        key = ("module", name)
        known = self._known.get(key)
        if known is not None:
            return known
        home, content, imports = module_content(name)
        if home != OWN:
            content = hash_of(b"library", f"{name}\0{home.part}\0{home.version}".encode())
            return self._add(Node(home.part, home.version, content), key)
        node = Node(f"module {name_of_module(name)}", shown_digest(content), content)
        self._waiting.append((self._follow_imports, node, imports))
        return self._add(node, key)

    def value(self, part: str, value: Any) -> Node:
        """Return the node of a value.

        Args:
            part: what it is called, if it is not a function, class or module.
        """
        try:
            return self._value(part, value)
        except Exception as error:  # also one of the user's own methods
            name = full_name(type(value))
            return Node(part, f"{UNKNOWN}{reason_of(error)}", hash_of(b"unknown", name.encode()))

    def _value(self, part: str, value: Any) -> Node:
        named = self.named(value)
        if named is not None:
            return named
        wrapped = wrapped_by_library(value)
        if wrapped is not None:
            node = self._add(Node("", "", hash_of(b"wrapper")), id(value), value)
            node.edges["class"] = self.value("", type(value))
            node.edges["wrapped"] = self.value(part, wrapped)
            return node
        node = Node(part, "", b"")

        def note(inside: Node) -> bytes:
            node.edges[str(len(node.edges))] = inside
            return NOT_YET

        node.content = self._content(value, note)
        node.text = shown_value(value, node.content)
        if node.edges:
            node.among = partial(self._content, value)
        return node

    def _content(self, value: Any, label: Callable[[Node], bytes]) -> bytes:
        """Return the digest of a value, from the labels of the nodes in it."""

        def named(thing: Any) -> bytes | None:
            if isinstance(thing, Shared):
                return hash_of(b"shared", digest_of(thing.value(), named))
            if isinstance(thing, Reference):
                raise NoStructure(f"{thing!r} can be compared only as an argument")
            node = self.named(thing)
            return None if node is None else label(node)

        return digest_of(value, named)

    # ---- edges ---------------------------------------------------------------------------------------------------

    def _follow_function(self, node: Node, function: FunctionType) -> None:
        shown = shown_name(function)
        for name, value in defaults_of(function):
            node.edges[f"default {name}"] = self.value(f"default of {name} in {shown}", value)
        self.watch.add_function(function)
        for cell in function.__closure__ or ():
            self.watch.add_cell(cell)
        for name, cell in cells_of(function):
            node.edges[f"variable {name}"] = self.value(f"variable {name} of {shown}", cell.cell_contents)
        self._follow_names(node, function.__globals__, chains_in(function.__code__))
        self._follow_imports(node, import_targets(imports_in(function.__code__), function.__globals__))

    def _follow_wrapper(self, node: Node, function: FunctionType) -> None:
        """Follow what a function of a library has wrapped. Its other variables may be caches, and do not count."""
        for name, cell in cells_of(function):
            value = cell.cell_contents
            reached = self.value("", value)
            if self.named(value) is reached or (type(value) in CONTAINERS and reached.edges):
                self.watch.add_cell(cell)
                node.edges[f"variable {name}"] = reached

    def _follow_class(self, node: Node, found: tuple[type, Members]) -> None:
        kind, members = found
        for name, value in members.functions:
            node.edges[name] = self.value("", value)
        for name, value in members.data:
            self.watch.add_variable(vars(kind), name)
            reached = self.value(f"attribute {name} of {shown_name(kind)}", value)
            node.edges[f"attribute {name}"] = reached
        for place, base in enumerate((type(kind), *kind.__bases__)):
            node.edges[f"base {place}"] = self.value("", base)
        space = members.space
        if members.code is not None:
            self._follow_names(node, space, chains_in(members.code, inner=False), only_named=True)

    def _follow_names(
        self, node: Node, space: dict[str, Any], chains: Iterable[tuple[str, ...]], only_named: bool = False
    ) -> None:
        for chain in chains:
            found = self._reach(space, chain, only_named)
            if found is not None:
                name, reached = found
                node.edges[name] = reached

    def _reach(self, space: dict[str, Any], chain: tuple[str, ...], only_named: bool) -> tuple[str, Node] | None:
        """Return the node of a global name, or of an attribute of a module of the user."""
        name, *attributes = chain
        if name in NOT_FOLLOWED:
            return None
        module, used = str(space.get("__name__")), name
        if name not in space:
            if only_named:
                return None
            self._watch(space, name)
            return name, self._missing(module, name)
        value = space[name]
        while isinstance(value, ModuleType) and home_of(value.__name__) == OWN:
            if not attributes or attributes[0] not in vars(value):
                break
            self._watch(space, name)
            space, module, name = vars(value), value.__name__, attributes.pop(0)
            value, used = space[name], f"{used}.{name}"
        if only_named and not isinstance(value, type | FunctionType | BuiltinFunctionType):
            return None
        key = (id(space), name)
        known = self._known.get(key)
        if known is None:
            self._watch(space, name)
            part = f"global {name_of_module(module)}.{name}"
            known = self.value(part, _without_folder(value, space))
            self._known[key] = known
        return used, known

    def _watch(self, space: dict[str, Any], name: str) -> None:
        """Let a variable count, also one that does not exist yet: it may be defined later, or hide a builtin."""
        if (id(space), name) not in self._watched:
            self._watched.add((id(space), name))
            self.watch.add_variable(space, name)

    def _missing(self, module: str, name: str) -> Node:
        """Return the node of a name that is builtin, or not defined."""
        key = ("builtin", name)
        if key in self._known:
            return self._known[key]
        if hasattr(builtins, name):
            home = PYTHON
            node = Node(home.part, home.version, hash_of(b"library", f"{name}\0{home.version}".encode()))
            return self._add(node, key)
        return Node(f"global {name_of_module(module)}.{name}", "not defined", hash_of(b"not defined"))

    def _follow_imports(self, node: Node, imports: Iterable[tuple[str, Any]]) -> None:
        for name, found in imports:
            node.edges[f"import {name}"] = self._module(found) if isinstance(found, str) else self.value(*found)


# ---- values ---------------------------------------------------------------------------------------------------------


def _without_folder(value: Any, space: dict[str, Any]) -> Any:
    """Return a path without the folder of the module in which it is, if it is in it."""
    if type(value) is not str and not isinstance(value, PurePath):
        return value
    folder, text = folder_of(space), str(value)
    if folder and (text == folder or text.startswith(f"{folder}/")):
        return ("in the folder of the module", type(value).__name__, text[len(folder) :])
    return value


CODES_KEPT = 256
"""How many functions and classes have their code kept."""


class NotComparable(Exception):
    """A function or a value cannot be compared with that of an earlier run; the text says why."""


class Code(Struct, frozen=True):
    """What a function consists of."""

    digest: bytes
    """Two functions with the same digest give the same results for the same arguments, as far as mwpy can know."""
    parts: dict[str, str]
    """What it consists of, such as `function app.f` or `package numpy`, with a short digest, a value or a version. A
    text that begins with `?` says why a part cannot be compared."""


def code_of(function: Callable[..., Any]) -> Code:
    """Return what a function consists of.

    Args:
        function: anything callable. It is not called.

    Raises:
        NotComparable: it is an object without structure; the caller's fault.
    """
    known = _KEPT.get(id(function))
    if known is not None and known[1].is_unchanged():
        _KEPT[id(function)] = _KEPT.pop(id(function), known)  # another thread may have removed it
        return known[2]
    reached = Reached()
    root = reached.root(function)
    reached.follow_all()
    if root.text.startswith(UNKNOWN):
        raise NotComparable(root.text.removeprefix(UNKNOWN))
    nodes = reachable(root)
    code = Code(graph_digest(root, nodes), parts_in(nodes))
    if isinstance(function, FunctionType | type):
        _KEPT[id(function)] = function, reached.watch, code
        while len(_KEPT) > CODES_KEPT:
            _KEPT.popitem(last=False)
    return code


_KEPT: OrderedDict[int, tuple[object, Watch, Code]] = OrderedDict()
"""By the identity of functions and classes, which are kept, too. The first one was used least recently."""


# Digests of calls: whether a task has the same arguments as a task of an earlier run.
#
# Arguments count by value. Objects of the user's own classes count with the code of their class, because a task can
# call its methods; functions count by their code. The digest of plain arguments follows from their encoding, as the
# keys in `_values/shares.py` do.


LIBRARY_KEPT = 10_000
"""How many functions and classes of libraries have their digests kept."""

_LIBRARY: dict[int, tuple[object, bytes]] = {}
"""By the identity of functions and classes, which are kept, too."""

Resolve = Callable[[int], bytes]
"""Returns what identifies a task, from its id: in another run, the task with the same result."""


def call_digest(args: Sequence[Any], kwargs: dict[str, Any], resolve: Resolve | None = None) -> bytes:
    """Return the digest of the arguments of a call, `DIGEST_BYTES` long.

    Args:
        args, kwargs: the arguments. They must not change during the call.
        resolve: what identifies the tasks to which `mwpy.result` refers in them.

    Raises:
        NotComparable: an argument has no structure that could be compared; the text says which and why.
    """
    if not kwargs and PLAIN.issuperset(map(type, args)):
        try:
            entry = encode(args)
            return short_digest(encode(without_nan(args)) if may_have_nan(entry) else entry)
        except NOT_ENCODABLE:
            pass
    digests = [_argument_digest(each, resolve) for each in args]
    digests.append(_argument_digest(kwargs, resolve))
    return hash_of(b"call", b"".join(digests))


def value_digest(value: object) -> bytes:
    """Return the digest of a value that the user gives as the key of a task. It replaces that of the arguments.

    Raises:
        NotComparable: as `call_digest`.
    """
    return hash_of(b"key", _argument_digest(value, None))


def _argument_digest(value: object, resolve: Resolve | None) -> bytes:
    """Return the digest of one argument.

    Raises:
        NotComparable: as `call_digest`.
    """
    try:
        return digest_of(value, _Named(resolve))
    except Exception as error:  # also one of the user's own methods
        raise NotComparable(reason_of(error)) from error


class _Named(Struct, eq=False):
    """Says how classes, functions and references count in arguments."""

    resolve: Resolve | None

    def __call__(self, thing: Any) -> bytes | None:
        if isinstance(thing, ResultReference):
            if self.resolve is None:
                raise NoStructure(f"{thing!r} has a meaning only in the arguments of a task")
            return hash_of(b"result", self.resolve(thing.task_id))
        if isinstance(thing, Shared):
            return self._shared(thing)
        if isinstance(thing, ModuleType):
            raise NoStructure(f"the module {thing.__name__} is no value")
        if isinstance(thing, type | FunctionType):
            known = _LIBRARY.get(id(thing))
            return self._code(thing) if known is None else known[1]
        name = library_name(thing)
        return None if name is None else hash_of(b"library", name.encode())

    def _code(self, thing: Any) -> bytes:
        """Return the digest of a function or class: by its name if it is one of a library, else by its code."""
        closure = isinstance(thing, FunctionType) and thing.__closure__
        if home_of(module_of(thing)) == OWN or closure:
            return code_of(thing).digest
        digest = hash_of(b"library", full_name(thing).encode())
        if len(_LIBRARY) >= LIBRARY_KEPT:
            _LIBRARY.clear()
        _LIBRARY[id(thing)] = thing, digest
        return digest

    def _shared(self, handle: Shared) -> bytes:
        """Return the digest of a shared object: that of its value, because its pickle can differ in another run."""
        shared = handle.shared
        if not shared.structure:
            shared.structure = hash_of(b"shared", digest_of(handle.value(), self))
        return shared.structure


# What changed between two versions of code, in sentences.


CAPTURED = ("variable ", "arguments of ", "object of ")
"""The names of parts begin with this that are values which a function has captured: those of the functions around it,
the arguments of a `functools.partial`, and the object of a method. They do not depend on the code."""

DEFAULT = "default of "
LOCAL = "<"
"""A default argument of a function with such a part of its name, as in `<lambda>` and `f.<locals>.g`, is captured, too:
`lambda x, k=k: ...`."""


def changes(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Return one sentence for each part of code that changed, is new, or is not used any more.

    Args:
        old, new: the `parts` of two `Code`.

    Examples:
        >>> changes({"global app.SCALE": "2", "package numpy": "1.26.4"}, {"global app.SCALE": "3"})
        ['global app.SCALE changed from 2 to 3', 'package numpy is not used any more']
    """
    found = [_difference(part, old[part], new[part]) for part in new if part in old and old[part] != new[part]]
    found += [f"{part} is used now, and was not used before" for part in new if part not in old]
    return found + [f"{part} is not used any more" for part in old if part not in new]


def captured_changes(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Return one sentence for each value that both versions have captured, if it differs.

    Examples:
        >>> captured_changes({"variable k of app.<lambda>": "1"}, {"variable k of app.<lambda>": "2", "Python": "3.12"})
        ['variable k of app.<lambda> changed from 1 to 2']
    """
    common = [part for part in new if part in old and old[part] != new[part] and _is_captured(part)]
    return [_difference(part, old[part], new[part]) for part in common]


def _is_captured(part: str) -> bool:
    return part.startswith(CAPTURED) or (part.startswith(DEFAULT) and LOCAL in part)


def _difference(part: str, old: str, new: str) -> str:
    if old.startswith(UNKNOWN) or new.startswith(UNKNOWN):
        reason = (new if new.startswith(UNKNOWN) else old).removeprefix(UNKNOWN)
        return f"{part} cannot be compared: {reason}"
    if old.startswith("#") or new.startswith("#"):
        return f"{part} changed"
    return f"{part} changed from {old} to {new}"
