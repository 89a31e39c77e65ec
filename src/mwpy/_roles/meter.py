"""The text about progress: done, total, failed, slaves, rate and time left."""

from __future__ import annotations

from functools import cache
from typing import Any

from msgspec import Struct

from mwpy._system import clock
from mwpy._values.phrases import counted

__all__ = ["Figures", "Meter"]


WITH_TOTAL = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{postfix} [{elapsed}<{remaining}, {rate_fmt}]"
WITHOUT_TOTAL = "{desc}: {n_fmt}{postfix} [{elapsed}, {rate_fmt}]"
"""What tqdm shows. Failures and slaves come before the times, which a narrow terminal cuts."""

FIRST_MARK_S = 2.0
"""For this time, the rate is that of the whole time."""


class Figures(Struct, frozen=True):
    """What is shown about progress."""

    done: int
    """How many items have ended, also those that failed."""
    total: int | None
    """How many items there are; None if that is unknown."""
    failed: int
    slaves: int
    reused: int = 0
    """How many of those that have ended were answered from the run database."""


class Meter:
    """Describes figures as they change. The rate is that of the last half to three quarters of the time, because slaves
    come and go; the time before the first slave does not count."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._began = clock.monotonic()
        self._first_slave: float | None = None
        """When there was a slave for the first time."""
        self._since: tuple[float, int] = (0.0, 0)
        """From when the rate is measured, and how many items had ended then."""
        self._next: tuple[float, int] = (0.0, 0)
        """From when it will be measured next."""
        self._next_at = 0.0

    @property
    def seconds(self) -> float:
        """The seconds since the beginning."""
        return clock.monotonic() - self._began

    def text(self, figures: Figures) -> str:
        """Return a line without a bar."""
        done, total, failed = figures.done, figures.total, figures.failed
        rate = self._rate(figures)
        parts = [f"mwpy: {self.name}: {done}{f' of {total}' if total else ''} items in {self.seconds:.0f} s"]
        if failed:
            parts.append(f"{failed} failed")
        if figures.reused:
            parts.append(f"{figures.reused} from the run database")
        parts.append(counted(figures.slaves, "slave"))
        if rate:
            parts.append(f"{rate:.3g}/s" if rate < 1000 else f"{rate:.0f}/s")
            if total and done < total:
                parts.append(f"about {(total - done) / rate:.0f} s left")
        return ", ".join(parts)

    def bar(self, figures: Figures, width: int, encoding: str | None) -> str:
        """Return a line with a bar, if tqdm is installed, and at most `width` characters."""
        tqdm = _tqdm()
        if tqdm is None:
            return self.text(figures)[:width]
        failed = f"{figures.failed} failed, " if figures.failed else ""
        reused = f"{figures.reused} from the run database, " if figures.reused else ""
        return str(
            tqdm.format_meter(
                figures.done,
                figures.total,
                self.seconds,
                ncols=width,
                prefix=f"mwpy: {self.name}",
                ascii=not (encoding or "").lower().startswith("utf"),
                unit="",
                bar_format=WITH_TOTAL if figures.total else WITHOUT_TOTAL,
                rate=self._rate(figures),
                postfix=f"{failed}{reused}{counted(figures.slaves, 'slave')}",
            )
        )

    def _rate(self, figures: Figures) -> float | None:
        """How many items end in a second; None if this is unknown."""
        now, done = clock.monotonic(), figures.done
        if self._first_slave is None:
            if not (figures.slaves or done):
                return None
            self._first_slave = self._began if done else now
            self._since = self._next = self._first_slave, 0
            self._next_at = self._first_slave + FIRST_MARK_S
        if now >= self._next_at:
            self._since, self._next = self._next, (now, done)
            self._next_at = now + (now - self._first_slave)
        start, before = self._since
        return (done - before) / (now - start) if done > before and now > start else None


@cache
def _tqdm() -> Any:
    """The class of tqdm; None if tqdm is not installed."""
    try:
        from tqdm.std import tqdm
    except ImportError:
        return None
    return tqdm
