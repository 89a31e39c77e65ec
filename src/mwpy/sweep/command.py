"""A program as a task algorithm: `mwpy.command`.

A `Command` is called in a slave with the values of its placeholders. It makes a folder, puts the files there that the
program needs, runs it, reads what it has written, checks this, and returns an `Outcome`.
"""

from __future__ import annotations

import json
import os
import pickle
import platform
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from glob import escape, glob, has_magic
from mmap import PROT_READ, mmap
from pathlib import Path, PurePath
from typing import IO, Any, Literal, Unpack

from attrs import Factory, define, evolve, frozen

import mwpy
from mwpy import Policies, TaskCall, UsageError
from mwpy.sweep.files import SMALL_BYTES, File, file, files_in, for_this_machine, place, shown, text_of
from mwpy.sweep.placeholders import Line, Template, is_unnamed, numbered, refuse_twice, refuse_unknown
from mwpy.sweep.process import Ended, last_lines, own_folder, packed, run

STDOUT, STDERR = "STDOUT", "STDERR"
"""The names of standard output and error among the outputs of a program."""

MAX_OUTPUT_BYTES = 512 << 20

MAX_FOLLOWED_BYTES = 48 * 1024
"""How much of the ends of growing files is reported: a report may have 64 KiB."""

MAX_FAILED_BYTES = 1 << 20
"""How much of the end of its standard output, and error, a failed run brings back."""

Check = int | str | Iterable[int] | Callable[["Outcome"], Any] | None
"""How it is decided whether a program succeeded; see `command`."""

_BEFORE = """
set -e
{}
set +e
exec "$@"
"""

_WITH_CLEAN_UP = """
end() {{
    code=$?
    set +e
    trap - EXIT
    (set -e
    {clean_up}
    )
    last=$?
    exit $((code ? code : last))
}}
trap end EXIT
trap : TERM
set -e
{before}
set +e
"$@"
"""
"""It does not end by SIGTERM, so that the clean-up also runs if the program is ended."""


class CommandFailed(Exception):
    """A program failed, or its check says so. The text says what ran, where, and how it ended.

    Args:
        text: the text.
        outcome: what is known about the run. In the result of a task it has only the ends of the standard streams
            (1 MiB each), and no outputs but the archive.
    """

    __module__ = "mwpy"  # users see this name in the results of their tasks

    def __init__(self, text: str, outcome: Outcome | None = None) -> None:
        super().__init__(text)
        self.outcome = outcome

    def __reduce__(self) -> tuple[Any, ...]:
        shortened = None if self.outcome is None else self.outcome.shortened()
        in_one_piece = pickle.dumps(shortened, 4)  # exceptions have no large buffers beside them
        return _failed, (type(self), *self.args, in_one_piece)


class NotStarted(CommandFailed):
    """A program did not start on a host: it is missing there, or there is no room for its files.

    Another host may run it: with `retry_errors=mwpy.NotStarted`, the task is tried again.
    """

    __module__ = "mwpy"


def _failed(kind: type[CommandFailed], text: str, outcome: bytes) -> CommandFailed:
    return kind(text, pickle.loads(outcome))


DOOR = "MWPY_SWEEP_DOOR"
"""The environment variable that says where HTTP clients fetch the runs of a sweep, for `at_client.py`."""

AT_CLIENT = str(Path(__file__).with_name("at_client.py"))
"""What a slave runs instead of a program that an HTTP client runs."""


@define(eq=False, repr=False)
class Outcome:
    """What a program did.

    Examples:
        >>> mwpy.command("echo {word}")(word="one two").stdout
        'one two\\n'
    """

    command: str
    """The command line as it ran. A shell can repeat it."""
    exit_code: int
    """0 for success; negative if a signal ended the program: the number of the signal."""
    seconds: float
    peak_memory: int
    """The most memory that one of its processes used, in bytes."""
    host: str
    outputs: dict[str, File | list[File]]
    """By the names in `outputs` of the command: one file, or a list of files for a pattern of names. An optional output
    that the program did not write is missing."""
    stdout_file: File
    stderr_file: File
    followed: dict[str, tuple[int, bytes]] = Factory(dict)
    """By the names in `follow` of the command: the size of each file, and its last bytes, at the end."""
    attempt: int = 0
    """Which attempt of its task it was; 0 outside of a task."""
    intermediate: tuple[str, ...] = ()
    """The names of those outputs that only serve later tasks, as `intermediate` of the command says."""
    error: str = ""
    """Why the run failed; empty if it succeeded."""
    archive: File | None = None
    """The folder of the run as a `.tar.gz`, with its standard output and error, if `keep` of the command asks for it.
    It has at most 10 MB: the names of the files that it lacks are in `LEFT_OUT`."""

    @property
    def stdout(self) -> str:
        """Its standard output, as text. Bytes that are not UTF-8 are shown as `\\xff`."""
        return self.stdout_file.read_text(errors="backslashreplace")

    @property
    def stderr(self) -> str:
        """Its standard error, in the same way."""
        return self.stderr_file.read_text(errors="backslashreplace")

    @property
    def ok(self) -> bool:
        """Whether the run succeeded."""
        return not self.error

    def save(self, folder: str | os.PathLike[str] = ".") -> list[Path]:
        """Write the outputs into a folder, but those that only serve later tasks. Return where they are.

        Args:
            folder: it is made if it does not exist.

        Raises:
            UsageError: two outputs have the same name; the caller's fault.
            OSError: one cannot be written.
        """
        kept = {name: value for name, value in self.outputs.items() if name not in self.intermediate}
        _check_names((), kept, str(folder), "save one of them apart, as in outcome.outputs['name'].save(path)")
        Path(folder).mkdir(parents=True, exist_ok=True)
        return [each.save(folder) for value in kept.values() for each in files_in(value)]

    def shortened(self) -> Outcome:
        """Return what a failure brings back: the ends of the standard streams, the archive, and no other outputs."""
        streams = (self.stdout_file, self.stderr_file)
        ends = [File(each.name, bytes(each.content[-MAX_FAILED_BYTES:])) for each in streams]
        return evolve(self, outputs={}, stdout_file=ends[0], stderr_file=ends[1])


class Command:
    """A program as a task algorithm, made by `mwpy.command`. It can be called, submitted and mapped.

    Args:
        line: its command line, and `options` what else `mwpy.command` was given.
    """

    def __init__(self, line: Line, options: Options, policy: Policies) -> None:
        self.line = line
        self.options = options
        self.policy = policy
        self.__qualname__ = options.name
        mwpy.task_algorithm(**policy)(self)
        del self.task  # the method below checks the values

    def __reduce__(self) -> tuple[Any, ...]:
        return Command, (self.line, self.options, self.policy)

    def __repr__(self) -> str:
        return f"<mwpy.command {self.options.name}>"

    def with_inputs(self, files: Mapping[str, File | list[File]]) -> Command:
        """Return the same program with more files in the folder of each run.

        Args:
            files: by the names that they have there. Of several files under one name, this is the name of their folder.
        """
        more: dict[str, Any] = {}
        for name, found in files.items():
            more |= {f"{name}/{each.name}": each for each in found} if isinstance(found, list) else {name: found}
        return Command(self.line, evolve(self.options, inputs={**self.options.inputs, **more}), self.policy)

    def task(self, *values: Any, **parameters: Any) -> TaskCall[Outcome]:
        """Make a call to submit: one run with these values of the placeholders.

        Args:
            values: of the placeholders in the order of their first appearance, or of `{}`, `{1}`, `{2}` and so on.
            parameters: values by the names of the placeholders. An `mwpy.file` is put into the folder of the run, and
                its placeholder becomes its name.

        Raises:
            UsageError: a placeholder has no value, or a value no placeholder; the caller's fault.
        """
        self._prepared(values, parameters)
        return mwpy.task(self, *values, **parameters)

    def __call__(self, *values: Any, **parameters: Any) -> Outcome:
        """Run the program here.

        Raises:
            CommandFailed: it failed.
            NotStarted: it did not start on this host.
            UsageError: as for `task`.
            EndIsNear: the time of the task that calls this is over.
        """
        outcome = self._run(self._prepared(values, parameters))
        if outcome.error:
            raise CommandFailed(outcome.error, outcome)
        return outcome

    def outcome(self, *values: Any, **parameters: Any) -> Outcome:
        """Run the program here, and return its outcome also if it failed.

        Raises:
            UsageError: as for `task`.
            EndIsNear: the time of the task that calls this is over.
        """
        try:
            return self._run(self._prepared(values, parameters))
        except NotStarted as error:
            nothing = File("", b"")
            return Outcome("", 127, 0.0, 0, platform.node(), {}, nothing, nothing, error=str(error))

    def _run(self, prepared: Mapping[str, Any]) -> Outcome:
        try:
            if self.options.folder is not None:
                return _Attempt(self, prepared, Path(self.options.folder)).run()
            this = mwpy.this_attempt()
            named = "mwpy" if this is None else f"mwpy-{this.task_id}-{this.number}"
            with own_folder(named, {name: shown(value) for name, value in prepared.items()}) as folder:
                return _Attempt(self, prepared, folder).run()
        except OSError as error:
            where = f": {error.filename}" if error.filename else ""
            text = f"a file of the run cannot be used: {error.strerror}{where} (on {platform.node()})"
            raise NotStarted(f"{text}\ncheck the room and the permissions of the scratch folder there") from error

    def shown(self, *values: Any, **parameters: Any) -> str:
        """Return the command line for these values, as a shell could run it.

        Raises:
            UsageError: as for `task`.
        """
        prepared = self._prepared(values, parameters)
        return _shown(self.line, self.options, {name: shown(value) for name, value in prepared.items()})

    def _prepared(self, values: Sequence[Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of all placeholders by name."""
        prepared = _named(self.names, values, parameters, self.options.name)
        for name in prepared:
            if name not in self.names and not is_unnamed(name):
                raise UsageError(f"{self.options.name} has no placeholder {{{name}}}: it has {_listed(self.names)}")
        for where, template in self.options.texts(self.line):
            refuse_unknown(template.names, prepared, where)
        rename = "give one another name, as in mwpy.file(path, name='other')"
        _check_names([*self.options.inputs, *self.options.templates], prepared, "the folder of a run", rename)
        self.line.filled({name: shown(value) for name, value in prepared.items()})
        return prepared

    @property
    def names(self) -> list[str]:
        """The names of all placeholders, each once, in the order of their first appearance."""
        return [*dict.fromkeys(name for _, text in self.options.texts(self.line) for name in text.names)]


def at_clients(command: Command, door: str) -> Command:
    """Return the same program, run by HTTP clients of this door."""
    return Command(command.line, evolve(command.options, door=door), command.policy)


def _named(names: Sequence[str], values: Sequence[Any], parameters: Mapping[str, Any], command: str) -> dict[str, Any]:
    """Give the unnamed values their names."""
    if not values:
        return {**parameters}
    if any(map(is_unnamed, names)):
        return {**numbered(values), **parameters}
    free = [name for name in names if name not in parameters]
    if len(values) > len(free):
        raise UsageError(f"{command} got {len(values)} unnamed values for its placeholders {_listed(free)}")
    return {**dict(zip(free, values, strict=False)), **parameters}


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"{{{name}}}" for name in names) or "none"


def _check_names(names: Iterable[str], values: Mapping[str, Any], where: str, remedy: str) -> None:
    """Check that no two files have the same name in a folder."""
    known: dict[str, File | None] = dict.fromkeys(names)
    for each in (each for value in values.values() for each in files_in(value)):
        if each.name in known and known[each.name] != each:
            raise UsageError(f"two files have the name {each.name} in {where}: {remedy}")
        known[each.name] = each


@frozen
class Options:
    """What `command` was given beside the line."""

    name: str
    stdin: Template | File | None
    inputs: dict[str, Any]
    """Files, or files by the kind of machine, by their names in the folder of a run."""
    templates: dict[str, Template]
    outputs: dict[str, Template]
    optional: tuple[str, ...]
    intermediate: tuple[str, ...]
    check: Any
    environment: dict[str, Template]
    before: str
    clean_up: str
    folder: str | None
    max_output: int
    keep: str
    follow: tuple[str, ...]
    door: str = ""
    """Where its runs are handed over to HTTP clients; empty if they are made here."""

    def texts(self, line: Line) -> list[tuple[str, Template]]:
        """Return all texts with placeholders, each with its name in error messages."""
        texts = [("the command line", word) for word in line.words]
        if isinstance(self.stdin, Template):
            texts.append(("stdin", self.stdin))
        texts += [(f"the template of {name}", text) for name, text in self.templates.items()]
        texts += [(f"env {name}", text) for name, text in self.environment.items()]
        return [*texts, *((f"output {name}", text) for name, text in self.outputs.items())]


def _shown(line: Line, options: Options, values: Mapping[str, Any]) -> str:
    """Return a command line as a shell could run it."""
    words = line.filled(values)
    changes = (f"{name}={shlex.quote(text.filled(values))}" for name, text in options.environment.items())
    return " ".join([*changes, words[-1] if line.shell else shlex.join(words)])


class _Attempt:
    """One run of a program in a folder."""

    def __init__(self, command: Command, values: Mapping[str, Any], folder: Path) -> None:
        self.options = command.options
        self.folder = folder
        self.files = {file.name: file for value in values.values() for file in files_in(value)}
        self.values = {name: shown(value) for name, value in values.items()}
        self.words = command.line.filled(self.values)
        self.changes = {name: text.filled(self.values) for name, text in self.options.environment.items()}
        door = {DOOR: self.options.door} if self.options.door else {}
        self.environment = {**os.environ, **self.changes, **door} if self.changes or door else None
        self.repeated = _shown(command.line, command.options, self.values)

    def run(self) -> Outcome:
        """Run the program, and return what it did."""
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            followed = _Followed(self.options.follow, self.folder, output, errors)
            self._place()
            try:
                ended = run(
                    self._command(),
                    folder=self.folder,
                    environment=self.environment,
                    stdin=self._stdin(),
                    output=output,
                    errors=errors,
                    max_output=self.options.max_output,
                    look=followed.report,
                )
            except OSError as error:
                raise NotStarted(self._not_started(error)) from error
            streams = {STDOUT: _read(output, STDOUT), STDERR: _read(errors, STDERR)}
            seen = ended.exit_code, ended.seconds, ended.peak_memory, platform.node()
            attempt = mwpy.this_attempt()
            outcome = Outcome(self.repeated, *seen, {}, streams[STDOUT], streams[STDERR], followed.ends())
            outcome.attempt = 0 if attempt is None else attempt.number
            outcome.intermediate = self.options.intermediate
            why = ended.stopped or self._take_outputs(outcome, streams) or _verdict(self.options.check, outcome)
            if why:
                outcome.error = self._failure(why, ended, last_lines(errors) or last_lines(output))
            if self.options.keep == "all" or (self.options.keep == "failed" and why):
                outcome.archive = File("archive.tar.gz", packed(self.folder, streams, self.repeated))
            return outcome

    def _place(self) -> None:
        """Put the files into the folder that the program needs."""
        for name, source in {**self.options.inputs, **self.files}.items():
            place(for_this_machine(source), self.folder / name)
        for name, template in self.options.templates.items():
            text = template.filled(self.values).encode(errors="surrogateescape")
            place(File(name, text), self.folder / name)

    def _command(self) -> list[str]:
        if self.options.door:
            outputs = [template.filled(self.values) for template in self.options.outputs.values()]
            job = {"outputs": outputs, "environment": self.changes, "sends_files": self.options.folder is None}
            return [sys.executable, "-I", AT_CLIENT, json.dumps(job), *self.words]
        before, last = self.options.before, self.options.clean_up
        if not before and not last:
            return self.words
        script = _WITH_CLEAN_UP.format(before=before, clean_up=last) if last else _BEFORE.format(before)
        return ["/bin/bash", "-l", "-c", script, "bash", *self.words]

    def _stdin(self) -> bytes | None:
        match self.options.stdin:
            case Template() as text:
                return text.filled(self.values).encode(errors="surrogateescape")
            case File() as file:
                return file.read_bytes()
        return None

    def _take_outputs(self, outcome: Outcome, streams: Mapping[str, File]) -> str:
        """Read the outputs, and return what is wrong with them."""
        total, most = sum(len(stream.content) for stream in streams.values()), self.options.max_output
        for name, template in self.options.outputs.items():
            pattern = template.filled(self.values)
            if pattern in streams:
                outcome.outputs[name] = streams[pattern]
                continue
            is_pattern = has_magic(pattern)
            found = sorted(glob(pattern if is_pattern else escape(pattern), root_dir=self.folder, recursive=True))
            found = [each for each in found if (self.folder / each).is_file()]
            if not found and name not in self.options.optional:
                return (outcome.exit_code == 0 and self._missing(pattern)) or ""
            total += sum((self.folder / each).stat().st_size for each in found)
            if total > most:
                break
            files = [_read_file(self.folder / each, each) for each in found]
            if files:
                outcome.outputs[name] = files if is_pattern else files[0]
        return f"it wrote {total} bytes, more than max_output={most}" if total > most else ""

    def _missing(self, pattern: str) -> str:
        there = sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file())
        shown = ", ".join(there[:10]) + (f" and {len(there) - 10} more" if len(there) > 10 else "")
        return f"it wrote no file {pattern} (in its folder are: {shown or 'none'})"

    def _not_started(self, error: OSError) -> str:
        program = self.words[0]
        why = f"{program}: {error.strerror}"
        if isinstance(error, FileNotFoundError):
            why = f"there is no program {program}"
            if not os.path.isabs(program):
                where = "the folder of the run" if os.sep in program else "PATH"
                why += f" in {where}: install it there, write its full path, or give it in inputs"
        elif isinstance(error, PermissionError):
            why = f"{error.filename} is not executable; set this with chmod +x"
        return f"{why} (on {platform.node()})\nto repeat it: {self.repeated}"

    def _failure(self, why: str, ended: Ended, last: str) -> str:
        where = f"on {platform.node()}, in {self.folder}, after {ended.seconds:.3g} s"
        lines = [f"{why} ({where})", f"its last lines:\n{last}" if last else "it wrote nothing"]
        return "\n".join([*lines, f"to repeat it: {self.repeated}"])


class _Followed:
    """Files whose ends are reported while they grow."""

    def __init__(self, names: Sequence[str], folder: Path, output: IO[bytes], errors: IO[bytes]) -> None:
        self._names = names
        self._folder = folder
        self._streams = {STDOUT: output, STDERR: errors}
        self._seen: dict[str, int] = {}

    def report(self) -> None:
        """Report the ends of the files that have grown since the last call."""
        grown = {name: end for name, end in self.ends().items() if end[0] != self._seen.get(name, 0)}
        self._seen |= {name: size for name, (size, _) in grown.items()}
        if grown and mwpy.this_attempt() is not None:
            mwpy.report(**grown)

    def ends(self) -> dict[str, tuple[int, bytes]]:
        """Return the size of each file and its last bytes; nothing if it does not exist."""
        found = dict.fromkeys(self._names, (0, b""))
        for name in self._names:
            with suppress(OSError), self._opened(name) as file:
                size, most = os.fstat(file.fileno()).st_size, MAX_FOLLOWED_BYTES // len(self._names)
                found[name] = size, os.pread(file.fileno(), most, max(0, size - most))
        return found

    def _opened(self, name: str) -> AbstractContextManager[IO[bytes]]:
        return nullcontext(self._streams[name]) if name in self._streams else (self._folder / name).open("rb")


def _read(stream: IO[bytes], name: str) -> File:
    """Take over an output without a name."""
    size = os.fstat(stream.fileno()).st_size
    if size < SMALL_BYTES:
        return File(name, os.pread(stream.fileno(), size, 0))
    return File(name, memoryview(mmap(stream.fileno(), size, prot=PROT_READ)))


def _read_file(path: Path, name: str) -> File:
    with path.open("rb") as opened:
        read = _read(opened, PurePath(name).name)
        read.executable = bool(os.fstat(opened.fileno()).st_mode & 0o100)
        return read


def reason_in(answer: Any, otherwise: str) -> str:
    """Return why a check of the user says that a run failed; empty if it does not."""
    if isinstance(answer, str):
        return answer
    return "" if answer is None or answer else otherwise


def _verdict(check: Any, outcome: Outcome) -> str:
    """Return why a run failed; empty if it succeeded."""
    if callable(check):
        return reason_in(check(outcome), "its check says that it failed")
    codes = (0,) if isinstance(check, str) else check
    if codes is not None and outcome.exit_code not in codes:
        return _exit(outcome.exit_code)
    if isinstance(check, str) and not re.search(check, outcome.stdout, re.MULTILINE):
        return f"its standard output has no {check!r}"
    return ""


def _exit(code: int) -> str:
    from signal import Signals

    if code in (-Signals.SIGKILL, 128 + Signals.SIGKILL):  # that of a shell which has run it
        why = "most often, the kernel sends it for lack of memory; then raise memory_max, or ask for more memory"
        return f"SIGKILL ended it: {why}"
    if code >= 0:
        return f"it ended with exit code {code}"
    return f"{Signals(-code).name if -code in {*Signals} else f'signal {-code}'} ended it"


def command(
    line: str | Sequence[str],
    *,
    shell: bool = False,
    stdin: str | File | None = None,
    inputs: Iterable[str | os.PathLike[str] | File] | Mapping[str, Any] = (),
    templates: Mapping[str, str | os.PathLike[str]] | None = None,
    outputs: Iterable[str] | Mapping[str, str] = (),
    optional: Iterable[str] = (),
    intermediate: Iterable[str] = (),
    check: Check = 0,
    env: Mapping[str, str] | None = None,
    before: str | Sequence[str] = (),
    clean_up: str | Sequence[str] = (),
    folder: str | os.PathLike[str] | None = None,
    max_output: int = MAX_OUTPUT_BYTES,
    keep: Literal["failed", "all", "none"] = "none",
    follow: Iterable[str] = (),
    name: str | None = None,
    **policy: Unpack[Policies],
) -> Command:
    """Make a task algorithm of a program. Its value is an `Outcome`.

    Each run has a folder of its own, which is removed at the end.

    Args:
        line: the command line, with placeholders such as `{alpha}` and `{alpha:.3f}`; or its words in a list. It is
            divided into words as a shell does, before the values take their places. `{{alpha}}` stands for `{alpha}`.
        shell: whether a shell runs the line. Values are quoted for it.
        stdin: what the program reads from standard input: a text with placeholders, or a file.
        inputs: files that each run gets in its folder: paths, or paths by the names that they have there. Instead of
            a path, it can be an `mwpy.file`, or a dict of paths by the kind of machine (`x86_64`).
        templates: text files with placeholders, by the names of the files that are made of them.
        outputs: files that the program writes: names, or names by the names in `Outcome.outputs`. They may have
            placeholders. A pattern such as `*.png` gives a list of files. `STDOUT` and `STDERR` are the standard ones.
        optional: the names in `outputs` of those that may be missing.
        intermediate: the names in `outputs` of those that only serve later tasks: `Outcome.save` does not write them.
        check: what makes a run a success: an exit code, several of them, a pattern (as of `re`) that the standard
            output must have, or a function of the `Outcome`, which returns whether it succeeded, or why it failed.
            With None, every exit code is a success.
        env: environment variables, in which placeholders may be.
        before: lines that a login shell (bash) runs before the program, such as `module load gromacs`.
        clean_up: lines that the same shell runs after it, also when it failed. If one of them fails and the program did
            not, the run has failed. A program that signal N ended has the exit code 128 + N then.
        folder: the folder in which all runs work; None for one for each run. Its files, also the inputs, stay there,
            and an input that is there already is not written again.
        max_output: how many bytes the program may write into its outputs, together.
        keep: of which runs the folder comes back, as `Outcome.archive`: `"failed"`, `"all"` or `"none"`.
        follow: files that grow while the program runs, or `STDOUT` and `STDERR`. The slave looks once a second, and
            `mw.follow(task_id)` returns what is new. `mw.reports()` has for each name the size of the file and its last
            bytes.
        name: the name of the task algorithm; None for that of the program.
        policy: the policies of its tasks, as for `Master.submit`.

    Returns:
        A task algorithm. `.task(alpha=0.1)` makes a call to submit.

    Raises:
        UsageError: the line, a file or a policy is wrong; the caller's fault.

    Examples:
        >>> sim = mwpy.command("simulate --alpha {alpha}", outputs=["energy.dat"])    # doctest: +SKIP
        >>> mw.submit(sim.task(alpha=0.1), seconds_max=600)                           # doctest: +SKIP
    """
    read = Line.of(line, shell)
    first = "".join(part for part in read.words[0].parts if isinstance(part, str)).split()
    codes = [check] if isinstance(check, int) else check
    options = Options(
        name=name or (PurePath(first[0]).name if first else "command"),
        stdin=Template.of(stdin) if isinstance(stdin, str) else stdin,
        inputs=_inputs(inputs),
        templates={
            _inside(target): Template.of(text_of(Path(source), "the template", "utf-8"))
            for target, source in (templates or {}).items()
        },
        outputs=_outputs(outputs),
        optional=tuple(optional),
        intermediate=tuple(intermediate),
        check=codes if codes is None or isinstance(codes, str) or callable(codes) else tuple(codes),
        environment={key: Template.of(value) for key, value in (env or {}).items()},
        before=before if isinstance(before, str) else "\n".join(before),
        clean_up=clean_up if isinstance(clean_up, str) else "\n".join(clean_up),
        folder=None if folder is None else os.path.abspath(folder),
        max_output=max_output,
        keep=keep,
        follow=tuple(follow),
    )
    if keep not in ("failed", "all", "none"):
        raise UsageError(f"keep={keep!r}: give 'failed', 'all' or 'none'")
    twice = {*options.inputs} & {*options.templates}
    if twice:
        raise UsageError(f"{min(twice)} is in inputs and in templates: give it once")
    for setting in ("optional", "intermediate"):
        for each in getattr(options, setting):
            if each not in options.outputs:
                raise UsageError(f"{setting} names {each!r}, which is not in outputs")
    return Command(read, options, policy)


def _inputs(inputs: Iterable[Any] | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(inputs, str | os.PathLike | File):
        raise UsageError(f"inputs={inputs!r}: give a list of files")
    if isinstance(inputs, Mapping):
        return {_inside(name): _source(source) for name, source in inputs.items()}
    files = [_source(each) for each in inputs]
    refuse_twice(
        [each.name for each in files], "two inputs have the name {}: give other names, as in inputs={{'other': path}}"
    )
    return {each.name: each for each in files}


def _source(source: Any) -> Any:
    if isinstance(source, Mapping):
        return {kind: _source(each) for kind, each in source.items()}
    return source if isinstance(source, File) else file(source)


def _outputs(outputs: Iterable[str] | Mapping[str, str]) -> dict[str, Template]:
    if isinstance(outputs, str):
        raise UsageError(f"outputs={outputs!r}: give a list of names")
    if not isinstance(outputs, Mapping):
        names = [*outputs]
        refuse_twice(names, "two outputs have the name {}: give others, as in outputs={{'other': pattern}}")
        outputs = {name: name for name in names}
    return {name: Template.of(_inside(pattern)) for name, pattern in outputs.items()}


def _inside(name: str) -> str:
    """Check that a name is inside the folder of a run."""
    if os.path.isabs(name) or ".." in PurePath(name).parts or not name:
        raise UsageError(f"{name!r} is not inside the folder of a run: give a name without / at the beginning and ..")
    return name
