"""How exceptions are pickled: without their constructors.

Plain pickle makes an exception again by a call of its class with `args`. If the class has an `__init__` of its own,
this call fails, or it changes the text once more, as with `super().__init__(f"bad {name}")`. So an exception is made
again as Python itself makes it, by the built-in class below it, and then gets its attributes. An exception that says
how it is pickled, by `__reduce__` or `copyreg`, is pickled so.
"""

from __future__ import annotations

import copyreg
from typing import Any

__all__ = ["reduced_error"]


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
