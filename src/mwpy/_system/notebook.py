"""The notebook, or the other shell of IPython, that this process belongs to, if there is one."""

from __future__ import annotations

import sys
from typing import Any

from msgspec import Struct

__all__ = ["Cell", "is_ipython", "is_notebook"]


def is_notebook() -> bool:
    """Whether the code runs in the kernel of a notebook. It does not import IPython."""
    return hasattr(_shell(), "kernel")


def is_ipython() -> bool:
    """Whether the code runs in a notebook or in another shell of IPython. It does not import IPython."""
    return _shell() is not None


def _shell() -> Any:
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()


class _Shown(Struct, frozen=True):
    """Something that a cell shows."""

    text: str
    html: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return self.html


class Cell(Struct, eq=False):
    """A place in the output of the cell that runs, whose content can be replaced."""

    _handle: Any = None

    def show(self, text: str, html: str) -> None:
        """Show something in place of what was there: as text where HTML cannot be shown."""
        shown = _Shown(text, html)
        if self._handle is None:
            self._handle = sys.modules["IPython"].display.display(shown, display_id=True)
        else:
            self._handle.update(shown)
