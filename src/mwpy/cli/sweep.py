"""mwpy sweep COMMAND|STUDY.toml [--values NAME=VALUES ...] [::: VALUE ...]: run a program with many settings.

Run a program with many settings, and collect what it gives. {name} in the command stands for the values of a
parameter. After :::, each value is one run in the current folder, as with GNU parallel. The same command continues
where it stopped.

examples:
  mwpy sweep 'simulate --alpha {alpha}' --values alpha=0..1..0.1 --result energy='E = (.*)'
  mwpy sweep 'gzip -9 {}' ::: *.log
  mwpy sweep study.toml --with htcondor --max 200 --detach
  mwpy sweep study.toml --again 'alpha > 0.3'

exit codes:
  0    all runs succeeded
  1    some runs failed
  2    a bad option or setting
  130  it was stopped
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

from msgspec.structs import asdict, fields

from mwpy import ExitCode
from mwpy._values.options import BATCH_SYSTEMS
from mwpy.cli._arguments import Parser, number
from mwpy.cli._detached import State, attached, detach, job_in, master_of, state_of, stop
from mwpy.cli.status import shown
from mwpy.sweep.collect import clean, collect, failure_of, folder_of, opened, print_failures, refuse_wrong
from mwpy.sweep.job import recorded
from mwpy.sweep.placeholders import refuse_twice
from mwpy.sweep.settings import Collection, Settings, Sweep
from mwpy.sweep.study import Selection, dry_run, run

__all__ = ["main", "make_parser"]

WATCHING = {
    "attach": "Show the progress and the output of a sweep until its end. The exit code is that of the sweep. Ctrl-C "
    "leaves it running.",
    "status": "Show what a sweep does.",
    "stop": "Let the runs of a sweep finish that have started, and end it. The same command continues it later.",
}
"""What can be done with a sweep that runs."""

AFTERWARDS = {
    "failed": "Show which rows of a sweep failed and why, with commands that repeat them.",
    "collect": "Write a table of a sweep, or an output of all of its runs.",
    "clean": "Remove the folder of a sweep.",
}
"""What can be done with a sweep that does not run. A program of this name is run as `./failed` or `command failed`."""

SIGNS = (":::", ":::+", "::::")
"""What begins a list of values: values, values beside those before, and files with one value a line."""


def main(arguments: Sequence[str]) -> int:
    """Run a sweep; return the exit code."""
    if len(arguments) > 1 and arguments[0] in {**WATCHING, **AFTERWARDS} and not arguments[1].startswith(":"):
        parsed = _parser_of(arguments[0]).parse_args(arguments[1:])
        do = _watch if parsed.what in WATCHING else _afterwards
    else:
        do, parsed = _make, make_parser().parse_args(arguments)
        parsed.arguments = arguments
    with redirect_stdout(sys.stderr) if parsed.json else nullcontext():
        code, document = do(parsed)
    if parsed.json:
        print(json.dumps(document, default=str))
    return code


Answer = tuple[int, Any]
"""An exit code, and what `--json` prints."""


def _make(parsed: argparse.Namespace) -> Answer:
    """Make a sweep, or let it be made."""
    sweep = _sweep(parsed)
    selection = Selection(parsed.first, parsed.sample, parsed.again, parsed.accept)
    refuse_wrong(sweep, sweep.settings.collect)
    if parsed.dry_run:
        return ExitCode.OK, dry_run(sweep, selection)
    if parsed.detach:
        return _detach(sweep, parsed.arguments)
    asked = sweep.settings.collect
    with recorded(sweep.folder, parsed.arguments) as job:
        rows = run(sweep, selection, lambda: collect(sweep, asked), job)
    failed = [failure_of(sweep, row) for row in rows if row.failure] if parsed.json else []
    return job.code or 0, {**job.summary, "exit code": job.code, "failures": failed}


def _detach(sweep: Sweep, arguments: Sequence[str]) -> Answer:
    signs = [place for place, word in enumerate(arguments) if word in SIGNS]
    own = arguments[: signs[0]] if signs else arguments
    words = [*(word for word in own if word not in ("--detach", "--json")), *arguments[len(own) :]]
    system = sweep.settings.system if sweep.settings.system in ("htcondor", "slurm") else ""
    job = detach(sweep.folder, words, system, max(1, sweep.settings.slaves or 0))
    state, text = state_of(job, sweep.folder)
    has_begun = state in (State.WAITS, State.RUNS)
    more = f"; `mwpy sweep attach {sweep.folder}` shows it" if has_begun else ""
    print(f"mwpy sweep: the sweep in {sweep.folder} {text}{more}", file=sys.stderr)
    code = ExitCode.OK if has_begun else ExitCode.UNREACHABLE if job.code is None else job.code
    return code, {"folder": str(sweep.folder), "state": state.value, **asdict(job)}


def _parser_of(what: str) -> Parser:
    parser = Parser(f"sweep {what}", description={**WATCHING, **AFTERWARDS}[what])
    parser.add_argument("path", type=Path, metavar="DIR|STUDY.toml", help="the folder of a sweep, or its study")
    if what == "stop":
        parser.add_argument("--now", action="store_true", help="do not wait for the runs that have started")
    if what == "collect":
        _add_collection(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")
    parser.set_defaults(what=what)
    return parser


def _watch(parsed: argparse.Namespace) -> Answer:
    """Ask or stop a sweep that runs."""
    folder, what = folder_of(parsed.path), parsed.what
    if what == "attach":
        state, text, job = attached(folder)
    else:
        job = job_in(folder)
        state, text = state_of(job, folder)
        if what == "stop":
            stop(job, folder, parsed.now)
            text = "ends now" if parsed.now else "finishes what runs, and ends"
    answer = master_of(folder) if what == "status" and state is State.RUNS else None
    print(f"the sweep in {folder} {text}", *(shown(answer) if answer else ()), sep="\n")
    code = ExitCode.UNREACHABLE if state is State.LOST else job.code if what == "attach" else ExitCode.OK
    document = {"folder": str(folder), "state": state.value, "text": text, "master": answer}
    return ExitCode.INTERRUPTED if code is None else code, {**document, **asdict(job)}


def _afterwards(parsed: argparse.Namespace) -> Answer:
    """Ask or change something of a sweep that does not run."""
    sweep = opened(parsed.path)
    if parsed.what == "failed":
        failed = print_failures(sweep)
        return 1 if failed else ExitCode.OK, failed
    if parsed.what == "clean":
        clean(sweep)
        return ExitCode.OK, {"removed": str(sweep.folder)}
    collection = Collection(str(parsed.to.absolute()), parsed.output, "blocks" if parsed.blocks else "plain")
    return ExitCode.OK, {"to": collection.to, "rows": collect(sweep, [collection])}


def _add_collection(parser: Parser) -> None:
    to = "a table (.csv, .tsv, .jsonl, .parquet), or a file for an output of all runs; with {alpha}, one for each run"
    parser.add_argument("--to", type=Path, required=True, metavar="FILE", help=to)
    parser.add_argument("--output", default="", metavar="NAME", help="the output; default: a table, or STDOUT")
    parser.add_argument("--blocks", action="store_true", help="write a line with the parameters before each output")


class _Parser(Parser):
    """A parser that leaves the values after `:::` alone."""

    def parse_args(self, arguments: Sequence[str]) -> argparse.Namespace:  # type: ignore[override]
        """Parse the arguments. `unnamed` has the lists of values, each with its sign."""
        own: list[str] = []
        lists: list[tuple[str, list[str]]] = []
        for word in arguments:
            if word in SIGNS:
                lists.append((word, []))
            else:
                (lists[-1][1] if lists else own).append(word)
        return super().parse_args(own, argparse.Namespace(unnamed=lists))


def make_parser() -> Parser:
    """Describe the command line."""
    parser = _Parser("sweep", __doc__)
    command = "the command line, with placeholders such as {alpha}; or a study file, which ends in .toml"
    parser.add_argument("command", metavar="COMMAND|STUDY.toml", help=command)
    add = parser.add_argument_group("parameters").add_argument
    values = "the values of a parameter: a,b,c or first..last or first..last..step (repeatable: all combinations)"
    add("--values", type=_pair, action="append", default=[], metavar="NAME=VALUES", help=values)
    side = "the same, side by side with other --zip"
    add("--zip", type=_pair, action="append", default=[], metavar="NAME=VALUES", help=side)
    table = "a table of values: .csv, .tsv, .jsonl, or cells with | between them"
    add("--table", metavar="FILE", help=table)
    add("--repeat", type=number(1, int), metavar="N", help="make each run N times; {seed} is a number for each run")
    add = parser.add_argument_group("the program").add_argument
    add("--shell", action="store_true", default=None, help="a shell runs the command, so that pipes are possible")
    given = "a file that each run gets in its folder"
    add("--input", dest="inputs", action="append", default=[], metavar="FILE", help=given)
    template = "a text file with placeholders"
    add("--template", dest="templates", type=_pair, action="append", default=[], metavar="NAME=FILE", help=template)
    add("--output", dest="outputs", action="append", default=[], metavar="NAME", help="a file that each run writes")
    add("--stdin", metavar="TEXT", help="what the program reads, with placeholders")
    add("--env", type=_pair, action="append", default=[], metavar="NAME=VALUE", help="an environment variable")
    before = "a line that a login shell runs before, such as module load (repeatable)"
    add("--before", action="append", default=[], metavar="LINE", help=before)
    last = "a line that the same shell runs after the program, also when it failed (repeatable)"
    add("--clean-up", action="append", default=[], metavar="LINE", help=last)
    add("--exit-codes", type=_codes, metavar="CODES", help="the exit codes of success, as 0,1; or any; default 0")
    add = parser.add_argument_group("results").add_argument
    result = "a result: a pattern in the standard output, whose first group is taken (repeatable)"
    add("--result", dest="results", type=_pair, action="append", default=[], metavar="NAME=PATTERN", help=result)
    folder = "where results and state are; default: beside the study, or a folder in .mwpy-sweep"
    collected = "at the end, write a table, or an output (NAME, default STDOUT) of all runs into FILE (repeatable)"
    add("--collect", type=_collection, action="append", default=[], metavar="FILE[=NAME]", help=collected)
    keep = "of which runs the folder comes back, as DIR/runs/ROW.tar.gz; default failed"
    add("--keep", choices=["failed", "all", "none"], help=keep)
    add("--folder", type=Path, metavar="DIR", help=folder)
    follow = "show how a file of each run grows, or STDOUT, while it runs (repeatable)"
    add("--follow", action="append", default=[], metavar="NAME", help=follow)
    add = parser.add_argument_group("which runs").add_argument
    add("--dry-run", action="store_true", help="show the first commands and how many runs there are, and run nothing")
    add("--first", type=number(1, int), metavar="N", help="run only the first N rows")
    add("--sample", type=_part, default=1.0, metavar="P%", help="run only a part of the rows, as 1%%")
    add("--order", choices=["given", "shuffled"], help="the order in which runs start; default given")
    again = "run rows again: failed, all, or those of an expression such as 'alpha > 0.3'"
    add("--again", default="", metavar="WHICH", help=again)
    add("--accept", action="store_true", help="keep the results of another program, input or template")
    _add_places(parser)
    return parser


def _add_places(parser: Parser) -> None:
    """Describe where, when and how long runs are made, and how the sweep itself runs."""
    add = parser.add_argument_group("where, and how long").add_argument
    add(
        "--slaves",
        type=number(0, int),
        metavar="N",
        help="how many runs at a time on this machine; default one per core",
    )
    add("--with", choices=BATCH_SYSTEMS, metavar="SYSTEM", help="the batch system that runs them")
    add("--max", type=number(1, int), metavar="N", help="at most N jobs; default 100")
    oversee = "more options of mwpy oversee, such as '--memory 4GB --line=...'"
    add("--oversee", type=shlex.split, default=[], metavar="'OPTION ...'", help=oversee)
    add("--seconds-max", type=number(0, float), metavar="S", help="how long a run may take")
    add("--memory-max", metavar="SIZE", help="how much memory a run may use, as 4GB")
    add("--cpus", type=number(0, int), metavar="N", help="how many processors a run needs")
    add("--gpus", type=number(0, int), metavar="N", help="how many GPUs a run needs")
    add("--memory", metavar="SIZE", help="how much memory a run needs, as 4GB; it is also its --memory-max")
    needs = "what else it needs of its machine: a program, an amount such as licence=1, or a condition, python=>=3.12"
    add("--requires", type=_requirement, action="append", default=[], metavar="NAME[=VALUE]", help=needs)
    add("--rate", metavar="N/TIME", help="at most N runs start in this time, as 10/s, 5/min or 100/h")
    on_end = "run this in a shell at the end, for at most 60 s; it reads the summary as JSON; {report} is a report"
    add("--on-end", metavar="COMMAND", help=on_end)
    add("--page", metavar="[HOST:]PORT", help="show a live page in a browser; its address is printed")
    door = "let clients that have only curl make the runs, --slaves of them at a time; the page is there, too"
    add("--http", metavar="[HOST:]PORT", help=door)
    client = "with --http: start clients on this host through ssh, N of them or one per processor (repeatable)"
    add("--client", action="append", default=[], metavar="'HOST [N]'", help=client)
    add("--ssh", metavar="COMMAND", help="how ssh is called for --client, with its options; default ssh")
    detach = "go on without this terminal, as a job of HTCondor or Slurm or in the background; see mwpy sweep attach"
    add("--detach", action="store_true", help=detach)
    as_json = "print one JSON document on standard output, and all else on standard error"
    add("--json", action="store_true", help=as_json)


def _codes(text: str) -> list[int] | str:
    try:
        return text if text == "any" else [int(code) for code in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: write exit codes, as 0,1, or any") from None


def _requirement(text: str) -> tuple[str, str | int | bool]:
    """A requirement: its name, and a number, a text, or that there is something."""
    name, equals, value = text.partition("=")
    return name, (int(value) if value.isdecimal() else value) if equals else True


def _part(text: str) -> float:
    try:
        part = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        part = 0.0
    if not 0 < part <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no part: write 1% or 0.01")
    return part


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise argparse.ArgumentTypeError(f"{text!r}: write NAME=VALUE")
    return name, value


def _collection(text: str) -> dict[str, str]:
    to, sign, output = text.rpartition("=")
    return {"to": to, "output": output} if sign else {"to": text}


PAIRS = ("values", "zip", "templates", "env", "results", "requires")
"""The options that give something a name."""


def _sweep(parsed: argparse.Namespace) -> Sweep:
    """Make the sweep that the options describe, beside a study file or without one. They have the names of settings."""
    given = {name.replace("_", "-"): value for name, value in vars(parsed).items()}
    for option in PAIRS:
        refuse_twice([name for name, _ in given[option]], f"of {option}, {{}} is given twice")
        given[option] = dict(given[option])
    known = {each.encode_name for each in fields(Settings)}
    found = {name: value for name, value in given.items() if name in known and value not in (None, [], {})}
    if not parsed.command.endswith(".toml"):
        return Sweep.of(Settings.of(found, "the command"), Path.cwd(), parsed.folder)
    del found["command"]
    path = Path(parsed.command).absolute()
    return Sweep.of(Settings.in_file(path, found), path.parent, parsed.folder or path.with_suffix(".sweep"))
