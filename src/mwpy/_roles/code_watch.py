"""Edited modules in a notebook: slaves must run the code that the notebook runs.

A slave keeps each module as it was when the slave imported it. The notebook keeps it, too, until the user loads it
again with `importlib.reload` or `%autoreload`. Therefore:

- When a module was edited and loaded again, all slaves are replaced. The new ones import the new files.
- When a module was edited and not loaded again, a function that uses it is refused: the notebook would run the old
  code and a new slave the new code. The error says how to load it again.
- When slaves could not run a function, for example because their machine had another version of its module, they are
  replaced before its next map. By then, the file may be the right one.
- When `sys.path` was changed, all slaves are replaced if nobody else can join. The new ones have the new `sys.path`.

A script is never loaded again while it runs, so nothing of this concerns scripts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct, field

from mwpy._core.master.commands import RenewSlaves
from mwpy._roles.access import Access
from mwpy._system import packages
from mwpy._system.modules import UserModules, module_path
from mwpy._values.bounds import MAX_REASON
from mwpy._values.errors import UsageError

__all__ = ["CodeWatch"]


class CodeWatch(Struct, eq=False):
    """Watches the modules of one interactive master."""

    _access: Access
    _modules: UserModules = field(default_factory=UserModules)
    only_here: bool = False
    """Whether all agents were started by this master, so that they are on its machine."""

    def __post_init__(self) -> None:
        self._modules.look()

    def look(self, function: Callable[..., Any], by_value: bool) -> bool:
        """Replace the slaves if a module was edited and loaded again, or if `sys.path` was changed.

        Returns:
            Whether they are replaced. Then the digests of all functions may have changed.

        Raises:
            UsageError: the function uses a module that was edited and not loaded again; the caller's fault.
        """
        reloaded = self._modules.look()
        path = module_path()
        moved = self.only_here and len(path) <= MAX_REASON and self._access.io.local.find_modules_in(path)
        if reloaded or moved:
            self._access.io.command(RenewSlaves(None, path if moved else ""))
        if self._modules.edited:
            for name in packages.modules_of(function, by_value):
                if name in self._modules.edited:
                    raise UsageError(
                        f"{name} was edited after it was imported here, so this process still runs its old code, and "
                        f"new slaves would run the new code: load it again with importlib.reload({name}), and define "
                        f"again what uses it"
                    )
        return reloaded or moved

    def renew(self, refused: int) -> None:
        """Replace the slaves that could not run an algorithm.

        Args:
            refused: its number.
        """
        self._access.io.command(RenewSlaves(refused))
