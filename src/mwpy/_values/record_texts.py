"""The text of a record: one line of the audit file.

Characters that end a line, move the cursor or are not visible are written as Python writes them in a string. So a text
can be read again (`unescaped`), and text of other machines cannot change a terminal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from mwpy._values import records
from mwpy._values.phrases import amount, counted, first_of
from mwpy._values.records import ReusedTasks, TaskRange

CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
"""Characters that end a line, move the cursor, reverse the order of others or are not visible; except tab and newline.
"""

_UNSEEN = re.compile(f"[\\\\\t\n{CONTROLS}]")
_ESCAPE = r"\\(?:[\\nrt]|x[0-9a-f]{2}|u[0-9a-f]{4})"


def text_of(record: records.Record) -> str:
    """Describe a record in one line; empty for a record that the audit file does not show."""
    describe = _TEXTS.get(type(record))
    text = "" if describe is None else escaped(describe(record))
    if isinstance(record, records.SlaveEnded):
        text += "".join(f"\t{name}: {escaped(words)}" for name, words in record.words.streams)
    return text


def escaped(text: str) -> str:
    """Return a text with all characters that cannot be seen as in a Python string."""
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def unescaped(text: str) -> str:
    """Return the text that `escaped` was given."""
    return re.sub(_ESCAPE, lambda found: found[0].encode().decode("unicode_escape"), text)


def _results_of(numbers: Sequence[int]) -> str:
    return f"the result of {first_of((f'task {number}' for number in numbers), len(numbers))}"


def _more(charge: records.Charge) -> str:
    return f", may use {amount(charge.more_memory)} now" if charge.more_memory else ""


def _text_of_total(total: records.Total) -> str:
    causes = "".join(f", {count} {cause}" for cause, count in total.lost.items())
    lost = f"; lost {counted(sum(total.lost.values()), 'attempt')}, {total.lost_s:.1f} s{causes}" if causes else ""
    seconds = f" of {total.seconds_max:g} s" if total.seconds_max else ""
    seconds += f", expected {total.seconds_expected:g} s" if total.seconds_expected else ""
    memory = f", memory {total.memory_used} of {total.memory_max} bytes" if total.memory_max else ""
    return (
        f"TOTAL {total.algorithm} on {total.host}: {counted(total.tasks, 'task')}, {total.failed} failed, "
        f"{total.seconds:.1f} s, longest {total.longest_s:.3f} s{seconds}{memory}{lost}"
    )


def _causes(charges: Sequence[records.Charge]) -> str:
    return "".join(f", {charge.cause.value}{_more(charge)}" for charge in charges)


def _counted(tasks: Sequence[TaskRange] | Sequence[ReusedTasks], noun: str) -> str:
    return counted(sum(each.count for each in tasks), noun)


def _names(tasks: Sequence[TaskRange] | Sequence[ReusedTasks]) -> str:
    named = (f"task {each.first + place} ({each.name})" for each in tasks for place in range(each.count))
    return first_of(named, sum(each.count for each in tasks))


def _text_of_connected(record: records.AgentConnected) -> str:
    job = f", job {record.job}" if record.job else ""
    return f"{record.agent} {record.address} -> connected, host {record.host}, pid {record.pid}{job}"


def _text_of_slave(record: records.SlaveConnected) -> str:
    return f"{record.sid} {record.address} -> connecting [{record.kind.value}] through {record.agent}"


def _text_of_ended(record: records.SlaveEnded) -> str:
    while_running = f" while it ran {record.running}, {record.cause.value}" if record.running else ""
    peak = f"; peak memory {amount(record.words.peak_bytes)}" if record.words.peak_bytes else ""
    return f"{record.sid} -> gone{while_running}: {record.reason}{peak}"


def _text_of_refused(record: records.AlgorithmRefused) -> str:
    return f"{record.sid or record.agent} cannot run {record.algorithm}: {record.reason}"


def _text_of_packages(record: records.PackagesCompared) -> str:
    same = [f"as the master {', '.join(record.same)}"] if record.same else []
    return f"{record.agent} has {'; '.join([*same, *record.different])}"


def _text_of_started(record: records.AttemptsStarted) -> str:
    named = ", ".join(f"attempt {each.attempt} of {each}" for each in record.tasks)
    return f"{record.sid} <- {named}, which {record.beside} has, too: {record.reason}"


def _text_of_attempts(record: records.AttemptsEnded) -> str:
    ended = f"{_counted(record.tasks, 'attempt')} ended beside others ({_names(record.tasks)})"
    return f"{record.sid} -> {ended}{_causes(record.charges)}: {record.reason}"


def _text_of_returned(record: records.TasksReturned) -> str:
    pause = f", delayed for {record.pause_s:g} s" if record.pause_s else ""
    back = f"{_counted(record.tasks, 'task')} back ({_names(record.tasks)})"
    return f"{record.sid} -> {back}{_causes(record.charges)}{pause}: {record.reason}"


def _text_of_state(record: records.TaskCheckpointed) -> str:
    return f"{record.sid} -> state of {record.task}, {amount(sum(map(len, record.frames)))}"


def _text_of_submitted(record: records.TasksSubmitted) -> str:
    blocked = (each for each in record.tasks if each.refers)
    return "; ".join(f"BLOCKED task {each.first}: it needs {_results_of(each.refers)}" for each in blocked)


def _text_of_unaddressed(record: records.TasksUnaddressed) -> str:
    return f"{_counted(record.tasks, 'task')} for {record.sid} may run anywhere ({_names(record.tasks)})"


def _text_of_brought(record: records.ResultsHandedOver) -> str:
    results = counted(sum(record.results.counts), "result")
    return f"{record.agent} -> {results} of {record.sid} in generation {record.generation}"


def _text_of_given(record: records.ResultGiven) -> str:
    content = record.cause or amount(sum(map(len, record.frames)))
    return f"HELD for later tasks: {_results_of([record.number])}, {content}"


_TEXTS: dict[type[records.Record], Callable[[Any], str]] = {
    records.Started: lambda record: f'INIT {record.role} "{record.member_id}" {record.detail}',
    records.Ended: lambda record: f'FINI {record.why} "{record.member_id}"',
    records.Notice: lambda record: f"NOTICE {record.text}",
    records.TasksReceived: lambda record: f"{record.sid} <- {counted(record.count, 'task')}",
    records.ResultsSent: lambda record: f"{record.sid} -> {counted(record.count, 'result')}",
    records.SlaveStarted: lambda record: f"SLAVE PROCESS {record.slave} started, pid {record.pid}",
    records.SlaveNamed: lambda record: f"SLAVE PROCESS {record.slave} is {record.sid}",
    records.SlaveConnected: _text_of_slave,
    records.SlaveChanged: lambda record: f"{record.sid} -> {record.state.value} [{record.kind.value}]",
    records.SlaveEnded: _text_of_ended,
    records.AgentConnected: _text_of_connected,
    records.AgentRefused: lambda record: f"REFUSED {record.address}: {record.reason}",
    records.AgentAway: lambda record: f"{record.agent} -> away: {record.reason}",
    records.AgentBack: lambda record: f"{record.agent} {record.address} -> back",
    records.AgentLost: lambda record: f"{record.agent} -> lost: {record.reason}",
    records.LossesExplained: lambda record: f"{record.agent} was not lost but {record.cause.value}: {record.reason}",
    records.HostExcluded: lambda record: f"EXCLUDED {record.reason}",
    records.HostReadmitted: lambda record: f"READMITTED host {record.host}",
    records.AgentLeft: lambda record: f"{record.agent} -> left: {record.reason}",
    records.PeerDropped: lambda record: f"DROPPED {record.peer}: {record.reason}",
    records.AlgorithmRefused: _text_of_refused,
    records.PackagesCompared: _text_of_packages,
    records.TasksAllocated: lambda record: f"{record.sid} <- {_counted(record.tasks, 'task')}",
    records.AttemptsStarted: _text_of_started,
    records.AttemptsEnded: _text_of_attempts,
    records.TasksReturned: _text_of_returned,
    records.TasksDue: lambda record: f"DUE {_names(record.tasks)}",
    records.TasksAwaited: lambda record: f"AWAITED {_names(record.tasks)}",
    records.TasksGivenUp: lambda record: f"UNRUNNABLE {_names(record.tasks)}: {record.reason}",
    records.TasksCancelled: lambda record: f"CANCELLED {_names(record.tasks)} {record.when}",
    records.TasksCancelling: lambda record: f"{record.sid} must not start {_names(record.tasks)}: cancelled",
    records.TaskCheckpointed: _text_of_state,
    records.TasksForbidden: lambda record: f"UNRUNNABLE {record.tasks}: {record.reason}",
    records.TasksFailed: lambda record: f"FAILED {_names(record.tasks)}: {record.reason}",
    records.TasksSubmitted: _text_of_submitted,
    records.TasksUnblocked: lambda record: f"UNBLOCKED {_names(record.tasks)}",
    records.Total: _text_of_total,
    records.TasksUnaddressed: _text_of_unaddressed,
    records.ResultsReceived: lambda record: f"{record.sid} -> {counted(sum(record.results.counts), 'result')}",
    records.ResultsHandedOver: _text_of_brought,
    records.TasksAnswered: lambda record: f"ANSWERED by an earlier generation: {_names(record.tasks)}",
    records.ResultsReused: lambda record: f"REUSED {_counted(record.tasks, 'stored result')} ({_names(record.tasks)})",
    records.ResultsHeld: lambda record: f"HELD for later tasks: {_results_of(record.numbers)}",
    records.ResultGiven: _text_of_given,
    records.ResultsReleased: lambda record: f"RELEASED {_results_of(record.numbers)}",
}
"""How each kind of record is described. The audit file does not show the others."""
