"""The text of a record: one line of the audit file.

Characters that end a line, move the cursor or are not visible are written as Python writes them in a string. So a text
can be read again (`unescaped`), and text of other machines cannot change a terminal.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

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
    text = escaped(
        _text_of_slaves(record) or _text_of_agents(record) or _text_of_tasks(record) or _text_of_results(record)
    )
    if isinstance(record, records.SlaveEnded):
        text += "".join(f"\t{name}: {escaped(words)}" for name, words in record.words.streams)
    return text


def escaped(text: str) -> str:
    """Return a text with all characters that cannot be seen as in a Python string."""
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def unescaped(text: str) -> str:
    """Return the text that `escaped` was given."""
    return re.sub(_ESCAPE, lambda found: found[0].encode().decode("unicode_escape"), text)


def _text_of_slaves(record: records.Record) -> str:
    match record:
        case records.Started(role, member_id, detail):
            return f'INIT {role} "{member_id}" {detail}'
        case records.Ended(why, member_id):
            return f'FINI {why} "{member_id}"'
        case records.Notice(text):
            return f"NOTICE {text}"
        case records.TasksReceived(sid, count):
            return f"{sid} <- {counted(count, 'task')}"
        case records.ResultsSent(sid, count):
            return f"{sid} -> {counted(count, 'result')}"
        case records.SlaveStarted(slave, pid):
            return f"SLAVE PROCESS {slave} started, pid {pid}"
        case records.SlaveNamed(slave, sid):
            return f"SLAVE PROCESS {slave} is {sid}"
        case records.SlaveConnected(sid, agent, address, kind):
            return f"{sid} {address} -> connecting [{kind.value}] through {agent}"
        case records.SlaveChanged(sid, state, kind):
            return f"{sid} -> {state.value} [{kind.value}]"
        case records.SlaveEnded(sid, cause, reason, running, words):
            while_running = f" while it ran {running}, {cause.value}" if running else ""
            peak = f"; peak memory {amount(words.peak_bytes)}" if words.peak_bytes else ""
            return f"{sid} -> gone{while_running}: {reason}{peak}"
        case _:
            return ""


def _text_of_agents(record: records.Record) -> str:
    match record:
        case records.AgentConnected(agent, address, host, pid, job):
            return f"{agent} {address} -> connected, host {host}, pid {pid}{f', job {job}' if job else ''}"
        case records.AgentRefused(address, reason):
            return f"REFUSED {address}: {reason}"
        case records.AgentAway(agent, reason):
            return f"{agent} -> away: {reason}"
        case records.AgentBack(agent, address):
            return f"{agent} {address} -> back"
        case records.AgentLost(agent, reason):
            return f"{agent} -> lost: {reason}"
        case records.LossesExplained(agent, _, cause, reason):
            return f"{agent} was not lost but {cause.value}: {reason}"
        case records.HostExcluded(_, reason):
            return f"EXCLUDED {reason}"
        case records.HostReadmitted(host):
            return f"READMITTED host {host}"
        case records.AgentLeft(agent, reason):
            return f"{agent} -> left: {reason}"
        case records.PeerDropped(peer, reason):
            return f"DROPPED {peer}: {reason}"
        case records.AlgorithmRefused(agent, algorithm, reason, _, sid):
            return f"{sid or agent} cannot run {algorithm}: {reason}"
        case records.PackagesCompared(agent, same, different):
            versions = "; ".join([*([f"as the master {', '.join(same)}"] if same else []), *different])
            return f"{agent} has {versions}"
        case _:
            return ""


def _text_of_tasks(record: records.Record) -> str:
    match record:
        case records.TasksAllocated(sid, tasks):
            return f"{sid} <- {counted(_count(tasks), 'task')}"
        case records.AttemptsStarted(sid, tasks, beside, reason):
            named = ", ".join(f"attempt {each.attempt} of {each}" for each in tasks)
            return f"{sid} <- {named}, which {beside} has, too: {reason}"
        case records.AttemptsEnded(sid, tasks, reason, charges):
            ended = counted(_count(tasks), "attempt")
            return f"{sid} -> {ended} ended beside others ({_names(tasks)}){_causes(charges)}: {reason}"
        case records.TasksReturned(sid, tasks, reason, charges, pause_s):
            pause = f", delayed for {pause_s:g} s" if pause_s else ""
            return (
                f"{sid} -> {counted(_count(tasks), 'task')} back ({_names(tasks)}){_causes(charges)}{pause}: {reason}"
            )
        case records.TasksDue(tasks):
            return f"DUE {_names(tasks)}"
        case records.TasksAwaited(tasks):
            return f"AWAITED {_names(tasks)}"
        case records.TasksGivenUp(_, _, tasks, reason):
            return f"UNRUNNABLE {_names(tasks)}: {reason}"
        case records.TasksCancelled(_, tasks, when):
            return f"CANCELLED {_names(tasks)} {when}"
        case records.TasksCancelling(sid, tasks):
            return f"{sid} must not start {_names(tasks)}: cancelled"
        case records.TaskCheckpointed(sid, task, frames):
            return f"{sid} -> state of {task}, {amount(sum(map(len, frames)))}"
        case records.TasksForbidden(tasks, _, reason):
            return f"UNRUNNABLE {tasks}: {reason}"
        case records.TasksFailed(tasks, reason):
            return f"FAILED {_names(tasks)}: {reason}"
        case records.TasksSubmitted(tasks):
            blocked = (each for each in tasks if each.refers)
            return "; ".join(f"BLOCKED task {each.first}: it needs {_results_of(each.refers)}" for each in blocked)
        case records.TasksUnblocked(tasks):
            return f"UNBLOCKED {_names(tasks)}"
        case records.Total():
            return _text_of_total(record)
        case records.TasksUnaddressed(sid, tasks):
            return f"{counted(_count(tasks), 'task')} for {sid} may run anywhere ({_names(tasks)})"
        case _:
            return ""


def _text_of_results(record: records.Record) -> str:
    match record:
        case records.ResultsReceived(sid, results):
            return f"{sid} -> {counted(sum(results.counts), 'result')}"
        case records.ResultsHandedOver(agent, _, generation, sid, results):
            return f"{agent} -> {counted(sum(results.counts), 'result')} of {sid} in generation {generation}"
        case records.TasksAnswered(_, tasks):
            return f"ANSWERED by an earlier generation: {_names(tasks)}"
        case records.ResultsReused(reused):
            return f"REUSED {counted(_count(reused), 'stored result')} ({_names(reused)})"
        case records.ResultsHeld(numbers):
            return f"HELD for later tasks: {_results_of(numbers)}"
        case records.ResultGiven(number, frames, cause):
            return f"HELD for later tasks: {_results_of([number])}, {cause or amount(sum(map(len, frames)))}"
        case records.ResultsReleased(numbers):
            return f"RELEASED {_results_of(numbers)}"
        case _:
            return ""


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


def _count(tasks: Sequence[TaskRange] | Sequence[ReusedTasks]) -> int:
    return sum(each.count for each in tasks)


def _names(tasks: Sequence[TaskRange] | Sequence[ReusedTasks]) -> str:
    named = (f"task {each.first + place} ({each.name})" for each in tasks for place in range(each.count))
    return first_of(named, _count(tasks))
