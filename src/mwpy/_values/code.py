"""The code that a function consists of, its digest and those of calls, and what changed between two runs.

`code_of` begins at a function, and follows what it uses (`functions.py`): other functions, classes and values of the
user's own modules, and what these use in turn. Functions count by their instructions and by their values, classes also
by their source. Installed packages count by their version, the standard library by the minor version of Python, and
mwpy not at all.

It cannot follow what `functions.py` cannot follow, and files that the code reads.

Instructions count, and not the source, because a user may edit a script while it runs: then the file has other code
than the process. What a metaclass has made of a class may not be seen in its attributes, so classes count by their
source, as it was loaded. What a function reaches is a graph with cycles, and the order in which its nodes are found
depends on the order of sets. So nodes get labels in rounds, as in the minimization of automata. Names of modules are no
part of them, because a script is `__main__` in one process and a module in another.
"""

from __future__ import annotations

import dis
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import PurePath
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
)
from typing import Any

from attrs import Factory, define
from msgspec import Struct, field

from mwpy._values.algorithm import PYTHON as PYTHON_VERSION
from mwpy._values.algorithm import Initialized
from mwpy._values.functions import (
    Missing,
    NotLoaded,
    Use,
    cells_of,
    functions_in,
    module_of,
    qualname_of,
    use_of,
    uses_by_text,
    uses_of,
)
from mwpy._values.installed import MWPY, PYTHON, home_of, is_own, origin_of, versions
from mwpy._values.messagepack import NOT_ENCODABLE, PLAIN, encode
from mwpy._values.shares import DIGEST_BYTES, Shared, hash_of, may_have_nan, short_digest, without_nan
from mwpy._values.sources import SOURCES, is_inside, normal_text
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


# Functions, classes and modules: their content, their names, and where they come from.
#
# A function counts by the instructions to which Python has compiled it. So comments, format and docstrings do not
# count, and a file that was edited after it was loaded does not mislead. A class also counts by its source, without its
# functions, because what its metaclass has made of the source may not be seen in its attributes.

_PLACES = ("__doc__", "__firstlineno__", "__static_attributes__")
"""What the code of the body of a class stores about its source."""


@lru_cache(maxsize=1000)
def instructions_digest(code: CodeType) -> bytes:
    """Return a digest of code: its instructions, names and constants.

    Lines, the name of its file and its docstring do not count. It is the same only in the same minor version of Python.
    """
    instructions: list[Any] = []
    for each in dis.get_instructions(code):
        value = each.argval if each.opcode in dis.hasconst else each.arg
        if each.opname == "STORE_NAME" and each.argval in _PLACES:
            instructions[-1] = None
        if each.opname != "NOP":
            value = instructions_digest(value) if isinstance(value, CodeType) else value
            instructions.append((each.opcode, value))
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & ~_HAS_DOCSTRING
    names = code.co_name, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    content = instructions, counts, names, code.co_exceptiontable, PYTHON_VERSION
    return hash_of(b"instructions", digest_of(content))


_HAS_DOCSTRING = 0x4000000
"""A flag of code, since Python 3.13."""


def class_digest(kind: type) -> bytes:
    """Return the digest of the source of a class, without its functions, and of what these are, such as properties;
    that of its name if it has no source."""
    source = SOURCES.of_class(kind)
    if source is None:
        return hash_of(b"class", kind.__qualname__.encode())
    _, node = source
    functions = [(name, *found) for name, value in vars(kind).items() for found in functions_in(value)]
    roles = {name: role for name, role, each in functions if is_inside(each, kind)}
    body = [each for each in node.body if getattr(each, "name", None) not in roles]
    content = normal_text([*node.decorator_list, *node.bases, *node.keywords, *body]) + str(sorted(roles.items()))
    return hash_of(b"class source", content.encode(errors="surrogatepass"))


def module_content(name: str) -> tuple[bytes, list[Use]]:
    """Return the digest of the content of a module of the user, which need not be loaded, and what it imports."""
    text = SOURCES.of(name)
    if text is None or text.tree is None:
        module = sys.modules.get(name)
        file = origin_of(name) if module is None else str(getattr(module, "__file__", None) or "")
        return hash_of(b"file", _content(file)), []
    content = normal_text(text.tree.body).encode(errors="surrogatepass")
    return hash_of(b"module", content), [*text.imported_by(name)]


def _content(file: str) -> bytes:
    try:
        with open(file, "rb") as opened:
            return opened.read()
    except OSError:
        return b""


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
    name = qualname_of(thing) if isinstance(thing, FunctionType | type) else getattr(thing, "__qualname__", "?")
    module = module_of(thing)
    return f"{name_of_module(module)}.{name}" if module in sys.modules else str(name)


def wrapped_by_library(value: Any) -> Any:
    """Return the function that an object of a library stands for, such as that of `functools.cache`; None if none."""
    if isinstance(value, type) or is_own(module_of(type(value))):
        return None
    state = getattr(value, "__dict__", None)
    wrapped = state.get("__wrapped__") if type(state) is dict else None
    return wrapped if isinstance(wrapped, FunctionType | MethodType | type) else None


# What a function reaches, as a graph.


CONTAINERS = (dict, list, tuple, partial)

NOT_YET = bytes(DIGEST_BYTES)
"""What a node counts for in the value that contains it, until the nodes have labels."""


@define(eq=False, repr=False)
class Reached:
    """What one function reaches."""

    _known: dict[object, Node] = Factory(dict)
    """The nodes by what they are made from."""
    _kept: list[object] = Factory(list)
    """What nodes are made from, so that nothing else gets the identity of one of these objects."""
    _waiting: deque[tuple[Callable[..., None], Node, Any]] = Factory(deque)
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

    def prepared(self, function: Any, before: Sequence[object]) -> Node:
        """Return the node of a function with what runs before it."""
        return self._bound(b"prepared", function, "before", "set-up of agents and slaves", [*before])

    def _bound(self, kind: bytes, function: Any, name: str, part: str, value: Any) -> Node:
        """Return the node of a function with a value. If the value cannot be compared, the whole cannot, too."""
        node = Node("", "", hash_of(kind))
        node.edges["function"] = self.root(function)
        other = node.edges[name] = self.value(part, value)
        node.text = other.text if other.text.startswith(UNKNOWN) else node.edges["function"].text
        return node

    # ---- functions, classes and modules --------------------------------------------------------------------------

    def _add(self, key: object, thing: object, node: Node, follow: Callable[..., None] | None = None) -> Node:
        self._known[key] = node
        self._kept.append(thing)
        if follow is not None:
            self._waiting.append((follow, node, thing))
        return node

    def named(self, thing: Any) -> Node | None:
        """Return the node of a function, class or module; None if it counts as a value."""
        known = self._known.get(id(thing))
        if known is not None:
            return known
        if isinstance(thing, NotLoaded | ModuleType):
            name = thing if isinstance(thing, NotLoaded) else thing.__name__
            return self._own_module(str(name), thing) if is_own(name) else self._library(thing, name, home_of(name))
        if not isinstance(thing, type | FunctionType):
            compiled = library_name(thing)
            return None if compiled is None else self._compiled(compiled, thing)
        if home := home_of(module_of(thing)):
            node = self._library(thing, f"{module_of(thing)}.{qualname_of(thing)}", home)
            if isinstance(thing, FunctionType):
                self._waiting.append((self._follow_wrapper, node, thing))
            return node
        if isinstance(thing, type):
            kind, content = "class", class_digest(thing)
        else:
            kind, content = "function", instructions_digest(thing.__code__)
        node = Node(f"{kind} {shown_name(thing)}", shown_digest(content), content)
        return self._add(id(thing), thing, node, self._follow)

    def _compiled(self, name: str, thing: Any) -> Node:
        module = name.partition(":")[0]
        home = home_of(module)
        return self._library(thing, name, home) if home else self._own_module(module, thing)

    def _library(self, thing: Any, name: str, home: str) -> Node:
        part, version = ("", "") if home == MWPY else (f"package {home}", _version_of(home))
        if home == PYTHON:
            part, version = PYTHON, PYTHON_VERSION
        content = hash_of(b"library", f"{name}\0{part}\0{version}".encode())
        return self._add(id(thing), thing, Node(part, version, content))

    def _own_module(self, name: str, thing: Any) -> Node:
        """Return the node of a whole module of the user."""
        key = ("module", name)
        if key not in self._known:
            content, uses = module_content(name)
            node = Node(f"module {name_of_module(name)}", shown_digest(content), content)
            self._add(key, thing, node)
            self._waiting.append((self._add_edges, node, ("", uses)))
        return self._known[key]

    # ---- edges ---------------------------------------------------------------------------------------------------

    def _follow(self, node: Node, thing: FunctionType | type) -> None:
        """Follow what a function or class of the user uses."""
        uses = [*uses_of(thing)]  # at once, because to compare a value may run code of the user
        uses += uses_by_text(thing) if isinstance(thing, FunctionType) else ()
        source, shown = SOURCES.of_class(thing) if isinstance(thing, type) else None, shown_name(thing)
        if source is None:
            self._add_edges(node, (shown, uses))
            return
        text, _ = source
        self._add_edges(node, (shown, (use for use in uses if not _is_generated(use, text.file))))
        _, _, chains = text.definition(qualname_of(thing).partition(".")[0])
        found = (use_of(chain, vars(sys.modules[thing.__module__])) for chain in chains)
        self._add_edges(node, ("", filter(None, found)))

    def _add_edges(self, node: Node, found: tuple[str, Iterable[Use]]) -> None:
        shown, uses = found
        for use in uses:
            node.edges[f"{use.kind} {use.name}"] = self._used(use, shown)
            if use.kind == "variable":  # of a decorator, for example
                self._add_annotations(node.edges[f"variable {use.name}"], use.value)

    def _used(self, use: Use, shown: str) -> Node:
        """Return the node of what something uses that is known by a name."""
        if not use.module:
            return self.value(f"{use.kind} {use.name} of {shown}" if shown else "", use.value)
        key = (use.module, use.variable, id(use.value))
        if key not in self._known:
            part = f"global {name_of_module(use.module)}.{use.variable}"
            if use.value is Missing:
                return Node(part, "not defined", hash_of(b"not defined"))
            node = self.value(part, _without_folder(use.value, use.module))
            if node.text.startswith(UNKNOWN) and (text := SOURCES.of(use.module)) is not None:
                source = bytes.fromhex(text.definition(use.variable)[1])
                node.edges["source"] = Node(f"source of {part}", shown_digest(source), source)
            self._add(key, use.value, node)
        return self._known[key]

    def _follow_wrapper(self, node: Node, function: FunctionType) -> None:
        """Follow what a function of a library has wrapped. Its other variables may be caches, and do not count."""
        wrapped = {name: cell.cell_contents for name, cell in cells_of(function)}
        if "__wrapped__" in vars(function):
            wrapped["__wrapped__"] = vars(function)["__wrapped__"]
        for name, value in wrapped.items():
            reached = self.value("", value)
            if self.named(value) is reached or (type(value) in CONTAINERS and reached.edges):
                node.edges[f"variable {name}"] = reached
                self._add_annotations(reached, value)

    def _add_annotations(self, node: Node, function: Any) -> None:
        """Let the annotations of a function count that another one has wrapped: it may have read them."""
        if isinstance(function, FunctionType) and is_own(module_of(function)):
            node.edges["annotations"] = self.value("", function.__annotations__)

    # ---- values --------------------------------------------------------------------------------------------------

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
            node = self._add(id(value), value, Node("", "", hash_of(b"wrapper")))
            node.edges["class"] = self.value("", type(value))
            node.edges["wrapped"] = self.value(part, wrapped)
            self._add_annotations(node.edges["wrapped"], wrapped)
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


def _is_generated(use: Use, file: str) -> bool:
    """Whether something that a class uses is a method that follows from its source, such as that of a dataclass."""
    function = use.value if use.kind == "method" else None
    while isinstance(wrapped := getattr(function, "__wrapped__", None), FunctionType):
        function = wrapped
    name = function.__code__.co_filename if isinstance(function, FunctionType) else file
    return name.startswith("<") and name != file


@lru_cache
def _version_of(package: str) -> str:
    return versions([package])[package] or "of an unknown version"


def _without_folder(value: Any, module: str) -> Any:
    """Return a path without the folder of the module in which it is, if it is in it."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if (type(value) is not str and not isinstance(value, PurePath)) or not isinstance(file, str):
        return value
    folder, text = os.path.dirname(os.path.abspath(file)), str(value)
    if text == folder or text.startswith(f"{folder}/"):
        return ("in the folder of the module", type(value).__name__, text[len(folder) :])
    return value


class NotComparable(Exception):
    """A function or a value cannot be compared with that of an earlier run; the text says why."""


class Code(Struct, frozen=True):
    """What a function consists of."""

    digest: bytes
    """Two functions with the same digest give the same results for the same arguments, as far as mwpy can know."""
    parts: dict[str, str]
    """What it consists of, such as `function app.f` or `package numpy`, with a short digest, a value or a version. A
    text that begins with `?` says why a part cannot be compared."""


def code_of(function: Callable[..., Any], before: Sequence[object] = ()) -> Code:
    """Return what a function consists of.

    Args:
        function: anything callable. It is not called.
        before: what runs before it in its process or on its machine, such as the set-up of agents. It counts, too.

    Raises:
        NotComparable: it is an object without structure; the caller's fault.
    """
    reached = Reached()
    root = reached.prepared(function, before) if before else reached.root(function)
    reached.follow_all()
    if root.text.startswith(UNKNOWN):
        raise NotComparable(root.text.removeprefix(UNKNOWN))
    nodes = reachable(root)
    return Code(graph_digest(root, nodes), {PYTHON: PYTHON_VERSION, **parts_in(nodes)})


# Digests of calls: whether a task has the same arguments as a task of an earlier run.
#
# Arguments count by value. Objects of the user's own classes count with the code of their class, because a task can
# call its methods; functions count by their code. The digest of plain arguments follows from their encoding, as the
# keys in `_values/shares.py` do.


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

    def named(thing: Any) -> bytes | None:
        if isinstance(thing, ResultReference):
            if resolve is None:
                raise NoStructure(f"{thing!r} has a meaning only in the arguments of a task")
            return hash_of(b"result", resolve(thing.task_id))
        if isinstance(thing, Shared):  # by its value, because its pickle can differ in another run
            shared = thing.shared
            shared.structure = shared.structure or hash_of(b"shared", digest_of(thing.value(), named))
            return shared.structure
        if isinstance(thing, ModuleType):
            raise NoStructure(f"the module {thing.__name__} is no value")
        if isinstance(thing, type | FunctionType):
            is_library = not is_own(module_of(thing)) and not (isinstance(thing, FunctionType) and thing.__closure__)
            return hash_of(b"library", full_name(thing).encode()) if is_library else code_of(thing).digest
        name = library_name(thing)
        return None if name is None else hash_of(b"library", name.encode())

    try:
        return digest_of(value, named)
    except Exception as error:  # also one of the user's own methods
        raise NotComparable(reason_of(error)) from error


# What changed between two versions of code, in sentences.


CAPTURED = ("variable ", "arguments of ", "object of ")
"""The names of parts begin with this that are values which a function has captured: those of the functions around it,
the arguments of a `functools.partial`, and the object of a method. They do not depend on the code."""

DEFAULT = "default "
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
    differs = [part for part in new if part in old and old[part] != new[part]]
    if PYTHON in differs:  # it has compiled all functions, and parsed all classes and modules, in another way
        differs = [part for part in differs if not part.startswith(("function ", "class ", "module "))]
    found = [_difference(part, old[part], new[part]) for part in differs]
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
