"""The settings of a sweep: those of a study file, and those of a command line in the same form."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import msgspec
from attrs import define
from msgspec import Struct, field
from msgspec.structs import replace

from mwpy import UsageError
from mwpy.sweep.command import STDOUT
from mwpy.sweep.files import text_of
from mwpy.sweep.parameters import Grid, Table, samples, table_in, values_of, zipped
from mwpy.sweep.placeholders import is_unnamed, refuse_unknown
from mwpy.sweep.results import Result
from mwpy.sweep.stages import Program, Stage, stages_of

NUMBER, SEED = "#", "seed"
"""The parameters that each run has: its number, counted from 1, and a random number."""

FOLDER = ".mwpy-sweep"
"""Where sweeps without a study file keep what they need, in the current folder."""

TABLES = (".csv", ".tsv", ".parquet", ".jsonl")
"""The names of tables end in one of these."""

UNITS_S = {"s": 1.0, "min": 60.0, "h": 3600.0}
"""The units of a rate, in seconds."""


class Collection(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What is written at the end of a sweep."""

    to: str = ""
    """A table (`.csv`, `.tsv`, `.jsonl`, `.parquet`), or a file for an output of all runs. With placeholders, each run
    has its own file."""
    output: str = ""
    """The name of the output; empty for a table, or for the standard output."""
    form: str = "plain"
    """`plain`, or `blocks` to have a line with the parameters before each output."""
    function: str = ""
    """Instead of all others, a function that is called for each run with its parameters, results and outputs."""

    @property
    def taken(self) -> str:
        """The name of the output that is taken; empty for a table, and for a function."""
        is_whole = self.function or (not self.output and self.to.endswith(TABLES))
        return "" if is_whole else self.output or STDOUT


class Settings(Program, forbid_unknown_fields=True, rename="kebab", omit_defaults=True, kw_only=True):
    """All settings of a sweep, as they are written in a study file. docs/manual/sweeps.md explains them."""

    task: list[Program] = field(default_factory=list)
    """Several programs that depend on each other through their files, instead of `command`."""
    values: dict[str, Any] = field(default_factory=dict)
    zip: dict[str, Any] = field(default_factory=dict)
    table: str | None = None
    samples: dict[str, str | int] = field(default_factory=dict)
    unnamed: list[tuple[str, list[str]]] = field(default_factory=list)
    """The values after `:::` on a command line, each list with its sign."""
    repeat: int = 1

    results: dict[str, str | Result] = field(default_factory=dict)
    bounds: dict[str, tuple[float, float]] = field(default_factory=dict)
    validate: str | None = None
    """A Python file and a function in it, such as `checks.py:valid`."""

    collect: list[Collection] = field(default_factory=list)

    keep: str | None = None
    """Of which runs the folder comes back: `failed`, `all` or `none`."""
    order: str = "given"
    slaves: int | None = None
    system: str | None = field(default=None, name="with")
    max: int = 100
    oversee: list[str] = field(default_factory=list)
    """More options of `mwpy oversee`."""
    rate: str | None = None
    """How many runs may start in a time, such as `10/s`, `5/min` or `100/h`."""
    on_end: str | None = None
    page: str | int | None = None
    """Where a page shows the sweep: `PORT`, or `HOST:PORT`."""
    http: str | int | None = None
    """Where HTTP clients fetch the runs, in the same form. The page is there, too."""
    ping: int = 10
    """Seconds between two signs of life of an HTTP client that has a run."""
    client: list[str] = field(default_factory=list)
    """Hosts on which ssh starts such clients, each perhaps with a number of clients after a space."""
    ssh: str = "ssh"
    """How ssh is called for this."""

    def pause_s(self) -> float:
        """Return the least time between the starts of two runs, in seconds.

        Raises:
            UsageError: the rate is wrong.
        """
        if self.rate is None:
            return 0.0
        found = re.fullmatch(r"0*([1-9]\d*)/(s|min|h)", self.rate)
        if found is None:
            raise UsageError(f"rate={self.rate!r}: write how many runs may start in a time, as 10/s, 5/min or 100/h")
        return UNITS_S[found[2]] / int(found[1])

    @classmethod
    def in_file(cls, path: Path, instead: Mapping[str, Any]) -> Settings:
        """Read a study file.

        Args:
            instead: settings that count instead of those in the file.

        Raises:
            UsageError: it cannot be read, or a setting is wrong; the message names it.
        """
        try:
            found = tomllib.loads(text_of(path, "the study"))
        except ValueError as error:
            raise UsageError(f"the study {path} is no TOML: {error}") from error
        return cls.of({**found, **instead}, str(path))

    @classmethod
    def of(cls, found: Mapping[str, Any], where: str) -> Settings:
        """Check settings that were read from somewhere.

        Raises:
            UsageError: one is unknown, or has a wrong type; the message names it.
        """
        names = [each.encode_name for each in msgspec.structs.fields(cls)]
        for name in found:
            if name not in names:
                close = get_close_matches(name, names, 1)
                meant = f"; do you mean {close[0]}?" if close else f": there are {', '.join(names)}"
                raise UsageError(f"{where} has an unknown setting {name}{meant}")
        try:
            return msgspec.convert(found, cls)
        except msgspec.ValidationError as error:
            raise UsageError(f"{where} has a wrong setting: {error}") from error


@define
class Sweep:
    """A sweep that can run: the settings, and what is made of them."""

    settings: Settings
    base: Path
    """Where relative paths begin."""
    folder: Path
    """Where the sweep keeps what it needs."""
    stages: list[Stage]
    """Its programs. Most sweeps have one."""
    rows: Grid
    results: tuple[str, ...]
    """The names of the results."""
    validate: Callable[..., Any] | None

    @classmethod
    def of(cls, settings: Settings, base: Path, folder: Path | None = None) -> Sweep:
        """Make what the settings describe.

        Args:
            base: the folder of the study, in which relative paths begin.
            folder: where the sweep keeps what it needs; None for a folder in `FOLDER` with a name of its own.

        Raises:
            UsageError: a setting or a file is wrong; the message names it.
        """
        if bool(settings.command) == bool(settings.task):
            raise UsageError("a study has either a command, or tasks with a command each ([[task]])")
        keep = settings.keep or ("none" if settings.unnamed else "failed")
        results = [Result.of(name, source) for name, source in settings.results.items()]
        programs = settings.task or [_with_collected(settings)]
        stages = stages_of(programs, results, base, keep, bool(settings.unnamed))
        made = cls(
            settings,
            base,
            base / FOLDER / _own_name(stages, settings) if folder is None else folder,
            stages,
            _rows(settings, base, stages),
            tuple(settings.results),
            None if settings.validate is None else function_in(settings.validate, base),
        )
        made.check()
        return made

    def check(self) -> None:
        """Find mistakes before anything runs: a placeholder without a parameter, for example.

        Raises:
            UsageError: there is one.
        """
        if self.settings.order not in ("given", "shuffled"):
            raise UsageError(f"order={self.settings.order!r}: write given or shuffled")
        self.settings.pause_s()
        if not len(self.rows):
            raise UsageError("the sweep has no rows: give values, a table, or ::: and values")
        for name in self.settings.bounds:
            if name not in self.settings.results:
                raise UsageError(f"bounds has {name}, which is not in results")
        for stage in self.stages:
            values = self.values(0, stage)
            refuse_unknown(stage.command.names, {**self.rows.row(0), **values}, f"the task {stage.name}")
            stage.command.task(**values)

    @property
    def columns(self) -> list[str]:
        """The columns of its parameters in tables."""
        return [name or "value" for name in self.rows.names]

    def values(self, number: int, stage: Stage) -> dict[str, Any]:
        """Return the values of a row for the run of a stage."""
        values = self.rows.row(number)
        wanted = stage.command.names
        if NUMBER in wanted:
            values[NUMBER] = number + 1
        if SEED in wanted and SEED not in values:
            values[SEED] = seed_of(number)
        return {name: value for name, value in values.items() if name in wanted or is_unnamed(name)}


def _with_collected(settings: Settings) -> Settings:
    """Add the standard output to the outputs of the only program, if a collection takes it."""
    outputs = settings.outputs
    if STDOUT in outputs or all(each.taken != STDOUT for each in settings.collect):
        return settings
    return replace(settings, outputs={**outputs, STDOUT: STDOUT} if isinstance(outputs, dict) else [*outputs, STDOUT])


def seed_of(number: int) -> int:
    """Return the random number of a row: 31 bits, the same at each start."""
    return int.from_bytes(sha256(f"{SEED} {number}".encode()).digest()[:4], "big") >> 1


def _own_name(stages: Sequence[Stage], settings: Settings) -> str:
    line = msgspec.json.encode([settings.command, settings.shell])
    return f"{stages[0].name}-{sha256(line).hexdigest()[:6]}"


def function_in(text: str, base: Path) -> Callable[..., Any]:
    """Load a function of the user from a Python file.

    Raises:
        UsageError: it is not there.
    """
    path, _, name = text.rpartition(":")
    specification = importlib.util.spec_from_file_location(Path(path).stem, base / path)
    try:
        assert specification is not None and specification.loader is not None
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
        return cast(Callable[..., Any], getattr(module, name))
    except (AssertionError, OSError, AttributeError) as error:
        raise UsageError(f"{text!r} cannot be loaded ({error}): write FILE.py:FUNCTION") from error


def _rows(settings: Settings, base: Path, stages: Sequence[Stage]) -> Grid:
    tables: list[Table] = []
    if settings.table is not None:
        tables.append(table_in(base / settings.table))
    tables += [_listed(name, values) for name, values in settings.values.items()]
    if settings.zip:
        tables.append(zipped([_listed(name, values) for name, values in settings.zip.items()]))
    if settings.samples:
        kinds = {name: str(kind) for name, kind in settings.samples.items() if name not in ("count", SEED)}
        count, seed = settings.samples.get("count"), settings.samples.get(SEED, 0)
        if not isinstance(count, int) or count < 1 or not isinstance(seed, int):
            raise UsageError(f"samples has count={count!r} and seed={seed!r}: give whole numbers")
        tables.append(samples(kinds, count, seed))
    tables += _unnamed(settings.unnamed, base)
    if settings.repeat > 1:
        tables.append(Table(["repeat"], [(number,) for number in range(1, settings.repeat + 1)]))
    if not tables:  # a program without parameters runs once
        names = {name for stage in stages for name in stage.command.names}
        tables.append(Table([], [] if names - {NUMBER, SEED} else [()]))
    return Grid(tables)


def _listed(name: str, values: Any) -> Table:
    if isinstance(values, str):
        return values_of(name, values)
    if not isinstance(values, list) or not values:
        raise UsageError(f"the values of {name} are {values!r}: give a list, or a range such as '0..1..0.1'")
    return Table([name], [(value,) for value in values])


def _unnamed(lists: Sequence[tuple[str, list[str]]], base: Path) -> list[Table]:
    """Return the values after `:::`. Their names are `1`, `2` and so on. With one list, the name is empty."""
    groups: list[list[Table]] = []
    for place, (sign, words) in enumerate(lists, 1):
        found = (
            words
            if sign != "::::"
            else [line for path in words for line in text_of(base / path, "the values in").splitlines()]
        )
        table = Table([str(place) if len(lists) > 1 else ""], [(word,) for word in found])
        if sign == ":::+" and groups:
            groups[-1].append(table)
        else:
            groups.append([table])
    return [*map(zipped, groups)]
