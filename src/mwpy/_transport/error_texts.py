"""What an exception says, as texts, and how exceptions are copied without their constructors.

What an exception says, as texts, even if its own methods raise errors.
"""

from __future__ import annotations

import copyreg
import os
import traceback
import types
from typing import Any

from mwpy._values.phrases import MAX_TEXT, text_of

_OWN_FILES = os.path.dirname(os.path.dirname(__file__)) + os.sep


def describe_error(error: BaseException) -> tuple[str, str, str]:
    """Return the type, the text and the traceback of an exception as texts, even if its own methods raise errors."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return name, text_of(error), _traceback(error)


def encodable(text: str) -> str:
    """Replace the halves of surrogate pairs in a text."""
    return text.encode(errors="backslashreplace").decode()


def users_traceback(error: BaseException) -> types.TracebackType | None:
    """Return the traceback of an exception from the first frame on that is not mwpy's."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_OWN_FILES):
        frames = frames.tb_next
    return frames


def _traceback(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(type(error), error, users_traceback(error)))[-MAX_TEXT:]
    except Exception as second:
        return f"(its traceback is not available: {type(second).__qualname__})"


# How exceptions are pickled: without their constructors.
#
# Plain pickle makes an exception again by a call of its class with `args`. If the class has an `__init__` of its own,
# this call fails, or it changes the text once more, as with `super().__init__(f"bad {name}")`. So an exception is made
# again as Python itself makes it, by the built-in class below it, and then gets its attributes. An exception that says
# how it is pickled, by `__reduce__` or `copyreg`, is pickled so.


def reduced_error(value: object) -> tuple[Any, ...] | None:
    """Return how an exception is pickled, as `__reduce__` does; None for others, and if its class says how."""
    if not isinstance(value, BaseException):
        return None
    kind = type(value)
    if kind in copyreg.dispatch_table or _is_own(kind, "__reduce__") or _is_own(kind, "__reduce_ex__"):
        return None
    reduced: Any = value.__reduce__()
    _, args, *given = reduced
    state: Any = value.__getstate__()
    if not _is_own(kind, "__setstate__"):
        slots = state[1] if isinstance(state, tuple) else {}
        state = {**(given[0] if given else {}), **slots}  # ImportError also gives what its constructor took
    return make_error, (kind, args), state or None, None, None, set_state


def make_error(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    """Make an exception as its built-in class makes it."""
    base: Any = next(each for each in kind.__mro__ if each.__module__ == "builtins")
    error: BaseException = base.__new__(kind, *args)
    base.__init__(error, *args)
    return error


def set_state(error: Any, state: Any) -> None:
    """Give an exception that `make_error` has made its attributes, also if it is frozen."""
    if _is_own(type(error), "__setstate__"):
        error.__setstate__(state)
    else:
        for name, value in state.items():
            object.__setattr__(error, name, value)


def _is_own(kind: type, name: str) -> bool:
    """Whether a class has a method that is not that of a built-in class."""
    return next(each for each in kind.__mro__ if name in vars(each)).__module__ != "builtins"
