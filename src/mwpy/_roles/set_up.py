"""The set-up of an agent: a function or command that runs once, in a process of its own, before the first slave starts.

Its folder is beside those of the slaves, and is removed when the agent ends. A set-up that has failed leaves none. All
processes that the agent starts afterwards know the folder from `FOLDER`.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import chdir
from typing import TYPE_CHECKING

from mwpy._roles.runner import FOREVER_S, Unavailable, load_algorithm
from mwpy._system import process
from mwpy._system.clock import monotonic
from mwpy._system.packages import undisturbed
from mwpy._transport import wire
from mwpy._transport.error_texts import describe_error
from mwpy._values import messages
from mwpy._values.bounds import MAX_NAME, MAX_STREAM, MAX_VARIABLES, shortened
from mwpy._values.errors import ExitCode, UsageError
from mwpy._values.task import in_one_line

if TYPE_CHECKING:
    from mwpy._transport.channel import SlaveEnd

FOLDER = "MWPY_AGENT_FOLDER"
"""The environment variable with the folder of the set-up."""


def agent_folder() -> str:
    """Return the folder in which the set-up of this agent has run (see `mwpy.agent_setup`).

    All tasks on this agent may read there. It is removed when the agent ends.

    Raises:
        UsageError: there was no set-up; the caller's fault.

    Examples:
        >>> os.path.join(mwpy.agent_folder(), "simulate")      # doctest: +SKIP
        '/tmp/mwpy-91c2-5b0f1d2c/1-set-up/simulate'
    """
    folder = os.environ.get(FOLDER)
    if folder is None:
        raise UsageError("mwpy.agent_folder(): no set-up has run here: mark a function with @mwpy.agent_setup")
    return folder


def run(end: SlaveEnd, number: int, folder: str) -> int:
    """Run the set-up that the agent sends, in this process, and report how it ended.

    Args:
        end: this process's end of the channel to its agent.
        number: the number of this process.
        folder: the folder of the set-up, which does not exist.

    Returns:
        The exit code of this process.
    """
    while not end.eof:
        for frames in end.receive(FOREVER_S):
            message, _ = wire.parse(frames)
            if isinstance(message, messages.Welcome) and message.set_up is not None:
                end.send(wire.encode(attempt(message.set_up, number, folder)))
                return ExitCode.OK
    return ExitCode.FAILED


def attempt(set_up: messages.SetUp, number: int, folder: str) -> messages.SetUpEnded:
    """Run a set-up in a new folder, and return how it ended. The traceback of a failure goes to standard error."""
    began = monotonic()
    loaded = load_algorithm(set_up.definition, set_up.pickle or None)
    if isinstance(loaded, Unavailable):
        is_passing = loaded.failure is messages.LoadFailure.PASSING
        return messages.SetUpEnded(number, monotonic() - began, shortened(loaded.reason), is_passing)
    try:
        os.mkdir(folder)
        with chdir(folder), undisturbed():
            environment = _checked(_called(loaded))
    except KeyboardInterrupt:  # only with `slaves=0`
        raise
    except BaseException as error:
        name, text, trace = describe_error(error)
        text = text.rstrip(".")
        print(trace, file=sys.stderr, end="", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        is_passing = process.may_pass(error)
        return messages.SetUpEnded(number, monotonic() - began, shortened(in_one_line(name, text)), is_passing)
    return messages.SetUpEnded(number, monotonic() - began, environment={**environment, FOLDER: folder})


def _called(function: Callable[[], object]) -> object:
    """Call a set-up, which may end with `sys.exit` as a script does."""
    try:
        return function()
    except SystemExit as leaving:
        if leaving.code in (None, 0):
            return None
        raise


def _checked(returned: object) -> Mapping[str, str]:
    """Return the environment variables that a set-up has returned.

    Raises:
        UsageError: it has returned something else; its fault.
    """
    if returned is None:
        return {}
    if not isinstance(returned, Mapping):
        raise UsageError(
            f"it returned a {type(returned).__qualname__}: return None, or a dict of environment variables"
        )
    if unset := [name for name, value in returned.items() if value is None]:
        raise UsageError(f"it returned None for the environment variable {unset[0]!r}: leave it out, or return a text")
    found = {str(name): str(value) for name, value in returned.items()}
    for name, value in found.items():
        if not name or "=" in name or "\0" in name + value:
            raise UsageError(f"it returned the environment variable {name!r}: {value!r}, which no process can have")
        if len(name) > MAX_NAME or len(value) > MAX_STREAM or len(found) >= MAX_VARIABLES:
            raise UsageError(
                f"it returned {len(found)} environment variables, such as {name[:50]} with {len(value)} characters: "
                f"at most {MAX_VARIABLES} with {MAX_STREAM} characters each are possible"
            )
    return found
