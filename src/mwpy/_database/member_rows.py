"""Which rows the records about agents and slaves become, and those that are only shown to people."""

from __future__ import annotations

import json

from mwpy._database.batch import Batch, Maker, RowNumbers, short
from mwpy._values import records
from mwpy._values.bounds import shortened
from mwpy._values.record_texts import text_of

__all__ = ["MemberRows"]

WORDS_CHARACTERS = 10_000
"""The longest last words of a slave that are kept, in characters."""


class MemberRows:
    """Turns records about agents and slaves, and all others that are shown to people, into rows."""

    def __init__(self, numbers: RowNumbers) -> None:
        self.numbers = numbers
        self.makers: dict[type, Maker] = {
            records.LossesExplained: self._explained,
            records.AgentConnected: self._agent,
            records.AgentLost: self._agent_ended,
            records.AgentLeft: self._agent_ended,
            records.PackagesCompared: self._packages,
            records.SlaveConnected: self._slave,
            records.SlaveEnded: self._slave_ended,
            records.Ended: self._ended,
        }

    def _explained(self, record: records.LossesExplained, at: float, batch: Batch) -> None:
        change = "UPDATE losses SET cause = ?, reason = ? WHERE generation = ? AND sid = ? AND cause = 'network'"
        what = record.cause.value, short(record.reason), self.numbers.generation
        batch.changes += [(change, (*what, sid)) for sid in record.sids]
        self.event(record, at, batch)

    def _agent(self, record: records.AgentConnected, at: float, batch: Batch) -> None:
        who = record.agent, record.host, record.pid, record.job, record.address
        self.numbers.add(batch, "agents", at, *who, record.slaves, record.python, record.returns_s)

    def _agent_ended(self, record: records.AgentLost | records.AgentLeft, at: float, batch: Batch) -> None:
        change = "UPDATE agents SET ended = ?, reason = ? WHERE generation = ? AND agent = ?"
        batch.changes.append((change, (at, short(record.reason), self.numbers.generation, record.agent)))

    def _packages(self, record: records.PackagesCompared, _: float, batch: Batch) -> None:
        packages = json.dumps({"same": list(record.same), "different": list(record.different)})
        change = "UPDATE agents SET packages = ? WHERE generation = ? AND agent = ?"
        batch.changes.append((change, (packages, self.numbers.generation, record.agent)))

    def _slave(self, record: records.SlaveConnected, at: float, batch: Batch) -> None:
        self.numbers.add(batch, "slaves", at, record.sid, record.agent, record.kind.value)

    def _slave_ended(self, record: records.SlaveEnded, at: float, batch: Batch) -> None:
        words = record.words
        change = (
            "UPDATE slaves SET ended = ?, cause = ?, reason = ?, running = ?, peak_bytes = ?, last_words = ? "
            "WHERE generation = ? AND sid = ?"
        )
        last = shortened(words.shown(None), WORDS_CHARACTERS) if record.running else None
        what = at, record.cause.value, short(record.reason), short(record.running), words.peak_bytes, last
        batch.changes.append((change, (*what, self.numbers.generation, record.sid)))

    def _ended(self, record: records.Ended, at: float, batch: Batch) -> None:
        change = "UPDATE generations SET ended = ?, why = ? WHERE generation = ?"
        batch.changes.append((change, (at, record.why, self.numbers.generation)))
        self.event(record, at, batch)

    def event(self, record: records.Record, at: float, batch: Batch) -> None:
        """Add what people are shown of a record."""
        if text := text_of(record):
            self.numbers.add(batch, "events", at, type(record).__name__, shortened(text, WORDS_CHARACTERS))
