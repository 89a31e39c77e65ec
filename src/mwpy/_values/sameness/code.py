"""The code that a function consists of: its own, and everything of the user that it reaches.

`code_of` begins at a function, and follows the names in its code: to other functions, classes and values of the user's
own modules, to what its closure and its default arguments contain, and to what these reach in turn. Installed packages
count by their version, the standard library by the minor version of Python, and mwpy not at all.

What it cannot follow: names that exist only as texts (`getattr(module, name)`, `eval`), and files that the code reads.
"""

from __future__ import annotations

import builtins
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from attrs import define, field, frozen

from mwpy._values.bounds import shortened
from mwpy._values.messagepack import PLAIN
from mwpy._values.references import Reference
from mwpy._values.sameness import homes
from mwpy._values.sameness.graph import UNKNOWN, Labels, Node, graph_digest, parts_in, reachable, shown_digest
from mwpy._values.sameness.members import Members, members_of
from mwpy._values.sameness.modules import folder_of, import_targets, module_content
from mwpy._values.sameness.names import chains_in, imports_in
from mwpy._values.sameness.normal import normal_digest
from mwpy._values.sameness.plain import DIGEST_BYTES, hash_of
from mwpy._values.sameness.sources import SOURCES, instructions_digest
from mwpy._values.sameness.structure import NoStructure, digest_of, full_name

__all__ = ["Code", "NotComparable", "code_of", "library_name", "reason_of"]

SHOWN_LENGTH = 60
"""How many characters of a value the parts of code show. Longer values are shown as digests."""

NOT_FOLLOWED = frozenset(
    {"__name__", "__file__", "__doc__", "__spec__", "__loader__", "__package__", "__cached__", "__builtins__"}
)
"""Names of modules that say where the module is."""

NOT_YET = bytes(DIGEST_BYTES)
"""What a node counts for in the value that contains it, until the nodes have labels."""

_ADDRESS = re.compile(r" (at )?0x[0-9a-fA-F]+")


class NotComparable(Exception):
    """A function or a value cannot be compared with that of an earlier run; the text says why."""


@frozen
class Code:
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
    reached = _Reached()
    root = reached.root(function)
    reached.follow_all()
    if root.text.startswith(UNKNOWN):
        raise NotComparable(root.text.removeprefix(UNKNOWN))
    nodes = reachable(root)
    return Code(graph_digest(root, nodes), parts_in(nodes))


@define(eq=False)
class _Reached:
    """What one function reaches."""

    _known: dict[object, Node] = field(factory=dict)
    """The nodes by what they are made from."""
    _kept: list[object] = field(factory=list)
    """What nodes are made from, so that nothing else gets the identity of one of these objects."""
    _waiting: deque[tuple[Callable[..., None], Node, Any]] = field(factory=deque)
    """The nodes that were not followed."""
    _inside: list[Node] = field(factory=list)
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
            node = self._add(Node("", "", hash_of(b"partial")))
            node.edges["function"] = self.root(function.func)
            node.edges["arguments"] = self.value("arguments of functools.partial", (function.args, function.keywords))
            return node
        if isinstance(function, MethodType) and library_name(function) is None:
            node = self._add(Node("", "", hash_of(b"method")))
            node.edges["function"] = self.root(function.__func__)
            node.edges["object"] = self.value(f"object of the method {_shown(function.__func__)}", function.__self__)
            return node
        return self.value(f"object of {_shown(type(function))}", function)

    # ---- nodes ---------------------------------------------------------------------------------------------------

    def _add(self, node: Node, key: object = None, thing: object = None) -> Node:
        if key is not None:
            self._known[key] = node
            self._kept.append(thing)
        return node

    def named(self, thing: Any) -> Node | None:
        """Return the node of a function, class or module; None if it counts as a value."""
        known = self._known.get(id(thing))
        if known is not None:
            return known
        if isinstance(thing, type):
            return self._class(thing) if _home(thing) == homes.OWN else self._library(thing, full_name(thing))
        if isinstance(thing, FunctionType):
            return self._function(thing)
        if isinstance(thing, ModuleType):
            own = homes.home_of(thing.__name__) == homes.OWN
            return self._module(thing.__name__) if own else self._library(thing, thing.__name__)
        name = library_name(thing)
        if name is None:
            return None
        return self._library(thing, name) if _home(thing) != homes.OWN else self._module(name.partition(":")[0])

    def _library(self, thing: Any, name: str) -> Node:
        home = homes.home_of(thing.__name__) if isinstance(thing, ModuleType) else _home(thing)
        content = hash_of(b"library", f"{name}\0{home.part}\0{home.version}".encode())
        return self._add(Node(home.part, home.version, content), id(thing), thing)

    def _function(self, function: FunctionType) -> Node:
        module = _module_of(function)
        home = homes.home_of(module)
        if home != homes.OWN:
            node = self._library(function, f"{module}.{function.__code__.co_qualname}")
            self._waiting.append((self._follow_wrapper, node, function))
            return node
        tree = SOURCES.of_function(function.__code__)
        if tree is None:
            content = hash_of(
                b"instructions", f"{homes.PYTHON.version}".encode() + instructions_digest(function.__code__)
            )
        else:
            content = normal_digest(tree)
        node = Node(f"function {_shown(function)}", shown_digest(content), content)
        self._waiting.append((self._follow_function, node, function))
        return self._add(node, id(function), function)

    def _class(self, kind: type) -> Node:
        members = members_of(kind)
        node = Node(f"class {_shown(kind)}", shown_digest(members.content), members.content)
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
        named = self.named(value)
        if named is not None:
            return named
        wrapped = _wrapped_by_library(value)
        if wrapped is not None:
            node = self._add(Node("", "", hash_of(b"wrapper")), id(value), value)
            node.edges["class"] = self.value("", type(value))
            node.edges["wrapped"] = self.value(part, wrapped)
            return node
        self._inside = []
        try:
            content = digest_of(value, self._note)
        except Exception as error:
            name = full_name(type(value))
            return self._add(Node(part, f"{UNKNOWN}{reason_of(error)}", hash_of(b"unknown", name.encode())))
        node = self._add(Node(part, _text_of(value, content), content))
        if self._inside:
            node.among, node.inside = partial(self._among, value), self._inside
        return node

    def _note(self, thing: Any) -> bytes | None:
        """Find the nodes in a value."""
        if isinstance(thing, Reference):
            raise NoStructure(f"{thing!r} can be compared only as an argument")
        node = self.named(thing)
        if node is None:
            return None
        self._inside.append(node)
        return NOT_YET

    def _among(self, value: Any, labels: Labels) -> bytes:
        def label(thing: Any) -> bytes | None:
            node = self.named(thing)
            return None if node is None else labels[id(node)]

        return digest_of(value, label)

    # ---- edges ---------------------------------------------------------------------------------------------------

    def _follow_function(self, node: Node, function: FunctionType) -> None:
        shown = _shown(function)
        for name, value in _defaults(function):
            node.edges[f"default {name}"] = self.value(f"default of {name} in {shown}", value)
        for name, value in _cells(function):
            node.edges[f"variable {name}"] = self.value(f"variable {name} of {shown}", value)
        self._follow_names(node, function.__globals__, chains_in(function.__code__))
        self._follow_imports(node, import_targets(imports_in(function.__code__), function.__globals__))

    def _follow_wrapper(self, node: Node, function: FunctionType) -> None:
        """Follow what a function of a library has wrapped. Its other variables count if they can be compared."""
        for name, value in _cells(function):
            reached = self.value("", value)
            if not reached.text.startswith(UNKNOWN):
                node.edges[f"variable {name}"] = reached

    def _follow_class(self, node: Node, found: tuple[type, Members]) -> None:
        kind, members = found
        for name, value in members.functions:
            node.edges[name] = self.value("", value)
        for name, value in members.data:
            reached = self.value(f"attribute {name} of {_shown(kind)}", value)
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
        return self._add(Node(f"global {homes.name_of_module(module)}.{name}", "not defined", hash_of(b"not defined")))

    def _follow_imports(self, node: Node, imports: Iterable[tuple[str, Any]]) -> None:
        for name, found in imports:
            node.edges[f"import {name}"] = self._module(found) if isinstance(found, str) else self.value(*found)


# ---- names and homes of things --------------------------------------------------------------------------------------


def _module_of(thing: Any) -> str:
    """Return the name of the module that has the code of a function, or that defines a class."""
    if isinstance(thing, FunctionType):
        return str(thing.__globals__.get("__name__"))
    return str(getattr(thing, "__module__", None) or type(thing).__module__)


def _home(thing: Any) -> homes.Home:
    if isinstance(thing, BuiltinFunctionType | MethodType) and not isinstance(thing.__self__, ModuleType):
        thing = type(thing.__self__)
    return homes.home_of(_module_of(thing))


def library_name(thing: Any) -> str | None:
    """Return the name of a compiled function, or of a method that a module offers as a function; None for others.

    `random.random` is a method of a hidden object, whose state does not count.
    """
    if not isinstance(thing, BuiltinFunctionType | MethodType):
        return None
    owner = thing.__self__
    if owner is None or isinstance(owner, ModuleType):
        return f"{thing.__module__}:{thing.__qualname__}"
    module = type(owner).__module__
    offered = vars(sys.modules[module]).get(thing.__name__) if module in sys.modules else None
    same = isinstance(offered, type(thing)) and offered.__self__ is owner
    return f"{module}:{thing.__name__}" if same else None


def _shown(thing: Any) -> str:
    """Return the name by which people know a function or class."""
    name = thing.__code__.co_qualname if isinstance(thing, FunctionType) else getattr(thing, "__qualname__", "?")
    return f"{homes.name_of_module(_module_of(thing))}.{name}"


def _wrapped_by_library(value: Any) -> Any:
    """Return the function that an object of a library stands for, such as that of `functools.cache`; None if none."""
    if isinstance(value, type) or _home(type(value)) == homes.OWN:
        return None
    state = getattr(value, "__dict__", None)
    wrapped = state.get("__wrapped__") if type(state) is dict else None
    return wrapped if isinstance(wrapped, FunctionType | MethodType | type) else None


# ---- values ---------------------------------------------------------------------------------------------------------


def _defaults(function: FunctionType) -> Iterator[tuple[str, Any]]:
    code, values = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(values) : code.co_argcount]
    yield from zip(names, values, strict=False)
    yield from sorted((function.__kwdefaults__ or {}).items())


def _cells(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield name, cell.cell_contents
        except ValueError:  # it has no value yet
            yield name, None


def _without_folder(value: Any, space: dict[str, Any]) -> Any:
    """Return a path without the folder of the module in which it is, if it is in it."""
    if type(value) is not str and not isinstance(value, PurePath):
        return value
    folder, text = folder_of(space), str(value)
    if folder and (text == folder or text.startswith(f"{folder}/")):
        return ("in the folder of the module", type(value).__name__, text[len(folder) :])
    return value


def _text_of(value: Any, content: bytes) -> str:
    """Return a plain value as a text, or the text of its digest if it is long or no plain value."""
    shown = repr(value) if type(value) in PLAIN else ""
    return shown if 0 < len(shown) <= SHOWN_LENGTH else shown_digest(content)


def reason_of(error: Exception) -> str:
    try:
        text = str(error)
    except Exception:
        text = ""
    return shortened(_ADDRESS.sub("", text) or type(error).__name__)
