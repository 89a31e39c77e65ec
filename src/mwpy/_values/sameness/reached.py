"""What a function reaches, as a graph.

The names in the code of a function are followed to other functions, classes and values of the user's own modules. So
are its closure and its default arguments, and what these reach in turn.
"""

from __future__ import annotations

import builtins
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from msgspec import Struct, field

from mwpy._values.initialized import Initialized
from mwpy._values.plain import DIGEST_BYTES, hash_of
from mwpy._values.references import Reference
from mwpy._values.sameness import homes
from mwpy._values.sameness.graph import UNKNOWN, Labels, Node, shown_digest
from mwpy._values.sameness.members import Members, members_of
from mwpy._values.sameness.modules import folder_of, import_targets, module_content
from mwpy._values.sameness.names import chains_in, imports_in
from mwpy._values.sameness.normal import normal_digest
from mwpy._values.sameness.shown import shown_value
from mwpy._values.sameness.sources import SOURCES, instructions_digest
from mwpy._values.sameness.structure import NoStructure, digest_of, full_name, reason_of
from mwpy._values.sameness.things import (
    cells_of,
    defaults_of,
    home_of_thing,
    library_name,
    module_of,
    shown_name,
    wrapped_by_library,
)
from mwpy._values.sameness.watch import Watch
from mwpy._values.shares import Shared

__all__ = ["Reached"]

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
    _waiting: deque[tuple[Callable[..., None], Node, Any]] = field(default_factory=deque)
    """The nodes that were not followed."""
    _inside: list[Node] = field(default_factory=list)
    """The nodes that were found in the value that is looked at."""

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
            node = Node("", "", hash_of(b"partial"))
            node.edges["function"] = self.root(function.func)
            given = self.value("arguments of functools.partial", (function.args, function.keywords))
            return _with(node, "arguments", given)
        if isinstance(function, MethodType) and library_name(function) is None:
            node = Node("", "", hash_of(b"method"))
            node.edges["function"] = self.root(function.__func__)
            owner = self.value(f"object of the method {shown_name(function.__func__)}", function.__self__)
            return _with(node, "object", owner)
        if isinstance(function, Initialized):
            node = Node("", "", hash_of(b"initialized"))
            node.edges["function"] = self.root(function.function)
            given = self.value("arguments of the initializer", (function.initializer, function.initargs))
            return _with(node, "initializer", given)
        return self.value(f"object of {shown_name(type(function))}", function)

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
            return self._class(thing) if home_of_thing(thing) == homes.OWN else self._library(thing, full_name(thing))
        if isinstance(thing, FunctionType):
            return self._function(thing)
        if isinstance(thing, ModuleType):
            own = homes.home_of(thing.__name__) == homes.OWN
            return self._module(thing.__name__) if own else self._library(thing, thing.__name__)
        name = library_name(thing)
        if name is None:
            return None
        return self._library(thing, name) if home_of_thing(thing) != homes.OWN else self._module(name.partition(":")[0])

    def _library(self, thing: Any, name: str) -> Node:
        home = homes.home_of(thing.__name__) if isinstance(thing, ModuleType) else home_of_thing(thing)
        content = hash_of(b"library", f"{name}\0{home.part}\0{home.version}".encode())
        return self._add(Node(home.part, home.version, content), id(thing), thing)

    def _function(self, function: FunctionType) -> Node:
        module = module_of(function)
        home = homes.home_of(module)
        if home != homes.OWN:
            node = self._library(function, f"{module}.{function.__code__.co_qualname}")
            self._waiting.append((self._follow_wrapper, node, function))
            return node
        tree = SOURCES.of_function(function.__code__, function.__globals__)
        if tree is None:
            content = hash_of(
                b"instructions", f"{homes.PYTHON.version}".encode() + instructions_digest(function.__code__)
            )
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
        if home != homes.OWN:
            content = hash_of(b"library", f"{name}\0{home.part}\0{home.version}".encode())
            return self._add(Node(home.part, home.version, content), key)
        node = Node(f"module {homes.name_of_module(name)}", shown_digest(content), content)
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
        self._inside = []
        content = digest_of(value, self._note)
        node = Node(part, shown_value(value, content), content)
        if self._inside:
            node.among, node.inside = partial(self._among, value), self._inside
        return node

    def _note(self, thing: Any) -> bytes | None:
        """Find the nodes in a value."""
        if isinstance(thing, Shared):
            return hash_of(b"shared", digest_of(thing.value(), self._note))
        if isinstance(thing, Reference):
            raise NoStructure(f"{thing!r} can be compared only as an argument")
        node = self.named(thing)
        if node is None:
            return None
        self._inside.append(node)
        return NOT_YET

    def _among(self, value: Any, labels: Labels) -> bytes:
        def label(thing: Any) -> bytes | None:
            if isinstance(thing, Shared):
                return hash_of(b"shared", digest_of(thing.value(), label))
            node = self.named(thing)
            return None if node is None else labels[id(node)]

        return digest_of(value, label)

    # ---- edges ---------------------------------------------------------------------------------------------------

    def _follow_function(self, node: Node, function: FunctionType) -> None:
        shown = shown_name(function)
        for name, value in defaults_of(function):
            node.edges[f"default {name}"] = self.value(f"default of {name} in {shown}", value)
        self.watch.add_function(function)
        for name, cell in cells_of(function):
            self.watch.add_variable(cell)
            node.edges[f"variable {name}"] = self.value(f"variable {name} of {shown}", cell.cell_contents)
        self._follow_names(node, function.__globals__, chains_in(function.__code__))
        self._follow_imports(node, import_targets(imports_in(function.__code__), function.__globals__))

    def _follow_wrapper(self, node: Node, function: FunctionType) -> None:
        """Follow what a function of a library has wrapped. Its other variables may be caches, and do not count."""
        for name, cell in cells_of(function):
            value = cell.cell_contents
            reached = self.value("", value)
            if self.named(value) is reached or reached.edges or (type(value) in CONTAINERS and reached.inside):
                self.watch.add_variable(cell)
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
            return None if only_named else (name, self._missing(module, name))
        value = space[name]
        while isinstance(value, ModuleType) and homes.home_of(value.__name__) == homes.OWN:
            if not attributes or attributes[0] not in vars(value):
                break
            space, module, name = vars(value), value.__name__, attributes.pop(0)
            value, used = space[name], f"{used}.{name}"
        if only_named and not isinstance(value, type | FunctionType | BuiltinFunctionType):
            return None
        key = (id(space), name)
        known = self._known.get(key)
        if known is None:
            self.watch.add_variable(space, name)
            part = f"global {homes.name_of_module(module)}.{name}"
            known = self.value(part, _without_folder(value, space))
            self._known[key] = known
        return used, known

    def _missing(self, module: str, name: str) -> Node:
        """Return the node of a name that is builtin, or not defined."""
        key = ("builtin", name)
        if key in self._known:
            return self._known[key]
        if hasattr(builtins, name):
            home = homes.PYTHON
            node = Node(home.part, home.version, hash_of(b"library", f"{name}\0{home.version}".encode()))
            return self._add(node, key)
        return Node(f"global {homes.name_of_module(module)}.{name}", "not defined", hash_of(b"not defined"))

    def _follow_imports(self, node: Node, imports: Iterable[tuple[str, Any]]) -> None:
        for name, found in imports:
            node.edges[f"import {name}"] = self._module(found) if isinstance(found, str) else self.value(*found)


# ---- values ---------------------------------------------------------------------------------------------------------


def _with(node: Node, name: str, other: Node) -> Node:
    """Add an edge to a root. A root with an object that cannot be compared cannot be compared, too."""
    node.edges[name] = other
    node.text = other.text if other.text.startswith(UNKNOWN) else node.edges["function"].text
    return node


def _without_folder(value: Any, space: dict[str, Any]) -> Any:
    """Return a path without the folder of the module in which it is, if it is in it."""
    if type(value) is not str and not isinstance(value, PurePath):
        return value
    folder, text = folder_of(space), str(value)
    if folder and (text == folder or text.startswith(f"{folder}/")):
        return ("in the folder of the module", type(value).__name__, text[len(folder) :])
    return value
