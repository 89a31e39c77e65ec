"""Unit tests of the occurrences of keys."""

from __future__ import annotations

from random import Random

from mwpy._core.master.occurrences import BUCKETS, ENTRY_BYTES, MARKS, Occurrences


def _key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def _read(known: Occurrences, generation: int, keys: list[bytes], number: int = 0) -> list[int]:
    """Let a generation make these calls. Return the number of the occurrence of each."""
    known.begin(generation)
    return known.take_or_add(b"".join(keys), number)


def test_each_generation_takes_the_occurrences_of_a_key_in_their_order() -> None:
    known = Occurrences()
    first, second = _key(1), _key(2)
    assert _read(known, 1, [first, second, first, first]) == [0, 1, 2, 3]
    assert _read(known, 2, [second, first, first, first]) == [1, 0, 2, 3]
    assert known.count == 4


def test_a_generation_adds_an_occurrence_if_it_makes_a_call_more_often_than_all_before() -> None:
    known = Occurrences()
    assert _read(known, 1, [_key(1)]) == [0]
    assert _read(known, 2, [_key(1), _key(1), _key(2)], number=1) == [0, 1, 2]
    assert _read(known, 3, [_key(2), _key(1), _key(1)]) == [2, 0, 1]


def test_a_key_without_another_occurrence_gives_none_and_is_not_remembered() -> None:
    known = Occurrences()
    _read(known, 1, [_key(1), _key(2), _key(2)])
    known.begin(2)
    assert [known.take(_key(1)), known.take(_key(1)), known.take(_key(7))] == [0, None, None]
    assert [known.take(_key(2)), known.take(_key(2)), known.take(_key(2))] == [1, 2, None]
    assert known.count == 3


def test_a_key_is_not_found_at_the_border_of_two_entries() -> None:
    """The same bytes as those of a key can be in two entries that lie next to each other."""
    known = Occurrences()
    size, bucket = 16, 7
    keys = [_key(bucket + BUCKETS * n) for n in range(3)]
    assert _read(known, 1, keys) == [*range(len(keys))]
    joined = bytes(known._buckets[bucket])
    for at in range(1, len(joined) - size):
        if at % ENTRY_BYTES:
            between = joined[at : at + size]
            known._buckets[int.from_bytes(between) % BUCKETS] = bytearray(joined)
            assert known.take(between) is None


def test_the_marks_of_generations_repeat_only_after_many_of_them() -> None:
    known = Occurrences()
    _read(known, 1, [_key(1)])
    for generation in (2, MARKS - 1, MARKS, MARKS + 2):
        assert _read(known, generation, [_key(1)]) == [0]


def test_random_calls_are_numbered_as_by_lists_of_occurrences() -> None:
    random, known = Random(1), Occurrences()
    model: dict[bytes, list[int]] = {}
    number = 0
    for generation in range(1, 6):
        known.begin(generation)
        made: dict[bytes, int] = {}
        for _ in range(2000):
            key = _key(random.randrange(500))
            place = made.get(key, 0)
            made[key] = place + 1
            expected = model.setdefault(key, [])
            taken = known.take(key)
            if place < len(expected):
                assert taken == expected[place]
            else:
                assert taken is None
                assert known.take_or_add(key, number) == [number]
                expected.append(number)
                number += 1
    assert known.count == number
