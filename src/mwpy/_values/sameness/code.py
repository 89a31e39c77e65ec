"""The code that a function consists of: its own, and everything of the user that it reaches.

`code_of` begins at a function, and follows the names in its code: to other functions, classes and values of the user's
own modules, to what its closure and its default arguments contain, and to what these reach in turn. Installed packages
count by their version, the standard library by the minor version of Python, and mwpy not at all.

What it cannot follow: names that exist only as texts (`getattr(module, name)`, `eval`), and files that the code reads.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from types import FunctionType
from typing import Any

from msgspec import Struct

from mwpy._values.sameness.graph import UNKNOWN, graph_digest, parts_in, reachable
from mwpy._values.sameness.reached import Reached
from mwpy._values.sameness.watch import Watch

__all__ = ["Code", "NotComparable", "code_of"]

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
