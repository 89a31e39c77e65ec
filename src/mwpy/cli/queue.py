"""mwpy queue FOLDER | add|list|show|cancel|move|work FOLDER ...: keep a queue of sweeps and scripts for a group.

Keep a queue: start the sweeps and scripts that users have added to a folder, in the order of their priority, and let
one overseer give them slaves. Everybody who may write to the folder may add entries. Only one keeper runs. After a kill
or a reboot, the next one goes on. `mwpy queue add --help` and so on show the options of the other commands.

examples:
  mwpy queue /data/queue --with ssh --hosts hosts.txt --page 8700
  mwpy queue add /data/queue study.toml --priority 0
  mwpy queue add /data/queue app.py 100 --at '02:00 daily' --limit 2h
  mwpy queue list /data/queue
  mwpy queue work /data/queue

exit codes:
  0    it did what was asked
  2    a bad option, another keeper runs, or a user may not do this
  130  it was stopped
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from mwpy._queue.entry import ENDED, Asked, Priority, State
from mwpy._queue.folder import Folder
from mwpy._queue.order import Rules
from mwpy._queue.submission import submit, timed
from mwpy._system import clock
from mwpy._values.errors import ExitCode, UsageError
from mwpy._values.options import BATCH_SYSTEMS
from mwpy.cli._arguments import Parser, number, show

__all__ = ["main", "make_parser", "parse"]

COMMANDS = {
    "add": "Add a sweep or a script to a queue.",
    "list": "Show the entries of a queue.",
    "show": "Show an entry of a queue, and the last lines that it has printed.",
    "cancel": "End an entry, or let it not begin.",
    "move": "Give an entry another priority.",
    "work": "Run the entries of this user, as the keeper of the queue decides.",
}
"""What can be done with a queue, beside keeping it."""

UNITS_S = {"s": 1, "min": 60, "h": 3600, "d": 86400}

INTERVAL = "how often it looks; default 0.5"

LAST_BYTES = 2000
"""How much of the end of what an entry has printed is shown."""


def main(arguments: Sequence[str]) -> int:
    """Keep or use a queue; return the exit code."""
    parsed = parse(arguments)
    if parsed.what:
        return {"add": _add, "list": _list, "show": _show, "work": _work}.get(parsed.what, _change)(parsed)
    from mwpy._queue import keeper  # only here, because the other commands do not need it

    rules = Rules(
        parsed.max_running, parsed.max_entries, parsed.equal_shares, parsed.max, parsed.system,
        parsed.processes_per_agent, parsed.interval,
    )  # fmt: skip
    options = parsed.hosts, parsed.oversee, parsed.page
    return keeper.run(Folder(parsed.folder), rules, *options, run_as_keeper=parsed.run_as_keeper)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line; `what` is what is done with a queue, and empty for keeping it.

    Raises:
        UsageError: it is wrong; the caller's fault.
    """
    if arguments and arguments[0] in COMMANDS:
        try:
            return _parser_of(arguments[0]).parse_intermixed_args(arguments[1:])
        except UsageError as error:
            hint = ". Write `--` before the options of a script" if arguments[0] == "add" else ""
            raise UsageError(f"{error}{hint if 'unrecognized' in str(error) else ''}") from None
    if len(arguments) == 2 and not any(each.startswith("-") for each in arguments):
        raise UsageError(f"there is no command `mwpy queue {arguments[0]}`; the commands are {', '.join(COMMANDS)}")
    return make_parser().parse_args(arguments)


def make_parser() -> Parser:
    """Describe the command line."""
    parser = Parser("queue", __doc__)
    add = parser.add_argument
    add("folder", type=Path, metavar="FOLDER", help="the queue: a folder with the sticky bit, of a group")
    add = parser.add_argument_group("where the runs are made").add_argument
    add("--with", dest="system", choices=BATCH_SYSTEMS, default="local", help="the batch system; default local")
    add("--hosts", type=Path, metavar="FILE", help="with ssh: the machines, one line `HOST slots=N` for each")
    most = "at most N slaves for all entries together; default: the slots of all hosts, or one per core, or 1000"
    add("--max", type=number(0, int), metavar="N", help=most)
    slaves = "how many slaves a job has; default 1"
    add("--processes-per-agent", type=number(1, int), default=1, metavar="N", help=slaves)
    _add_oversee(parser)
    add = parser.add_argument_group("which entries run").add_argument
    running = "start at most N entries; an entry counts only those that are as important, or more; default 8"
    add("--max-running", type=number(1, int), default=8, metavar="N", help=running)
    add("--max-entries", type=number(1, int), default=1000, metavar="N", help="refuse more entries; default 1000")
    shares = "among equally important entries, start those of users with fewer running entries first"
    add("--equal-shares", action="store_true", help=shares)
    as_keeper = "run the entries of all users, as this user; else each other user needs `mwpy queue work`"
    add("--run-as-keeper", action="store_true", help=as_keeper)
    add = parser.add_argument_group("the keeper").add_argument
    add("--page", metavar="[HOST:]PORT", help="show the queue in a browser; the address is printed")
    add("--interval", type=number(0.05, float), default=0.5, metavar="SECONDS", help=INTERVAL)
    parser.set_defaults(what="")
    return parser


def _add_oversee(parser: argparse.ArgumentParser) -> None:
    oversee = "more options of mwpy oversee, such as '--ssh-options=\"-F FILE\" --interval 5'"
    parser.add_argument("--oversee", type=shlex.split, default=[], metavar="'OPTION ...'", help=oversee)


def _parser_of(what: str) -> Parser:
    parser = Parser(f"queue {what}", description=COMMANDS[what])
    add = parser.add_argument
    add("folder", type=Path, metavar="FOLDER", help="the queue")
    if what == "add":
        add("words", nargs="+", metavar="STUDY.toml|SCRIPT.py [ARGUMENT ...]", help="what runs; `--` before options")
        add("--at", metavar="TIME", help="'02:00', '02:00 daily' or '2026-12-24 18:00', by the local clock")
        add("--limit", type=_seconds, metavar="TIME", help="end it after 90s, 30min, 2h or 1d")
        after = "start it when this entry has succeeded (repeatable)"
        add("--after", action="append", default=[], metavar="ENTRY", help=after)
        watch = "add an entry for each later commit of this git repository (its HEAD), with the files of the commit; "
        watch += "the study or script is named from its root"
        add("--watch", metavar="REPOSITORY", help=watch)
        files = "another file or folder that it needs, beside the study or script (repeatable)"
        add("--input", type=Path, action="append", default=[], metavar="FILE", help=files)
        on_end = "run this in a shell at its end, however it ends; it reads the outcome as JSON; {report} is a report"
        add("--on-end", default="", metavar="COMMAND", help=on_end)
        add("--name", default="", metavar="NAME", help="its name; default: that of the study or script")
    if what in ("show", "cancel", "move"):
        add("entry", metavar="ENTRY", help="its number or its name")
    if what in ("add", "move"):
        add(
            "--priority", type=int, choices=get_args(Priority), required=what == "move", help="0 comes first; default 1"
        )
    if what == "work":
        _add_oversee(parser)
        add("--interval", type=number(0.05, float), default=0.5, metavar="SECONDS", help=INTERVAL)
    else:
        add("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(what=what)
    return parser


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|min|h|d)", text)
    if found is None or float(found[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r}: write a time as 90s, 30min, 2h or 1d")
    return float(found[1]) * UNITS_S[found[2]]


def _add(parsed: argparse.Namespace) -> int:
    folder, words = Folder(parsed.folder), parsed.words
    if not words[0].endswith((".toml", ".py")):
        raise UsageError(f"{words[0]} is neither a study (.toml) nor a script (.py)")
    if not parsed.watch and not Path(words[0]).is_file():
        raise UsageError(f"there is no file {words[0]}: correct its name")
    if parsed.at and parsed.watch:
        raise UsageError("--at and --watch cannot be used together: add two entries")
    after = [_awaited(folder, each) for each in parsed.after]
    priority: Priority = 1 if parsed.priority is None else parsed.priority
    name = parsed.name or Path(words[0]).stem
    asked = Asked(
        name, words, sys.executable, priority, limit_s=parsed.limit, after=after, on_end=parsed.on_end,
        watch=str(Path(parsed.watch).absolute()) if parsed.watch else "",
    )  # fmt: skip
    entry = submit(folder, timed(asked, parsed.at) if parsed.at else asked, parsed.input)
    found = {"entry": entry.number, "folder": str(entry.run_path)}
    show(found, [f"entry {entry.number} ({name}) is in the queue"], as_json=parsed.json)
    if silence := folder.silence():
        print(f"mwpy: {silence}", file=sys.stderr)
    return ExitCode.OK


def _awaited(folder: Folder, text: str) -> int:
    entry = folder.entry(text)
    state, _ = folder.state_of(entry, folder.decision())
    if state is State.REPEATS or (state in ENDED and state is not State.DONE):
        raise UsageError(f"--after {text}: entry {entry.number} will never succeed, because its state is {state.value}")
    return entry.number


def _list(parsed: argparse.Namespace) -> int:
    folder = Folder(parsed.folder)
    decision = folder.decision()
    found = [folder.described(each, decision) for each in folder.entries()]
    lines = ["entry  priority  user      state      name"]
    for each in found:
        why = f": {each['reason']}" if each["reason"] else ""
        row = f"{each['entry']:5}  {each['priority']:8}  {each['user']:8}  {each['state']:9}  {each['name']}{why}"
        lines.append(row)
    show(found, [*lines, *filter(None, [folder.silence()])], as_json=parsed.json)
    return ExitCode.OK


def _show(parsed: argparse.Namespace) -> int:
    folder = Folder(parsed.folder)
    entry = folder.entry(parsed.entry)
    found = folder.described(entry, folder.decision())
    logs = sorted(entry.log.glob("*.out"), key=lambda path: path.with_suffix(".err").stat().st_mtime)[-1:]
    printed = [path.read_bytes()[-LAST_BYTES:] for log in logs for path in (log, log.with_suffix(".err"))]
    found["last_lines"] = [line for text in printed for line in text.decode(errors="replace").splitlines()]
    times = {name: clock.date(found[name]) for name in ("at", "began", "ended") if found.get(name)}
    known = {
        name: value
        for name, value in {**found, **times}.items()
        if name != "last_lines" and value not in ("", None, [])
    }
    shown = [
        f"{name}: {' '.join(map(str, value)) if isinstance(value, list) else value}" for name, value in known.items()
    ]
    lines = [f"  | {line}" for line in found["last_lines"]]
    show(found, [*shown, *lines, *filter(None, [folder.silence()])], as_json=parsed.json)
    return ExitCode.OK


def _change(parsed: argparse.Namespace) -> int:
    folder = Folder(parsed.folder)
    entry = folder.entry(parsed.entry)
    changes = {"cancelled": True} if parsed.what == "cancel" else {"priority": parsed.priority}
    folder.ask(entry, **changes)
    text = "ends when its keeper sees this" if parsed.what == "cancel" else f"has priority {parsed.priority}"
    lines = [f"entry {entry.number} ({entry.asked.name}) {text}"]
    show({"entry": entry.number, **changes}, lines, as_json=parsed.json)
    return ExitCode.OK


def _work(parsed: argparse.Namespace) -> int:
    from mwpy._queue import worker  # only here, as above

    return worker.run(Folder(parsed.folder), parsed.oversee, parsed.interval)
