"""What changed between two versions of code, in sentences."""

from __future__ import annotations

from collections.abc import Mapping

from mwpy._values.sameness.graph import UNKNOWN

__all__ = ["captured_changes", "changes"]

CAPTURED = ("variable ", "arguments of ", "object of ")
"""The names of parts begin with this that are values which a function has captured: those of the functions around it,
the arguments of a `functools.partial`, and the object of a method. They do not depend on the code."""

DEFAULT = "default of "
LOCAL = "<"
"""A default argument of a function with such a part of its name, as in `<lambda>` and `f.<locals>.g`, is captured, too:
`lambda x, k=k: ...`."""


def changes(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Return one sentence for each part of code that changed, is new, or is not used any more.

    Args:
        old, new: the `parts` of two `Code`.

    Examples:
        >>> changes({"global app.SCALE": "2", "package numpy": "1.26.4"}, {"global app.SCALE": "3"})
        ['global app.SCALE changed from 2 to 3', 'package numpy is not used any more']
    """
    found = [_difference(part, old[part], new[part]) for part in new if part in old and old[part] != new[part]]
    found += [f"{part} is used now, and was not used before" for part in new if part not in old]
    return found + [f"{part} is not used any more" for part in old if part not in new]


def captured_changes(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Return one sentence for each value that both versions have captured, if it differs.

    Examples:
        >>> captured_changes({"variable k of app.<lambda>": "1"}, {"variable k of app.<lambda>": "2", "Python": "3.12"})
        ['variable k of app.<lambda> changed from 1 to 2']
    """
    common = [part for part in new if part in old and old[part] != new[part] and _is_captured(part)]
    return [_difference(part, old[part], new[part]) for part in common]


def _is_captured(part: str) -> bool:
    return part.startswith(CAPTURED) or (part.startswith(DEFAULT) and LOCAL in part)


def _difference(part: str, old: str, new: str) -> str:
    if old.startswith(UNKNOWN) or new.startswith(UNKNOWN):
        reason = (new if new.startswith(UNKNOWN) else old).removeprefix(UNKNOWN)
        return f"{part} cannot be compared: {reason}"
    if old.startswith("#") or new.startswith("#"):
        return f"{part} changed"
    return f"{part} changed from {old} to {new}"
