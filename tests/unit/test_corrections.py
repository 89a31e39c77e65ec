"""Results that are in doubt: which are named, whose calls are kept, and who computes them again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace
from tests.pool import PLAIN, RIGHT, WRONG, Pool, first_holder, outvote
from tests.spans import MAX, MIN, span

from mwpy._core.master import doubts, kept_calls
from mwpy._core.master.algorithms import OVERHEAD_BYTES, Defined
from mwpy._core.master.commands import CorrectResults
from mwpy._core.master.core import MasterCore, MasterSettings
from mwpy._core.master.doubts import Doubts, without
from mwpy._core.master.events import Vanished
from mwpy._core.master.kept_calls import CALL_BYTES, DoubtedCall, KeptCalls
from mwpy._core.master.spans import Span
from mwpy._core.master.state import MasterState
from mwpy._transport import shared_objects
from mwpy._values import messages, records
from mwpy._values.causes import Cause
from mwpy._values.ids import SlaveId
from mwpy._values.last_words import NO_WORDS, Death
from mwpy._values.policy import DEFAULT_POLICY, TaskPolicy
from mwpy._values.references import ReferringBuffers
from mwpy._values.share_messages import Share
from mwpy._values.shares import Shared, SharedObject

ONCE = TaskPolicy(retry=False)
AGAIN = TaskPolicy(corrects=True)


def alone(pool: Pool, host: str, count: int = 1, policy: TaskPolicy = DEFAULT_POLICY, first: int = 1) -> None:
    """A host computes tasks wrongly, while there is no other host."""
    pool.submit(count, policy=policy, first=first)
    for _ in range(count):
        pool.answer(host, WRONG)


def ask(pool: Pool) -> list[DoubtedCall]:
    """The algorithm asks for corrections. Return the calls that it is to submit again."""
    pool.core.obey(CorrectResults())
    actions = pool.decide()
    assert [unended for _, unended in actions.cancelled] == [[]]
    return actions.doubted


def submit_again(pool: Pool, calls: Sequence[DoubtedCall], first: int) -> None:
    for number, call in enumerate(calls, first):
        pool.take(Span(number, 1, call.algorithm, call.policy, [call.payload], [], [call]))  # type: ignore[arg-type]


def doubted_in(pool: Pool) -> list[records.ResultsDoubted]:
    return [record for record in pool.done if isinstance(record, records.ResultsDoubted)]


# ---- which results are in doubt --------------------------------------------------------------------------------


def given(core: MasterCore, host: str, *firsts: int) -> None:
    core.verification.doubts.given(host, [span(first, MAX) for first in firsts])
    core.verification.doubts.check()


def test_the_ids_of_results_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results whose ids are forgotten are still counted, and are computed again."""
    monkeypatch.setattr(doubts, "RANGES_KEPT", 2)
    pool = Pool("a")
    given(pool.core, "a", 1, 10, 11, 20)
    found = pool.core.verification.doubts
    assert " You already have 4 results that only a computed" in found.doubt("a")
    assert (found.doubt("a"), found.doubt("b")) == ("", "")
    pool.decide()
    assert doubted_in(pool) == [records.ResultsDoubted("a", [(10, 2), (20, 1)], 1, [], {})]


def test_the_ids_of_results_are_limited_over_all_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host forgets its own oldest ids; a new host takes the place of the oldest ids of the host with most."""
    monkeypatch.setattr(doubts, "RANGES_KEPT", 3)
    pool = Pool("a")
    for host, first in (("a", 1), ("a", 10), ("b", 20), ("b", 30), ("c", 40)):
        given(pool.core, host, first)
    for host in "abc":
        assert pool.core.verification.doubts.doubt(host)
    pool.decide()
    assert [(each.tasks, each.forgotten) for each in doubted_in(pool)] == [
        ([(10, 1)], 1),
        ([(30, 1)], 1),
        ([(40, 1)], 0),
    ]


@pytest.mark.parametrize(
    ("ranges", "others", "left"),
    [
        ([(1, 5)], [], [(1, 5)]),
        ([(1, 5)], [(1, 5)], []),
        ([(1, 5)], [(2, 1), (4, 1)], [(1, 1), (3, 1), (5, 1)]),
        ([(10, 5), (1, 5)], [(3, 9)], [(1, 2), (12, 3)]),
        ([(4, 2), (8, 2)], [(1, 2), (3, 2), (9, 9)], [(5, 1), (8, 1)]),
    ],
)
def test_ids_are_removed_from_ranges(
    ranges: list[tuple[int, int]], others: list[tuple[int, int]], left: list[tuple[int, int]]
) -> None:
    assert without(ranges, others) == left


def test_the_notice_says_which_results_can_be_corrected() -> None:
    """Tasks that must not run twice are named, with what to do about them."""
    pool = Pool("a")
    alone(pool, "a", 3)
    alone(pool, "a", 2, ONCE, first=4)
    pool.connect("b")
    pool.connect("c")
    outvote(pool, 6)
    [doubted] = doubted_in(pool)
    assert doubted == records.ResultsDoubted("a", [(1, 5)], 0, [(4, 2)], {"retry=False": 2})
    assert (
        "You already have 5 results that only a computed: the audit file lists the task ids. mw.corrections() computes "
        "3 again. 2 cannot be computed again by mw.corrections() (2 retry=False): submit those tasks again, or leave "
        "out results with this `result.host`."
    ) in pool.notices


def test_a_host_without_a_result_that_can_be_corrected() -> None:
    pool = Pool("a")
    alone(pool, "a", 2, ONCE)
    pool.connect("b")
    pool.connect("c")
    outvote(pool, 3)
    assert "2 cannot be computed again by mw.corrections()" in pool.notices
    assert "again. 2" not in pool.notices
    assert ask(pool) == []


def test_what_a_host_computes_after_it_was_outvoted_is_in_doubt_at_once() -> None:
    """If nobody can compare it. A notice says so once."""
    pool = Pool("a", "b", "c")
    outvote(pool)
    for host in (b"b", b"c"):
        pool.core.handle(Vanished(host, 0.0), 0.0)
    alone(pool, "a", first=2)
    alone(pool, "a", first=3)
    assert [each.tasks for each in doubted_in(pool)] == [[(2, 1)], [(3, 1)]]
    assert pool.notices.count("host a computed other results wrongly, and nobody could compare its last ones.") == 1


def test_what_one_host_computed_against_a_wrong_one_is_in_doubt_if_it_is_outvoted_later() -> None:
    pool = Pool("a", "b", "c")
    outvote(pool)
    pool.core.handle(Vanished(b"c", 0.0), 0.0)
    pool.submit(first=2)
    while 2 not in pool.results:
        host = first_holder(pool, 2)
        pool.answer(host, WRONG if host == "a" else RIGHT, 2)
    assert pool.results[2].host == "b"
    assert "You already have 1 result that only b computed" in pool.core.verification.doubts.doubt("b")


# ---- second computations ---------------------------------------------------------------------------------------


def test_results_in_doubt_are_computed_again_when_the_algorithm_asks() -> None:
    """With their tags and policies, each once. Before, nothing is computed."""
    pool = Pool("a")
    policy = TaskPolicy(attempts_max=7, speculate=True)
    pool.take(span(1, MAX, 2, policy=policy, tag="mine"), span(3, MIN, buffers=[b"large"]))
    for number in (1, 2, 3):
        pool.answer("a", WRONG, number)
    assert ask(pool) == []
    pool.connect("b")
    pool.connect("c")
    outvote(pool, 4)
    assert (pool.held("a"), pool.held("b"), pool.held("c")) == ([], [], [])
    calls = ask(pool)
    assert [(call.task_id, call.tag, call.algorithm.name) for call in calls] == [
        (1, "mine", "max"),
        (2, "mine", "max"),
        (3, None, "min"),
    ]
    assert [call.buffers for call in calls] == [(), (), [b"large"]]
    assert calls[0].policy == replace(policy, corrects=True, speculate=False)
    assert pool.each_of(records.ResultsRecomputed) == [records.ResultsRecomputed([(1, 3)])]
    assert ask(pool) == []
    submit_again(pool, calls[:1], 5)
    while 5 not in pool.results:
        host = first_holder(pool, 5)
        pool.answer(host, WRONG if host == "a" else RIGHT, 5)
    assert (pool.results[5].value, pool.results[5].tag, calls[0].only) == ("right", calls[0], "")


def test_calls_wait_until_a_host_without_fault_can_run_them() -> None:
    """The notice says what to do."""
    pool = Pool("a")
    alone(pool, "a")
    pool.connect("b")
    pool.connect("c")
    outvote(pool, 2)
    for host in (b"b", b"c"):
        pool.core.handle(Vanished(host, 0.0), 0.0)
    assert ask(pool) == []
    assert ask(pool) == []
    assert pool.notices.count("that mw.corrections() cannot compute again now") == 1
    pool.connect("d")
    assert [call.task_id for call in ask(pool)] == [1]


def test_a_second_result_of_a_wrong_host_that_nobody_confirms_does_not_count() -> None:
    """Whether it arrives when there is no other host, or waits for one in vain. It is not in doubt once more."""
    pool = Pool("a")
    alone(pool, "a", 2)
    pool.connect("b")
    pool.connect("c")
    outvote(pool, 3)
    calls = ask(pool)
    pool.core.handle(Vanished(b"c", 0.0), 0.0)
    pool.hear("b", messages.Leaving("evicted", Cause.EVICTED))
    submit_again(pool, calls[:1], 4)
    pool.answer("a", PLAIN, 4)
    pool.connect("d")
    submit_again(pool, calls[1:], 5)
    pool.core.handle(Vanished(b"d", 0.0), 0.0)
    pool.decide()
    pool.answer("a", RIGHT, 5)
    assert [call.only for call in calls] == ["a", "a"]
    assert [each.tasks for each in doubted_in(pool)] == [[(1, 2)]]


def test_a_correction_may_be_corrected() -> None:
    """If the host that computed it is outvoted, too. It is named by the id that the algorithm knows."""
    pool = Pool("a")
    alone(pool, "a")
    pool.connect("b")
    pool.connect("c")
    outvote(pool, 2)
    [call] = ask(pool)
    kept = pool.core.verification.doubts
    second = Span(3, 1, call.algorithm, call.policy, [call.payload], [], [call])  # type: ignore[arg-type]
    kept.given("b", [second])
    assert "You already have 1 result that only b computed" in kept.doubt("b")
    pool.decide()
    assert doubted_in(pool)[-1].tasks == [(1, 1)]
    kept.outvoted["b"] = 1
    [again] = ask(pool)
    assert (again.task_id, again.tag, again.policy) == (1, None, call.policy)


# ---- which calls are kept --------------------------------------------------------------------------------------


def _suspect() -> Span:
    suspect = span(1, MAX)
    suspect.deaths = (Death(SlaveId("SLAVE-1"), 1, Cause.AGENT_LOST, "vanished", NO_WORDS),) * 3
    return suspect


@pytest.mark.parametrize(
    ("kept", "reason"),
    [
        (span(1, MAX, policy=ONCE), "retry=False"),
        (span(1, MAX, policy=TaskPolicy(sid=SlaveId("SLAVE-1"))), "addressed to a slave"),
        (span(1, MAX, refers=[7]), "refer to results of other tasks"),
        (_suspect(), "must run alone"),
    ],
)
def test_calls_that_cannot_be_run_twice_are_counted(kept: Span, reason: str) -> None:
    calls = KeptCalls()
    calls.keep("a", kept)
    assert (calls.bytes, calls.doubt("a"), calls.doubt("a")) == (0, ([], {reason: 1}), ([], {}))


def test_the_oldest_calls_go_when_they_take_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """But none whose result is in doubt."""
    calls = KeptCalls()
    calls.keep("a", span(1, MAX, payload=b"x" * 1000))
    size = calls.bytes
    assert size == 1000 + CALL_BYTES
    monkeypatch.setattr(kept_calls, "KEPT_BYTES", 2 * size)
    calls.doubt("a")
    for first in (2, 3):
        calls.keep("b", span(first, MAX, payload=b"x" * 1000))
        calls.check()
    ranges, reasons = calls.doubt("b")
    assert (ranges, [*reasons.values()]) == ([(3, 1)], [1])
    assert [*reasons] == ["newer calls took the 2.3 KiB that are kept"]
    calls.keep("b", span(4, MAX, payload=b"x" * 1000))
    calls.check()
    assert [*calls.doubted] == [1, 3]
    assert len(calls.hand_out([*calls.doubted.values()])) == 2
    assert calls.bytes == 0
    calls.check()


def test_what_calls_share_counts_once() -> None:
    """Shared objects, and functions by value with what they have captured."""
    content = SharedObject(Share("digest", 5000, "here"), memoryview(bytes(5000)))
    own = SharedObject(Share("other", 300, "here"), memoryview(bytes(300)))
    buffers = ReferringBuffers((), [Shared(content, shared_objects.load)])
    function = Defined(records.AlgorithmDefined(replace(MAX.definition, number=5, reference=""), b"f" * 70), [own])
    calls = KeptCalls()
    for first in (1, 2):
        each = Span(first, 1, function, DEFAULT_POLICY, [b"x"], [buffers], [None])  # type: ignore[arg-type]
        calls.keep("a", each)
        calls.check()
        assert calls.bytes == first * (1 + CALL_BYTES) + 5000 + 300 + OVERHEAD_BYTES + 70
    calls.doubt("a")
    first_call, second = [*calls.doubted.values()]
    calls.hand_out([first_call])
    calls.check()
    assert calls.bytes == 1 + CALL_BYTES + 5000 + 300 + OVERHEAD_BYTES + 70
    calls.hand_out([second])
    calls.check()
    assert calls.bytes == 0


def test_nothing_is_kept_if_nothing_is_verified() -> None:
    pool = Pool("a", verify=0.0)
    pool.submit(2)
    pool.answer("a", PLAIN)
    assert pool.core.verification.doubts.calls.bytes == 0
    assert ask(pool) == []


def test_a_state_may_have_doubts_of_its_own() -> None:
    """The parts are independent of a core."""
    found = Doubts(MasterState(MasterSettings("m", "g")))
    found.given("a", [])
    assert found.doubt("a") == ""
