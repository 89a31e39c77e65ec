"""The process that calls HTCondor's Python bindings: its end, its errors and its silence are reported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mwpy._batch import BatchUnavailable, _htcondor_calls, htcondor
from mwpy._batch.htcondor import HTCondor


def test_bindings_that_end_or_do_not_answer_or_fail_are_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The bindings hold the interpreter while they wait, so they run in a process that can be killed."""
    program = tmp_path / "calls.py"
    monkeypatch.setattr(_htcondor_calls, "__file__", str(program))

    def call(source: str) -> None:
        program.write_text(source)
        HTCondor().jobs()

    with pytest.raises(BatchUnavailable, match="HTCondor's Python bindings ended with exit code 7"):
        call("raise SystemExit(7)")
    with pytest.raises(BatchUnavailable, match=r"HTCondor says: no local daemon\. Is its schedd running"):
        call("""print('{"error": "no local daemon."}')""")
    monkeypatch.setattr(htcondor, "CALL_S", 0.1)
    with pytest.raises(BatchUnavailable, match="HTCondor gave no answer within 0 s: is its schedd overloaded"):
        call("import signal; signal.pause()")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "gone"))
    with pytest.raises(BatchUnavailable, match=r"HTCondor's Python bindings cannot be called: .*No such file"):
        call("")
