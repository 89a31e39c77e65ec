"""How Python sources are parsed while other threads parse, too."""

from __future__ import annotations

import ast
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["parsed", "without_warnings"]

PARSES_MAX = 10
"""How often a source is parsed until Python does not mix it up with what another thread parses."""

_COMPILING = threading.RLock()


@contextmanager
def without_warnings() -> Iterator[None]:
    """Compile without the warnings about a source, which were given when it was loaded; one thread at a time, because
    the filters of warnings belong to the process."""
    with _COMPILING, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def parsed(source: str | bytes, name: str = "<unknown>") -> ast.Module:
    """Parse a source.

    Python 3.11 and 3.12 count the depth of all trees in one place. When two threads parse, one of them can fail with
    "AST constructor recursion depth mismatch" (python/cpython issue 106905). The threads of mwpy take turns. Those of
    the user and of other libraries do not, therefore a failed attempt is repeated.

    Raises:
        SyntaxError, ValueError, RecursionError: it cannot be parsed.
    """
    with without_warnings():
        for _ in range(PARSES_MAX - 1):
            try:
                return ast.parse(source, name)
            except SystemError:
                continue
        return ast.parse(source, name)
