"""The script of this process: whether slaves can load it, what they find in it, and how it calls `mwpy.main`.

Also whether somebody reads what it prints.
"""

from __future__ import annotations

import ast
import builtins
import dis
import os
import select
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import _lru_cache_wrapper, cache
from importlib.machinery import PathFinder, SourceFileLoader
from importlib.util import find_spec
from operator import attrgetter
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, ClassVar

from mwpy._values.algorithm import REGISTRY
from mwpy._values.errors import ExitCode
from mwpy._values.functions import cells_of, codes_in, named_by, names_assigned_in, names_of_globals
from mwpy._values.options import QUEUED_VARIABLE, SCRIPT_VARIABLE, InVariable
from mwpy._values.phrases import literals_in, parsed

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


def is_child_of_multiprocessing() -> bool:
    """Whether multiprocessing, or a library that is built on it, has started this process."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def discards_result(caller: FrameType) -> bool:
    """Whether the code that calls a function now discards its value, as the plain statement `f()` does."""
    later = (each for each in dis.get_instructions(caller.f_code) if each.offset > caller.f_lasti)
    return next(later).opname == "POP_TOP"


def exit_code(returned: object, algorithm: str) -> int:
    """Return the exit code of a process whose algorithm returned this value: None is success, as a function without
    `return` gives it. If it is no exit code, report that."""
    if returned is None:
        return int(ExitCode.OK)
    if isinstance(returned, int) and not isinstance(returned, bool) and 0 <= returned <= 255:
        return int(returned)
    shown = f"{returned!r}"[:100]
    text = f"mwpy: the {algorithm} returned {shown}, which is no exit code: it must return 0 to 255, and 0 for success"
    print(text, file=sys.stderr, flush=True)
    return int(ExitCode.FAILED)


def code_of(leaving: SystemExit) -> object:
    """Return the exit code of `sys.exit`, as Python has it: a text is written to standard error, and gives 1."""
    if isinstance(leaving.code, str):
        print(leaving.code, file=sys.stderr)
        return 1
    return 0 if leaving.code is None else leaving.code


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


@cache
def queued() -> tuple[str, str] | None:
    """Return the resource file and the run database of a master that this script opens, if a queue runs it.

    Programs that it starts are not of the queue.
    """
    place = os.environ.pop(QUEUED_VARIABLE, None)
    return None if place is None else (place, os.path.join(os.path.dirname(place), "run.db"))


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


# Scripts that slaves load, and what slaves find in their own `__main__`.
#
# A script that calls `mwpy.main` is run by its slaves, too, up to this call. Any other script is *loaded* by the slaves
# of a master that it opens inside `if __name__ == "__main__":`, as `multiprocessing` does with `spawn`: it becomes the
# `__main__` of each slave, but guards do not hold there. Without a guard, a slave that loads the script would open
# another master.
#
# Slaves find everything that the script binds outside its guards. They do not find what only the master has bound:
# inside a guard, or by `global` in a function that the master has called.


MAIN = "__main__"

LOADED = "__mp_main__"
"""What `__name__` is compared as while a script is loaded. Under this name `multiprocessing` finds the main module of
another process."""

OTHER: Any = object()
"""Stands for a value that slaves find instead of the master's. No variable has it."""


class LoadedScript(InVariable, frozen=True):
    """A script that slaves load.

    Args:
        file: its path.
        module: its name, if it was started with `python -m`; otherwise empty.
    """

    variable: ClassVar[str] = SCRIPT_VARIABLE
    giver: ClassVar[str] = "a master"
    file: str
    module: str = ""

    def found(self, can_travel: Callable[[object], bool]) -> dict[str, object]:
        """Return what slaves find in their own `__main__`: the values by name, as they are here now, and `OTHER` for
        what the master has bound again.

        Args:
            can_travel: whether a value can be pickled. One that cannot counts as not bound again: slaves may make their
                own, in an initializer.
        """
        tree, space = _parsed(self.file), vars(sys.modules[MAIN])
        by_functions = {*_bound_by(self._compiled(tree), inside=True)}
        guards = [*_guards_in(tree)]
        other = {*_bound_by(self._compiled(ast.Module([each for guard in guards for each in guard.body], [])))}
        for guard in guards:
            guard.body = [ast.Pass(lineno=guard.lineno, col_offset=0)]
        outside = {*_bound_by(self._compiled(tree))}
        missing = (by_functions | other) - outside
        other.update(
            name
            for name, literal in literals_in(tree)
            if name in by_functions and name in space and not is_equal(space[name], literal)
        )
        return {
            name: OTHER if name in other and can_travel(value) else value
            for name, value in space.items()
            if name not in missing
        }

    def load(self, arguments: Sequence[str]) -> None:
        """Make it the main module of this process.

        Args:
            arguments: what `sys.argv` is in the master.

        Raises:
            BaseException: any error of the script, also SystemExit.
        """
        module: Any = ModuleType(MAIN)
        module.__file__, module.__loader__ = self.file, SourceFileLoader(MAIN, self.file)
        module.__builtins__ = builtins  # as in a script
        if self.module and (spec := find_spec(self.module)) is not None:
            module.__spec__, module.__package__, module.__loader__ = spec, spec.parent, spec.loader
        sys.argv[:] = arguments
        sys.modules[MAIN] = sys.modules[LOADED] = module
        exec(self._compiled(_Loaded().visit(_parsed(self.file))), vars(module))

    def _compiled(self, tree: ast.Module) -> CodeType:
        return compile(tree, self.file, "exec", dont_inherit=True)


def loaded_script() -> LoadedScript | None:
    """Return the script of this process, if slaves can load it: the line of it that the main thread runs now stands
    inside a guard. Return None if it does not, if an earlier master was opened outside a guard, or if the script
    defines no function and no class."""
    main = sys.modules[MAIN]
    file, spec = str(getattr(main, "__file__", None) or ""), getattr(main, "__spec__", None)  # pdb has its own type
    name = "" if spec is None or spec.name == MAIN else spec.name  # a folder that is run has no other name
    own = (each for each in [*vars(main).values()] if isinstance(each, FunctionType | type))
    if not os.path.isfile(file) or not any(each.__module__ == MAIN for each in own):
        return None
    line, frame = 0, sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if frame.f_globals is vars(main) and frame.f_code.co_name == "<module>" and frame.f_code.co_filename == file:
            line = frame.f_lineno
        frame = frame.f_back
    try:
        bodies = [guard.body for guard in _guards_in(_parsed(file))]
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    is_guarded = any(body[0].lineno <= line <= (body[-1].end_lineno or 0) for body in bodies)
    REGISTRY.unguarded = REGISTRY.unguarded or (line > 0 and not is_guarded)
    return LoadedScript(file, name) if is_guarded and not REGISTRY.unguarded else None


class _Loaded(ast.NodeTransformer):
    """Compares `__name__` as `multiprocessing` would. The name itself stays `__main__`, so that what the script defines
    has the same names in slaves as in the master."""

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        first, *others = [
            ast.copy_location(ast.Constant(LOADED), each) if _is_own_name(each) else each
            for each in (node.left, *node.comparators)
        ]
        node.left, node.comparators = first, others
        return self.generic_visit(node)


def _is_own_name(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "__name__"


def _parsed(file: str) -> ast.Module:
    with open(file, "rb") as source:
        return parsed(source.read(), file)


def _guards_in(node: ast.AST) -> Iterator[ast.If]:
    """Yield each `if __name__ == "__main__":` that is not inside a function or class."""
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.If) and _is_guard(each.test):
            yield each
        elif not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.expr):
            yield from _guards_in(each)


def _is_guard(test: ast.expr) -> bool:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return any(map(_is_guard, test.values))
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.Eq):
        return False
    one, other = test.left, test.comparators[0]
    if _is_own_name(other):
        one, other = other, one
    return _is_own_name(one) and isinstance(other, ast.Constant) and other.value == MAIN


def _bound_by(code: CodeType, *, inside: bool = False) -> Iterator[str]:
    """Yield the names that the code of a module binds.

    Args:
        inside: whether to yield those that its functions bind by `global`, instead.
    """
    if not inside:
        return named_by(code, {"STORE_NAME", "STORE_GLOBAL"})
    return (name for each in codes_in(code) if each is not code for name in named_by(each, {"STORE_GLOBAL"}))


def is_equal(value: object, literal: object) -> bool:
    """Whether a variable has the value of a literal."""
    try:
        return type(value) is type(literal) and bool(value == literal)
    except Exception:  # it contains an object with its own comparison
        return False


# ---- what slaves find -----------------------------------------------------------------------------------------------


def is_same(name: str, value: object, found: Mapping[str, object] | None) -> bool:
    """Whether slaves find a global of `__main__`, and what they find does the same.

    It does not if the master has bound the name again, or if it is a function that uses a global which slaves do not
    find, or which they find with another value.

    Args:
        found: what slaves find; None if they find everything.
    """
    return found is None or (found.get(name, OTHER) is value and not _misses_a_global(value, found))


def finds(thing: Any, found: Mapping[str, object] | None) -> bool:
    """Whether slaves find a function or class of `__main__` under its name, and it does the same, as for `is_same`."""
    space = vars(sys.modules[MAIN])
    name = getattr(thing, "__qualname__", None) or thing.__name__
    first = name.partition(".")[0]
    try:
        if attrgetter(name)(sys.modules[MAIN]) is not thing:
            return False
    except AttributeError:
        return False
    if found is None:
        return True
    return found.get(first, OTHER) is space[first] and not _misses_a_global(thing, found)


def is_importable(module: ModuleType) -> bool:
    """Whether another process that imports its name gets this module.

    A module that was loaded from a path may have any name, or that of another module.
    """
    name, spec = module.__name__, getattr(module, "__spec__", None)
    parent = sys.modules.get(name.rpartition(".")[0])
    if spec is None or spec.name != name:
        return False
    try:
        there = PathFinder.find_spec(name, getattr(parent, "__path__", None))
    except (ImportError, ValueError):
        return False
    return there is not None and there.origin == spec.origin


def _misses_a_global(function: Any, found: Mapping[str, object]) -> bool:
    """Whether a function of `__main__`, or another one that it uses, uses a global that slaves do not find, or that
    they find with another value. What one of these functions assigns is the slave's own."""
    space = vars(sys.modules[MAIN])
    missing = {name for name in space if found.get(name, OTHER) is OTHER}
    if not missing:
        return False
    waiting, seen, used, assigned = [function], set[int](), set[str](), set[str]()
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, _lru_cache_wrapper):
            waiting.append(each.__wrapped__)
        elif isinstance(each, FunctionType) and each.__globals__ is space:
            names = names_of_globals(each.__code__)
            used |= names
            assigned |= names_assigned_in(each.__code__)
            waiting += [space[name] for name in names if name in space]
            waiting += [cell.cell_contents for _, cell in cells_of(each)]
    return not used.isdisjoint(missing - (assigned & found.keys()))
