"""How Python sources are parsed while other threads parse, too."""

from __future__ import annotations

import ast
import gc
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["compiling", "parsed"]

_COMPILING = threading.RLock()


@contextmanager
def compiling() -> Iterator[None]:
    """Compile without warnings, which the source gave when it was loaded, and without garbage collection.

    Python 3.11 counts the depth of all syntax trees in one place. A finalizer that runs while a tree is built lets
    other threads run. If one of them builds a tree, too, Python raises SystemError, "AST constructor recursion depth
    mismatch" (python/cpython issue 106905). Without garbage collection no finalizer runs. The filters of warnings and
    the collector belong to the process, therefore only one thread at a time changes them.
    """
    with _COMPILING, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        collects = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if collects:
                gc.enable()


def parsed(source: str | bytes, name: str = "<unknown>") -> ast.Module:
    """Parse a source.

    Raises:
        SyntaxError, ValueError, RecursionError: it cannot be parsed.
    """
    with compiling():
        return ast.parse(source, name)
