"""Signals of this process: as something to wait for, and held back."""

from __future__ import annotations

import select
import signal
import threading
from collections.abc import Iterator

import pytest

from mwpy._system.process import HeldSignals, Signals


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


def test_signals_are_held_back_and_come_later() -> None:
    """The handlers of the user run then, in the order of the signals."""
    handled: list[int] = []

    def handle(number: int, _: object) -> None:
        handled.append(number)
        if len(handled) == 2:
            raise InterruptedError

    numbers = signal.SIGINT, signal.SIGTERM
    before = [signal.signal(number, handle) for number in numbers]
    held = HeldSignals()
    try:
        held.begin()
        held.begin()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(number)
        assert not handled
        with pytest.raises(InterruptedError):
            held.let_through()
        assert handled == [signal.SIGTERM, signal.SIGINT]
        signal.raise_signal(signal.SIGTERM)
        held.held = True
        signal.raise_signal(signal.SIGINT)
        assert handled == [signal.SIGTERM, signal.SIGINT, signal.SIGTERM]
        held.end()
        assert handled == [signal.SIGTERM, signal.SIGINT, signal.SIGTERM, signal.SIGINT]
        assert [signal.getsignal(number) for number in numbers] == [handle, handle]
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def test_only_the_main_thread_holds_signals_back() -> None:
    """A signal that is ignored stays ignored."""
    held = HeldSignals()
    before = signal.getsignal(signal.SIGINT), signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        thread = threading.Thread(target=held.begin)
        thread.start()
        thread.join()
        assert signal.getsignal(signal.SIGINT) == before[0]
        held.begin()
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
        held.end()
        assert signal.getsignal(signal.SIGINT) == before[0]
    finally:
        signal.signal(signal.SIGTERM, before[1])


def test_a_handler_that_was_set_meanwhile_stays() -> None:
    """A debugger may set one, and may later set what was there before: then Ctrl-C works as usual."""
    held = HeldSignals()
    before = signal.getsignal(signal.SIGINT)
    try:
        held.begin()
        ours = signal.signal(signal.SIGINT, signal.default_int_handler)
        held.end()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        signal.signal(signal.SIGINT, ours)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
