"""How values are encoded, and that each failure can be read."""

from __future__ import annotations

import copyreg
import dataclasses
import functools
import pickle
import random
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import pytest

from mwpy._roles import own_slave
from mwpy._transport.codec import Codec, loads, loads_call, loads_function
from mwpy._transport.error_texts import describe_error
from mwpy._values import algorithm, messagepack
from mwpy._values.bounds import LARGE_BYTES, Buffer
from mwpy._values.errors import ArgumentNotPicklable
from mwpy._values.phrases import MAX_TEXT

CODEC = Codec()

CACHED = """
import functools
@functools.lru_cache(50, typed=True)
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
fib.limit = 100
def work(n): return fib(n) + 1
"""
"""A notebook with a function that has a cache and calls itself, and another one that calls it."""


DECORATED = """
import functools
class Model:
    @functools.cached_property
    def rate(self): return depth([self])
    @functools.singledispatchmethod
    def shown(self, x): return "object"
    @shown.register
    def _(self, x: int): return "int"
@functools.singledispatch
def depth(x): return 0
@depth.register
def _(x: list): return 1 + max(map(depth, x))
def work(x): return depth(x), Model().rate, Model().shown(1), Model().shown("")
"""
"""A notebook with decorated functions that have locks and weak references, and that call themselves."""


def read(payload: Buffer, buffers: Sequence[Buffer] = ()) -> Any:
    """Decode a payload as its receiver does."""
    return loads(messagepack.decode(payload), buffers)


class Degrees(float):
    """A subclass of a plain type."""


VALUES: list[object] = [
    *(None, True, False, 0, -1, 2**64 - 1, -(2**63), 2**64, -(2**63) - 1, 10**100, 1.5, 1.0, float("inf")),
    *("", "word", "\u00e9\0", "\ud800", b"", b"bytes", b"\x80\x05", (), (1, [2]), [], {}, {"a": {3}}, Degrees(3.5)),
]
"""Values of each plain type, at their limits and beyond, and values that only look plain."""


@pytest.mark.parametrize("value", VALUES)
def test_a_value_comes_back_equal(value: object) -> None:
    payload, buffers = CODEC.dumps_value(value)
    back = read(payload, buffers)
    assert (back, type(back), list(buffers)) == (value, type(value), [])


@pytest.mark.parametrize("value", VALUES)
def test_an_argument_comes_back_equal_beside_any_other_argument(value: object) -> None:
    beside: list[tuple[object, ...]] = [(), (0,), ([],)]
    for others in beside:
        args, kwargs = read(*CODEC.dumps_call((value, *others), {"word": value}, "f"))
        assert (tuple(args), kwargs) == ((value, *others), {"word": value})
        assert type(args[0]) is type(kwargs["word"]) is type(value)


NUMBERS = [np.dtype(name).type(7) for name in "?bBhHiIlLefdFDg"] + [
    np.float64("nan"),
    np.datetime64("2020-01-02"),
    np.str_("x"),
]


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: type(number).__name__)
def test_a_number_of_numpy_comes_back_with_its_type(number: Any) -> None:
    back = read(*CODEC.dumps_value(number))
    args, kwargs = loads_call(messagepack.decode(CODEC.dumps_call((number, 5, "x"), {}, "f")[0]))
    by_name = loads_call(messagepack.decode(CODEC.dumps_call((), {"word": number}, "f")[0]))[1]["word"]
    for each in (back, args[0], by_name):
        assert type(each) is type(number)
        np.testing.assert_equal(each, number)
    assert (list(args[1:]), kwargs) == ([5, "x"], {})


def test_a_large_array_goes_out_of_band_and_shares_the_memory_of_its_buffer() -> None:
    array = np.arange(LARGE_BYTES, dtype=np.uint8)
    payload, buffers = CODEC.dumps_value(array)
    assert len(payload) < 1000
    array[0] = 9
    assert [bytes(buffer) for buffer in buffers] == [array.tobytes()]
    back = read(payload, [bytearray(buffers[0])])
    back += 1
    assert back[0] == 10


LARGE_TEXTS = ["x" * LARGE_BYTES, "\u00e9\ud800" * LARGE_BYTES, b"x" * LARGE_BYTES, bytearray(b"y" * LARGE_BYTES)]


@pytest.mark.parametrize("value", LARGE_TEXTS, ids=["ascii", "surrogates", "bytes", "bytearray"])
def test_a_large_text_or_bytes_goes_out_of_band(value: Any) -> None:
    """Alone, in containers, and in arguments. It is one object if it was one."""
    for several in (value, [1, value], {"a": (value, value)}):
        payload, buffers = CODEC.dumps_value(several)
        assert (len(payload) < 1000, len(buffers)) == (True, 1)
        assert read(payload, buffers) == several
    payload, buffers = CODEC.dumps_call((value, 1), {"b": value}, "f")
    args, kwargs = loads_call(messagepack.decode(payload), buffers)
    assert (len(payload) < 1000, args, kwargs) == (True, (value, 1), {"b": value})
    assert type(args[0]) is type(value)
    assert args[0] is kwargs["b"]


@pytest.mark.parametrize(
    "array", [np.zeros(10), np.arange(200_000).reshape(400, 500)[:, ::2], np.asfortranarray(np.ones((300, 300)))]
)
def test_small_arrays_and_any_layout_come_back_equal(array: Any) -> None:
    np.testing.assert_array_equal(read(*CODEC.dumps_value(array)), array)


def test_a_change_of_an_argument_after_submission_does_not_affect_the_task() -> None:
    array, words = np.zeros(LARGE_BYTES), ["a"]
    packed = CODEC.dumps_call((array,), {"words": words}, "f")
    array[:] = 1
    words.append("b")
    args, kwargs = read(*packed)
    assert (args[0].sum(), kwargs) == (0, {"words": ["a"]})


def test_a_cached_function_of_main_is_sent_with_an_empty_cache_only_from_a_repl(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec(CACHED, vars(main))
    main.fib(9)
    by_name = CODEC.dumps_function(main.work, "work")
    by_value = Codec({}).dumps_function(main.work, "work")
    argument, _ = Codec({}).dumps_value(main.fib)
    del main.fib
    work, fib = loads_function(by_value), read(argument)
    assert [fib.cache_info().currsize, fib(30), work(30), fib.cache_parameters()] == [
        *(0, 832040, 832041),
        {"maxsize": 50, "typed": True},
    ]
    assert fib.cache_info().hits > 0, "the function below the cache does not call itself through the cache"
    assert fib.limit == 100
    assert loads_function(by_name) is main.work, "it has no copy of the function that it calls"


def test_cached_properties_and_functions_that_choose_by_type_travel_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec(DECORATED, vars(main))
    packed = Codec({}).dumps_function(main.work, "work")
    argument, _ = Codec({}).dumps_value(main.depth)
    for name in ("Model", "depth"):
        delattr(main, name)
    assert loads_function(packed)([[1], 2]) == (2, 1, "int", "object")
    assert [read(argument)(x) for x in (1, [[[1]]])] == [0, 3]


def test_a_cached_function_without_a_name_is_sent_by_value_and_one_with_a_name_by_name() -> None:
    local = functools.cache(lambda x: x + 1)
    back, with_name = read(*CODEC.dumps_value((local, algorithm._algorithm_beside)))
    assert (back(1), back is local, with_name is algorithm._algorithm_beside) == (2, False, True)


@pytest.mark.parametrize(
    ("args", "kwargs", "culprit"),
    [((1, sys._getframe()), {}, "argument 2"), ((), {"where": sys._getframe()}, "argument 'where'")],
)
def test_an_argument_that_cannot_be_pickled_is_named(
    args: tuple[Any, ...], kwargs: dict[str, Any], culprit: str
) -> None:
    with pytest.raises(ArgumentNotPicklable, match=f"{culprit} of work, a frame, cannot be pickled"):
        CODEC.dumps_call(args, kwargs, "work")


class OnceOnly:
    """Can be pickled alone, but not together with another instance."""

    busy = 0

    def __reduce__(self) -> Any:
        OnceOnly.busy += 1
        if OnceOnly.busy <= 2:  # plain pickle, then cloudpickle
            raise ValueError("not now")
        return int, ()


def test_arguments_that_cannot_be_pickled_together_are_reported() -> None:
    with pytest.raises(ArgumentNotPicklable, match="cannot be pickled together"):
        CODEC.dumps_call((OnceOnly(),), {}, "work")


def failure_of(error: BaseException) -> tuple[str, str, str, BaseException | None]:
    failure: tuple[str, str, str, BaseException | None] = read(CODEC.dumps_failure(error))
    return failure


def test_a_failure_has_type_text_traceback_and_the_exception_itself() -> None:
    try:
        dict[str, int]()["key"]
    except KeyError as error:
        type_name, text, traceback, cause = failure_of(error)
    assert (type_name, text, type(cause)) == ("KeyError", "'key'", KeyError)
    assert "test_codec.py" in traceback
    assert '["key"]' in traceback


def test_the_traceback_leaves_out_the_frames_of_mwpy_at_its_top() -> None:
    def explode(_: object) -> NoReturn:
        raise RuntimeError("deep inside")

    class Fuse:
        def __setstate__(self, state: object) -> None:
            explode(state)

        def __getstate__(self) -> int:
            return 1

    payload, _ = CODEC.dumps_value(Fuse())
    with pytest.raises(RuntimeError) as caught:
        loads(messagepack.decode(payload))
    error = caught.value
    assert error.__traceback__ is not None
    error.__traceback__ = error.__traceback__.tb_next
    traceback = describe_error(error)[2]
    assert "mwpy/_codec.py" not in traceback
    assert "in explode" in traceback


class HasLock(Exception):
    def __init__(self) -> None:
        super().__init__("holds a frame")
        self.frame = sys._getframe()


class Unlike(Exception):
    """Says how it is pickled, and cannot be made again so."""

    def __reduce__(self) -> Any:
        return Unlike, (1, 2)

    def __init__(self, text: str) -> None:
        super().__init__(text)


class Ends(Exception):
    """Its pickle ends the process, and so does its text."""

    def __reduce__(self) -> Any:
        return sys.exit, (5,)

    def __str__(self) -> str:
        raise SystemExit(5)


class EndsNotPickled(Exception):
    def __reduce__(self) -> Any:
        sys.exit(5)


class Huge(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (HasLock(), "holds a frame"),
        (Unlike("one"), "one"),
        (Ends(), "(its text is not available: __str__ raised SystemExit)"),
        (EndsNotPickled("five"), "five"),
        (Huge("x" * (17 << 20)), "x" * MAX_TEXT),
    ],
)
def test_an_exception_that_cannot_be_sent_is_reported_as_text(error: Exception, text: str) -> None:
    type_name, message, traceback, cause = failure_of(error)
    assert (message, cause) == (text, None)
    assert type_name == f"{__name__}.{type(error).__name__}"
    assert traceback


class TwoArguments(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")
        self.first = first


class Keyword(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__()
        self.code = code


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int


class Slots(Exception):
    __slots__ = ("code",)

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Missing(FileNotFoundError):
    def __init__(self, path: str) -> None:
        super().__init__(2, "no such grid", path)


class Undecodable(UnicodeDecodeError):
    def __init__(self, text: str) -> None:
        super().__init__("ascii", b"\xff", 0, 1, text)


class Unavailable(ImportError):
    def __init__(self, name: str) -> None:
        super().__init__(f"no {name}", name=name, path="lib")


class OwnState(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code

    def __getstate__(self) -> Any:
        return str(self.code)

    def __setstate__(self, state: Any) -> None:
        self.code = int(state)


class OwnWay(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code

    def __reduce__(self) -> Any:
        return OwnWay, (self.code, *self.args)


class Listed(OwnWay):
    __reduce__ = Exception.__reduce__


copyreg.pickle(Listed, lambda error: (Listed, (error.code, *error.args)))


@pytest.mark.parametrize(
    "error",
    [
        TwoArguments("one", "two"),
        Keyword(code=4),
        Frozen(4),
        Slots(4, "text"),
        Missing("grid.nc"),
        Undecodable("bad"),
        Unavailable("solver"),
        OwnState(4, "text"),
        OwnWay(4, "text"),
        Listed(4, "text"),
        ExceptionGroup("several", [TwoArguments("one", "two"), KeyError("x")]),
        *(StopIteration(4), SystemExit(4), KeyError("x"), ValueError(), TimeoutError("late")),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("local", [False, True])
def test_an_exception_comes_back_with_its_type_and_attributes_whatever_its_constructor_takes(
    error: Any, local: bool
) -> None:
    """Also if it refers to something that only travels by value."""

    class Local:
        pass

    kind = Local if local else int
    object.__setattr__(error, "kind", kind)
    object.__setattr__(error, "__notes__", ["a note"])
    back: Any = failure_of(error)[3]
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert repr(back) == repr(error)
    for name in ("code", "first", "filename", "errno", "reason", "name", "path", "value"):
        assert getattr(back, name, None) == getattr(error, name, None), name
    if not isinstance(error, OwnWay | OwnState):
        assert (back.kind, back.__notes__) == (kind, ["a note"])


class Interrupts(Exception):
    def __reduce__(self) -> Any:
        raise KeyboardInterrupt


def test_ctrl_c_while_an_exception_is_encoded_interrupts_only_where_a_user_is() -> None:
    """In a slave's own process, only the exception itself can raise KeyboardInterrupt."""
    assert failure_of(Interrupts("odd"))[1] == "odd"
    with pytest.raises(KeyboardInterrupt):
        own_slave._WatchedCodec().dumps_failure(Interrupts("odd"))


def test_an_exception_class_that_the_master_does_not_have_becomes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("only_on_the_slave")
    exec("class Odd(Exception): pass", vars(module))
    monkeypatch.setitem(sys.modules, "only_on_the_slave", module)
    payload = CODEC.dumps_failure(module.Odd("strange"))
    monkeypatch.delitem(sys.modules, "only_on_the_slave")
    assert read(payload)[:2] == ("only_on_the_slave.Odd", "strange")
    assert read(payload)[3] is None


@pytest.mark.parametrize(
    "draw",
    [random.gauss, random.random, np.random.normal, np.random.randint],
    ids=["gauss", "random", "normal", "randint"],
)
def test_a_function_by_value_draws_from_the_generator_that_each_process_shares(draw: Callable[..., object]) -> None:
    """A copy of its state would give the same numbers in all slaves, as after `from random import gauss`."""
    generators: dict[type, None] = {}
    loaded = loads_function(CODEC.dumps_function(lambda: draw, "draw", None, generators))()
    assert (loaded.__self__, loaded.__name__, generators) == (draw.__self__, draw.__name__, {})  # type: ignore[attr-defined]


@pytest.mark.parametrize("codec", [CODEC, Codec({})], ids=["script", "notebook"])
def test_a_method_of_a_shared_generator_is_an_argument_by_its_name(codec: Codec) -> None:
    """Large arrays beside it travel out of band once, and a generator of the user with its state."""
    large, own = np.zeros(LARGE_BYTES, np.uint8), random.Random(1)
    payload, buffers = codec.dumps_call((large, random.gauss, np.random.normal, own), {}, "draw")
    (array, gauss, normal, copy), _ = loads_call(messagepack.decode(payload), buffers)
    assert (len(buffers), len(array)) == (1, len(large))
    assert (gauss.__self__, normal.__self__) == (random.gauss.__self__, np.random.normal.__self__)  # type: ignore[attr-defined]
    assert (copy is own, copy.getstate()) == (False, own.getstate())


def test_a_shared_object_has_the_shared_generator_by_its_name() -> None:
    pickled, buffers = CODEC.dumps_shared({"draw": random.gauss})
    assert pickle.loads(pickled, buffers=buffers)["draw"].__self__ is random.gauss.__self__  # type: ignore[attr-defined]


class _OwnRandom(random.Random):
    """A generator of the user."""


@pytest.mark.parametrize(
    "made",
    [random.Random(1), _OwnRandom(1), np.random.default_rng(1), np.random.RandomState(1)],
    ids=["random", "own", "default_rng", "RandomState"],
)
def test_a_generator_that_a_function_by_value_takes_along_is_named(made: object) -> None:
    """What it is made of is named after it."""
    generators: dict[type, None] = {}
    CODEC.dumps_function(lambda: made, "draw", None, generators)
    assert [*generators][:1] == [type(made)]
