"""Objects to bytes and back. Only this module and `by_value.py`, which it uses, pickle objects.

*Plain values* are numbers, texts, bytes and None. They are written as MessagePack, and so are calls that have only
plain positional arguments. This is faster and smaller than pickles, and a whole group is read in one call. Every other
object is pickled in protocol 5, and the pickle is an extension type in the MessagePack. Its buffers of 64 KiB and more,
such as those of NumPy arrays, are frames of their own and are not copied. So are `bytes`, `bytearray` and `str` of this
size, for which pickle itself has no buffers.

Plain pickle is tried first, because it is ten times faster. cloudpickle pickles the rest: objects that plain pickle
refuses, and objects that plain pickle would write as a name in `__main__` that slaves do not find. This is necessary
for a REPL or notebook, because the slave's `__main__` is another module, and for what a script defines in its guard.

A failure can always be read: type, text and traceback are texts (see `_values/task.py`). The exception itself is a
pickle beside them. It is read as None if its class is not available.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import islice
from types import FunctionType
from typing import Any, ClassVar

from msgspec import Struct

from mwpy._system.packages import PICKLE_MARKS, reduced
from mwpy._system.script import MAIN, LoadedScript, can_run_elsewhere, loaded_script
from mwpy._transport.error_texts import describe_error, encodable, reduced_error
from mwpy._transport.stream import lend
from mwpy._values.bounds import LARGE_BYTES, MAX_REPORT_BYTES, Buffer
from mwpy._values.errors import ArgumentNotPicklable, UsageError
from mwpy._values.messagepack import (
    EXTENDED,
    FAILURE,
    NOT_ENCODABLE,
    PLAIN,
    REFERRING,
    RESUMED,
    SIZE_BYTES,
    Pickled,
    as_extension,
    as_pickle,
    decode,
    encode,
)
from mwpy._values.phrases import text_of
from mwpy._values.policy import Condition
from mwpy._values.shares import known
from mwpy._values.task import (
    GIVEN,
    NOTED,
    SEED_BYTES,
    Failure,
    Reference,
    ReferringBuffers,
    ResultReference,
    read_failure,
    unpickle_with,
)

# What travels with an encoded call: the seed of its task, and the condition under which the task is tried again.
#
# The state that an earlier attempt of the task left travels with it, too.


def with_extras(call: bytes, seed: int | None, condition: bytes) -> bytes:
    """Add a seed and a pickled condition, which is empty if there is none, to what `dumps_call` encoded.

    `loads_call` ignores them, and `extras_of` returns them.
    """
    if seed is None and not condition:
        return call
    number = b"" if seed is None else seed.to_bytes(SEED_BYTES, "big")
    return encode(as_extension(EXTENDED, encode((number, condition, call))))


def extras_of(entry: object) -> tuple[int | None, bytes]:
    """Return the seed of a call, None if it has none; and its pickled condition, empty if it has none."""
    if type(entry) is not Pickled or entry.kind != EXTENDED:
        return None, b""
    number, condition, _ = _extended(entry)
    return int.from_bytes(number, "big") if number else None, condition


def _extended(entry: Pickled) -> Any:
    return decode(bytes(entry.pickle))  # with msgspec 0.19, a slice of this memoryview can go beyond its end


def split_resumed(entry: Any, buffers: Sequence[Buffer]) -> tuple[Any, Sequence[Buffer], Sequence[Buffer]]:
    """Return a call without the state that an earlier attempt left, its own buffers, and the frames of this state; no
    frames if there is no state."""
    if type(entry) is not Pickled or entry.kind != RESUMED:
        return entry, buffers, ()
    data = bytes(entry.pickle)
    own = int.from_bytes(data[:SIZE_BYTES], "big")
    return decode(data[SIZE_BYTES:]), buffers[:own], buffers[own:]


LARGE_ITEMS = 100
"""In so many items of each container, large texts and bytes are looked for."""

LARGE_DEPTH = 4
"""How deep in containers they are looked for. The arguments of a task are at depth 2."""

MAX_CAUSE_BYTES = 16 << 20
"""If a pickled exception is larger, only its texts are sent."""

MAX_CONDITION_BYTES = 64 * 1024
"""A pickled condition may have at most this size, because it travels with each task."""

ADD_GUARD = (
    '; or open the master inside `if __name__ == "__main__":`, so that slaves load the script and find their own there'
)
"""What else helps in a script without a guard."""

CONDITIONS_KEPT = 16
"""How many conditions a slave keeps."""


class _NamingPickler(pickle.Pickler):
    """Pickles the shared random number generators by their names (see `packages.py`), and exceptions without their
    constructors (see `error_texts.py`)."""

    def reducer_override(self, value: Any) -> Any:
        return reduced(value) or reduced_error(value) or NotImplemented


class _SharedPickler(_NamingPickler):
    """Pickles so that each array of NumPy has its memory in a buffer, which all slaves map and nobody can change."""

    def reducer_override(self, value: Any) -> Any:
        """Make an array contiguous: only then it has one buffer."""
        numpy = sys.modules.get("numpy")
        if numpy is None or type(value) is not numpy.ndarray or value.flags.forc or value.dtype.hasobject:
            return super().reducer_override(value)
        return numpy.ascontiguousarray(value).__reduce_ex__(5)


class _LargePickler(_NamingPickler):
    """Pickles large texts and bytes as references to their memory, which is in a buffer (see `_Unpickler`)."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._references: dict[int, tuple[Any, tuple[type, pickle.PickleBuffer]]] = {}
        """Each large object by its id, and the reference to it: an object that occurs twice travels once."""

    def persistent_id(self, value: Any) -> tuple[type, pickle.PickleBuffer] | None:
        """Return the type and the memory of a large text or bytes; None for all other objects."""
        if not _is_large(value):
            return None
        if id(value) not in self._references:
            memory = pickle.PickleBuffer(value.encode(*UTF8) if type(value) is str else value)
            self._references[id(value)] = value, (type(value), memory)
        return self._references[id(value)][1]


class _Unpickler(pickle.Unpickler):
    """Reads what `_LargePickler` has written."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._objects: dict[int, tuple[Any, Any]] = {}
        """Each reference by its id, and the object."""

    def persistent_load(self, reference: Any) -> Any:
        """Make a text or bytes of its memory."""
        if id(reference) not in self._objects:
            kind, memory = reference
            self._objects[id(reference)] = reference, str(memory, *UTF8) if kind is str else kind(memory)
        return self._objects[id(reference)][1]


UTF8 = "utf-8", "surrogatepass"
"""How the memory of a large text is read: half a surrogate pair is a text of Python."""


def _is_large(value: Any) -> bool:
    return type(value) in _SIZED and len(value) >= LARGE_BYTES


_SIZED = frozenset({bytes, bytearray, str})


def _has_large(value: Any, depth: int = LARGE_DEPTH) -> bool:
    """Whether there is a large text or bytes in a value, as far as it is worth looking."""
    kind = type(value)
    if not depth or kind not in _CONTAINERS:
        return _is_large(value)
    items = value.values() if kind is dict else value
    return any(_has_large(each, depth - 1) for each in islice(items, LARGE_ITEMS))


_CONTAINERS = frozenset({tuple, list, dict})


def any_large(values: Iterable[Any], kinds: set[type]) -> bool:
    """Whether a text or bytes among some plain values is large.

    Args:
        kinds: the types of the values.
    """
    if kinds.isdisjoint(_SIZED):
        return False
    return max(map(len, values), default=0) >= LARGE_BYTES if kinds <= _SIZED else any(map(_is_large, values))


def _unpickled(pickled: Buffer, buffers: Sequence[Buffer]) -> Any:
    """Unpickle what `Codec` has pickled."""
    if buffers:
        return _Unpickler(io.BytesIO(pickled), buffers=buffers).load()
    return pickle.loads(pickled)


class Codec(Struct, frozen=True):
    """How one process pickles.

    Args:
        found: what other processes find in their own `__main__`, by name; None for everything. It is empty in a REPL or
            notebook. What they do not find travels by value.
    """

    found: Mapping[str, object] | None = None
    interrupts: ClassVar[tuple[type[BaseException], ...]] = ()
    """Exceptions that a user may raise while an exception is encoded."""

    @property
    def main_by_value(self) -> bool:
        """Whether everything of `__main__` travels by value."""
        return self.found == {}

    def _is_readable(self, pickled: bytes) -> bool:
        """Whether other processes find what a plain pickle names."""
        if self.found is None or b"__main__" not in pickled:
            return True
        space = vars(sys.modules[MAIN])
        missing = (space.get(name) for name in space.keys() - self.found.keys())
        return not self.main_by_value and not any(isinstance(each, FunctionType | type) for each in missing)

    def dumps_value(self, value: object) -> tuple[bytes, Sequence[Buffer]]:
        """Encode an object.

        Returns:
            Its entry in a group, and its large buffers. These are the object's own memory: send them before the
            object changes.

        Raises:
            Exception: any error of pickling; the object's fault.
        """
        is_large = type(value) in _SIZED and _is_large(value)
        if type(value) in PLAIN and not is_large:
            try:
                return encode(value), ()
            except NOT_ENCODABLE:
                pass
        pickled, buffers = self._pickled(value, is_large=is_large)
        return encode(as_pickle(pickled)), buffers

    def _pickled(self, value: object, *, is_large: bool = False) -> tuple[bytes, Sequence[Buffer]]:
        is_error = isinstance(value, BaseException)
        buffers: list[Buffer] = []

        def keep_in_band(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()  # pickle only passes contiguous buffers
            if raw.nbytes < LARGE_BYTES:
                return True
            buffers.append(raw)
            return False

        try:
            payload = b"" if is_error or is_large else pickle.dumps(value, 5, buffer_callback=keep_in_band)
            is_large = is_large or (len(payload) >= LARGE_BYTES and _has_large(value))
            if is_large or is_error or any(mark in payload for mark in PICKLE_MARKS):  # that of `random.gauss`
                buffers.clear()
                file = io.BytesIO()
                pickler = _LargePickler if is_large else _NamingPickler
                pickler(file, 5, buffer_callback=keep_in_band).dump(value)
                payload = file.getvalue()
            if self._is_readable(payload):
                return payload, buffers
        except Exception:  # plain pickle raises different classes of errors for lambdas and local classes
            pass
        buffers.clear()
        from mwpy._transport import by_value  # many slaves never need cloudpickle

        return by_value.dumps(value, found=self.found, keep_in_band=keep_in_band), buffers

    def dumps_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> tuple[bytes, Sequence[Buffer]]:
        """Encode the arguments of a task as they are now. Later changes of the arguments do not reach the task.

        Large buffers are copied into files that can be passed to slaves on this host.

        Args:
            name: the name of the task algorithm, for the error message.

        Returns:
            The encoded call, and its large buffers. They are `ReferringBuffers` if the arguments contain references.

        Raises:
            ArgumentNotPicklable: an argument cannot be pickled, and the message names it; the caller's fault.
        """
        for value in args:
            if type(value) not in PLAIN or (type(value) in _SIZED and _is_large(value)):
                break
        else:
            try:
                if not kwargs:
                    return encode(args), ()
            except NOT_ENCODABLE:
                pass
        references: dict[Reference, None] = {}
        NOTED.found = references
        try:
            is_large = any(map(_is_large, (*args, *kwargs.values())))
            pickled, buffers = self._pickled((args, kwargs), is_large=is_large)
            payload = encode(as_pickle(pickled))
        except Exception as error:
            named = {f"argument {position} of {name}": value for position, value in enumerate(args, 1)}
            named |= {f"argument {keyword!r} of {name}": value for keyword, value in kwargs.items()}
            remedy = "pass what it is made from, and make it in the task"
            story = self._blame(named, remedy, f"the arguments of {name}", "pass simpler ones", error)
            raise ArgumentNotPicklable(story) from error
        finally:
            NOTED.found = None
        copies: Sequence[Buffer] = _copied(buffers) if buffers else ()
        if references:
            if any(isinstance(each, ResultReference) for each in references):
                payload = encode(as_extension(REFERRING, len(buffers).to_bytes(SIZE_BYTES, "big") + payload))
            return payload, ReferringBuffers(copies, references)
        return payload, copies

    def _blame(self, named: dict[str, Any], remedy: str, together: str, simpler: str, error: Exception) -> str:
        """Name the first of some objects that cannot be pickled, and say what to do.

        Args:
            named: the objects by their names.
            remedy: what to do instead.
            together: the name of all of them.
            simpler: what to do if each of them can be pickled.
            error: why they cannot be pickled together.
        """
        for label, value in named.items():
            try:
                self.dumps_value(value)
            except Exception as culprit:
                from mwpy._transport import by_value

                variable = by_value.culprit_in(value, self.found) if type(value).__module__ == MAIN else ""
                why = f"{variable} that cannot be pickled: {text_of(culprit)}" if variable else text_of(culprit)
                hint = self._hint() if variable else ""
                return f"{label}, a {type(value).__qualname__}, cannot be pickled ({why}): {remedy}{hint}"
        return f"{together} cannot be pickled together ({text_of(error)}): {simpler}"

    def _hint(self) -> str:
        """What else helps if the script has no guard."""
        return ADD_GUARD if self.main_by_value and can_run_elsewhere() and loaded_script() is None else ""

    def dumps_failure(self, error: BaseException, remark: str = "") -> bytes:
        """Encode any exception so that it can be read anywhere.

        Args:
            remark: what to add to its text.

        Returns:
            Its entry in a group. `loads` turns it into (type name, text, traceback, exception), where the first three
            are texts and the exception may be None. The traceback starts at the first frame that is not mwpy's.
        """
        try:
            cause, buffers = self._pickled(error)
            pickle.loads(cause, buffers=buffers)  # an exception with its own `__reduce__` may fail here
        except self.interrupts:
            raise
        except BaseException:  # its methods can do anything, also sys.exit
            cause, buffers = b"", ()
        if buffers or len(cause) > MAX_CAUSE_BYTES:
            cause = b""
        type_name, text, remote_traceback = map(encodable, describe_error(error))
        text = f"{text} ({encodable(remark)})".lstrip() if remark else text
        return encode(as_extension(FAILURE, encode(Failure(type_name, text, remote_traceback, cause))))

    def dumps_condition(self, condition: Condition) -> bytes:
        """Pickle the condition under which tasks are tried again.

        Raises:
            ArgumentNotPicklable: it cannot be pickled; the caller's fault.
            UsageError: it is too large; the caller's fault.
        """
        remedy = "give exception types, or a function that needs only its argument"
        with _named("retry_errors refers to an object that", remedy):
            pickled, buffers = self._pickled(condition)
        remedy = "because it travels with each task: give exception types, or a function that refers to no large object"
        _limited("retry_errors", [pickled, *buffers], MAX_CONDITION_BYTES, f", {remedy}")
        return pickled

    def dumps_state(self, state: object) -> tuple[bytes, Sequence[Buffer]]:
        """Encode the state that a task leaves, as `dumps_value` does. `loads_state` reads it.

        Raises:
            ArgumentNotPicklable: it cannot be pickled; the caller's fault.
        """
        with _named(f"the state, a {type(state).__qualname__},", "leave what it is made from"):
            return self.dumps_value(state)

    def dumps_report(self, values: dict[str, object]) -> bytes:
        """Encode the values that a task reports. `loads` reads them when their entry is decoded.

        Raises:
            ArgumentNotPicklable: one cannot be pickled, and the message names it; the caller's fault.
            UsageError: they are too large; the caller's fault.
        """
        try:
            entry, buffers = self.dumps_value(values)
        except Exception as error:
            named = {f"the value {name!r} of the report": value for name, value in values.items()}
            remedy = "report what it is made from"
            story = self._blame(named, remedy, "the values of the report", "report simpler ones", error)
            raise ArgumentNotPicklable(story) from error
        remedy = "report less, or write the values to a file and report its name"
        _limited("the report", [entry, *buffers], MAX_REPORT_BYTES, f": {remedy}")
        return entry

    def dumps_shared(self, value: object) -> tuple[bytes, Sequence[Buffer]]:
        """Pickle an object that many tasks use, with all of its buffers. `loads_shared` reads it.

        Raises:
            ArgumentNotPicklable: it cannot be pickled; the caller's fault.
        """
        remedy = "share what it is made from, and make it in the task"
        with _named(f"the object to share, a {type(value).__qualname__},", remedy):
            file, buffers = io.BytesIO(), list[Buffer]()
            with suppress(Exception):  # as in `_pickled`
                _SharedPickler(file, 5, buffer_callback=lambda buffer: buffers.append(buffer.raw())).dump(value)
                if self._is_readable(file.getvalue()):
                    return file.getvalue(), buffers
            return self._pickled(value)

    def dumps_function(
        self,
        function: Callable[..., Any],
        name: str,
        references: dict[Reference, None] | None = None,
        generators: dict[type, None] | None = None,
    ) -> bytes:
        """Pickle a function by value.

        Args:
            references: gets the references that the function has captured.
            generators: gets the types of the random number generators that are copied.

        Raises:
            ArgumentNotPicklable: it refers to something that cannot be pickled; the caller's fault.
        """
        from mwpy._transport import by_value

        NOTED.found = references
        try:
            return by_value.dumps(function, found=self.found, generators=generators)
        except Exception as error:
            culprit = by_value.culprit_in(function, self.found) or "it refers to an object"
            raise ArgumentNotPicklable(
                f"{name} must travel by value, but {culprit} that cannot be pickled ({text_of(error)}): pass that "
                f"object as an argument, or make it in the task{self._hint()}"
            ) from error
        finally:
            NOTED.found = None


@contextmanager
def _named(what: str, remedy: str) -> Iterator[None]:
    """Say what cannot be pickled inside, and what to do."""
    try:
        yield
    except Exception as error:
        raise ArgumentNotPicklable(f"{what} cannot be pickled ({text_of(error)}): {remedy}") from error


def _limited(what: str, frames: Sequence[Buffer], most: int, rest: str) -> None:
    """Raise a UsageError, which ends with this text, if frames are too large together."""
    size = sum(map(len, frames))
    if size > most:
        raise UsageError(f"{what} is {size} bytes, the limit is {most} bytes{rest}")


def has_code(pickled: bytes) -> bool:
    """Whether what `Codec.dumps_function` returned may contain compiled code, which other versions of Python cannot
    load. Only cloudpickle pickles code, and names its own functions."""
    return b"cloudpickle" in pickled


def codec_of(script: LoadedScript | None) -> Codec:
    """Return the codec of a master whose slaves load this script; None if they load none."""
    return Codec({} if script is None else script.found(_can_travel))


def _can_travel(value: object) -> bool:
    """Whether an object can be pickled. Its buffers are not copied for this."""
    if isinstance(value, FunctionType | type):
        return True
    try:
        pickle.dumps(value, 5, buffer_callback=lambda _: None)
    except Exception:  # pickle raises different classes of errors
        return False
    return True


def _copied(buffers: Sequence[Buffer]) -> Sequence[Buffer]:
    return [bytes(buffer) if (copy := lend(buffer)) is None else copy for buffer in buffers]


def loads(entry: object, buffers: Sequence[Buffer] = ()) -> Any:
    """Return the object of an entry that `dumps_value` or `dumps_failure` made.

    Arrays use the memory of `buffers`, and are writable if the buffers are.

    Raises:
        Exception: any error of unpickling, for example because a module is not installed on this machine.
    """
    if type(entry) is not Pickled:
        return entry
    if entry.kind == FAILURE:
        failure = read_failure(bytes(entry.pickle))
        return failure.type_name, failure.text, failure.traceback, _rebuild(failure.cause)
    return _unpickled(entry.pickle, buffers)


def loads_call(entry: Any, buffers: Sequence[Buffer] = ()) -> tuple[Sequence[Any], dict[str, Any]]:
    """Return the positional and keyword arguments of an entry that `dumps_call` made.

    Raises:
        Exception: as `loads`.
    """
    if type(entry) is not Pickled:
        return entry, {}
    if entry.kind == EXTENDED:
        return loads_call(decode(_extended(entry)[2]), buffers)
    if entry.kind == REFERRING:
        return _loads_referring(bytes(entry.pickle), buffers)
    args, kwargs = _unpickled(entry.pickle, buffers)
    return args, kwargs


def plain_arguments(payload: Buffer) -> Sequence[Any] | None:
    """Return the positional arguments of a call; None if it has others, or ones that must be unpickled."""
    entry: Any = decode(payload)
    if type(entry) is Pickled and entry.kind == EXTENDED:
        entry = decode(_extended(entry)[2])
    return None if type(entry) is Pickled or any(type(each) is Pickled for each in entry) else entry


def _loads_referring(data: bytes, buffers: Sequence[Buffer]) -> tuple[Sequence[Any], dict[str, Any]]:
    """Load a call with the values of the results to which it refers."""
    own = int.from_bytes(data[:SIZE_BYTES], "big")
    values: dict[int, object] = {}
    if own < len(buffers):
        index: Any = decode(buffers[own])
        start = own + 1
        for number, names in index:
            note = f"(mwpy.result: the result of task {number} cannot be unpickled here)"
            frames = zip(names, buffers[start : start + len(names)], strict=True)
            whole = [known(name).content if name and not frame else frame for name, frame in frames]
            values[number] = _loads_frames(whole, note)
            start += len(names)
    GIVEN.values = values
    try:
        return loads_call(decode(data[SIZE_BYTES:]), buffers[:own])
    finally:
        GIVEN.values = None


def _loads_frames(frames: Sequence[Buffer], note: str) -> object:
    """Load an entry and its large buffers. An error gets a note that says what cannot be unpickled."""
    try:
        return loads(decode(frames[0]), frames[1:])
    except Exception as error:
        error.add_note(note)
        raise


@lru_cache(maxsize=CONDITIONS_KEPT)
def loads_condition(pickled: bytes) -> Condition:
    """Unpickle what `dumps_condition` pickled.

    Raises:
        Exception: any error of unpickling, for example because a module is not installed on this machine.
    """
    condition: Condition = pickle.loads(pickled)
    return condition


unpickle_with(loads, lambda payload, buffers: loads_call(decode(payload), buffers))


def loads_state(frames: Sequence[Buffer]) -> object:
    """Unpickle what `dumps_state` encoded: the entry, and the large buffers.

    Raises:
        Exception: as `loads`.
    """
    return _loads_frames(frames, "(mwpy.restored: the state that an earlier attempt left cannot be unpickled here)")


def loads_shared(pickled: Buffer, buffers: Sequence[Buffer]) -> object:
    """Unpickle what `dumps_shared` pickled. Arrays use the memory of `buffers`.

    Raises:
        Exception: any error of unpickling, for example because a module is not installed on this machine.
    """
    return _unpickled(pickled, buffers)


def loads_function(data: Buffer) -> Callable[..., Any]:
    """Unpickle what `dumps_function` pickled.

    Raises:
        Exception: any error of unpickling, for example because a module is not installed on this machine.
    """
    function: Callable[..., Any] = pickle.loads(data)
    return function


def _rebuild(data: bytes) -> BaseException | None:
    """Unpickle an exception, if it can be unpickled here."""
    try:
        cause = pickle.loads(data)
    except KeyboardInterrupt:  # by Ctrl-C
        raise
    except BaseException:  # a pickle can call anything, also sys.exit
        return None
    return cause if isinstance(cause, BaseException) else None
