"""What travels with an encoded call: the seed of its task, and the condition under which the task is tried again.

The state that an earlier attempt of the task left travels with it, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mwpy._values.ids import Buffer
from mwpy._values.messagepack import (
    CONDITIONAL,
    RESUMED,
    SEEDED,
    SIZE_BYTES,
    Pickled,
    as_conditional,
    as_seeded,
    decode,
    encode,
)
from mwpy._values.seeds import SEED_BYTES

__all__ = ["condition_and_call", "condition_of", "seed_of", "split_resumed", "with_condition", "with_seed"]


def with_seed(call: bytes, seed: int) -> bytes:
    """Add a seed to what `dumps_call` encoded. `loads_call` ignores it, and `seed_of` returns it."""
    return encode(as_seeded(seed.to_bytes(SEED_BYTES, "big") + call))


def seed_of(entry: object) -> int | None:
    """Return the seed of a call; None if it has none."""
    if type(entry) is not Pickled or entry.kind != SEEDED:
        return None
    return int.from_bytes(entry.pickle[:SEED_BYTES], "big")


def split_resumed(entry: Any, buffers: Sequence[Buffer]) -> tuple[Any, Sequence[Buffer], Sequence[Buffer]]:
    """Return a call without the state that an earlier attempt left, its own buffers, and the frames of this state; no
    frames if there is no state."""
    if type(entry) is not Pickled or entry.kind != RESUMED:
        return entry, buffers, ()
    data = bytes(entry.pickle)
    own = int.from_bytes(data[:SIZE_BYTES], "big")
    return decode(data[SIZE_BYTES:]), buffers[:own], buffers[own:]


def with_condition(call: bytes, condition: bytes) -> bytes:
    """Add a pickled condition to what `dumps_call` encoded. `loads_call` ignores it, and `condition_of` returns it."""
    return encode(as_conditional(len(condition).to_bytes(SIZE_BYTES, "big") + condition + call))


def condition_of(entry: object) -> bytes:
    """Return the pickled condition of a call, which may have a seed; empty if it has none."""
    if type(entry) is Pickled and entry.kind == SEEDED:
        entry = decode(bytes(entry.pickle)[SEED_BYTES:])
    return condition_and_call(entry)[0] if type(entry) is Pickled and entry.kind == CONDITIONAL else b""


def condition_and_call(conditional: Pickled) -> tuple[bytes, bytes]:
    """Return the condition and the encoded call."""
    data = bytes(conditional.pickle)
    end = SIZE_BYTES + int.from_bytes(data[:SIZE_BYTES], "big")
    return data[SIZE_BYTES:end], data[end:]
