"""The process that calls HTCondor's Python bindings: its end, its errors and its silence are reported."""

from __future__ import annotations

import sys

import pytest

from mwpy._batch import BatchUnavailable, htcondor
from mwpy._batch.htcondor import HTCondor
from mwpy._system.process import Helper


def test_bindings_that_end_or_do_not_answer_or_fail_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bindings hold the interpreter while they wait, so they run in a process that can be killed."""
    edge = HTCondor()

    def call(program: str) -> None:
        edge._helper = Helper([sys.executable, "-c", program])
        edge.jobs()

    with pytest.raises(BatchUnavailable, match="HTCondor's Python bindings ended with exit code 7"):
        call("input(); raise SystemExit(7)")
    with pytest.raises(BatchUnavailable, match=r"HTCondor says: no local daemon\. Is its schedd running"):
        call("""input(); print('{"error": "no local daemon."}')""")
    assert edge._helper is not None
    edge._helper.close()
    monkeypatch.setattr(htcondor, "CALL_S", 0.1)
    with pytest.raises(BatchUnavailable, match="HTCondor gave no answer within 0 s: is its schedd overloaded"):
        call("import signal; signal.pause()")
    assert edge._helper is None
