"""The parts of an overseer's core, each tested separately."""

from __future__ import annotations

import signal

import pytest
from msgspec.structs import replace

from mwpy._core.overseer.complaints import About, Complaints
from mwpy._core.overseer.computation import WatchedComputation
from mwpy._core.overseer.events import Submit
from mwpy._core.overseer.failures import explain, is_failure, may_pass
from mwpy._core.overseer.files import FileView, Need
from mwpy._core.overseer.intake import Intake
from mwpy._core.overseer.job_table import JobTable
from mwpy._core.overseer.pauses import FailurePause
from mwpy._core.overseer.removals import Removals
from mwpy._core.overseer.state import OverseerSettings, OverseerState
from mwpy._core.overseer.submissions import Shortage, Submissions, Wish, share
from mwpy._values.jobs import End, Job, JobState, Outcome

HELD, LEAVING, QUEUED, RUNNING = JobState.HELD, JobState.LEAVING, JobState.QUEUED, JobState.RUNNING


def jobs(**states: JobState) -> dict[str, Job]:
    """Jobs by their ids."""
    return {job_id: Job(job_id, "a", state) for job_id, state in states.items()}


def need(written: float = 1.0, **changes: object) -> Need:
    values: dict[str, object] = {
        "generation": "g",
        "finished": False,
        "written": written,
        "age_s": 0.0,
        "interval_s": 10.0,
        "slaves_needed": 0,
        "connected": {},
    }
    return Need(**(values | changes))  # type: ignore[arg-type]


# ---- FileView -----------------------------------------------------------------------------------------------


def test_a_file_that_was_never_read_decides_nothing() -> None:
    file = FileView()
    assert (file.slaves_needed, file.connected, file.finished) == (0, {}, False)
    assert file.is_stale(0.0)
    assert not file.is_current(0.0)
    assert file.valid_since(5.0) == 5.0


def test_a_file_is_current_until_it_is_stale_unreadable_or_finished() -> None:
    file = FileView()
    assert file.take(need(), 100.0) is False
    assert file.is_current(100.0)
    file.fail()
    assert not file.is_current(100.0)
    file.take(need(age_s=31.0), 100.0)
    assert not file.is_current(100.0)
    file.take(need(finished=True), 100.0)
    assert not file.is_current(100.0)


def test_after_a_change_only_the_own_clock_counts() -> None:
    """The clock of the master may be hours ahead or behind."""
    file = FileView()
    file.take(need(1.0, age_s=1e6), 100.0)
    assert file.is_stale(100.0)
    file.take(need(2.0, age_s=1e6), 110.0)
    assert not file.is_stale(140.0)
    assert file.is_stale(140.5)
    assert file.valid_since(111.0) == 111.0


def test_another_generation_is_another_master() -> None:
    file = FileView()
    assert not file.take(need(generation="g1"), 0.0)
    assert file.take(need(generation="g2"), 1.0)


# ---- JobTable -----------------------------------------------------------------------------------------------


def test_submitted_jobs_count_until_the_list_shows_them() -> None:
    table = JobTable()
    table.add_submitted(["1"], 0.0)
    table.add_submitted(["2"], 0.0)
    assert (table.unlisted, table.occupied) == (2, 2)
    table.take_list(jobs(**{"1": QUEUED}), 1.0)
    assert (table.unlisted, table.occupied) == (1, 2)
    assert table.settle(29.0) == []
    assert table.settle(30.0) == ["2"]
    assert (table.unlisted, table.occupied) == (0, 1)
    table.check()


def test_new_jobs_in_the_list_came_from_the_submission_without_an_answer() -> None:
    table = JobTable()
    table.add_uncertain(3, 0.0)
    table.add_submitted(["9"], 0.0)
    table.take_list(jobs(**{"1": QUEUED, "9": QUEUED}), 1.0)
    assert table.unlisted == 2
    table.take_list(jobs(**{"1": QUEUED, "9": QUEUED, "2": QUEUED, "3": QUEUED, "4": QUEUED}), 2.0)
    assert table.unlisted == 0
    table.add_uncertain(1, 3.0)
    table.settle(33.0)
    assert table.unlisted == 0
    table.check()


def test_a_removed_job_keeps_its_place_until_the_list_shows_that_it_leaves() -> None:
    table = JobTable()
    table.take_list(jobs(**{"1": RUNNING, "2": RUNNING}), 0.0)
    table.mark_removed(["1"], 0.0)
    assert [job.job_id for job in table.live(RUNNING)] == ["2"]
    assert (table.occupied, table.freeing, table.is_removed("1")) == (2, 1, True)
    table.take_list(jobs(**{"1": LEAVING, "2": RUNNING}), 100.0)
    assert (table.occupied, table.freeing, table.is_removed("1")) == (1, 0, True)
    table.take_list(jobs(**{"2": RUNNING}), 200.0)
    assert (table.is_removed("1"), table.unexplained) == (False, False)
    table.check()


def test_a_removal_without_effect_is_forgotten() -> None:
    """The removal is repeated at once if the batch system refused it, and after a minute if the job is still there."""
    table = JobTable()
    table.take_list(jobs(**{"1": RUNNING, "2": RUNNING}), 0.0)
    table.mark_removed(["1", "2"], 0.0)
    table.unmark_removed(["1"])
    assert (table.is_removed("1"), table.is_removed("2")) == (False, True)
    table.take_list(table.listed, 60.0)
    assert not table.is_removed("2")


def test_a_job_that_vanished_is_asked_for_until_there_is_an_answer() -> None:
    table = JobTable()
    table.take_list(jobs(**{"1": RUNNING, "2": LEAVING}), 0.0)
    table.take_list({}, 1.0)
    for _ in range(2):
        assert table.questions() == ["1"]
        assert table.take_answer("1", ended=False)
        assert table.unexplained
    assert table.take_answer("1", ended=True)
    assert not table.unexplained
    assert not table.take_answer("1", ended=True)


def test_a_job_without_an_answer_is_asked_for_three_times_at_most() -> None:
    table = JobTable()
    table.take_list(jobs(**{str(number): RUNNING for number in range(9)}), 0.0)
    table.take_list({}, 1.0)
    assert table.questions() == ["0", "1", "2", "3", "4"]
    for _ in range(3):
        for job_id in table.questions():
            table.take_answer(job_id, ended=False)
    assert not table.unexplained
    table.add_submitted(["s"], 2.0)
    assert table.questions() == ["s"]
    assert table.take_answer("s", ended=False)
    assert table.unlisted == 1
    table.take_list(jobs(**{"1": RUNNING}), 3.0)
    table.take_list({}, 4.0)
    table.stop_asking()
    assert not table.unexplained


def test_a_job_is_newly_held_once() -> None:
    table = JobTable()
    assert [job.job_id for job in table.take_list(jobs(**{"1": HELD, "2": QUEUED}), 0.0)] == ["1"]
    assert [job.job_id for job in table.take_list(jobs(**{"1": HELD, "2": HELD}), 1.0)] == ["2"]


# ---- failures -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "fails"),
    [
        (Outcome.of_process(0, 1.0, ""), False),
        (Outcome.of_process(5, 1.0, ""), True),
        (Outcome.of_process(5, 30.0, ""), False),
        (Outcome.of_process(1, 29.9, ""), True),
        (Outcome.of_process(1, 30.0, ""), False),
        (Outcome.of_process(-signal.SIGSEGV, 1.0, ""), True),
        (Outcome(End.KILLED, "killed by Slurm: out of memory", None, 1.0), True),
        (Outcome(End.REMOVED, "killed by its user", None, 1.0), False),
        (Outcome(End.LOST, "its node failed", None, 1.0), False),
    ],
)
def test_failures_at_the_start(outcome: Outcome, fails: bool) -> None:
    """Only the facts about the end of a job count. The words that describe it do not matter."""
    assert is_failure(outcome) is fails


@pytest.mark.parametrize(("code", "passes"), [(-9, True), (5, True), (1, False)])
def test_failures_whose_cause_may_pass(code: int, passes: bool) -> None:
    assert may_pass(Outcome.of_process(code, 1.0, "")) is passes


def test_exit_codes_are_explained() -> None:
    assert explain(Outcome.of_process(127, 1.0, "")) == "exit code 127 (its program does not exist there)"
    assert explain(Outcome.of_process(42, 1.0, "")) == "exit code 42"
    killed = "killed by signal 4 (SIGILL): native code for another processor"
    assert explain(Outcome.of_process(-signal.SIGILL, 1.0, "")) == killed


def test_the_third_failure_in_a_row_begins_a_pause_and_each_pause_is_twice_the_last() -> None:
    pause = FailurePause()
    assert [pause.fail(0.0), pause.fail(1.0), pause.limit(9, 0, 1.0)] == [None, None, 9]
    assert pause.fail(2.0) == 60.0
    assert pause.fail(3.0) is None
    assert [pause.limit(9, 0, 61.9), pause.limit(9, 0, 62.0), pause.limit(9, 1, 62.0)] == [0, 1, 0]
    pauses, now = [], 62.0
    for _ in range(6):
        pause_s = pause.fail(now)
        assert pause_s is not None
        pauses.append(pause_s)
        now += pause_s
    assert pauses == [120.0, 240.0, 480.0, 960.0, 1800.0, 1800.0]


def test_the_pauses_after_failures_that_may_pass_do_not_grow() -> None:
    """A task that kills its agent looks like a failure at the start. The master gives it up after some attempts."""
    pause = FailurePause()
    assert [pause.fail(now, may_pass=True) for now in (0.0, 1.0, 2.0, 62.0, 122.0)] == [None, None, 60.0, 60.0, 60.0]
    assert [pause.fail(now) for now in (182.0, 242.0)] == [60.0, 120.0]


def test_a_success_after_the_last_failure_ends_the_pause() -> None:
    pause = FailurePause()
    for now in (0.0, 1.0, 2.0):
        pause.fail(now)
    assert not pause.succeed(2.0)
    assert pause.succeed(2.1)
    assert (pause.failures, pause.limit(9, 9, 2.1)) == (0, 9)
    assert not pause.succeed(3.0)
    assert not pause.end()


# ---- WatchedComputation -------------------------------------------------------------------------------------


def watched(listed: dict[str, Job], *, slaves_per_job: int = 1, **changes: object) -> WatchedComputation:
    computation = WatchedComputation("a", "A", slaves_per_job=slaves_per_job)
    computation.file.take(need(**changes), 0.0)  # type: ignore[arg-type]
    computation.jobs.take_list(listed, 0.0)
    return computation


def test_missing_jobs_are_the_needed_ones_less_those_on_their_way() -> None:
    listed = jobs(**{"1": QUEUED, "2": RUNNING, "3": RUNNING, "4": HELD, "5": LEAVING})
    listed["6"] = Job("6", "a", RUNNING, 600.0)
    computation = watched(listed, slaves_needed=9, slaves_per_job=4, connected={"3": 4})
    computation.note_idleness(0.0)
    listed["2"] = replace(listed["2"], state=QUEUED)
    computation.note_idleness(600.0)
    assert [job.job_id for job in computation.unconnected()] == ["6"]
    assert (computation.coming, computation.missing) == (2, 1)
    computation.jobs.add_uncertain(2, 0.0)
    assert (computation.coming, computation.missing, computation.unproven) == (4, -1, 5)
    computation.check()


def test_surplus_lasts_until_nothing_superfluous_waits() -> None:
    computation = watched(jobs(**{"1": QUEUED, "2": QUEUED}), slaves_needed=1)
    computation.note_idleness(1.0)
    computation.note_idleness(2.0)
    assert computation.surplus_since == 1.0
    computation.file.take(need(2.0, slaves_needed=2), 3.0)
    computation.note_idleness(3.0)
    assert computation.surplus_since is None


def test_a_job_is_idle_since_the_file_first_showed_it() -> None:
    computation = watched(jobs(**{"1": RUNNING, "2": RUNNING}), age_s=2.0, connected={"1": 0, "2": 1})
    computation.note_idleness(10.0)
    assert computation.idle(0.0, 10.9) == []
    assert [job.job_id for job in computation.idle(0.0, 11.0)] == ["1"]
    assert computation.idle(5.0, 11.0) == []
    computation.jobs.mark_removed(["1"], 11.0)
    assert computation.idle(0.0, 11.0) == []


# ---- Complaints ---------------------------------------------------------------------------------------------


@pytest.fixture
def state() -> OverseerState:
    return OverseerState(OverseerSettings(max_jobs=4, max_per_minute=3, patience_s=10.0, interval_s=5.0))


@pytest.fixture
def complaints(state: OverseerState) -> Complaints:
    return Complaints(state)


def add(state: OverseerState, mark: str, *, priority: int = 0, **changes: object) -> WatchedComputation:
    computation = WatchedComputation(mark, mark.upper(), priority)
    computation.file.take(need(**changes), 0.0)  # type: ignore[arg-type]
    state.computations[mark] = computation
    return computation


def test_a_complaint_is_said_at_growing_intervals_and_its_end_is_said_once(
    state: OverseerState, complaints: Complaints
) -> None:
    said_at = []
    for now in range(0, 3000, 100):
        complaints.complain(None, About.BATCH, "it is down", now)
        said_at += [now for _ in state.actions.say]
        state.actions.say.clear()
    assert said_at == [0, 300, 900, 2100]
    complaints.resolve(None, About.BATCH, "it is up")
    complaints.resolve(None, About.BATCH, "it is up")
    assert state.actions.say == ["it is up"]


def test_a_late_complaint_is_never_said_if_the_fault_was_short(state: OverseerState, complaints: Complaints) -> None:
    computation = add(state, "a")
    complaints.complain(computation, About.WAITING, "it waits", 0.0, after_s=10.0)
    complaints.resolve(computation, About.WAITING)
    complaints.complain(computation, About.WAITING, "it waits", 9.0, after_s=10.0)
    assert state.actions.say == []
    complaints.complain(computation, About.WAITING, "it waits", 19.0, after_s=10.0)
    assert state.actions.say == ["A: it waits"]


def test_complaints_of_several_computations_do_not_mix(state: OverseerState, complaints: Complaints) -> None:
    complaints.report_limit(add(state, "a"), 1, 0.0)
    complaints.report_limit(add(state, "b"), 2, 0.0)
    complaints.report_limit(state.computations["a"], 0, 0.0)
    assert state.actions.say == [
        "A: 1 more job would be useful, but --max allows only 4",
        "B: 2 more jobs would be useful, but --max allows only 4",
    ]


def test_several_jobs_that_do_not_connect_or_wait_are_reported_together(
    state: OverseerState, complaints: Complaints
) -> None:
    computation = add(state, "a")
    listed = {job_id: Job(job_id, "a", RUNNING, 700.0) for job_id in ("1", "2")}
    listed |= {job_id: Job(job_id, "a", QUEUED, note="no room") for job_id in ("3", "4")}
    computation.jobs.take_list(listed, 0.0)
    for now in (0.0, 600.0, 900.0):
        computation.note_idleness(now)
        complaints.report_delays(computation, now)
    first, second = state.actions.say[:2]
    assert first.startswith("A: 2 jobs ran for 600 s and are not connected, so others replace them. ")
    assert second == "A: 2 jobs still wait. The reason for job 3: no room"


# ---- Intake -------------------------------------------------------------------------------------------------


def test_a_round_is_complete_with_a_list_and_all_answers(state: OverseerState, complaints: Complaints) -> None:
    intake = Intake(state, complaints)
    computation = add(state, "a")
    assert not intake.complete_round()
    intake.take_list([Job("1", "a", RUNNING), Job("2", "other", RUNNING)], 0.0)
    assert [*computation.jobs.listed] == ["1"]
    assert [intake.complete_round(), intake.complete_round()] == [True, False]
    assert intake.next_round_at == 5.0
    intake.take_list([], 5.0)
    assert state.actions.ask == ["1"]
    assert not intake.complete_round()
    state.actions.ask.clear()
    intake.take_end("1", Outcome.of_process(0, 9.0, ""), 5.0)
    assert intake.complete_round()
    intake.take_list([], 10.0)
    intake.take_no_list("down", 11.0)
    assert not intake.complete_round()


# ---- Submissions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wishes", "budget", "shares"),
    [
        ([], 5, []),
        ([Wish(3)], 5, [3]),
        ([Wish(3)], -1, [0]),
        ([Wish(9), Wish(9)], 5, [3, 2]),
        ([Wish(9), Wish(9, occupied=3)], 5, [4, 1]),
        ([Wish(1), Wish(9, occupied=3)], 5, [1, 4]),
        ([Wish(9, priority=1), Wish(7, priority=2)], 10, [3, 7]),
        ([Wish(0), Wish(2)], 1, [0, 1]),
    ],
)
def test_shares(wishes: list[Wish], budget: int, shares: list[int]) -> None:
    """Higher priorities come first. Equal priorities get equal numbers of places. Places that they already have
    count."""
    assert share(wishes, budget) == shares


def test_submissions_keep_both_limits_and_report_what_the_limit_of_jobs_forbids(
    state: OverseerState, complaints: Complaints
) -> None:
    submissions = Submissions(state, complaints)
    a, b = add(state, "a", slaves_needed=5), add(state, "b", slaves_needed=0)
    assert submissions.decide([a, b], 0.0) == [Shortage(a, 1)]
    assert state.actions.submit == [Submit("a", 3)]
    submissions.take_submitted("a", ["1", "2", "3"], 0.0)
    assert submissions.free == 1
    state.actions.submit.clear()
    submissions.decide([a, b], 59.0)
    assert state.actions.submit == []
    submissions.decide([a, b], 60.0)
    assert state.actions.submit == [Submit("a", 1)]


def test_a_refused_submission_is_tried_again_after_growing_pauses(state: OverseerState, complaints: Complaints) -> None:
    submissions = Submissions(state, complaints)
    computation = add(state, "a", slaves_needed=1)
    pauses, now = [], 0.0
    for _ in range(8):
        submissions.take_refused("a", 1, "no", now)
        pauses.append(computation.refusals.until - now)
        now = computation.refusals.until
    assert pauses == [10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 600.0, 600.0]
    submissions.settle(now)
    submissions.decide([computation], now - 0.1)
    assert state.actions.submit == []
    submissions.decide([computation], now)
    assert state.actions.submit == [Submit("a", 1)]


# ---- Removals -----------------------------------------------------------------------------------------------


def test_room_is_made_by_the_least_important_waiting_jobs(state: OverseerState, complaints: Complaints) -> None:
    removals = Removals(state, complaints)
    computations = [add(state, mark, priority=priority) for mark, priority in (("a", 3), ("b", 2), ("c", 1))]
    for each in computations:
        each.jobs.take_list(jobs(**{f"{each.mark}1": QUEUED, f"{each.mark}2": QUEUED, f"{each.mark}3": RUNNING}), 0.0)
    removals.make_room(computations, 3, 3, 0.0)
    assert state.actions.remove == ["c1", "c2", "b2"]
    removals.make_room(computations, 1, 3, 0.0)
    assert len(state.actions.remove) == 3


def test_too_many_jobs_are_cut_but_none_at_work(state: OverseerState, complaints: Complaints) -> None:
    removals = Removals(state, complaints)
    computation = add(state, "a", age_s=5.0, connected={"2": 0, "3": 1})
    computation.jobs.take_list(jobs(**{"1": QUEUED, "2": RUNNING, "3": RUNNING}), 0.0)
    computation.note_idleness(0.0)
    removals.cut([computation], 9, 0.0)
    assert state.actions.remove == ["1", "2"]
    assert state.actions.say[-1] == "A: removes 1 job, idle, and more than --max 4: 2"
    removals.take_refused(["1"], "busy", 0.0)
    assert [computation.jobs.is_removed(job_id) for job_id in ("1", "2")] == [False, True]
