"""The graph of what a function reaches, and its digest.

A node is a function, a class, a module or a value. An edge has the name by which one reaches the other. The digest says
whether two graphs are the same for a walk that begins at the root and sees only the content of nodes and the names of
edges. The names of modules do not count, so a script and its import as a module are the same.

Graphs have cycles: functions call each other, methods use their class. Therefore each node gets a label: first its
content alone, then, round by round, a digest of its content and of the labels of its neighbours. The rounds end when
they tell no more nodes apart. This is the refinement of partitions by which finite automata are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct, field

from mwpy._values.plain import hash_of

__all__ = ["DIGITS", "UNKNOWN", "Node", "graph_digest", "parts_in", "reachable", "shown_digest"]

UNKNOWN = "?"
"""How the text of a part begins that cannot be compared. The reason follows."""

DIGITS = 16
"""Hexadecimal digits of a digest in the text of a part."""

Labels = Mapping[int, bytes]
"""The labels of nodes, by identity."""


class Node(Struct, eq=False):
    """Something that a function reaches."""

    part: str
    """How the parts of code name it; empty if it is not one."""
    text: str
    """Its content as a text: a digest, a short value, a version, or why it cannot be compared."""
    content: bytes
    """The digest of its content alone."""
    edges: dict[str, Node] = field(default_factory=dict)
    among: Callable[[Labels], bytes] | None = None
    """If it is a value that contains other nodes: returns its content from their labels."""
    inside: list[Node] = field(default_factory=list)
    """The nodes that it contains."""


def shown_digest(content: bytes) -> str:
    """Return the text of a digest."""
    return f"#{content.hex()[:DIGITS]}"


def reachable(root: Node) -> list[Node]:
    """Return all nodes that can be reached from a node, each once."""
    found = {id(root): root}
    waiting = [root]
    while waiting:
        node = waiting.pop()
        for other in (*node.edges.values(), *node.inside):
            if id(other) not in found:
                found[id(other)] = other
                waiting.append(other)
    return [*found.values()]


def graph_digest(root: Node, every: Sequence[Node]) -> bytes:
    """Return the digest of a graph: of its root, and of all nodes that can be reached."""
    labels = {id(node): node.content for node in every}
    distinct, rounds = len(set(labels.values())), 0
    while True:
        labels = {id(node): _label(node, labels) for node in every}
        rounds += 1
        if len(set(labels.values())) == distinct:
            break
        distinct = len(set(labels.values()))
    return hash_of(b"graph", b"".join((rounds.to_bytes(4, "big"), labels[id(root)], *sorted({*labels.values()}))))


def _label(node: Node, labels: Labels) -> bytes:
    content = node.content if node.among is None else node.among(labels)
    edges = [hash_of(b"edge", name.encode(errors="surrogatepass")) + labels[id(to)] for name, to in node.edges.items()]
    return hash_of(b"node", content + b"".join(sorted(edges)))


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
