"""Sentences about a task: why it waits, or how it ended."""

from __future__ import annotations

from collections.abc import Iterator

from mwpy._values.inquiry_messages import Explanation, Fate, Place, Reason, Why
from mwpy._values.phrases import counted

__all__ = ["explained"]


_FATES: dict[Fate, str] = {
    Fate.PENDING: "waits to be sent to a slave",
    Fate.BLOCKED: "is blocked: it waits for the results of other tasks",
    Fate.DELAYED: "pauses before its next attempt, as `after` in its policy says",
    Fate.AWAITED: "waits for agents of the former master, which may run it or bring its result",
    Fate.AT_SLAVE: "is at a slave",
    Fate.CANCELLING: "is at a slave and is cancelled unless it has started",
    Fate.REUSED: "was answered from the run database, when it was submitted",
}

_REASONS: dict[Why, str] = {
    Why.TASKS_BEFORE: "{tasks} of the same queue are sent before it",
    Why.TURNS: "its queue takes turns with {number} others, of other algorithms or expected times",
    Why.HELD_BACK: "no task is sent now: {text}",
    Why.STOPPED: "the run is stopped, because too many tasks have failed",
    Why.NO_AGENT: "no slave is connected: start some, or search for faults with `mwpy doctor`",
    Why.RUNS_ALONE: "agents vanished while they had it, so it is sent only to an agent that runs nothing else",
    Why.ADDRESSED: "it is addressed to {text}, so no other slave is sent it",
    Why.MISSING: "{tasks} must end before it: {text}",
    Why.PAUSE: "its next attempt is possible in {number} s",
    Why.HOST_EXCLUDED: "the host is excluded: {text}",
    Why.LEAVING: "leaving: {text}",
    Why.AWAY: "away: nothing is heard from it, and it may come back",
    Why.STARTING: "no slave is ready yet",
    Why.ENDING: "its slaves get no more tasks, and end",
    Why.CANNOT_RUN: "cannot run {algorithm}: {text}",
    Why.NO_TIME: "too little time left: {number} s at most, and the task takes {needed_s:.3g} s",
    Why.RESERVED: "reserved for another task, which runs alone",
    Why.OTHER_KIND: "all slaves are ordered or freed, and get no task that is not addressed to them",
    Why.NOT_ALONE: "the task must run alone, and {tasks} are there",
    Why.BUSY: "all slaves are busy, with {tasks}",
    Why.IDLE: "a slave is idle: the task is sent when it is its turn",
}


def explained(answer: Explanation) -> str:
    """Return an explanation as lines of text. The first one says how far the task is."""
    return "\n".join(_lines(answer))


def _lines(answer: Explanation) -> Iterator[str]:
    name = f"task {answer.task}" + (f" ({answer.algorithm})" if answer.algorithm else "")
    if answer.fate is Fate.UNKNOWN:
        yield f"{name} is unknown: {answer.text} tasks were submitted so far, with ids from 1 on"
    elif answer.fate is Fate.ENDED:
        yield f"{name} has ended, and the master keeps nothing of it"
    elif answer.fate is Fate.FAILED:
        yield f"{name} failed{f' on {answer.host}' if answer.host else ''}: {_in_one_line(answer.text)}"
    else:
        yield f"{name} {_FATES[answer.fate]}{_attempts(answer.attempts)}"
    for reason in answer.reasons:
        yield f"  {_sentence(reason, answer)}"
    for place in answer.places:
        yield f"  {_place(place)}"
    for reason in answer.agents:
        more = f" and {reason.count - len(reason.agents)} more" if reason.count > len(reason.agents) else ""
        yield f"  {', '.join(reason.agents)}{more}: {_sentence(reason, answer)}"
    for death in answer.deaths:
        yield f"  lost: {_in_one_line(death)}"


def _sentence(reason: Reason, answer: Explanation) -> str:
    number = round(reason.number)
    known = {"text": _in_one_line(reason.text), "algorithm": answer.algorithm, "needed_s": answer.needed_s or 0.0}
    return _REASONS[reason.why].format(number=number, tasks=counted(number, "task"), **known)


def _in_one_line(text: str) -> str:
    return " ".join(text.split())


def _attempts(count: int) -> str:
    return f", after {counted(count, 'attempt')}" if count else ""


def _place(place: Place) -> str:
    where = f"attempt {place.attempt} is on {place.sid} of {place.agent} ({place.host})"
    if place.before:
        return f"{where}, behind {counted(place.before, 'task')}; its last result came {place.seconds:.0f} s ago"
    return f"{where}, and has run there for at most {place.seconds:.0f} s"
