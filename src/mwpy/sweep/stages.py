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
from attrs import evolve, frozen
from msgspec import Struct, field

import mwpy
from mwpy import Policies, UsageError
from mwpy.sweep.command import STDOUT, Command
from mwpy.sweep.files import File, file
from mwpy.sweep.placeholders import Line, refuse_twice
from mwpy.sweep.results import Result

POLICIES = "seconds_max", "memory_max", "attempts_max", "cpus", "gpus", "memory", "requires", "priority"
"""The settings of a program that are policies."""


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
        stages.append(Stage(names[number], command, needs, programs[number].policy, ()))
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
        shell=program.shell,
        stdin=program.stdin,
        inputs=sources,
        templates={target: base / path for target, path in program.templates.items()},
        outputs=program.outputs,
        optional=program.optional,
        intermediate=program.intermediate,
        check=None if isinstance(codes, str) else codes,
        env=program.env,
        before=program.before,
        clean_up=program.clean_up,
        folder=base if unnamed else None,
        keep=cast(Any, keep),
        follow=program.follow,
        name=name,
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
