"""The script of this process: whether other processes can run it, how it calls `mwpy.main`, and what it returned.

Also whether somebody reads what it prints.
"""

from __future__ import annotations

import ast
import dis
import os
import select
import sys
from contextlib import suppress
from types import FrameType

from mwpy._values.errors import ExitCode
from mwpy._values.parsing import parsed

__all__ = [
    "can_run_elsewhere",
    "command_line",
    "discards_result",
    "exit_code",
    "is_child_of_multiprocessing",
    "is_imported_by_multiprocessing",
    "is_unread",
    "mentions_main",
]

STANDARD_INPUT = "<stdin>"
"""Python's name for the file of a script that it reads from standard input."""


def can_run_elsewhere() -> bool:
    """Whether another process with the same command line runs the same script.

    This is not possible if the script comes from standard input, from a person who types it, or from a notebook.
    """
    typed = hasattr(sys, "ps1")
    file = getattr(sys.modules["__main__"], "__file__", STANDARD_INPUT)
    return not typed and (file != STANDARD_INPUT or sys.argv[:1] == ["-c"])


def command_line() -> tuple[list[str], list[str]]:
    """The words with which Python was started: up to the script, and its arguments. The interpreter is left out.

    A debugger or profiler that runs the script in this process (`python -m cProfile app.py`, `coverage run app.py`)
    belongs to the master. Its own words are left out, so that other processes run the script plainly.
    """
    words, program = sys.orig_argv[1:], 0
    while program < len(words) and words[program].startswith("-") and words[program] not in ("-m", "-c"):
        program += 2 if words[program] in ("-W", "-X", "--check-hash-based-pycs") else 1
    end = program + (2 if words[program : program + 1] in (["-m"], ["-c"]) else 1)
    is_plain = words[program : program + 1] == sys.argv[:1] or "PEX" in os.environ
    if not is_plain and (place := words[end:].index(sys.argv[0]) if sys.argv[0] in words[end:] else -1) >= 0:
        return [*words[:program], sys.argv[0]], words[end + place + 1 :]
    return words[:end], words[end:]


def is_imported_by_multiprocessing() -> bool:
    """Whether multiprocessing has spawned this process and now imports the script into it."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and getattr(process.current_process(), "_inheriting", False)


def is_child_of_multiprocessing() -> bool:
    """Whether multiprocessing, or a library that is built on it, has started this process."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def discards_result(caller: FrameType) -> bool:
    """Whether the code that calls a function now discards its value, as the plain statement `f()` does."""
    later = (each for each in dis.get_instructions(caller.f_code) if each.offset > caller.f_lasti)
    return next(later).opname == "POP_TOP"


def exit_code(returned: object, algorithm: str) -> int:
    """Return the exit code of a process whose algorithm returned this value. If it is no exit code, report that."""
    if isinstance(returned, int) and not isinstance(returned, bool) and 0 <= returned <= 255:
        return int(returned)
    shown = f"{returned!r}"[:100]
    text = f"mwpy: the {algorithm} returned {shown}, which is no exit code: it must return 0 to 255, and 0 for success"
    print(text, file=sys.stderr, flush=True)
    return int(ExitCode.FAILED)


def mentions_main(path: str) -> bool:
    """Whether the Python file calls or imports something that is named `main`; True if the file cannot be read."""
    try:
        with open(path, "rb") as file:
            tree = parsed(file.read(), path)
    except (OSError, SyntaxError, ValueError):
        return True
    nodes = list(ast.walk(tree))
    used = any(isinstance(node, ast.Attribute) and node.attr == "main" for node in nodes)
    imported = (name.name for node in nodes if isinstance(node, ast.ImportFrom) for name in node.names)
    return used or "main" in imported


def is_unread() -> bool:
    """Whether nobody reads standard output any more, as in `app.py | head -1`. Then the rest of it is dropped, so that
    nothing fails later because of it."""
    stream = sys.__stdout__
    if stream is None or sys.stdout is None:
        return True
    try:
        sys.stdout.flush()
        look = select.poll()
        look.register(stream.fileno(), 0)
        if not any(event & (select.POLLERR | select.POLLHUP) for _, event in look.poll(0)):
            return False
    except (BrokenPipeError, ValueError, AttributeError):  # the reader has ended, or the script has closed it
        pass
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    return True
