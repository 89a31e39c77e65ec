"""Groups of tasks and results, held against their payload."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mwpy import _messages as messages
from mwpy.errors import ProtocolError

DEFINITION = messages.AlgorithmDefinition(0, "f", "", "", "3.11")


@pytest.mark.parametrize(
    ("message", "frames"),
    [
        (messages.Tasks(1, [1], [], [0], [0]), [b""]),
        (messages.Tasks(1, [1], [1], [0], [1]), []),
        (messages.Tasks(1, [1], [1], [0], [1]), [b"12"]),
        (messages.Tasks(1, [1], [1], [0], [-1]), [b""]),
        (messages.Tasks(1, [1], [1], [0], [0], [-1]), [b""]),
        (messages.Tasks(1, [1], [1], [0], [0], [0, 0]), [b""]),
        (messages.Results(1, [1], [1], [0.1], [1], [0]), [b""]),
        (messages.Results(1, [1], [1], [0.1], [0, 0], [0]), [b""]),
        (messages.Results(1, [1], [1], [-0.1], [], [0]), [b""]),
        (messages.Results(1, [1], [1], [float("nan")], [], [0]), [b""]),
        (messages.Revoked(1, [1], []), []),
        (messages.AlgorithmFailed(1, 0, "", [1], [1]), [b"x"]),
        (messages.Algorithms([DEFINITION]), []),
        (messages.Probe(), [b"x"]),
    ],
)
def test_what_does_not_fit_together_is_a_protocol_error(message: messages.Message, frames: Sequence[bytes]) -> None:
    """A slave's lists, payload and buffers must agree before anything is cut."""
    with pytest.raises(ProtocolError):
        messages.check(message, frames)


def test_a_group_is_cut_into_what_belongs_to_each_task() -> None:
    """Small payloads stand together, large buffers follow."""
    group = messages.Results(1, [1, 2, 3], [1, 1, 1], [0.1] * 3, [1], [1, 0, 2], [0, 1, 1])
    frames = [b"abc", b"large", b"larger"]
    messages.check(group, frames)
    payloads, buffers = messages.slices(group, frames)
    assert payloads == [b"a", b"", b"bc"]
    assert list(buffers) == [[], [b"large"], [b"larger"]]


def test_a_smaller_group_has_the_wanted_results_once() -> None:
    """What was rescued before is left out, and failures keep their place."""
    group = messages.Results(1, [1, 2, 2, 3], [1, 1, 1, 1], [0.1] * 4, [3], [1, 1, 1, 1], [0, 0, 0, 1])
    smaller, frames = messages.select(group, [b"abcd", b"large"], {2: 1, 3: 1})
    assert (smaller.tasks, smaller.failed, frames) == ([2, 3], [1], [b"cd", b"large"])
    messages.check(smaller, frames)
    plain = messages.Results(1, [1], [1], [0.1], [], [1])
    assert messages.select(plain, [b"a"], {})[0].tasks == []
    messages.check(messages.Algorithms([DEFINITION]), [b"packed"])
    messages.check(messages.Goodbye("bye"), [])
