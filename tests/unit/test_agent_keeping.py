"""Results that stay at an agent: which values it takes out, keeps, gives to others and drops."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace
from tests.unit.test_agent_shares import SETTINGS, do, heard, new_core, opened, slave_heard, tasks

from mwpy._core.agent import shares
from mwpy._core.agent.core import AgentCore
from mwpy._core.agent.events import (
    AgentActions,
    AgentEvent,
    DropShare,
    KeepShare,
    PartRead,
    ReadShare,
    ShareNotKept,
    ShareOpened,
)
from mwpy._values import groups, messages
from mwpy._values.ids import Buffer
from mwpy._values.messagepack import encode
from mwpy._values.share_messages import PART_BYTES, Share, share_of_result
from mwpy._values.shares import places_of

FAILURE = encode("what")


@pytest.fixture
def core() -> AgentCore:
    return new_core()


def pass_on(core: AgentCore, first: int, count: int, keeps: Sequence[int]) -> None:
    """Tasks arrive, and the results of those at some positions stay."""
    group = messages.Tasks(1, [first], [count], [1], [0], keeps=[*keeps])
    core.handle(heard(group, groups.payload(count, [b"\x90"] * count)), 0.0)
    core.take_actions()


def happen(core: AgentCore, *events: AgentEvent) -> AgentActions:
    for event in events:
        core.handle(event, 0.0)
    core.check()
    return core.take_actions()


def results(
    first: int, values: Sequence[object], failed: Sequence[int] = (), buffers: Sequence[Sequence[Buffer]] = ()
) -> AgentEvent:
    """Results of a slave."""
    count, sizes = len(values), [len(own) for own in buffers]
    group = messages.Results(1, [first], [count], [1], [0.1] * count, [*failed], sizes)
    return slave_heard(1, group, groups.payload(count, map(encode, values)), *(part for own in buffers for part in own))


def size_of(*parts: Buffer) -> int:
    return places_of([len(part) for part in parts])[-1]


def test_a_value_is_taken_out_of_a_result(core: AgentCore) -> None:
    """The other results of the group go to the master as they are. So does a failure."""
    pass_on(core, 1, 4, [0, 2, 3])
    actions = happen(core, results(1, ["a", "b", "c", FAILURE], [3], [[b"A"], [b"B", b"BB"], [], []]))
    first, third = share_of_result(1, 1, size_of(encode("a"), b"A")), share_of_result(3, 1, size_of(encode("c")))
    assert actions.share_files == [KeepShare(first, [encode("a"), b"A"]), KeepShare(third, [encode("c")])]
    [sent] = actions.to_master
    assert isinstance(sent.message, messages.Results)
    assert sent.message.kept == [(0, first.size), (2, third.size)]
    assert sent.message.buffers == [0, 2, 0, 0]
    assert [*sent.payload] == [groups.payload(4, map(encode, [None, "b", None, FAILURE])), b"B", b"BB"]


def test_a_group_without_such_tasks_is_passed_on_unchanged(core: AgentCore) -> None:
    pass_on(core, 1, 2, [0])
    pass_on(core, 3, 1, [])
    happen(core, results(1, ["a"]))
    for first in (2, 3):
        [sent] = happen(core, results(first, ["b"])).to_master
        assert sent.received


def test_a_slave_cannot_say_that_a_value_stays(core: AgentCore) -> None:
    pass_on(core, 1, 1, [])
    group = messages.Results(1, [1], [1], [1], [0.1], [], kept=[(0, 64)])
    assert happen(core, slave_heard(1, group, groups.payload(1, [b"\xc0"]))).kill == [1]


def keep(core: AgentCore, task: int = 1) -> Share:
    """A value stays. Return its name."""
    pass_on(core, task, 1, [0])
    [change] = happen(core, results(task, ["a"])).share_files
    assert isinstance(change, KeepShare)
    assert happen(core, ShareOpened(change.share, is_complete=True)) == AgentActions()
    return change.share


def test_a_value_that_stays_is_given_to_slaves_and_never_fetched(core: AgentCore) -> None:
    share = keep(core)
    assert do(core, tasks(2, share)) == [("pass on", 1, [2]), ("give", 1, share.digest, "", "")]


def test_the_parts_of_a_value_are_read_for_the_master(core: AgentCore) -> None:
    """A value that is not here, or not complete, is said to be gone."""
    share = keep(core)
    wanted = messages.ShareWanted(share.digest, 0)
    assert happen(core, heard(wanted)).share_files == [ReadShare(share.digest, 0, PART_BYTES)]
    [sent] = happen(core, PartRead(share.digest, 0, b"part")).to_master
    assert (sent.message, sent.payload) == (messages.SharePart(share.digest, 0), [b"part"])
    [sent] = happen(core, heard(messages.ShareWanted("result 9 1", 0))).to_master
    assert sent.message == messages.ShareGone("result 9 1")


def test_a_released_value_is_dropped_when_no_task_of_a_slave_needs_it(core: AgentCore) -> None:
    share, gone = keep(core), heard(messages.ShareGone("nothing"))
    assert happen(core, gone) == AgentActions()
    gone = heard(messages.ShareGone(share.digest))
    assert happen(core, gone).share_files == [DropShare(share.digest)]
    share = keep(core, 2)
    happen(core, tasks(3, share))
    gone = heard(messages.ShareGone(share.digest))
    assert happen(core, gone).share_files == []
    assert happen(core, gone).share_files == [], "it is an object like all others now"


def test_values_that_stay_are_not_dropped_for_other_objects() -> None:
    core = new_core(replace(SETTINGS, max_share_bytes=100))
    keep(core)
    assert do(core, tasks(2, Share("other", 1000))) == [("open", "other"), ("pass on", 1, [2])]


@pytest.mark.parametrize("limit", ["memory", "number", "bytes"])
def test_a_value_without_room_goes_to_the_master(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most half of the memory of the job is used."""
    limits = {"memory": {"memory_bytes": 300}, "number": {"max_share_files": 1}, "bytes": {}}
    core = new_core(replace(SETTINGS, **limits[limit]))
    if limit == "bytes":
        monkeypatch.setattr(shares, "KEPT_BYTES", 150)
    keep(core)
    pass_on(core, 2, 1, [0])
    actions = happen(core, results(2, ["b"]))
    assert actions.share_files == []
    assert actions.to_master[0].received


def test_a_value_that_cannot_be_stored_is_lost_and_no_other_one_is_kept(core: AgentCore) -> None:
    """The master learns it, and takes back the tasks that need it."""
    pass_on(core, 1, 1, [0])
    [change] = happen(core, results(1, ["a"])).share_files
    assert isinstance(change, KeepShare)
    actions = happen(core, ShareNotKept(change.share.digest, "no memory"))
    assert [sent.message for sent in actions.to_master] == [messages.ShareGone(change.share.digest)]
    assert actions.share_files == [DropShare(change.share.digest)]
    pass_on(core, 2, 1, [0])
    assert happen(core, results(2, ["b"])).to_master[0].received


def test_tasks_that_came_with_one_whose_value_is_lost_do_not_wait_for_it(core: AgentCore) -> None:
    """The slave learns that the value never comes. The master takes back the tasks that need it."""
    share = share_of_result(9, 1, 128)
    do(core, tasks(1, share))
    assert do(core, heard(messages.ShareGone(share.digest))) == [("give", 1, share.digest, "", "its value was lost")]
    assert do(core, opened(share), heard(messages.ShareGone(share.digest))) == []
