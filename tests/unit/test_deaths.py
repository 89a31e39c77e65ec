"""Deaths that tasks are charged with, and the limit on the memory of their last words."""

from __future__ import annotations

import pytest
from tests.spans import MAX, span

from mwpy._core.master import deaths
from mwpy._core.master.deaths import KeptDeaths
from mwpy._values.causes import Cause
from mwpy._values.ids import SlaveId
from mwpy._values.last_words import NO_WORDS, LastWords
from mwpy._values.records import Charge, SlaveEnded


def charge(kept: KeptDeaths, number: int, words: LastWords) -> LastWords:
    """Charge the death of a slave to a new task. Return the last words in the task's history."""
    sid = SlaveId(f"SLAVE-{number}")
    task = span(number, MAX)
    kept.note_end(SlaveEnded(sid, Cause.CRASH, "killed", "", words))
    kept.charge([task], [Charge(sid, Cause.CRASH, "killed")])
    return task.deaths[0].words


def test_a_charge_finds_the_last_words_of_its_slave() -> None:
    """The record before the charge must be the end of the same slave. The words of another slave are not used."""
    kept = KeptDeaths()
    assert charge(kept, 1, LastWords("out")) == LastWords("out")
    task = span(2, MAX)
    kept.charge([task], [Charge(SlaveId("SLAVE-7"), Cause.CRASH, "killed")])
    assert task.deaths[0].words == NO_WORDS


def test_the_oldest_last_words_are_truncated_when_all_exceed_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each death counts its words and 1000 characters: three of 3000 do not fit into 10,000."""
    monkeypatch.setattr(deaths, "WORDS_KEPT", 10_000)
    kept = KeptDeaths()
    tasks = [span(number, MAX) for number in range(3)]
    for number, task in enumerate(tasks):
        sid = SlaveId(f"SLAVE-{number}")
        kept.note_end(SlaveEnded(sid, Cause.CRASH, "killed", "", LastWords("x" * 3000)))
        kept.charge([task], [Charge(sid, Cause.CRASH, "killed")])
        kept.check()
    assert [task.deaths[0].words.size for task in tasks] == [deaths.OLD_WORDS_CHARACTERS, 3000, 3000]


def test_each_death_names_the_attempt_of_its_task() -> None:
    """Tasks in the same attempt share one death."""
    kept = KeptDeaths()
    tasks = [span(number, MAX) for number in range(3)]
    tasks[2].attempt = 7
    kept.charge(tasks, [Charge(SlaveId("SLAVE-1"), Cause.AGENT_LOST, "lost")])
    assert [(death.attempt, death.cause) for task in tasks for death in task.deaths] == [
        (0, Cause.AGENT_LOST),
        (0, Cause.AGENT_LOST),
        (7, Cause.AGENT_LOST),
    ]
    assert tasks[0].deaths[0] is tasks[1].deaths[0]
    kept.check()
