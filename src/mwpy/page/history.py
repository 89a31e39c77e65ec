"""What a page keeps of the last minutes: how many tasks had ended, and what each slave did."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from attrs import Factory, define

KEPT_S = 600.0
"""How many seconds the history goes back."""

LANES = 200
"""Of how many slaves the history has what they did: those that connected first. The manual names this number."""

GONE = ("away", "shutting down", "connecting")
"""The states of slaves that neither work nor wait for tasks."""


@define(eq=False, repr=False)
class History:
    """Samples of a status."""

    _samples: deque[dict[str, Any]] = Factory(deque)

    def add(self, status: Mapping[str, Any]) -> None:
        """Take a sample of a detailed status."""
        now, tasks = time.time(), status["tasks"]
        ended = tasks["succeeded"] + tasks["failed"] + tasks["cancelled"]
        lanes = {row["sid"]: _doing(row) for row in status["slaves"][:LANES]}
        self._samples.append({"at": now, "ended": ended, "lanes": lanes})
        while self._samples[0]["at"] < now - KEPT_S:
            self._samples.popleft()

    def since(self, at: float) -> list[dict[str, Any]]:
        """The samples that are newer than this time, in seconds since 1970."""
        return [each for each in self._samples.copy() if each["at"] > at]


def _doing(row: Mapping[str, Any]) -> str | None:
    """The algorithm whose task a slave runs; empty if it waits for one; None if it is away or ends."""
    return row["algorithm"] or (None if row["state"] in GONE else "")
