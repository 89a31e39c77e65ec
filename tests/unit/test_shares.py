"""Shared objects in the master: handles, which tasks need which, what agents get, and when an object is dropped."""

from __future__ import annotations

import gc
import pickle
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from tests.spans import MAX, defined, span

from mwpy._core.master.algorithms import OVERHEAD_BYTES, Defined
from mwpy._core.master.core import MasterCore
from mwpy._core.master.state import MasterSettings, Received
from mwpy._roles.definitions import Definitions
from mwpy._transport import shared_objects
from mwpy._transport.codec import Codec
from mwpy._values import groups, messages, records
from mwpy._values.algorithm import algorithm_of
from mwpy._values.bounds import Buffer
from mwpy._values.errors import ArgumentNotPicklable, UsageError
from mwpy._values.messages import PART_BYTES, Share
from mwpy._values.shares import Shared, SharedObject
from mwpy._values.task import Reference, ReferringBuffers

CODEC = Codec()
SIZE = PART_BYTES + 3


def handle(digest: str = "digest", size: int = SIZE) -> Shared:
    return Shared(SharedObject(Share(digest, size, "here"), memoryview(bytes(size))), shared_objects.load)


def referring(*handles: Shared) -> ReferringBuffers:
    return ReferringBuffers((), dict.fromkeys(handles))


@pytest.fixture
def core() -> MasterCore:
    """A master, and an agent with one slave."""
    core = MasterCore(MasterSettings("m", "g"))
    core.definitions.add(Defined(MAX))
    receive(core, messages.Hello("m", "g", "host", 1, "3.11", 1))
    receive(core, messages.SlaveReady(1))
    core.take_actions()
    return core


def receive(core: MasterCore, message: messages.Message, *frames: Buffer) -> None:
    core.handle(Received(b"a", "here", message, frames), 0.0)


def sent(core: MasterCore) -> list[tuple[messages.Message, list[Buffer]]]:
    """What is sent now."""
    core.decide(0.0)
    core.check()
    return [(send.message, [*send.frames]) for send in core.take_actions().sends]


def submit(core: MasterCore, task: int, *handles: Shared, algorithm: Defined | None = None) -> None:
    """Submit a task whose arguments contain handles."""
    new = span(task, MAX)
    new.buffers = (referring(*handles),) if handles else ()
    new.algorithm = algorithm or core.state.jar.algorithms.defined[0]
    core.submit([new])


def shares_of(core: MasterCore) -> list[str]:
    """Which shared objects the group of tasks names that is sent now."""
    [group] = [message for message, _ in sent(core) if isinstance(message, messages.Tasks)]
    return [share.digest for share in group.shares]


def finish(core: MasterCore, task: int) -> None:
    group = messages.Results(1, [task], [1], [1], [0.01], [])
    receive(core, group, groups.payload(1, [b"\x00"]))


# ---- what tasks need -----------------------------------------------------------------------------------------------


def test_a_task_needs_what_its_function_has_captured(core: MasterCore) -> None:
    """The object counts as a part of the function: functions that are not used are forgotten when they are large."""
    captured = handle("captured")
    by_value = Defined(defined(1, "f", reference="", function=b"f"), [captured.shared])
    assert by_value.size == OVERHEAD_BYTES + 1 + SIZE
    submit(core, 1, handle("argument"), algorithm=by_value)
    assert shares_of(core) == ["captured", "argument"]
    assert core.state.jar.algorithms.size == by_value.size
    core.state.settings = replace(core.state.settings, max_definition_bytes=SIZE)
    finish(core, 1)
    core.decide(0.0)
    assert [each for each in core.take_actions().records if isinstance(each, records.AlgorithmsForgotten)]
    core.check()


def test_an_agent_that_asks_for_a_part_that_does_not_exist_is_dropped(core: MasterCore) -> None:
    argument = handle()
    submit(core, 1, argument)
    sent(core)
    receive(core, messages.ShareWanted("digest", SIZE))
    [(message, _)] = sent(core)
    assert message == messages.Refused(f"protocol error: ShareWanted names byte {SIZE} of {SIZE}")


def test_an_object_lives_as_long_as_a_handle_or_a_task_needs_it(core: MasterCore) -> None:
    """Then the agents to which it was named give it up. An agent that asks for it later learns that it is gone."""
    argument = handle()
    alive = weakref.ref(argument.shared)
    core.handle(Received(b"b", "there", messages.Hello("m", "g", "other host", 1, "3.11", 1), ()), 0.0)
    sent(core)
    submit(core, 1, argument)
    del argument
    sent(core)
    gc.collect()
    assert alive() is not None
    receive(core, messages.ShareWanted("digest", 0))
    assert [type(message) for message, _ in sent(core)] == [messages.SharePart]
    finish(core, 1)
    messages_sent = sent(core)
    gc.collect()
    assert alive() is None
    assert messages_sent + sent(core) == [(messages.ShareGone("digest"), [])]
    for digest in ("digest", "never named"):
        receive(core, messages.ShareWanted(digest, 0))
        assert sent(core) == [(messages.ShareGone(digest), [])]


# ---- handles -------------------------------------------------------------------------------------------------------


def test_handles_of_equal_objects_are_equal_and_stand_for_one_object() -> None:
    first, second = (shared_objects.handle_of(np.arange(100_000), CODEC) for _ in range(2))
    other = shared_objects.handle_of(np.arange(100_001), CODEC)
    assert first == second
    assert first.shared is second.shared
    assert len({first, second, other}) == 2
    assert first != other
    assert shared_objects.handle_of(first, CODEC) is first


def test_a_handle_says_that_only_a_task_gets_the_object() -> None:
    wrong: object = handle()
    with pytest.raises(AttributeError, match=r"a shared object of 2097155 bytes.*'sum': only a task gets the object"):
        wrong.sum()  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="has a meaning only in the arguments of a task"):
        pickle.dumps(wrong)


@pytest.mark.parametrize("use", [len, list, bool, np.asarray, lambda shared: shared[0], lambda shared: shared + 1])
def test_a_handle_that_is_used_as_its_object_says_what_to_do(use: Callable[[Any], object]) -> None:
    with pytest.raises(UsageError, match="is not the object itself: pass the handle to a task"):
        use(handle())


def test_an_object_that_cannot_be_pickled_cannot_be_shared() -> None:
    with pytest.raises(ArgumentNotPicklable, match=r"the object to share, a dict, cannot be pickled .*generator"):
        shared_objects.handle_of({"a": (x for x in "ab")}, CODEC)
    with pytest.raises(ArgumentNotPicklable, match="the object to share, a list, cannot be pickled"):
        shared_objects.handle_of([handle()], CODEC)


def test_a_function_by_value_brings_the_objects_that_it_has_captured() -> None:
    captured = shared_objects.handle_of([1, 2], CODEC)
    found = Definitions(CODEC).define(algorithm_of(partial(max, captured)))
    assert found.shares == [captured.shared]


class Other(Reference):
    """A reference that is no handle."""

    def rebuilt_by(self) -> tuple[type[int], tuple[()]]:
        return int, ()

    def __repr__(self) -> str:
        return "the result of task 1"


def test_a_function_by_value_cannot_capture_other_references() -> None:
    with pytest.raises(UsageError, match="has captured the result of task 1, which has a meaning only as an argument"):
        Definitions(CODEC).define(algorithm_of(partial(max, Other())))
