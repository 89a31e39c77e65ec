"""Objects to bytes and back: the only place that pickles.

Numbers, texts, bytes and None, and calls with nothing but such arguments, none of them named, travel as MessagePack,
which is quicker and smaller than their pickles, and of which a whole group is read at once. Everything else is pickled
in protocol 5, and the pickle is an extension type among them; buffers of 64 KiB and more (those of NumPy arrays, say)
go out of band and are not copied on the way.
Plain pickle comes first, because it is ten times quicker; cloudpickle does what plain pickle cannot, and what it would
do wrongly: in a REPL or notebook, what is defined in `__main__` is pickled by name, and the slave's `__main__` is
another one (`main_by_value`).

A failure is pickled so that reading it cannot fail: type, text and traceback are text, and the exception
itself is a pickle within the pickle, which becomes None where its class is not available.
"""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
from attrs import frozen

from mwpy._values.errors import ArgumentNotPicklable
from mwpy._values.ids import Buffer
from mwpy._values.messagepack import NOT_ENCODABLE, Pickled, as_pickle, decode, encode
from mwpy._values.task import unpickle_with

__all__ = ["Codec", "describe_error", "loads", "loads_call", "loads_function"]

OUT_OF_BAND_BYTES = 64 * 1024
"""Smaller buffers travel quicker inside the pickle than as frames of their own."""

MAX_TEXT = 64 * 1024
"""Characters kept of an error's text (its beginning) and of its traceback (its end)."""

MAX_CAUSE_BYTES = 1 << 20
"""A pickled exception beyond this stays behind; its text goes."""

_PLAIN = frozenset({type(None), bool, int, float, str, bytes})
"""Types whose values come back from MessagePack as they were; told apart beforehand, for they are the most."""
_OWN_FILES = os.path.dirname(os.path.dirname(__file__)) + os.sep


@frozen
class Codec:
    """How one process pickles.

    Args:
        main_by_value: whether what is defined in `__main__` travels by value, as it must from a REPL or
        notebook.
    """

    main_by_value: bool = False

    def dumps_value(self, value: object) -> tuple[bytes, Sequence[Buffer]]:
        """Pickle an object.

        Returns:
            What stands for it in a group, and the memory of its large buffers itself: send it before the object
            changes.

        Raises:
            Exception: whatever pickling raises; the object's fault.
        """
        if type(value) in _PLAIN:
            try:
                return encode(value), ()
            except NOT_ENCODABLE:
                pass
        pickled, buffers = self._pickled(value)
        return encode(as_pickle(pickled)), buffers

    def _pickled(self, value: object) -> tuple[bytes, Sequence[Buffer]]:
        buffers: list[Buffer] = []

        def keep_in_band(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()  # contiguous: pickle has seen to that
            if raw.nbytes < OUT_OF_BAND_BYTES:
                return True
            buffers.append(raw)
            return False

        try:
            payload = pickle.dumps(value, 5, buffer_callback=keep_in_band)
            if not self.main_by_value or b"__main__" not in payload:
                return payload, buffers
        except Exception:  # what plain pickle raises for a lambda or a local class has no common class
            pass
        buffers.clear()
        return cloudpickle.dumps(value, 5, buffer_callback=keep_in_band), buffers

    def dumps_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> tuple[bytes, Sequence[Buffer]]:
        """Pickle the arguments of a task as they are now; what happens to them later does not reach the task.

        Args:
            name: the task algorithm's, for the message.

        Raises:
            ArgumentNotPicklable: the message names the argument; the caller's fault.
        """
        for value in args:
            if type(value) not in _PLAIN:
                break
        else:
            try:
                if not kwargs:
                    return encode(args), ()
            except NOT_ENCODABLE:
                pass
        try:
            payload, buffers = self.dumps_value((args, kwargs))
        except Exception as error:
            raise ArgumentNotPicklable(self._blame(args, kwargs, name, error)) from error
        return payload, [bytes(buffer) for buffer in buffers] if buffers else ()

    def _blame(self, args: tuple[Any, ...], kwargs: dict[str, Any], name: str, error: Exception) -> str:
        named = [(f"argument {position}", value) for position, value in enumerate(args, 1)]
        named += [(f"argument {keyword!r}", value) for keyword, value in kwargs.items()]
        for label, value in named:
            try:
                self.dumps_value(value)
            except Exception as culprit:
                return (
                    f"{label} of {name}, a {type(value).__qualname__}, cannot be pickled ({_text(culprit)}): "
                    f"pass what it is made from, and make it in the task"
                )
        return f"the arguments of {name} cannot be pickled together ({_text(error)}): pass simpler ones"

    def dumps_failure(self, error: BaseException) -> bytes:
        """Pickle an exception so that it can be read anywhere, whatever it is.

        Returns:
            What stands for it in a group: `loads` makes of it (type name, text, traceback, the exception or None), all
            but the last text. The traceback starts at the first frame that is not mwpy's.
        """
        told = describe_error(error)
        try:
            cause, buffers = self._pickled(error)
            pickle.loads(cause, buffers=buffers)  # one with a constructor of its own may pickle well and not unpickle
        except Exception:
            cause, buffers = b"", ()
        if buffers or len(cause) > MAX_CAUSE_BYTES:
            cause = b""
        return encode(as_pickle(pickle.dumps((*told, _Cause(cause)), 5)))

    def dumps_function(self, function: Callable[..., Any], name: str) -> bytes:
        """Pickle a function by value.

        Raises:
            ArgumentNotPicklable: it refers to something that cannot be pickled; the caller's fault.
        """
        try:
            data: bytes = cloudpickle.dumps(function, 5)
        except Exception as error:
            raise ArgumentNotPicklable(
                f"{name} must travel by value, but refers to what cannot be pickled ({_text(error)}): "
                f"pass that as an argument, or make it in the task"
            ) from error
        return data


def loads(entry: object, buffers: Sequence[Buffer] = ()) -> Any:
    """The object that an entry of a group stands for, as `dumps_value` or `dumps_failure` wrote it.

    Arrays use the memory of `buffers` from then on, and can be changed if it can.

    Raises:
        Exception: whatever unpickling raises: what was pickled needs something that is not here.
    """
    return pickle.loads(entry.pickle, buffers=buffers) if type(entry) is Pickled else entry


def loads_call(entry: Any, buffers: Sequence[Buffer] = ()) -> tuple[Sequence[Any], dict[str, Any]]:
    """The positional and keyword arguments that an entry of a group stands for, as `dumps_call` wrote them.

    Raises:
        Exception: as `loads`.
    """
    if type(entry) is not Pickled:
        return entry, {}
    args, kwargs = pickle.loads(entry.pickle, buffers=buffers)
    return args, kwargs


unpickle_with(loads, lambda payload, buffers: loads_call(decode(payload), buffers))


def loads_function(data: Buffer) -> Callable[..., Any]:
    """Unpickle what `dumps_function` pickled.

    Raises:
        Exception: whatever unpickling raises: the function needs something that is not here.
    """
    function: Callable[..., Any] = pickle.loads(data)
    return function


def describe_error(error: BaseException) -> tuple[str, str, str]:
    """An exception's type, text and traceback as text, whatever its own methods do."""
    return _type_name(error), _text(error), _traceback(error)


@frozen
class _Cause:
    """A pickled exception that unpickles to None where it cannot be rebuilt."""

    data: bytes

    def __reduce__(self) -> tuple[Callable[[bytes], BaseException | None], tuple[bytes]]:
        return _rebuild, (self.data,)


def _rebuild(data: bytes) -> BaseException | None:
    try:
        cause = pickle.loads(data)
    except Exception:
        return None
    return cause if isinstance(cause, BaseException) else None


def _type_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _text(error: BaseException) -> str:
    try:
        return str(error)[:MAX_TEXT]
    except Exception as second:
        return f"(its text is not available: __str__ raised {type(second).__qualname__})"


def _traceback(error: BaseException) -> str:
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_OWN_FILES):
        frames = frames.tb_next
    try:
        return "".join(traceback.format_exception(type(error), error, frames))[-MAX_TEXT:]
    except Exception as second:
        return f"(its traceback is not available: {type(second).__qualname__})"
