"""mwpy completion bash|zsh: print the completion of mwpy's commands, options and values for a shell.

The output is a script that the shell loads. It is made from the parsers of the commands. What follows an option, and
each argument, is completed with the choices that its parser has, or with files or folders if its metavar says so.
Other values are not completed.
"""

from __future__ import annotations

import argparse
import importlib
import shlex
from collections.abc import Iterator, Sequence

from mwpy._values.errors import ExitCode
from mwpy._values.option_table import OPTIONS
from mwpy.cli import commands, summary
from mwpy.cli._arguments import Parser

__all__ = ["main", "make_parser", "parser_of"]

DESCRIPTION = """Print a script that completes the commands of mwpy, their options and the values of these. The shell
loads it: write the line for bash to ~/.bashrc, or the line for zsh to ~/.zshrc, after `compinit`."""

EXAMPLES = 'eval "$(mwpy completion bash)"', 'eval "$(mwpy completion zsh)"'

EXIT_CODES: dict[int, str] = {ExitCode.OK: "the script was printed", ExitCode.USAGE: "another shell"}

FILES = {"AUDIT_FILE", "FILE", "PATH", "RESOURCE_FILE", "RUN_DATABASE", "SCRIPT"}
"""The metavars of values that are files, or folders with such files."""

FOLDERS = {"DIR"}
"""The metavars of values that are folders."""

WITHOUT_ARGUMENTS = {"help": "print the commands", "version": "print the version"}

BASH = """\
_mwpy() {{
    local command=${{COMP_WORDS[1]}} current=${{COMP_WORDS[COMP_CWORD]}} option= word
    local -i index place=0
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        mapfile -t COMPREPLY < <(compgen -W {commands} -- "$current")
        return
    fi
    for ((index = 2; index < COMP_CWORD; index++)); do
        word=${{COMP_WORDS[index]}}
        if [[ $word == "=" ]]; then  # bash makes three words of --option=value
            continue
        elif [[ $option ]]; then
            option=
            continue
        fi
        case "$command $word" in
            {with_values}) option=$word ;;
            "$command "-*) ;;
            *) place+=1 ;;
        esac
    done
    if [[ $current == "=" ]]; then
        current=
    fi
    if [[ ! $option && $current == -* ]]; then
        option=-
    fi
    case "$command ${{option:-$place}}" in
{cases}
    esac
}}
complete -F _mwpy mwpy
"""

ZSH = """\
#compdef mwpy
_mwpy() {{
    local -a commands=(
{commands}
    )
    if ((CURRENT == 2)); then
        _describe command commands
        return
    fi
    shift words
    ((CURRENT--))
    case $words[1] in
{cases}
    esac
}}
if [[ $funcstack[1] == _mwpy ]]; then  # a file in $fpath
    _mwpy "$@"
else
    compdef _mwpy mwpy
fi
"""


def main(arguments: Sequence[str]) -> int:
    """Print the script; return the exit code."""
    shell = make_parser().parse_args(arguments).shell
    print({"bash": _bash, "zsh": _zsh}[shell](), end="")
    return ExitCode.OK


def make_parser() -> Parser:
    """Describe the command line."""
    parser = Parser("completion", description=DESCRIPTION, examples=EXAMPLES, exit_codes=EXIT_CODES)
    parser.add_argument("shell", choices=["bash", "zsh"], help="the shell that loads the script")
    return parser


def parser_of(command: str) -> Parser:
    """Return a parser with all options and arguments of a command."""
    if command == "slave":
        return _parser_of_an_agent()
    parser: Parser = importlib.import_module(f"mwpy.cli.{command}").make_parser()
    return parser


def _parser_of_an_agent() -> Parser:
    """Describe the command line of an agent. It is no argparse parser elsewhere: agents and slaves import little."""
    parser = Parser("slave")
    parser.add_argument(
        "script", nargs="*", metavar="SCRIPT", help="the script that the slaves run, with its arguments"
    )
    for option in OPTIONS:
        if option.metavar:
            parser.add_argument(f"--mw-{option.name}", metavar=option.metavar, help=option.sentence)
        else:
            parser.add_argument(f"--mw-{option.name}", action="store_true", help=option.sentence)
    return parser


def _arguments(parser: Parser) -> tuple[list[argparse.Action], list[argparse.Action]]:
    """The options of a parser, and its other arguments."""
    actions = parser.actions()
    return [each for each in actions if each.option_strings], [each for each in actions if not each.option_strings]


def _takes_value(action: argparse.Action) -> bool:
    return action.nargs != 0


def _repeats(place: argparse.Action) -> bool:
    return place.nargs in ("*", "+")


def _bash() -> str:
    cases = [line for command in commands() for line in _cases_of_bash(command)]
    with_values = [
        f'"{command} {name}"'
        for command in commands()
        for option in _arguments(parser_of(command))[0]
        for name in option.option_strings
        if _takes_value(option)
    ]
    return BASH.format(
        commands=shlex.quote(" ".join(sorted([*commands(), *WITHOUT_ARGUMENTS]))),
        with_values=" | ".join(with_values),
        cases="\n".join(f"        {case}" for case in cases),
    )


def _cases_of_bash(command: str) -> Iterator[str]:
    """What completes the options, the value of each option and each argument of a command, if anything does."""
    options, places = _arguments(parser_of(command))
    names = [name for option in options for name in option.option_strings]
    yield f'"{command} -") {_words_in_bash(names)} ;;'
    for option in options:
        completed = _completed_by_bash(option)
        if completed and _takes_value(option):
            pattern = " | ".join(f'"{command} {name}"' for name in option.option_strings)
            yield f"{pattern}) {completed} ;;"
    for number, place in enumerate(places):
        completed = _completed_by_bash(place)
        if completed:
            pattern = f'"{command} "[0-9]*' if _repeats(place) else f'"{command} {number}"'
            yield f"{pattern}) {completed} ;;"


def _completed_by_bash(action: argparse.Action) -> str:
    if action.choices is not None:
        return _words_in_bash(list(action.choices))
    if action.metavar in FILES | FOLDERS:
        kind = "-f" if action.metavar in FILES else "-d"
        return f'compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen {kind} -- "$current")'
    return ""


def _words_in_bash(words: Sequence[str]) -> str:
    return f'mapfile -t COMPREPLY < <(compgen -W {shlex.quote(" ".join(words))} -- "$current")'


def _zsh() -> str:
    summaries = {command: summary(command).partition(": ")[2].rstrip(".") for command in commands()}
    described = {**summaries, **WITHOUT_ARGUMENTS}
    return ZSH.format(
        commands="\n".join(f"        {shlex.quote(f'{name}:{described[name]}')}" for name in sorted(described)),
        cases="\n".join(_case_of_zsh(command) for command in commands()),
    )


def _case_of_zsh(command: str) -> str:
    """A call of `_arguments` of zsh with one specification for each name of an option, and for each argument."""
    options, places = _arguments(parser_of(command))
    specifications = [_option_of_zsh(option, name) for option in options for name in option.option_strings]
    for number, place in enumerate(places, 1):
        position = "*" if _repeats(place) else f"{number}:" if place.nargs == "?" else str(number)
        specifications.append(f"{position}{_value_of_zsh(place)}")
    lines = [f"        {command})", "            _arguments \\"]
    lines += [f"                {shlex.quote(each)} \\" for each in specifications]
    return "\n".join([*lines[:-1], lines[-1].removesuffix(" \\"), "            ;;"])


def _option_of_zsh(option: argparse.Action, name: str) -> str:
    repeatable = (option.help or "").endswith("(repeatable)")
    before = "*" if repeatable else f"({' '.join(option.option_strings)})"
    help_text = _escaped_for_zsh(option.help or "")
    if not _takes_value(option):
        return f"{before}{name}[{help_text}]"
    return f"{before}{name}{'=' if name.startswith('--') else '+'}[{help_text}]{_value_of_zsh(option)}"


def _value_of_zsh(action: argparse.Action) -> str:
    metavar = action.metavar if isinstance(action.metavar, str) else action.dest
    if action.choices is not None:
        completed = f"({' '.join(action.choices)})"
    else:
        completed = "_files" if metavar in FILES else "_files -/" if metavar in FOLDERS else " "
    return f":{_escaped_for_zsh(metavar)}:{completed}"


def _escaped_for_zsh(text: str) -> str:
    """A text in a specification, in which brackets and colons have a meaning."""
    return "".join(f"\\{each}" if each in "\\[]:" else each for each in text)
