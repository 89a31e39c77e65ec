"""The calls of one task algorithm that former generations made, by their keys.

Equal calls have the same key. The first of them in one generation is the same task as the first of them in another
generation, and so on. So each key has occurrences, in the order of submission. A generation takes them one after the
other. It adds an occurrence when it makes an equal call more often than every generation before.

A finished task must take little memory, because a run database can have ten million of them. So a key is not an object
here: it is part of a bucket, which is one `bytearray` that `find` searches. An entry has 22 bytes, and with a million
keys an occurrence takes about 40 bytes. If a key has several occurrences, it takes about 250 bytes more, and each
occurrence 4 bytes.
"""

from __future__ import annotations

from array import array

from msgspec import Struct, field

from mwpy._values.earlier import KEY_BYTES

__all__ = ["Occurrences"]

NUMBER_BYTES = 4
MARK_BYTES = 2
ENTRY_BYTES = KEY_BYTES + NUMBER_BYTES + MARK_BYTES
"""An entry of a bucket: the key, the number of its occurrence, and the mark of the generation that took it last."""

MARKS = 1 << 8 * MARK_BYTES

BUCKETS = 65_521
"""With ten million keys, a bucket has 3 KB, which are searched in a fraction of a microsecond. It is a prime number,
because keys of plain arguments are not hashed: many of them differ in few bytes."""


class _Repeated(Struct, eq=False):
    """The occurrences of a key that has several."""

    numbers: array[int] = field(default_factory=lambda: array("I"))
    generation: int = 0
    """The generation that took one last."""
    taken: int = 0
    """How many this generation has taken."""

    def take(self, generation: int) -> int | None:
        """Return the next occurrence; None if there is none."""
        if self.generation != generation:
            self.generation, self.taken = generation, 0
        if self.taken == len(self.numbers):
            return None
        self.taken += 1
        return self.numbers[self.taken - 1]


class Occurrences(Struct, eq=False):
    """All occurrences of all keys."""

    count: int = 0
    """How many occurrences there are."""
    _generation: int = 0
    _mark: bytes = bytes(MARK_BYTES)
    _buckets: dict[int, bytearray] = field(default_factory=dict)
    _repeated: dict[bytes, _Repeated] = field(default_factory=dict)

    def begin(self, generation: int) -> None:
        """Another generation begins with the first occurrence of each key.

        Args:
            generation: its number, which is larger than those before.
        """
        self._generation = generation
        self._mark = (generation % MARKS).to_bytes(MARK_BYTES, "big")

    def take(self, key: bytes) -> int | None:
        """Return the number of the next occurrence of a key; None if this generation has taken all."""
        if self._repeated and (repeated := self._repeated.get(key)) is not None:
            return repeated.take(self._generation)
        bucket = self._buckets.get(int.from_bytes(key, "big") % BUCKETS)
        at = -1 if bucket is None else _find(bucket, key)
        if bucket is None or at < 0 or bucket[at + ENTRY_BYTES - MARK_BYTES : at + ENTRY_BYTES] == self._mark:
            return None
        bucket[at + ENTRY_BYTES - MARK_BYTES : at + ENTRY_BYTES] = self._mark
        return int.from_bytes(bucket[at + KEY_BYTES : at + KEY_BYTES + NUMBER_BYTES], "big")

    def take_or_add(self, keys: bytes, new: int) -> list[int]:
        """Take the next occurrence of each key. If there is none, add one, which this generation takes.

        Args:
            keys: one after the other.
            new: the number of the first occurrence that is added; the others follow.

        Returns:
            The number of the occurrence of each key.
        """
        found: list[int] = []
        for at in range(0, len(keys), KEY_BYTES):
            key = keys[at : at + KEY_BYTES]
            number = self.take(key)
            if number is None:
                number, new = new, new + 1
                self._add(key, number)
            found.append(number)
        return found

    def _add(self, key: bytes, number: int) -> None:
        self.count += 1
        repeated = self._repeated.get(key)
        if repeated is None:
            bucket = self._buckets.setdefault(int.from_bytes(key, "big") % BUCKETS, bytearray())
            at = _find(bucket, key)
            if at < 0:
                bucket += key + number.to_bytes(NUMBER_BYTES, "big") + self._mark
                return
            first = int.from_bytes(bucket[at + KEY_BYTES : at + KEY_BYTES + NUMBER_BYTES], "big")
            repeated = self._repeated[key] = _Repeated(array("I", [first]))
        repeated.numbers.append(number)
        repeated.generation, repeated.taken = self._generation, len(repeated.numbers)


def _find(bucket: bytearray, key: bytes) -> int:
    """Where the entry of a key begins; -1 if there is none. The bytes of a key can also be at the border of entries."""
    at = bucket.find(key)
    while at % ENTRY_BYTES and at >= 0:
        at = bucket.find(key, at + 1)
    return at
