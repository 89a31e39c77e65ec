"""The codes of task algorithms that former generations had, and the choice of one whose answers count now.

The answers of an algorithm are those of its own code. If the user wants those of other code, too, they count only if
the own code has none, and if it is clear which other code the algorithm had before: exactly one other code of the same
name has answers. A code that has captured other values does not count. Otherwise the functions that one line of a loop
makes, such as `lambda x: k * x`, would get each other's results.

A generation that uses answers of other code also computes what they lack, so its own code has answers in the next
generation. This one finds in the file that tasks were answered although their code had no answers. Then the other code
still counts for what the own code lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, field

from mwpy._core.master.occurrences import Occurrences
from mwpy._core.master.state import MasterState
from mwpy._values.earlier import EarlierAlgorithm
from mwpy._values.records import AlgorithmDefined

__all__ = ["Compare", "KnownCode", "KnownCodes"]

CHANGES_SHOWN = 5
"""A notice says at most this many changes of the code."""

CODE_CHANGED = (
    "{name} has answers in the run database from other code: {changes}. They are not used, so its tasks run again. "
    "--mw-reuse-changed-code uses them"
)

NOT_USED = (
    "{name} has answers in the run database only from other code, and --mw-reuse-changed-code does not use them: "
    "{reason}. So its tasks run"
)

SEVERAL_CODES = "they are from several versions of the code, or from several functions of this name"

OTHER_VALUES = "it has captured other values ({changes})"

Compare = Callable[[Mapping[str, str], Mapping[str, str]], Sequence[str]]
"""Says in what the parts of two codes differ, in sentences."""


class KnownCode(Struct, eq=False):
    """What is known of one task algorithm with one code."""

    code: str
    occurrences: Occurrences = field(default_factory=Occurrences)
    answered: int = 0
    """How many answers it has."""
    parts: dict[str, str] = field(default_factory=dict)
    """The parts of the code, if it has answers."""
    since: int = 0
    """The generation that got the first of them."""
    other: KnownCode | None = None
    """Other code, whose answers count for tasks that have none here."""
    misses: int = 0
    """How many of the first tasks were not known. After one that was known, no more are counted."""

    @property
    def answering(self) -> KnownCode:
        """The code whose answers count: this one if it has any."""
        return self if self.answered or self.other is None else self.other


class KnownCodes(Struct, eq=False):
    """All codes.

    Args:
        state: what all parts share.
        changes: compares two codes.
        captured: compares the values that two codes have captured.
        any_code: whether answers count that other code of the algorithm has computed.
    """

    state: MasterState
    changes: Compare
    captured: Compare
    any_code: bool
    _generation: int = 0
    """The generation that is read, or this one."""
    _codes: dict[tuple[str, str], KnownCode] = field(default_factory=dict)
    """By the name and the code of the algorithm."""
    _answered: dict[str, dict[str, KnownCode]] = field(default_factory=dict)
    """For each name: its codes with answers. The one that was answered last is the last one."""

    @property
    def answered(self) -> int:
        """How many answers there are."""
        return sum(known.answered for known in self._codes.values())

    def begin(self, generation: int) -> None:
        """Another generation begins."""
        self._generation = generation
        for known in self._codes.values():
            known.occurrences.begin(generation)

    def of(self, name: str, code: str) -> KnownCode:
        """Return what is known of an algorithm, to which more can be added."""
        known = self._codes.get((name, code))
        if known is None:
            known = self._codes[name, code] = KnownCode(code)
            known.occurrences.begin(self._generation)
        return known

    def answer(self, algorithm: EarlierAlgorithm, count: int) -> None:
        """An algorithm has got answers."""
        known = self.of(algorithm.name, algorithm.code)
        if not known.answered:
            known.since = self._generation
        known.answered, known.parts = known.answered + count, algorithm.parts
        codes = self._answered.setdefault(algorithm.name, {})
        codes.pop(known.code, None)
        codes[known.code] = known

    def adopt(self, algorithm: EarlierAlgorithm) -> None:
        """A generation has ended tasks of an algorithm with answers that its own code did not have."""
        known = self.of(algorithm.name, algorithm.code)
        if known.other is None:
            known.other = self._only(self._others(algorithm.name, algorithm.code), algorithm.parts)

    def choose(self, record: AlgorithmDefined) -> KnownCode | None:
        """Return the code whose answers count for an algorithm of this generation; None if there is none. If only other
        code has answers, and they do not count, say so."""
        name, code = record.definition.name, record.code
        exact, others = self._codes.get((name, code)), self._others(name, code)
        if not others or (self.any_code and code and exact is not None and (exact.answered or exact.other)):
            return exact
        if not self.any_code:
            if exact is None:
                changes = _shown(self.changes(others[-1].parts, record.parts)) or "it is unknown what changed"
                self.state.notice(CODE_CHANGED.format(name=name, changes=changes), key=f"code {name} {code}")
            return exact
        other = self._only(others, record.parts)
        if other is None:
            self._refuse(name, [self.captured(known.parts, record.parts) for known in others])
            return exact
        if not code:
            return other
        exact = self.of(name, code)
        exact.other = other
        return exact

    def _others(self, name: str, code: str) -> list[KnownCode]:
        """The other codes that had answers when this generation began. A code that is unknown can be any other."""
        answered = self._answered.get(name, {}).values()
        return [known for known in answered if known.since < self._generation and (known.code != code or not code)]

    def _only(self, others: Sequence[KnownCode], parts: Mapping[str, str]) -> KnownCode | None:
        """The code that has captured the same values, if there is exactly one."""
        same = [known for known in others if not self.captured(known.parts, parts)]
        return same[0] if len(same) == 1 else None

    def _refuse(self, name: str, captured: Sequence[Sequence[str]]) -> None:
        """Say why answers of other code do not count."""
        reason = OTHER_VALUES.format(changes=_shown(captured[-1])) if all(captured) else SEVERAL_CODES
        self.state.notice(NOT_USED.format(name=name, reason=reason), key=f"code {name}")


def _shown(found: Sequence[str]) -> str:
    """Return the first changes in one text; empty if there are none."""
    more = [f"and {len(found) - CHANGES_SHOWN} more"] if len(found) > CHANGES_SHOWN else []
    return "; ".join([*found[:CHANGES_SHOWN], *more])
