"""The words and phrases that this repository does not use, and what to write instead.

Each pattern is matched without regard to case, and a space in it also matches a line break. A pattern does not match
inside a longer word, but it matches a part of an identifier: a variable `told_at_end` is found by `told`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

__all__ = ["BANNED", "banned_words"]

BANNED = {
    "told": "write what happens ('the master shut it down', 'is reported'), and name a variable for what it holds",
    "whoever": "name the process or the person: 'the process that', 'anyone who'",
    "whom": "use 'that' for a process, and make the sentence active",
    "whereto": "write 'where', or name the address",
    "of whose": "start a new sentence with the thing itself as its subject",
    "of which (nobody|nothing|the)": "start a new sentence with the thing itself as its subject",
    "so much is": "write 'this much', or the limit itself",
    "so many (that|of|jobs|tasks|slaves|seconds)": "write 'this many', or the number itself",
    "(is|are|was|were) to be had": "write 'is available'",
    "to be had": "write 'available'",
    "a word": "write 'a message', 'a line' or 'a report'",
    "a try": "write 'an attempt'",
    "nobody asks": "say who or what asks",
    "nobody tells": "write 'no message says'",
    "what of it": "write 'which part of it'",
    "no longer than it": "write 'until it ends'",
    "(lets?|letting) in": "write 'admits' or 'accepts'",
    "mends?|mended|mending": "write 'repair' or 'correct'",
    "for ever": "write 'forever', or 'without a limit'",
    "held against": "write 'compared with', or 'counts against'",
    "goes by": "write 'uses', or 'passes'",
    "(comes?|came|becomes?|became) of": "write 'happens to', or 'the outcome of'",
    "anew": "write 'again'",
    "thereby|therein|thereof|thereto|whereby|wherein": "use a short sentence with 'this' or 'it'",
    "it is over": "say what has ended",
    "stands? (in|under|behind) (the|a)": "write 'is in'",
    "of use": "write 'useful'",
    "sooner or later": "say when",
    "looks? whether": "write 'checks whether'",
    "would like to|is wont to": "write 'can' or 'wants'",
}
"""What is not used, and a sentence on what to write instead."""


def _pattern(phrases: Iterable[str]) -> str:
    """The regular expression of some phrases: whole words, over line breaks, also inside identifiers."""
    spaced = "|".join(phrases).replace(" ", r"[\s#]+")
    return rf"(?<![A-Za-z])(?:{spaced})(?![A-Za-z])"


PATTERNS = [(re.compile(_pattern([phrase]), re.IGNORECASE), advice) for phrase, advice in BANNED.items()]
ANY = re.compile(_pattern(BANNED))
"""Matches each banned word in small letters. A search for all of them at once is ten times as fast."""


def banned_words(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield each banned word of a text as (line, word, advice)."""
    if not ANY.search(text.lower()):
        return
    for pattern, advice in PATTERNS:
        for found in pattern.finditer(text):
            yield text.count("\n", 0, found.start()) + 1, found[0], advice
