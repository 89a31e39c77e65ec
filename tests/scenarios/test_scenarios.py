"""Each file in this folder is a story: commands for a master, and after `>` the exact audit lines that they cause.

A line with `=` shows a request that has no audit line. It names the agent that must give tasks back, the number of
tasks, and the slave; or the agent that must not run some tasks, and these tasks.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.driven import Driven
from tests.spans import defined

from mwpy._core.master.state import (
    AllocateSlaves,
    CancelTasks,
    FreeSlave,
    HoldResults,
    ReleaseResults,
    Running,
    ShutDown,
)
from mwpy._transport.codec import Codec
from mwpy._values import groups, messages
from mwpy._values.bounds import SlaveId
from mwpy._values.causes import Cause
from mwpy._values.connections import Vanished
from mwpy._values.last_words import LastWords
from mwpy._values.messages import LoadFailure
from mwpy._values.policy import TaskPolicy
from mwpy._values.task import SlaveKind
from mwpy.audit import text_of

STORIES = sorted(Path(__file__).parent.glob("*.txt"))


class _Story(Driven):
    """A master that gets the commands of one file: the first word of a command is the name of a method `do_...`."""

    def __init__(self) -> None:
        self.algorithm = defined(0, "_square", reference="story:square")
        super().__init__([self.algorithm])

    def do(self, line: str) -> list[str]:
        """Do one command. Return the lines that it causes."""
        verb, *words = line.split()
        getattr(self, f"do_{verb}")(*words)
        lines = [f"> {text}" for record in self.actions.records if (text := text_of(record))]
        requests = [(send.peer.decode(), _request(send.message)) for send in self.actions.sends]
        return lines + [f"= {peer}: {text}" for peer, text in requests if text]

    def hear(self, peer: str, message: messages.Message, *frames: bytes) -> None:
        self.receive(message, *frames, peer=peer.encode())

    def do_submit(self, count: str, *policy: str) -> None:
        given = dict(word.split("=") for word in policy)
        sid = SlaveId(given["sid"]) if "sid" in given else None
        chosen = TaskPolicy(
            sid,
            retry=given.get("retry") != "no",
            do_it_anyway=given.get("anyway") == "yes",
            after=float(given.get("after", 0)),
            retries_errors=given.get("errors") == "yes",
            seconds_expected=float(given["expected"]) if "expected" in given else None,
            speculate=given.get("speculate") == "yes",
        )
        refers = [int(task) for task in given["refers"].split(",")] if "refers" in given else []
        self.submit(int(count), self.algorithm, chosen, refers=refers)

    def do_hold(self, *tasks: str) -> None:
        self.step(HoldResults([int(task) for task in tasks]))

    def do_release(self, *tasks: str) -> None:
        self.step(ReleaseResults([int(task) for task in tasks]))

    def do_want(self, count: str, kind: str) -> None:
        self.step(AllocateSlaves(int(count), SlaveKind(kind)))

    def do_free(self, sid: str) -> None:
        self.step(FreeSlave(SlaveId(sid)))

    def do_cancel(self, running: str, *tasks: str) -> None:
        self.step(CancelTasks([(int(task), 1) for task in tasks], Running(running)))

    def do_hello(self, peer: str, member: str = "m", generation: str = "g", seconds_left: str = "") -> None:
        left_s = float(seconds_left) if seconds_left else None
        self.hear(peer, messages.Hello(member, generation, "node1", 1, "3.11", 2, seconds_left=left_s))

    def do_ready(self, peer: str, number: str) -> None:
        self.hear(peer, messages.SlaveReady(int(number)))

    def do_results(self, peer: str, number: str, *pairs: str, seconds: float = 0.1) -> None:
        tasks, attempts = zip(*(map(int, pair.split("/")) for pair in pairs), strict=True)
        count = len(tasks)
        named = groups.spans_of(tasks, attempts)
        group = messages.Results(int(number), *named, [seconds] * count, [])
        self.hear(peer, group, groups.payload(count, [bytes(count)]))

    def do_quick(self, peer: str, number: str, *pairs: str) -> None:
        """A slave sends results of tasks that took a hundredth of a second each."""
        self.do_results(peer, number, *pairs, seconds=0.01)

    def do_raised(self, peer: str, number: str, pair: str) -> None:
        """A task raises an exception after which it is tried again, if its policy says so and it has attempts left."""
        task, attempt = map(int, pair.split("/"))
        group = messages.Results(int(number), [task], [1], [attempt], [0.1], [0], again=[0])
        self.hear(peer, group, groups.payload(1, [Codec().dumps_failure(OSError("server busy"))]))

    def do_died(self, peer: str, number: str, running: str) -> None:
        words = LastWords("out\n", "last words", "", 5 << 20)
        self.hear(peer, messages.SlaveDied(int(number), int(running), Cause.CRASH, "killed by signal 11", words))

    def do_leaving(self, peer: str) -> None:
        self.hear(peer, messages.Leaving("evicted", Cause.EVICTED))

    def do_revoked(self, peer: str, number: str, *pairs: str) -> None:
        tasks, attempts = zip(*(map(int, pair.split("/")) for pair in pairs), strict=True)
        self.hear(peer, messages.Revoked(int(number), *groups.spans_of(tasks, attempts)))

    def do_cannot(self, peer: str, number: str, pair: str, failure: str = "sure") -> None:
        task, attempt = map(int, pair.split("/"))
        reason = "no such module" if failure == "sure" else "MemoryError"
        failed = messages.AlgorithmFailed(int(number), 0, reason, [task], [1], [attempt], LoadFailure(failure))
        self.hear(peer, failed)

    def do_lost(self, peer: str) -> None:
        self.step(Vanished(peer.encode(), 0.0))

    def do_goodbye(self, peer: str) -> None:
        self.hear(peer, messages.Goodbye("evicted", Cause.EVICTED))

    def do_pass(self, seconds: str) -> None:
        self.pass_time(float(seconds))

    def do_end(self, how: str) -> None:
        self.step(ShutDown(how == "finished", 1.0))


def _request(message: messages.Message) -> str:
    match message:
        case messages.Revoke(slave, count):
            return f"up to {count} tasks of slave {slave} are asked back"
        case messages.Cancel(tasks, counts, kill):
            ids = [first + at for first, count in zip(tasks, counts, strict=True) for at in range(count)]
            return f"tasks {ids} must not start{', and end if they run' if kill else ''}"
        case _:
            return ""


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_a_story_causes_exactly_its_lines(path: Path) -> None:
    """Each command of the file causes exactly the lines after it."""
    story = _Story()
    expected = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
    happened: list[str] = []
    for command in (line for line in expected if line[0] not in ">="):
        happened += [command, *story.do(command)]
    assert "\n".join(happened) == "\n".join(expected)
