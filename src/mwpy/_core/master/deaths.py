"""The deaths of slaves that tasks are charged with, and a limit on the memory of their last words.

Last words can be long, and many tasks can wait with a history of deaths. When all last words together exceed
`WORDS_KEPT`, those of the oldest deaths are truncated. This also shortens the last words of unrunnable tasks that the
algorithm already has. Records keep the complete last words.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from mwpy._core.master.spans import Span
from mwpy._values.causes import Cause
from mwpy._values.ids import SlaveId
from mwpy._values.last_words import NO_WORDS, Death
from mwpy._values.records import Charge, LossesExplained, SlaveEnded

__all__ = ["KeptDeaths"]

WORDS_KEPT = 64 << 20
"""Characters of last words that the histories of all tasks keep; in memory, up to four times as many bytes."""

DEATH_OVERHEAD = 1000
"""Characters that are added for each death, so that the number of deaths that are not truncated is limited, too."""

OLD_WORDS_CHARACTERS = 300
"""Characters of each stream that a truncated death keeps."""


_NO_END = SlaveEnded(SlaveId(""), Cause.CRASH, "", "", NO_WORDS)


class KeptDeaths(Struct, eq=False):
    """The deaths that tasks are charged with."""

    _whole: deque[Death] = field(default_factory=deque)
    """The latest deaths; their last words are not truncated."""
    _size: int = 0
    """The size of these deaths, in characters."""
    _last_end: SlaveEnded = _NO_END
    """The most recent end of a slave. A charge immediately follows the end of its slave, so one is enough."""

    def note_end(self, record: SlaveEnded) -> None:
        """Record the end of a slave: the next charges may name it."""
        self._last_end = record

    def charge(self, spans: Sequence[Span], charges: Sequence[Charge]) -> None:
        """Add deaths to the history of tasks."""
        for charge in charges:
            words = self._last_end.words if charge.sid == self._last_end.sid else NO_WORDS
            by_attempt: dict[int, Death] = {}
            for span in spans:
                death = by_attempt.get(span.attempt)
                if death is None:
                    death = Death(charge.sid, span.attempt, charge.cause, charge.reason, words, charge.more_memory)
                    by_attempt[span.attempt] = death
                    self._keep(death)
                span.deaths = _history(span, death)

    def explain(self, record: LossesExplained) -> None:
        """Correct the cause of losses. Nothing was heard from their agent, and the network was blamed for this."""
        for death in self._whole:
            if death.cause is Cause.NETWORK and death.sid in record.sids:
                death.cause, death.reason = record.cause, record.reason

    def _keep(self, death: Death) -> None:
        """Add a death. When all deaths together exceed the limit, truncate the oldest."""
        self._whole.append(death)
        self._size += DEATH_OVERHEAD + death.words.size
        while self._size > WORDS_KEPT:
            oldest = self._whole.popleft()
            self._size -= DEATH_OVERHEAD + oldest.words.size
            oldest.words = oldest.words.cut(OLD_WORDS_CHARACTERS)

    def check(self) -> None:
        """Recompute the size."""
        size = sum(DEATH_OVERHEAD + death.words.size for death in self._whole)
        assert size == self._size <= WORDS_KEPT, "the last words that are kept were miscounted"


def _history(span: Span, death: Death) -> tuple[Death, ...]:
    """The history of a task with one more death.

    If the task left a state in this attempt and is not to blame, it has come further than before. Then the earlier
    losses without its fault do not count any more. So a long task may be lost in any number of short slots.
    """
    left = span.left_now
    if left is None or not death.is_blameless:
        return (*span.deaths, death)
    span.left = replace(left, num_lost=left.num_lost + 1)
    return (*[each for each in span.deaths if not each.is_blameless], death)
