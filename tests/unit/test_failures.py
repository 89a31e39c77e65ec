"""Failures: everybody can read their texts, and only the codec unpickles the exception."""

from __future__ import annotations

import pytest

from mwpy._transport.codec import Codec
from mwpy._values.messagepack import Pickled, decode
from mwpy._values.task import HEADLINE_CHARACTERS, KIND_CHARACTERS, headline, kind_of


class Explosive(Exception):
    def __reduce__(self) -> tuple[type[Explosive], tuple[str]]:
        return Explosive, (str(self),)

    def __setstate__(self, state: object) -> None:
        raise AssertionError("it was unpickled")


def headline_of(error: BaseException) -> str:
    entry = decode(Codec().dumps_failure(error))
    assert isinstance(entry, Pickled)
    return headline(entry.pickle)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError("disk full"), "OSError: disk full"),
        (OSError(), "OSError"),
        (ValueError("first line\n   second line"), "ValueError: first line second line"),
        (Explosive("boom"), f"{__name__}.Explosive: boom"),
        (ValueError("half a pair: \ud800"), "ValueError: half a pair: \\ud800"),
    ],
)
def test_the_headline_has_type_and_text_of_the_exception(error: Exception, line: str) -> None:
    assert headline_of(error) == line


def test_a_long_text_is_shortened() -> None:
    line = headline_of(ValueError("x" * 10_000))
    assert len(line) == HEADLINE_CHARACTERS
    assert line.startswith("ValueError: xxx")


def test_nonsense_has_a_headline_too() -> None:
    assert headline(b"nonsense") == "a failure that cannot be read"
    assert kind_of(b"nonsense") == "unreadable"


def test_the_kind_of_a_failure_is_the_type_of_its_exception() -> None:
    for name, kind in (("Short", "Short"), ("L" * 100, "L" * KIND_CHARACTERS)):
        entry = decode(Codec().dumps_failure(type(name, (Exception,), {"__module__": "builtins"})("text")))
        assert isinstance(entry, Pickled)
        assert kind_of(entry.pickle)[:5] == kind[:5]
        assert len(kind_of(entry.pickle)) <= KIND_CHARACTERS
