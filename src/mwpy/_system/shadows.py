"""Modules of the user that hide modules of the standard library or of a package that mwpy needs.

Python searches the folder of the script first. A file `queue.py` there replaces Python's own `queue` for all libraries,
and they fail with errors that do not show the cause. This module itself must work in this case, so it imports only what
Python has loaded at its start.
"""

from __future__ import annotations

import os
import sys

PACKAGES_OF_MWPY = frozenset(("attr", "attrs", "cloudpickle", "msgspec", "zmq"))
"""Each of them is a folder, so a single file with such a name is another module."""


STANDARD_LIBRARY = os.path.dirname(os.__file__)


def explain(error: BaseException) -> None:
    """Add a note to an error for each module that hides another one: its file, and what to do."""
    for path, name in {**_loaded(), **_in_traceback(error)}.items():
        error.add_note(f"mwpy: {path} hides the module {name!r} that Python or mwpy needs: rename this file")


def _loaded() -> dict[str, str]:
    """The files of loaded modules that hide another module, with the names of these modules."""
    found: dict[str, str] = {}
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        foreign = name in PACKAGES_OF_MWPY and not hasattr(module, "__path__")
        if path and (foreign or (name in sys.stdlib_module_names and not _is_standard(path))):
            found[os.path.abspath(path)] = name
    return found


def _in_traceback(error: BaseException) -> dict[str, str]:
    """The same for modules that failed while they were loaded."""
    found: dict[str, str] = {}
    step = error.__traceback__
    while step is not None:
        path = os.path.abspath(step.tb_frame.f_code.co_filename)
        folder, file = os.path.split(path)
        name = file.removesuffix(".py")
        if name in sys.stdlib_module_names | PACKAGES_OF_MWPY and folder in sys.path and not _is_standard(path):
            found[path] = name
        step = step.tb_next
    return found


def _is_standard(path: str) -> bool:
    folder, _, rest = path.removeprefix(STANDARD_LIBRARY).lstrip(os.sep).partition(os.sep)
    return path.startswith(STANDARD_LIBRARY + os.sep) and not (rest and folder in ("site-packages", "dist-packages"))
