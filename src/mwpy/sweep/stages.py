"""The programs of a sweep, and how they depend on each other through their files.

Most sweeps have one program. With several, each row has one run of each program. A program whose input has the name of
another one's output waits for it, and gets this file.
"""

from __future__ import annotations

import graphlib
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import msgspec
from attrs import Factory, define, evolve, frozen
from msgspec import Struct, field

import mwpy
from mwpy import Policies, UsageError
from mwpy.sweep.command import STDOUT, Command, Outcome
from mwpy.sweep.files import File, file
from mwpy.sweep.placeholders import Line, refuse_twice
from mwpy.sweep.results import NotFound, Result

POLICIES = "seconds_max", "memory_max", "attempts_max", "cpus", "gpus", "memory", "requires", "priority"
"""The settings of a program that are policies."""


PASSED = "shell", "stdin", "outputs", "optional", "intermediate", "env", "before", "clean_up", "follow"
"""The settings of a program that `mwpy.command` gets as they are."""


class Program(Struct, forbid_unknown_fields=True, rename="kebab", omit_defaults=True, kw_only=True):
    """The settings of one program, as they are written in a study file. docs/manual/sweeps.md explains them."""

    command: str | list[str] = ""
    name: str = ""
    shell: bool = False
    stdin: str | None = None
    inputs: list[str] | dict[str, str | dict[str, str]] = field(default_factory=list)
    templates: dict[str, str] = field(default_factory=dict)
    outputs: list[str] | dict[str, str] = field(default_factory=list)
    optional: list[str] = field(default_factory=list)
    intermediate: list[str] = field(default_factory=list)
    """Outputs that only serve other programs."""
    env: dict[str, str] = field(default_factory=dict)
    before: str | list[str] = field(default_factory=list)
    clean_up: str | list[str] = field(default_factory=list)
    exit_codes: list[int] | str = field(default_factory=lambda: [0])
    """Those of a success; `any` for all."""
    follow: list[str] = field(default_factory=list)
    """Files that grow, or the standard streams, which are shown while the program runs."""
    seconds_max: float | None = None
    memory_max: str | int | None = None
    attempts_max: int | None = None
    cpus: int | None = None
    gpus: int | None = None
    memory: str | int | None = None
    requires: dict[str, str | int | bool] | None = None
    priority: int | None = None

    @property
    def policy(self) -> Policies:
        """The policies of its runs."""
        given = {name: getattr(self, name) for name in POLICIES}
        return cast(Policies, {name: value for name, value in given.items() if value is not None})


@frozen
class Stage:
    """A program of a sweep that can run."""

    name: str
    command: Command
    needs: dict[str, tuple[int, str]]
    """By the names of the files in its folder, which output of which other stage they are."""
    policy: Policies
    results: tuple[Result, ...]
    """The results that are taken from its outputs."""
    is_printed: bool
    """Whether the standard output and error of each run come back, to be printed."""

    def digests(self) -> dict[str, str]:
        """Return the digests of what its outputs depend on, beside values and other stages, by name."""
        options, line = self.command.options, self.command.line
        digests = {
            "the command line": digest_of([str(line), options.before, options.clean_up, str(options.environment)])
        }
        first = line.words[0]
        if not line.shell and not first.names and (program := shutil.which(first.filled({}))) is not None:
            digests[f"the program {program}"] = file(program).digest
        if options.folder is not None:
            mentioned = named_files(line, Path(options.folder))
            digests |= {f"the file {name}": file(path).digest for name, path in mentioned.items()}
        taken = [str(options.outputs), options.optional, options.check, [str(result) for result in self.results]]
        digests["what is taken from a run"] = digest_of(taken)
        for name, source in options.inputs.items():
            files = source.values() if isinstance(source, Mapping) else [source]
            digests[f"the input {name}"] = digest_of([each.digest for each in files])
        for name, template in options.templates.items():
            digests[f"the template {name}"] = digest_of(str(template))
        if options.stdin is not None:
            stdin = options.stdin
            digests["stdin"] = stdin.digest if isinstance(stdin, File) else digest_of(str(stdin))
        return digests


def digest_of(value: Any) -> str:
    """Return a digest of something that is encoded as JSON."""
    return sha256(msgspec.json.encode(value, enc_hook=str)).hexdigest()


def stages_of(
    programs: Sequence[Program], results: Sequence[Result], base: Path, keep: str, unnamed: bool
) -> list[Stage]:
    """Make the stages of a sweep, in an order in which each comes after those that it needs.

    Args:
        base: the folder in which relative paths begin.
        keep: of which runs the folder comes back.
        unnamed: whether the runs work in this folder, with values after `:::`.

    Raises:
        UsageError: a setting or a file is wrong, or programs need each other's files.
    """
    names = [program.name or _first_word(program) for program in programs]
    refuse_twice(names, "two tasks have the name {}: give each a name of its own")
    written = _written_by(programs, names)
    needed = [_needed(program, number, written) for number, program in enumerate(programs)]
    order = _ordered(names, needed)
    stages = []
    for number in order:
        others = {name: source for name, source in _inputs(programs[number]).items() if name not in needed[number]}
        needs = {name: (order.index(other), output) for name, (other, output) in needed[number].items()}
        command = _command(programs[number], names[number], others, base, keep, unnamed)
        stages.append(Stage(names[number], command, needs, programs[number].policy, (), unnamed))
    return _with_results(stages, results)


def _first_word(program: Program) -> str:
    return mwpy.command(program.command, shell=program.shell).options.name


def _outputs(program: Program) -> dict[str, str]:
    return program.outputs if isinstance(program.outputs, dict) else {name: name for name in program.outputs}


def _written_by(programs: Sequence[Program], names: Sequence[str]) -> dict[str, tuple[int, str]]:
    """Return, by the names of files, which program writes them as which output."""
    written: dict[str, tuple[int, str]] = {}
    seen: dict[str, str] = {}
    for number, program in enumerate(programs):
        for name, pattern in _outputs(program).items():
            if name in seen and name != STDOUT:
                raise UsageError(f"the tasks {seen[name]} and {names[number]} have an output {name}: rename one")
            seen[name] = names[number]
            if pattern != STDOUT:
                written[pattern] = (number, name)
    return written


def _inputs(program: Program) -> dict[str, Any]:
    """Return the inputs of a program by the names that they have in its folder."""
    if isinstance(program.inputs, dict):
        return program.inputs
    names = [Path(source).name for source in program.inputs]
    refuse_twice(names, "two inputs have the name {}: give other names, as in inputs = {{ other = 'x/b' }}")
    return dict(zip(names, program.inputs, strict=True))


def _needed(program: Program, number: int, written: Mapping[str, tuple[int, str]]) -> dict[str, tuple[int, str]]:
    """Return which inputs of a program other programs write. A program may change a file that it gets."""
    found = {name: written.get(source) for name, source in _inputs(program).items() if isinstance(source, str)}
    return {name: other for name, other in found.items() if other is not None and other[0] != number}


def _ordered(names: Sequence[str], needed: Sequence[Mapping[str, tuple[int, str]]]) -> list[int]:
    """Return the numbers of the programs, each after those that it needs."""
    graph = {number: [other for other, _ in needs.values()] for number, needs in enumerate(needed)}
    try:
        return [*graphlib.TopologicalSorter(graph).static_order()]
    except graphlib.CycleError as error:
        circle = ", ".join(names[number] for number in error.args[1][1:])
        raise UsageError(f"the tasks {circle} need files of each other: one of them must come first") from None


def _command(program: Program, name: str, inputs: Mapping[str, Any], base: Path, keep: str, unnamed: bool) -> Command:
    line, codes = program.command, program.exit_codes
    if unnamed and not Line.of(line, program.shell).names:
        line = f"{line} {{}}" if isinstance(line, str) else [*line, "{}"]
    if isinstance(codes, str) and codes != "any":
        raise UsageError(f"exit-codes={codes!r}: write a list of numbers, or any")
    sources = {target: _absolute(source, base) for target, source in inputs.items()}
    if not unnamed:
        taken = {*sources, *program.templates, *_outputs(program).values()}
        found = named_files(Line.of(line, program.shell), base)
        sources |= {target: path for target, path in found.items() if target not in taken}
    return mwpy.command(
        line,
        inputs=sources,
        templates={target: base / path for target, path in program.templates.items()},
        check=None if isinstance(codes, str) else codes,
        folder=base if unnamed else None,
        keep=cast(Any, keep),
        name=name,
        **{option: getattr(program, option) for option in PASSED},
    )


def named_files(line: Line, base: Path) -> dict[str, Path]:
    """Return the files of a folder that a command line names, such as a script: they belong to the program.

    Args:
        base: the folder. Files outside of it do not count.
    """
    words = [word.text for word in line.words]
    if line.shell:
        try:
            words = shlex.split(words[0])
        except ValueError:  # a shell understands more quotes
            words = words[0].split()
    named = (os.path.normpath(word) for word in words if word and not os.path.isabs(word))
    return {name: base / name for name in named if not name.startswith("..") and (base / name).is_file()}


def _absolute(source: Any, base: Path) -> Any:
    return {kind: base / each for kind, each in source.items()} if isinstance(source, Mapping) else base / source


def _with_results(stages: Sequence[Stage], results: Sequence[Result]) -> list[Stage]:
    """Give each result to the stage that has its output; the standard output is that of the last stage."""
    taken: list[list[Result]] = [[] for _ in stages]
    for result in results:
        having = [number for number, stage in enumerate(stages) if result.file in stage.command.options.outputs]
        taken[having[-1] if having else -1].append(result)
    return [evolve(stage, results=tuple(own)) for stage, own in zip(stages, taken, strict=True)]


# What runs bring back.


class Ran(Struct, frozen=True):
    """What a run brought back."""

    results: dict[str, int | float | str]
    outcome: Outcome
    """What its program did. It has no standard output and error, unless they are printed."""

    @property
    def outputs(self) -> dict[str, File | list[File]]:
        """The outputs of the program, for other stages."""
        return self.outcome.outputs


def outcome_of(result: mwpy.Result[Ran]) -> Outcome | None:
    """Return what the program of a run did, also if it failed; None if it did not run."""
    return result.value.outcome if result.error is None else getattr(result.error.__cause__, "outcome", None)


class RunFailed(Exception):
    """A program ended well, but what it wrote is not what was asked for."""

    __module__ = "mwpy"


class Named:
    """Makes a run of a sweep, under the name of its program, which messages and `mwpy status` show."""

    def __init__(self, name: str) -> None:
        self.__qualname__ = name

    def __call__(self, stage: Stage, values: dict[str, Any], files: Mapping[str, Any]) -> Ran:
        """Make a run.

        Args:
            files: files of other stages, by the names that they have in the folder of the run.

        Raises:
            CommandFailed: the program failed.
            RunFailed: a result was not found.
        """
        command = stage.command.with_inputs(files) if files else stage.command
        outcome = command(**values)
        try:
            results = {result.name: result.found_in(outcome) for result in stage.results}
        except NotFound as error:
            raise RunFailed(f"{error}\nto repeat it: {outcome.command}") from None
        if not stage.is_printed:
            nothing = File("", b"")
            outcome = evolve(outcome, stdout_file=nothing, stderr_file=nothing)
        return Ran(results, outcome)


@define
class Row:
    """A row of a sweep, and what its runs have brought back."""

    number: int
    missing: int
    """How many of its runs have not ended."""
    results: dict[str, int | float | str] = Factory(dict)
    outputs: dict[str, File | list[File]] = Factory(dict)
    failure: str = ""
    """Why a run failed, with a command that repeats it; empty if none did."""
    is_cancelled: bool = False
    """Whether a run was not made."""
    place: tuple[str, str, float, int] = ("", "", 0.0, 0)
    """Host and slave of the last run, the seconds of all runs, and the most attempts of one."""
    finished: float = 0.0
    """When the last run ended, in seconds since 1970."""
    reused: bool = False
    """Whether all of its runs were made at an earlier start."""
    streams: tuple[File, File] | None = None
    archives: dict[str, File] = Factory(dict)
    """The folders of runs, by the name of their stage; empty if there is only one."""

    def take(self, result: mwpy.Result[Ran], stages: Sequence[Stage]) -> None:
        """Take over how a run has ended. The second part of its tag is the number of its stage."""
        stage = stages[result.tag[1]].name if len(stages) > 1 else ""
        self.missing -= 1
        error = result.error
        if isinstance(error, mwpy.TaskCancelled):
            self.is_cancelled = True
            return
        if isinstance(error, mwpy.DependencyFailed):  # the stage before it says why, or was cancelled
            return
        seconds, attempts = self.place[2] + result.compute_seconds, max(self.place[3], result.attempts)
        self.place = result.host or "", result.sid or "", seconds, attempts
        self.finished = max(self.finished, result.finished)
        if error is None:
            self.results |= result.value.results
            self.outputs |= result.value.outputs
        else:
            text = str(error.__cause__ or error.text)
            self.failure = f"task {stage}: {text}" if stage else text
        if (outcome := outcome_of(result)) is not None:
            self.streams = outcome.stdout_file, outcome.stderr_file
            if outcome.archive is not None:
                self.archives[stage] = outcome.archive

    def in_columns(self, names: Sequence[str]) -> tuple[int | float | str, ...]:
        """Return its results in the columns of a table."""
        return tuple(self.results.get(name, "") for name in names)
