"""Answers the questions of inquirers.

An inquirer is a member that is no agent: it has no slaves, gets no tasks, and counts nowhere. It may ask one question
at a time. Questions wait in a queue. After each answer, the next one waits for a time that is proportional to the work
of the answer. So inquirers together get a small part of the master's time, however many there are and however often
they ask. A peer that asks again before it has its answer is dropped.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct, field

from mwpy._core.master.admission import Admission
from mwpy._core.master.counts import Counts
from mwpy._core.master.events import Send
from mwpy._core.master.explanation import ExplanationReport
from mwpy._core.master.state import MasterState
from mwpy._core.master.status import StatusReport
from mwpy._values import messages, records
from mwpy._values.errors import ProtocolError

__all__ = ["ANSWERS_MAX", "INQUIRERS_MAX", "PAUSE_S", "Inquiries"]

INQUIRERS_MAX = 100
"""How many inquirers are connected at a time. Each needs an open file."""

ANSWERS_MAX = 100
"""How many answers one connection gets: nobody says whether they are read. Then the inquirer connects again."""

PAUSE_S = 0.01
"""Seconds between two answers at least: 50 times what a short answer takes."""

PAUSE_OF_AN_OBJECT_S = 1e-5
"""Seconds for each object at which an answer looks, such as a slave or a span of tasks: 50 times what one look takes.
"""

Question = messages.AskStatus | messages.AskTask


class Inquiries(Struct, eq=False):
    """Answers inquirers, one after the other."""

    state: MasterState
    admission: Admission
    report: StatusReport
    explanations: ExplanationReport
    _open: dict[bytes, Question] = field(default_factory=dict)
    """The questions that were not answered yet, by the connection of their inquirer. The first one is the oldest."""
    _inquirers: dict[bytes, int] = field(default_factory=dict)
    """The connections of all inquirers: how many questions each has asked."""
    _next_at: float = 0.0
    """When the next answer may be given, on the core's clock."""

    def receive(self, peer: bytes, address: str, question: Question) -> None:
        """Take a question, or refuse the inquirer.

        Raises:
            ProtocolError: its last question has no answer yet; the inquirer's fault.
        """
        if peer in self._open:
            raise ProtocolError("an inquirer asked again before it had its answer")
        why_not = self._why_not(peer, question)
        if why_not:
            self.forget(peer)
            self.state.record(records.AgentRefused(address, why_not))
            self.admission.send_away(peer, messages.Refused(why_not))
        elif self.state.closing is not None:
            self.forget(peer)
            self.admission.send_away(peer, self.state.closing)
        elif self._inquirers.get(peer) == ANSWERS_MAX:
            self.state.actions.disconnect.append(peer)
        else:
            self._inquirers[peer] = self._inquirers.get(peer, 0) + 1
            self._open[peer] = question

    def knows(self, peer: bytes) -> bool:
        """Whether a connection belongs to an inquirer."""
        return peer in self._inquirers

    def forget(self, peer: bytes) -> None:
        """The connection of a peer is gone, or the peer is dropped."""
        self._inquirers.pop(peer, None)
        self._open.pop(peer, None)

    def close(self, closing: messages.Shutdown) -> None:
        """Answer all open questions with the end of the computation."""
        for peer in list(self._open):
            self.forget(peer)
            self.admission.send_away(peer, closing)

    def _why_not(self, peer: bytes, question: Question) -> str:
        mine = self.state.settings
        if question.member_id != mine.member_id:
            return (
                f"member id {question.member_id!r} is not this master's {mine.member_id!r}: the resource file is that "
                f"of another computation"
            )
        if question.generation != mine.generation:
            return (
                f"the resource file is of generation {question.generation}, this master is generation "
                f"{mine.generation}: the file is stale, take a fresh copy"
            )
        if len(self._inquirers) >= INQUIRERS_MAX and peer not in self._inquirers:
            return f"{INQUIRERS_MAX} others ask this master already: end some `mwpy status --watch`, and ask again"
        return ""

    @property
    def deadline(self) -> float | None:
        """When to answer the next question, on the core's clock; None if there is none."""
        return self._next_at if self._open else None

    def decide(self, counts: Callable[[], Counts], now: float) -> None:
        """Answer the oldest question, if there was time enough since the last answer."""
        self.report.decide(now)
        if not self._open or now < self._next_at:
            return
        peer = next(iter(self._open))
        question = self._open.pop(peer)
        answer: messages.Message
        if isinstance(question, messages.AskStatus):
            answer, looks = self.report.status(counts(), now), self.report.work
        else:
            answer, looks = self.explanations.explanation(question.task, now), self.explanations.work
        self._next_at = now + PAUSE_S + looks * PAUSE_OF_AN_OBJECT_S
        self.state.actions.sends.append(Send(peer, answer))

    def check(self) -> None:
        """Assert that each question has an inquirer, and that no inquirer is an agent."""
        assert self._open.keys() <= self._inquirers.keys(), "a question is of nobody"
        assert len(self._inquirers) <= INQUIRERS_MAX, "there are too many inquirers"
        assert not self._inquirers.keys() & self.state.members.peers.keys(), "an inquirer is an agent"
