"""Interrupts at each moment at which Python may run the handler of a signal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from inspect import CO_GENERATOR
from itertools import count
from types import FrameType

from attrs import define


@define
class Moment:
    """One moment of a piece of code."""

    number: int
    came: bool = False
    """Whether the code was interrupted; if not, it ended before this moment."""

    def interrupt(self, code: Callable[[], object]) -> None:
        """Call a function, raise KeyboardInterrupt in it at this moment, and catch it.

        Python runs handlers of signals when a function begins, and when a call has returned. (It also does when a loop
        repeats, which makes no difference if the loop calls something. Calls of generators are left out: the
        event does not show whether the generator goes on, or is closed. Python runs no handler in the second case.)
        """
        left = self.number

        def look(frame: FrameType, event: str, _argument: object) -> None:
            nonlocal left
            begins = event == "call" and not frame.f_code.co_flags & CO_GENERATOR
            if begins or event == "c_return":
                left -= 1
                if left < 0:
                    sys.setprofile(None)
                    self.came = True
                    raise KeyboardInterrupt

        sys.setprofile(look)
        try:
            code()
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)


def moments() -> Iterator[Moment]:
    """Yield the moments of a piece of code, until one did not come any more."""
    for number in count():
        moment = Moment(number)
        yield moment
        if not moment.came:
            return
