"""Makes entries: what a user asks for, and a copy of the files that the run needs."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from mwpy._queue.entry import Asked, Entry
from mwpy._queue.folder import Folder
from mwpy._queue.order import last_time, next_time
from mwpy._system import clock, process
from mwpy._values.errors import MwpyError, UsageError

GIT_S = 60.0
"""How long a command of git may take, in seconds."""

OF_THE_QUEUE = ("with", "max", "slaves", "oversee", "http", "client")
"""Settings of a study that say where its runs are made, which the queue decides."""


def timed(asked: Asked, at: str) -> Asked:
    """Return what is asked for, at a time: `02:00`, `02:00 daily`, or `2026-12-24 18:00`.

    Raises:
        UsageError: the time is wrong.
    """
    text = at.strip().removesuffix(" daily")
    is_daily = text != at.strip()
    try:
        moment = next_time(text, clock.wall())
        if is_daily and re.fullmatch(r"\d\d:\d\d", text) is None:
            raise ValueError
    except ValueError:
        raise UsageError(f"--at {at!r}: write '02:00', '02:00 daily' or '2026-12-24 18:00'") from None
    if moment < clock.wall():
        raise UsageError(f"--at {at!r} is over: give a later time, or none")
    return replace(asked, daily=text) if is_daily else replace(asked, at=moment)


def submit(folder: Folder, asked: Asked, files: Sequence[Path]) -> Entry:
    """Add an entry with a copy of its study or script, and of files beside it.

    Args:
        files: more files and folders that it needs, beside the study or script, or below.

    Raises:
        UsageError: a file is missing or elsewhere, the study is wrong, or the folder cannot be written.
    """
    if asked.watch:
        head = _git(asked.watch, "rev-parse", "--verify", "HEAD")
        _git(asked.watch, "cat-file", "-e", f"{head}:{asked.words[0]}")
        return folder.add(replace(asked, occasion=head), Path.mkdir)
    source = Path(asked.words[0]).absolute()
    asked_here = replace(asked, words=[source.name, *asked.words[1:]])

    def put(target: Path) -> None:
        named = [source, *_named(source), *(each.absolute() for each in files)]
        for each in dict.fromkeys(named):
            if each in folder.path.parents or each == folder.path:
                raise UsageError(f"{each} contains the queue: name files in it")
            if source.parent not in (each, *each.parents):
                raise UsageError(
                    f"{each} is not below {source.parent}: copy it there, or name a path that all hosts see"
                )
            to = target / each.relative_to(source.parent)
            to.parent.mkdir(parents=True, exist_ok=True)
            if each.is_dir():
                shutil.copytree(each, to, dirs_exist_ok=True)
            else:
                shutil.copyfile(each, to)
                shutil.copymode(each, to)
        if source.suffix == ".toml":
            try:
                _check(target / source.name)
            except MwpyError as error:  # the study is where its user has never seen it
                raise UsageError(str(error).replace(f"{target}/", "")) from error
        for made in target.rglob("__pycache__"):  # the check imports the modules of a study
            shutil.rmtree(made)

    try:
        return folder.add(asked_here, put)
    except shutil.Error as error:
        raise UsageError(f"nothing was added: {error}") from error


def add_again(folder: Folder, entry: Entry, occasion: str) -> Entry:
    """Add the entry for which an entry repeats.

    Args:
        occasion: a date and time, or a commit whose files are its input.

    Raises:
        UsageError: the folder cannot be written, or the commit lacks a file.
    """
    asked = entry.asked
    made = replace(asked, daily="", watch="", made_by=entry.number, occasion=occasion)
    if not asked.watch:
        return folder.add(made, lambda to: shutil.copytree(entry.path / "input", to, symlinks=True))

    def put(target: Path) -> None:
        archive = target.with_name("commit.tar")
        target.mkdir()
        _git(asked.watch, "archive", "--format=tar", f"--output={archive}", occasion)
        process.answer_of(["tar", "-xf", str(archive), "-C", str(target)], GIT_S)
        archive.unlink()

    return folder.add(made, put)


def occasions(asked: Asked, since: str, now: float) -> list[str]:
    """Return the occasions on which a repeating entry adds others, the oldest first.

    Args:
        since: the last one before: a time, or a commit.

    Raises:
        UsageError: git fails.
    """
    if asked.watch:
        return _git(asked.watch, "rev-list", "--reverse", f"{since}..HEAD").split()
    last = clock.date(last_time(asked.daily, now))
    return [last] if last > since else []


def _git(repository: str, *words: str) -> str:
    try:
        return process.answer_of(["git", "-C", repository, *words], GIT_S)
    except UsageError as error:
        raise UsageError(f"--watch {repository}: {error}") from error


def _named(study: Path) -> Iterator[Path]:
    """Yield the files beside or below a study that its settings or its commands name."""
    if study.suffix != ".toml":
        return
    try:
        found = tomllib.loads(study.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError):
        return  # it is checked later
    for text in _texts(found):
        try:
            words = shlex.split(text)
        except ValueError:
            words = text.split()
        for word in {text, *words, *(each.rpartition(":")[0] for each in words)}:
            path = Path(os.path.normpath(study.parent / word)) if word and len(word) < 1000 else study
            if path != study.parent and study.parent in path.parents and path.exists():
                yield path


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)


def _check(study: Path) -> None:
    """Find the mistakes of a study before it waits in the queue.

    Raises:
        UsageError: there is one.
    """
    from mwpy.sweep.settings import Settings, Sweep  # only here, because it needs much

    settings = Settings.in_file(study, {})
    found = tomllib.loads(study.read_text(encoding="utf-8-sig"))
    for name in OF_THE_QUEUE:
        if name in found:
            raise UsageError(f"the study says {name}, which the queue decides: remove it")
    try:
        Sweep.of(settings, study.parent, study.with_suffix(".sweep"))
    except MwpyError as error:
        raise UsageError(f"the study {study.name} cannot run from a copy of its files: {error}") from error
