"""Signals of this process, as something to wait for."""

from __future__ import annotations

import select
import signal
from collections.abc import Iterator

import pytest

from mwpy._system.signals import Signals


@pytest.fixture
def signals() -> Iterator[Signals]:
    before = [signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)]
    signals = Signals((signal.SIGUSR1, signal.SIGUSR2))
    yield signals
    signals.close()
    for number, handler in zip((signal.SIGUSR1, signal.SIGUSR2), before, strict=True):
        signal.signal(number, handler)


def readable(signals: Signals) -> bool:
    return bool(select.select([signals.fileno()], [], [], 0)[0])


def test_caught_signals_are_returned_once_in_their_order(signals: Signals) -> None:
    assert not signals.take()
    for number in (signal.SIGUSR2, signal.SIGUSR1, signal.SIGUSR2):
        signal.raise_signal(number)
    assert signals.take() == [signal.SIGUSR2, signal.SIGUSR1, signal.SIGUSR2]
    assert not signals.take()


def test_a_signal_makes_the_file_descriptor_readable_until_it_is_cleared(signals: Signals) -> None:
    assert not readable(signals)
    signal.raise_signal(signal.SIGUSR1)
    assert readable(signals)
    signals.clear()
    assert not readable(signals)
    assert signals.take() == [signal.SIGUSR1]
