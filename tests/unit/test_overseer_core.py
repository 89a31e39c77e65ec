"""The decisions of an overseer, round by round. Each part has tests of its own."""

from __future__ import annotations

import signal

import pytest
from attrs import evolve
from msgspec.structs import replace

from mwpy._core.overseen import DRAIN_AGAIN_S, FIRST_RETRY_S, JOBS_REMEMBERED, WatchedComputation
from mwpy._core.overseer import (
    Drained,
    Ended,
    FileRead,
    FileUnread,
    Listed,
    NotListed,
    OverseerActions,
    OverseerCore,
    OverseerSettings,
    Submit,
    Submitted,
)
from mwpy._values.errors import ExitCode
from mwpy._values.jobs import FINISHED, IN_PROGRESS, End, Job, JobState, Kind, MemberKeys, Outcome, ResourceFile

HELD, LEAVING, QUEUED, RUNNING = JobState.HELD, JobState.LEAVING, JobState.QUEUED, JobState.RUNNING

CONTENT = ResourceFile(
    IN_PROGRESS, 100.0, 300.0, "m", "g1", ("tcp://h:1",), MemberKeys("", "", ""), 1, 0, 0, "agent", ("--mw-slave",)
)

DIED = Outcome.of_process(1, 2.0, "Traceback\nModuleNotFoundError: No module named 'sky'\n")


class Desk:
    """An overseer's core with a simple world around it: resource files, a list of jobs, and the ends of jobs."""

    def __init__(self, **settings: float) -> None:
        self.core = OverseerCore(OverseerSettings(**settings))  # type: ignore[arg-type]
        self.now = 1000.0
        self.jobs: dict[str, Job] = {}
        self.contents: dict[str, ResourceFile | str] = {}
        self.age_s = 5.0
        self.outcomes: dict[str, Outcome] = {}
        self.asked: list[str] = []
        self.free_places: int | None = None

    def watch(self, mark: str = "a", *, priority: int = 0, slaves_per_job: int = 1, **content: object) -> None:
        self.core.watch(WatchedComputation(mark, mark.upper(), priority, slaves_per_job))
        self.write(mark, **content)

    def write(self, mark: str = "a", **changes: object) -> None:
        """Change the content of a resource file."""
        old = self.contents.get(mark, CONTENT)
        assert isinstance(old, ResourceFile)
        self.contents[mark] = replace(old, **changes)

    def job(
        self,
        job_id: str,
        state: JobState = RUNNING,
        running_s: float = 0.0,
        mark: str = "a",
        note: str = "",
        host: str = "",
    ) -> None:
        self.jobs[job_id] = Job(job_id, mark, state, running_s, note, host)

    def at_work(self, mark: str, *job_ids: str, busy: int = 1) -> None:
        """Jobs run and are connected. Each has run for longer than the next one."""
        content = self.contents[mark]
        assert isinstance(content, ResourceFile)
        for number, job_id in enumerate(job_ids):
            self.job(job_id, RUNNING, 1000.0 - number, mark=mark)
        self.write(mark, connected_jobs={**content.connected_jobs, **dict.fromkeys(job_ids, busy)})

    def gone(self, *job_ids: str, outcome: Outcome | None = None) -> None:
        for job_id in job_ids:
            self.jobs.pop(job_id, None)
            if outcome is not None:
                self.outcomes[job_id] = outcome

    def look(self, after_s: float = 10.0, listed: bool = True) -> OverseerActions:
        """Run one round; return everything that was decided in it."""
        self.now += after_s
        for mark, content in self.contents.items():
            if isinstance(content, ResourceFile):
                self.core.handle(FileRead(mark, content, self.age_s), self.now)
            else:
                self.core.handle(FileUnread(mark, content), self.now)
        self.core.handle(
            Listed(list(self.jobs.values()), self.free_places) if listed else NotListed("it is down"), self.now
        )
        decided = OverseerActions()
        while True:
            self.core.decide(self.now)
            actions = self.core.take_actions()
            decided.say += actions.say
            decided.remove += actions.remove
            decided.submit += actions.submit
            decided.drain |= actions.drain
            self.asked += actions.ask
            if not actions.ask:
                return decided
            for job_id in actions.ask:
                self.core.handle(Ended(job_id, self.outcomes.get(job_id)), self.now)

    def submitted(self, *job_ids: str, mark: str = "a", shown: bool = True) -> None:
        self.core.handle(Submitted(Submit(mark, len(job_ids)), job_ids), self.now)
        for job_id in job_ids if shown else ():
            self.job(job_id, QUEUED, mark=mark)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def count(actions: OverseerActions) -> int:
    return sum(each.count for each in actions.submit)


def said(actions: OverseerActions) -> str:
    return "\n".join(actions.say)


# ---- how many -----------------------------------------------------------------------------------------------


def test_missing_jobs_are_submitted_and_none_twice(desk: Desk) -> None:
    """Jobs on their way count: not listed yet, waiting, running and not connected."""
    desk.watch(slaves_needed=3)
    assert desk.look().submit == [Submit("a", 3)]
    desk.submitted("1.0", "1.1", "1.2", shown=False)
    assert desk.look().submit == []
    desk.job("1.0", QUEUED)
    desk.job("1.1", RUNNING, 1.0)
    desk.job("1.2", RUNNING, 1.0)
    assert desk.look().submit == []
    desk.write(slaves_needed=2, connected_jobs={"1.2": 1})
    assert desk.look().submit == []
    desk.write(slaves_needed=4)
    actions = desk.look()
    assert actions.submit == [Submit("a", 2)]
    assert actions.say == ["A: submits 2 jobs: 4 slaves missing, 2 jobs on the way"]


def test_no_job_is_submitted_that_is_too_short_for_all_tasks() -> None:
    """A job also needs time for its start and its end. The reason comes once."""
    desk = Desk(job_limit_s=69.0)
    desk.watch(slaves_needed=3, shortest_task=60.0)
    actions = desk.look()
    assert actions.submit == []
    assert "A: submits nothing: a job ends after 69 s, but each task that waits takes 60 s or more" in said(actions)
    assert "Start the overseer with a longer limit of the jobs (--line" in said(actions)
    assert said(desk.look()) == ""
    desk.write(shortest_task=59.0)
    assert desk.look().submit == [Submit("a", 3)]


@pytest.mark.parametrize(("limit_s", "shortest_s"), [(None, 1e9), (20.0, 0.0), (20.0, 10.0)])
def test_jobs_without_a_known_limit_or_for_short_tasks_are_submitted(limit_s: float | None, shortest_s: float) -> None:
    desk = Desk(**({} if limit_s is None else {"job_limit_s": limit_s}))
    desk.watch(slaves_needed=3, shortest_task=shortest_s)
    assert desk.look().submit == [Submit("a", 3)]


def test_an_overseer_that_was_started_again_finds_its_jobs_by_their_mark(desk: Desk) -> None:
    """Jobs with another mark do not count."""
    desk.watch(slaves_needed=3)
    desk.job("1.0", QUEUED)
    desk.job("1.1", RUNNING)
    desk.job("9.0", QUEUED, mark="other")
    actions = desk.look()
    assert actions.submit == [Submit("a", 1)]
    assert actions.say[0] == "A: continues with 2 jobs of an earlier overseer: 1.0, 1.1"
    assert "continues" not in said(desk.look())


def test_a_batch_system_without_a_queue_gets_only_jobs_that_have_a_place(desk: Desk) -> None:
    """Computations share the free places. Jobs that fail do not lead to jobs during the pause."""
    desk.free_places = 3
    desk.watch("a", slaves_needed=9)
    desk.watch("b", slaves_needed=1)
    actions = desk.look()
    assert [(each.mark, each.count) for each in actions.submit] == [("a", 2), ("b", 1)]
    assert "A: 7 more jobs would be useful, but all hosts are full, or --max allows only 1000" in said(actions)
    desk.submitted("1", "2")
    desk.submitted("3", mark="b")
    desk.free_places = 0
    assert not desk.look().submit
    desk.free_places = 2
    for job_id in ("1", "2"):
        desk.gone(job_id, outcome=DIED)
    assert count(desk.look()) == 2
    desk.submitted("4", "5")
    desk.gone("4", "5", outcome=DIED)
    assert count(desk.look()) == 0


def test_a_submission_without_an_answer_is_not_repeated_blindly(desk: Desk) -> None:
    """New jobs in the list belong to this submission. After half a minute, the others count as lost."""
    desk.watch(slaves_needed=3)
    desk.look()
    desk.core.handle(Submitted(Submit("a", 3), fault="no answer"), desk.now)
    actions = desk.look()
    assert (actions.submit, said(actions)) == (
        [],
        "A: the batch system submitted nothing, as far as is known: no answer",
    )
    desk.job("1.0", QUEUED)
    desk.job("1.1", QUEUED)
    assert (desk.look().submit, desk.core.computations["a"].jobs.unlisted) == ([], 1)
    assert count(desk.look()) == 1
    desk.core.handle(Submitted(Submit("a", 1), fault="no answer"), desk.now)
    assert count(desk.look(45.0)) == 1
    desk.submitted("2.0")
    assert "accepts jobs again" in said(desk.look())


# ---- priority and --max -------------------------------------------------------------------------------------


def test_equal_computations_share_the_limit_and_important_ones_come_first() -> None:
    desk = Desk(max_jobs=10)
    desk.watch("a", slaves_needed=9)
    desk.watch("b", slaves_needed=9)
    assert desk.look().submit == [Submit("a", 5), Submit("b", 5)]
    desk = Desk(max_jobs=10)
    desk.watch("a", slaves_needed=9)
    desk.watch("b", slaves_needed=7, priority=1)
    actions = desk.look()
    assert actions.submit == [Submit("b", 7), Submit("a", 3)]
    assert "A: 6 more jobs would be useful, but --max allows only 10" in said(actions)


def test_an_important_computation_takes_the_places_of_waiting_jobs_first() -> None:
    desk = Desk(max_jobs=4)
    desk.watch("a", slaves_needed=4)
    desk.at_work("a", "1.0")
    for number in range(1, 4):
        desk.job(f"1.{number}", QUEUED)
    desk.look()
    desk.watch("b", slaves_needed=2, priority=1)
    actions = desk.look()
    assert (actions.remove, actions.drain, actions.submit) == (["1.3", "1.2"], {}, [])
    desk.gone("1.2", "1.3")
    assert desk.look().submit == [Submit("b", 2)]
    assert desk.asked == []


@pytest.fixture
def crowded() -> Desk:
    """A computation has all four places, and wants more."""
    desk = Desk(max_jobs=4)
    desk.watch("a", slaves_needed=4)
    desk.at_work("a", "1.0", "1.1", "1.2", "1.3")
    desk.look()
    return desk


def test_an_important_computation_gets_the_places_of_jobs_at_work_when_their_tasks_have_ended(crowded: Desk) -> None:
    """Nothing is removed, nothing is asked for twice, and the other computation takes no place back."""
    crowded.watch("b", slaves_needed=9, priority=5)
    actions = crowded.look()
    assert (actions.drain, actions.remove, actions.submit) == ({"a": ["1.3", "1.2", "1.1", "1.0"]}, [], [])
    text = "A: lets 4 jobs leave after their tasks, because B needs places: 1.3, 1.2, 1.1, 1.0"
    assert text in actions.say
    crowded.core.handle(Drained("a", []), crowded.now)
    crowded.write("a", slaves_needed=7)
    assert crowded.look(200.0) == OverseerActions()
    crowded.gone("1.3", outcome=Outcome.of_process(0, 5.0, ""))
    actions = crowded.look()
    assert (actions.submit, actions.drain) == ([Submit("b", 1)], {})
    crowded.submitted("2.0", mark="b")
    crowded.gone("1.0", "1.1", "1.2", outcome=Outcome.of_process(0, 5.0, ""))
    assert crowded.look().submit == [Submit("b", 3)]
    crowded.submitted("2.1", "2.2", "2.3", mark="b")
    for _ in range(5):
        actions = crowded.look()
        assert (actions.submit, actions.remove, actions.drain) == ([], [], {})


def test_equal_computations_get_equal_numbers_of_places(crowded: Desk) -> None:
    """The one that gave places wants them back and does not get them. A difference of one job remains."""
    crowded.watch("b", slaves_needed=3)
    actions = crowded.look()
    assert actions.drain == {"a": ["1.3", "1.2"]}
    assert "A: lets 2 jobs leave after their tasks, because B needs places: 1.3, 1.2" in actions.say
    crowded.write("a", slaves_needed=6)
    for job_id, new in ("1.3", "2.0"), ("1.2", "2.1"):
        crowded.gone(job_id, outcome=Outcome.of_process(0, 99.0, ""))
        assert crowded.look().submit == [Submit("b", 1)]
        crowded.at_work("b", new)
    crowded.write("b", slaves_needed=1)
    crowded.watch("c", slaves_needed=1)
    assert crowded.look().drain == {"a": ["1.1"]}
    crowded.gone("1.1", outcome=Outcome.of_process(0, 99.0, ""))
    assert crowded.look().submit == [Submit("c", 1)]
    crowded.at_work("c", "3.0")
    for _ in range(5):
        actions = crowded.look()
        assert (actions.submit, actions.drain) == ([], {})


def test_no_job_leaves_while_there_are_free_places() -> None:
    desk = Desk(max_jobs=6)
    desk.watch("a", slaves_needed=4)
    desk.at_work("a", "1.0", "1.1", "1.2", "1.3")
    desk.watch("b", slaves_needed=2, priority=5)
    actions = desk.look()
    assert (actions.submit, actions.drain) == ([Submit("b", 2)], {})


def test_when_all_hosts_are_full_jobs_leave_although_max_allows_more(crowded: Desk) -> None:
    crowded.core = OverseerCore(OverseerSettings())
    crowded.free_places = 0
    crowded.watch("a")
    crowded.watch("b", slaves_needed=2)
    actions = crowded.look()
    assert (actions.drain, actions.submit) == ({"a": ["1.3", "1.2"]}, [])
    crowded.gone("1.3")
    crowded.free_places = 1
    assert crowded.look().submit == [Submit("b", 1)]


def test_the_least_important_computation_with_most_jobs_gives_first() -> None:
    """A more important computation gives none as long as they can, or if it is more important than the taker."""
    desk = Desk(max_jobs=9)
    for mark, priority, number in ("a", 1, 3), ("b", 0, 3), ("c", 0, 2), ("d", 3, 1):
        desk.watch(mark, priority=priority)
        desk.at_work(mark, *(f"{mark}.{each}" for each in range(number)))
    desk.look()
    desk.watch("e", slaves_needed=4, priority=2)
    assert desk.look().drain == {"b": ["b.2", "b.1", "b.0"], "c": ["c.1"]}


def test_idle_jobs_leave_first_and_jobs_that_are_not_connected_do_not(crowded: Desk) -> None:
    """Such a job may be on its way to its master, which then can let it leave."""
    crowded.write("a", connected_jobs={"1.0": 1, "1.1": 0, "1.2": 1})
    crowded.watch("b", slaves_needed=1, priority=5)
    assert crowded.look().drain == {"a": ["1.1"]}
    crowded.write("b", slaves_needed=4)
    assert crowded.look().drain == {"a": ["1.2", "1.0"]}


def test_the_last_job_of_a_computation_leaves_only_for_a_more_important_one() -> None:
    desk = Desk(max_jobs=1)
    desk.watch("a", slaves_needed=1)
    desk.at_work("a", "1.0")
    desk.watch("b", slaves_needed=1)
    for _ in range(20):
        actions = desk.look()
        assert (actions.remove, actions.drain) == ([], {})
    desk.watch("c", slaves_needed=1, priority=5)
    assert desk.look().drain == {"a": ["1.0"]}


def test_a_master_that_cannot_be_asked_is_asked_again_after_growing_pauses(crowded: Desk) -> None:
    """This is said once. Meanwhile its jobs count as before."""
    crowded.watch("b", slaves_needed=2)
    drained = {"a": ["1.3", "1.2"]}
    assert crowded.look().drain == drained
    crowded.core.handle(Drained("a", drained["a"], "no answer"), crowded.now)
    actions = crowded.look(FIRST_RETRY_S - 1.0)
    assert "A: its master was not asked to let jobs leave, as far as is known: no answer" in actions.say
    assert actions.drain == {}
    actions = crowded.look(1.0)
    assert ("leave" in said(actions), actions.drain) == (False, drained)
    crowded.core.handle(Drained("a", drained["a"], "no answer"), crowded.now)
    actions = crowded.look(2 * FIRST_RETRY_S - 1.0)
    assert ("no answer" in said(actions), actions.drain) == (False, {})
    actions = crowded.look(1.0)
    assert ("leave" in said(actions), actions.drain) == (False, drained)
    crowded.core.handle(Drained("a", []), crowded.now)
    assert crowded.look().say == ["A: its master answers again"]


def test_a_master_is_asked_again_about_a_job_that_does_not_leave(crowded: Desk) -> None:
    """It had perhaps lost its connection. A report does not repeat."""
    crowded.watch("b", slaves_needed=1)
    assert crowded.look().drain == {"a": ["1.3"]}
    assert crowded.look(DRAIN_AGAIN_S - 1.0).drain == {}
    actions = crowded.look(1.0)
    assert (actions.drain, actions.say) == ({"a": ["1.3"]}, [])
    assert crowded.look().drain == {}


def test_a_job_that_was_evicted_before_it_could_leave_waits_like_others(crowded: Desk) -> None:
    crowded.watch("b", slaves_needed=1)
    assert crowded.look().drain == {"a": ["1.3"]}
    crowded.job("1.3", QUEUED)
    crowded.write("a", connected_jobs={"1.0": 1, "1.1": 1, "1.2": 1})
    assert crowded.look().remove == ["1.3"]


def test_with_a_smaller_limit_waiting_jobs_go_first_and_others_leave_after_their_tasks() -> None:
    desk = Desk(max_jobs=1)
    desk.watch("a", slaves_needed=3, connected_jobs={"1.1": 0, "1.2": 2})
    desk.job("1.0", QUEUED)
    desk.job("1.1", RUNNING)
    desk.job("1.2", RUNNING)
    desk.job("1.3", RUNNING)
    actions = desk.look()
    assert (actions.remove, actions.submit, actions.drain) == (["1.0"], [], {"a": ["1.1", "1.2"]})
    assert "A: removes 1 job, waiting, because --max 1 allows no more: 1.0" in actions.say
    assert desk.look().drain == {}


def test_a_job_leaves_after_its_task_when_its_machine_may_have_fewer_jobs() -> None:
    """Another one starts elsewhere then, because the limit allows it."""
    desk = Desk(max_jobs=2)
    desk.watch("a", slaves_needed=0, connected_jobs={"1.0": 1, "1.1": 1})
    desk.jobs["1.0"] = Job("1.0", "a", RUNNING, 50.0, host="node1", is_surplus=True)
    desk.jobs["1.1"] = Job("1.1", "a", RUNNING, 10.0, host="node2")
    actions = desk.look()
    assert (actions.drain, actions.remove) == ({"a": ["1.0"]}, [])
    assert "lets 1 job leave after their tasks, because their machines may have fewer jobs now: 1.0" in said(actions)


# ---- the end, and a master that is gone ---------------------------------------------------------------------


def test_nothing_is_done_for_a_master_that_no_longer_writes(desk: Desk) -> None:
    """At first, the age of the file counts. After a change of the file, a difference of clocks does not matter."""
    desk.age_s = 901.0
    desk.watch(slaves_needed=1)
    desk.job("1.0", QUEUED)
    desk.job("1.1", QUEUED)
    actions = desk.look()
    assert (actions.submit, actions.remove) == ([], [])
    assert said(actions).startswith(
        "A: pauses: the resource file is 15 min old, though its master writes it every 5 min"
    )
    assert desk.look().say == []
    assert "pauses" in said(desk.look(300.0))
    desk.write(timestamp=101.0, slaves_needed=3)
    actions = desk.look()
    assert count(actions) == 1
    assert "continues, because the master writes its resource file again" in said(actions)
    desk.submitted("1.2")
    assert "pauses" in said(desk.look(901.0))
    assert desk.look(10000.0).remove == []


# ---- jobs that fail -----------------------------------------------------------------------------------------


def failing(desk: Desk, *job_ids: str, outcome: Outcome = DIED) -> OverseerActions:
    """Let jobs wait for a round and then end."""
    for job_id in job_ids:
        desk.job(job_id, QUEUED)
    desk.look()
    desk.gone(*job_ids, outcome=outcome)
    return desk.look()


def test_three_jobs_that_fail_at_their_start_pause_the_submissions(desk: Desk) -> None:
    """The exit code is explained, and the end of stderr is shown. After each growing pause one job is tried."""
    desk.watch(slaves_needed=4)
    actions = failing(desk, "1.0", "1.1")
    assert "job 1.0 ended 2 s after its start: exit code 1 (its script failed before it called mwpy.main())" in said(
        actions
    )
    assert "No module named 'sky'" in said(actions)
    assert count(actions) == 4
    desk.submitted("2.0")
    desk.look()
    desk.gone("2.0", outcome=DIED)
    actions = desk.look()
    assert actions.submit == []
    assert "3 jobs in a row died within 30 s of their start or were held, so nothing is submitted for 60 s" in said(
        actions
    )
    assert "    | Traceback\n    | ModuleNotFoundError: No module named 'sky'" in said(actions)
    assert count(desk.look(59.0)) == 0
    assert count(desk.look(1.0)) == 1
    desk.submitted("3.0")
    assert count(desk.look(10.0)) == 0
    desk.gone("3.0", outcome=DIED)
    assert "nothing is submitted for 2 min" in said(desk.look())


def test_a_python_without_mwpy_is_named_as_the_cause(desk: Desk) -> None:
    desk.watch(slaves_needed=4)
    outcome = Outcome.of_process(1, 0.1, "/usr/bin/python3: No module named mwpy")
    text = said(failing(desk, "1", outcome=outcome))
    assert "exit code 1 (the Python that the job uses has no mwpy: install it there, or name another Python" in text


def test_a_tried_job_that_runs_well_ends_the_pause(desk: Desk) -> None:
    desk.watch(slaves_needed=4)
    failing(desk, "1.0", "1.1", "1.2")
    assert count(desk.look(60.0)) == 1
    desk.submitted("2.0")
    desk.job("2.0", RUNNING, 9.0)
    desk.write(slaves_needed=3, connected_jobs={"2.0": 1})
    assert count(desk.look(10.0)) == 0
    desk.job("2.0", RUNNING, 31.0)
    actions = desk.look(22.0)
    assert ("A: job 2.0 runs well, so more are submitted" in actions.say, count(actions)) == (True, 3)


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome.of_process(0, 2.0, ""),
        Outcome.of_process(5, 30.0, ""),
        Outcome(End.REMOVED, "killed by its user", None, 2.0),
        Outcome(End.LOST, "its node failed", None, 2.0),
        Outcome.of_process(255, 100.0, ""),
    ],
    ids=lambda outcome: outcome.description,
)
def test_jobs_that_were_sent_away_or_ran_for_long_are_no_failures(desk: Desk, outcome: Outcome) -> None:
    desk.watch(slaves_needed=4)
    assert count(failing(desk, "1.0", "1.1", "1.2", "1.3", outcome=outcome)) == 4


def test_jobs_that_are_killed_at_their_start_are_failures(desk: Desk) -> None:
    """Examples: the processor cannot run the program, or a limit of memory kills it.

    If a task kills them, the master gives it up after some attempts. So the pauses do not grow.
    """
    desk.watch(slaves_needed=4)
    killed = Outcome.of_process(-signal.SIGILL, 0.1, "")
    assert failing(desk, "1.0", "1.1", "1.2", outcome=killed).submit == []
    for job_id, outcome, pause in (("2.0", DIED, "2 min"), ("3.0", killed, "60 s"), ("4.0", killed, "60 s")):
        assert count(desk.look(120.0)) == 1
        desk.submitted(job_id)
        assert f"nothing is submitted for {pause}" in said(failing(desk, job_id, outcome=outcome))


def on(host: str, outcome: Outcome = DIED) -> Outcome:
    """The same outcome on this machine."""
    return evolve(outcome, host=host)


def test_a_machine_on_which_jobs_fail_is_avoided_if_jobs_run_well_elsewhere(desk: Desk) -> None:
    """The other submissions go on. After an hour the machine is tried again."""
    desk.watch(slaves_needed=4)
    desk.job("0.0", RUNNING, 100.0, host="good")
    desk.write(connected_jobs={"0.0": 1})
    assert count(failing(desk, "1.0", "1.1", outcome=on("bad"))) == 4
    desk.submitted("2.0", "2.1", "2.2", "2.3")
    desk.look()
    desk.gone("2.0", outcome=on("bad"))
    actions = desk.look()
    assert actions.submit == [Submit("a", 1, ("bad",))]
    assert "A: jobs fail at their start on bad and run well elsewhere, so none is submitted there" in said(actions)
    assert "A: submits 1 job, not to bad: 4 slaves missing, 3 jobs on the way" in said(actions)
    desk.submitted("3.0")
    desk.gone("2.1", outcome=on("bad"))
    assert desk.look().submit == [Submit("a", 1, ("bad",))]
    desk.submitted("4.0")
    desk.gone("2.2")
    desk.outcomes["2.2"] = on("bad", Outcome.of_process(0, 50.0, ""))
    assert desk.look(3600.0).submit == [Submit("a", 1)]


def test_a_machine_that_sends_each_job_away_at_once_is_avoided(desk: Desk) -> None:
    """Its clock is wrong, for example, so that the time limit of each job seems to have passed."""
    desk.watch(slaves_needed=4)
    desk.job("0.0", RUNNING, 100.0, host="good")
    sent_away = on("bad", Outcome.of_process(5, 0.5, ""))
    assert failing(desk, "1.0", "1.1", "1.2", outcome=sent_away).submit == [Submit("a", 3, ("bad",))]


def test_jobs_that_an_excluded_machine_sends_back_name_it_and_stop_no_submissions(desk: Desk) -> None:
    """They ran before this overseer was started, or were submitted before the machine was excluded."""
    desk.watch(slaves_needed=3, excluded_hosts={"node1": ["1.0", "1.1", "1.2"], "node3": []})
    refused = on("node1", Outcome.of_process(3, 1.0, "the master refused this agent"))
    actions = failing(desk, "1.0", "1.1", "1.2", outcome=refused)
    assert actions.submit == [Submit("a", 3, ("node1",))]
    desk.write(generation="g2", timestamp=101.0, excluded_hosts={})
    desk.submitted("2.0")
    assert desk.look().submit == [Submit("a", 2)]


@pytest.mark.parametrize("is_listed", [True, False])
def test_the_master_may_name_jobs_that_have_ended_long_ago(desk: Desk, is_listed: bool) -> None:
    """The resource file is written later than the end of the jobs. A limited number is remembered."""
    desk.watch(slaves_needed=0)
    if is_listed:
        desk.job("1.0", RUNNING, 100.0, host="node1.site")
        desk.look()
        desk.gone("1.0", outcome=on("", Outcome.of_process(3, 100.0, "")))
    else:
        failing(desk, "1.0", outcome=on("node1.site"))
    desk.look()
    desk.write(slaves_needed=2, excluded_hosts={"node1": ["1.0"]})
    assert desk.look().submit == [Submit("a", 2, ("node1.site",))]
    desk.write(slaves_needed=0, excluded_hosts={})
    for number in range(JOBS_REMEMBERED):
        desk.job(f"2.{number}", RUNNING, 100.0, host="node2")
    desk.look()
    desk.gone(*desk.jobs, outcome=Outcome.of_process(0, 50.0, ""))
    desk.look()
    desk.write(slaves_needed=3, excluded_hosts={"node1": ["1.0"]})
    assert desk.look().submit[0].avoided == ()


def test_failures_on_all_machines_are_not_the_fault_of_one(desk: Desk) -> None:
    """A machine where jobs failed after others ran well is no evidence against another machine."""
    desk.watch(slaves_needed=4)
    desk.job("0.0", RUNNING, 100.0, host="good")
    failing(desk, "1.0", outcome=on("good"))
    assert "nothing is submitted for 60 s" in said(failing(desk, "2.0", "2.1", "2.2", outcome=on("bad")))


def test_a_job_is_tried_on_another_machine(desk: Desk) -> None:
    """The first one avoids the machine on which all jobs failed. If it runs well, this machine stays avoided."""
    desk.watch(slaves_needed=4)
    assert failing(desk, "1.0", "1.1", "1.2", outcome=on("bad")).submit == []
    assert desk.look(60.0).submit == [Submit("a", 1, ("bad",))]
    desk.submitted("2.0")
    desk.job("2.0", RUNNING, 31.0, host="good")
    desk.write(slaves_needed=3, connected_jobs={"2.0": 1})
    assert desk.look(60.0).submit == [Submit("a", 3, ("bad",))]


def test_failures_on_two_machines_are_rather_the_fault_of_the_script(desk: Desk) -> None:
    """A job is tried on any machine."""
    desk.watch(slaves_needed=4)
    failing(desk, "1.0", "1.1", "1.2", outcome=on("a"))
    failing(desk, "2.0", "2.1", "2.2", outcome=on("b"))
    assert desk.look(60.0).submit == [Submit("a", 1)]


def test_without_another_machine_the_only_one_is_tried(desk: Desk) -> None:
    """A tried job that finds no other machine is removed after five minutes."""
    desk.watch(slaves_needed=4)
    failing(desk, "1.0", "1.1", "1.2", outcome=on("only"))
    assert desk.look(60.0).submit == [Submit("a", 1, ("only",))]
    desk.submitted("2.0")
    assert desk.look(299.0).remove == []
    actions = desk.look(1.0)
    assert (actions.remove, actions.submit) == (["2.0"], [Submit("a", 1)])
    assert "waiting, and there is no other machine" in said(actions)


def test_a_held_job_is_reported_once_and_replaced_but_not_for_ever(desk: Desk) -> None:
    """A held job takes a place of --max and counts as a failure, because the reason usually holds for all jobs."""
    desk.watch(slaves_needed=1)
    desk.look()
    desk.job("1.0", HELD, note="no such file: app.py")
    actions = desk.look()
    assert actions.say[0] == "A: job 1.0 is held: no such file: app.py"
    assert count(actions) == 1
    desk.submitted("1.1")
    assert desk.look().say == []
    desk.job("1.1", HELD)
    assert "job 1.1 is held: no reason is given" in said(desk.look())
    desk.job("1.2", HELD)
    actions = desk.look()
    assert "nothing is submitted for 60 s" in said(actions)
    assert actions.submit == []
    assert desk.core.computations["a"].jobs.occupied == 3


# ---- other reports --------------------------------------------------------------------------------------


def test_a_job_that_another_master_knew_has_time_to_connect_again() -> None:
    """Its places are needed, but it may be on its way to the new master."""
    desk = Desk(max_jobs=1)
    desk.watch(slaves_needed=2, connected_jobs={"1.0": 1})
    desk.job("1.0", RUNNING, 1000.0)
    desk.look(1000.0)
    desk.write(generation="g2", timestamp=101.0, connected_jobs={})
    assert desk.look().remove == []
    assert desk.look(89.0).remove == []
    actions = desk.look(1.0)
    assert actions.remove == ["1.0"]
    assert "replaces 1 job without a connection to this master. " in said(actions)


def test_a_job_that_starts_slowly_has_more_time_than_one_of_an_earlier_master() -> None:
    """Neither is connected. The overseer was started again, and another one of its jobs began before that."""
    desk = Desk(max_jobs=2)
    desk.watch(slaves_needed=3)
    desk.job("1.0", RUNNING, 500.0)
    desk.job("1.1", RUNNING, 20.0)
    assert desk.look().remove == []
    assert desk.look(90.0).remove == ["1.0"]
    desk.job("1.0", LEAVING)
    assert desk.look(509.0).remove == []
    assert desk.look(1.0).remove == ["1.1"]


def test_useless_jobs_give_up_their_places_when_these_are_needed() -> None:
    """Held jobs and jobs that never connect go first, whatever the priority of their computation is."""
    desk = Desk(max_jobs=3)
    desk.watch("a", slaves_needed=0, priority=1, connected_jobs={"1.2": 1})
    desk.watch("b", slaves_needed=0)
    desk.job("1.0", HELD)
    desk.job("1.1", RUNNING)
    desk.job("1.2", RUNNING)
    desk.look()
    assert desk.look(600.0).remove == []
    desk.write("b", slaves_needed=2)
    actions = desk.look()
    assert (actions.remove, actions.submit) == (["1.0", "1.1"], [])
    assert "A: removes 2 jobs, held or not connected, because B needs places: 1.0, 1.1" in said(actions)
    desk.gone("1.0", "1.1")
    assert desk.look().submit == [Submit("b", 2)]


def test_the_reason_for_waiting_is_said_after_half_a_minute(desk: Desk) -> None:
    desk.watch(slaves_needed=1)
    desk.look()
    desk.job("1.0", QUEUED, note="BadConstraints")
    assert desk.look().say == []
    assert desk.look(29.0).say == []
    assert desk.look(1.0).say == ["A: 1 job still in the queue. The reason for job 1.0: BadConstraints"]


def test_jobs_are_asked_for_what_tasks_require_and_count_for_this_kind_only(desk: Desk) -> None:
    """Two kinds of tasks wait. Jobs of each kind come, and another round submits nothing twice."""
    wide, gpu = Kind({"cpus": 4, "memory": 2 << 30}, 2), Kind({"cpus": 1, "gpus": 1, "python": ">=3.10"}, 1)
    desk.watch(slaves_needed=4, kinds=(wide, gpu))
    decided = desk.look()
    asked = {each.amounts: each.count for each in decided.submit}
    assert asked == {wide.amounts: 2, gpu.amounts: 1, (): 1}
    assert any("2 jobs for cpus 4, memory 2.0 GiB" in text for text in decided.say)
    for number, each in enumerate(decided.submit):
        ids = [f"{number}.{place}" for place in range(each.count)]
        desk.core.handle(Submitted(each, ids), desk.now)
        for job_id in ids:
            desk.job(job_id, QUEUED)
    assert not desk.look().submit
    desk.write(slaves_needed=1, kinds=(replace(gpu, slaves_needed=1),), connected_jobs={"1.0": 1, "0.0": 1, "0.1": 1})
    desk.job("1.0")
    assert [(each.amounts, each.count) for each in desk.look().submit] == [(gpu.amounts, 1)]


def test_a_kind_of_job_that_can_run_nothing_is_not_submitted_again_and_again(desk: Desk) -> None:
    """It left after a minute, because a condition was not true there that the batch system cannot check. Jobs of
    other kinds are submitted, and a change of the number of tasks changes nothing."""
    kind, other = Kind({"cpus": 1, "python": ">=3.99"}, 2), Kind({"cpus": 4}, 1)
    desk.watch(slaves_needed=1, kinds=(replace(kind, slaves_needed=1),))
    (submit,) = desk.look().submit
    desk.core.handle(Submitted(submit, ["1.0"]), desk.now)
    desk.job("1.0", QUEUED)
    desk.look()
    desk.gone("1.0", outcome=Outcome.of_process(ExitCode.UNFIT, 65.0, ""))
    decided = desk.look()
    assert not decided.submit
    assert any("nothing that waits can run there" in text for text in decided.say)
    desk.write(slaves_needed=2, kinds=(kind,))
    assert not desk.look().submit
    desk.write(slaves_needed=3, kinds=(kind, other))
    assert [(each.amounts, each.count) for each in desk.look().submit] == [(kind.amounts, 2), (other.amounts, 1)]


def test_an_overseer_that_finds_the_file_of_an_earlier_run_waits_for_a_new_master() -> None:
    """The master may have been started at the same moment. If none comes, the overseer ends."""
    desk = Desk()
    desk.watch(computation_status=FINISHED)
    assert desk.look().say == ["A: was finished before this overseer started; waits 30 s for a new master"]
    desk.write(computation_status=IN_PROGRESS, generation="g2", slaves_needed=1)
    assert desk.look().submit == [Submit("a", 1)]
    desk.write(computation_status=FINISHED)
    assert desk.look().say[0] == "A: is finished; its jobs end by themselves (0 running)"
    late = Desk()
    late.watch(computation_status=FINISHED)
    late.look()
    assert [(late.look(10).say, late.core.done) for _ in range(2)] == [([], False)] * 2
    assert late.look(10).say == ["A: is finished, and no job of it is left"]
    assert late.core.done


def test_rounds_are_close_together_while_the_jobs_of_a_finished_computation_end() -> None:
    """The overseer ends with the last of them. After a minute, the usual interval is enough."""
    desk = Desk(interval_s=10.0)
    desk.watch()
    desk.at_work("a", "1.1")
    desk.look()
    assert not desk.core.is_due(desk.now + 9.0)
    desk.write(computation_status=FINISHED)
    desk.look()
    assert [desk.core.is_due(desk.now + late_s) for late_s in (1.0, 2.0)] == [False, True]
    desk.look(61.0)
    assert [desk.core.is_due(desk.now + late_s) for late_s in (2.0, 9.0, 10.0)] == [False, False, True]
