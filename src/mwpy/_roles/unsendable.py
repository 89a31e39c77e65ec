"""Results that a slave cannot send: they are larger than the limit of the master, or cannot be pickled."""

from __future__ import annotations

__all__ = ["ResultNotPicklable", "ResultTooLarge", "check_size", "not_sendable"]


class ResultTooLarge(Exception):
    """A result is larger than the master's limit."""

    __module__ = "mwpy.slave"  # users see the name in the results of their tasks


class ResultNotPicklable(Exception):
    """A result cannot be sent; the cause says why."""

    __module__ = "mwpy.slave"


def check_size(size: int, limit: int) -> None:
    """Check the size of an encoded result.

    Raises:
        ResultTooLarge: it is larger than the limit; the task's fault.
    """
    if size > limit:
        raise ResultTooLarge(
            f"its result is {size} bytes, the limit is {limit} bytes (--mw-max-read-buffer-size): "
            f"write it to a file and return the name, or raise the limit"
        )


def not_sendable(error: BaseException, value: object) -> BaseException:
    """The error for the failed result of a task that returned `value`: an error was raised after that."""
    if isinstance(error, ResultTooLarge) or not isinstance(error, Exception):
        return error
    failure = ResultNotPicklable(
        f"its result, a {type(value).__qualname__}, cannot be pickled ({error}): return what it is made from"
    )
    failure.__cause__ = error
    return failure
