"""The template: a process that has loaded the script, runs nothing, and forks slaves when its agent orders one.

Its first slave gets the standard output and error with which the template was started, because what the script prints
while it is loaded belongs to the start of this slave. While the template forks another slave, it has the output and
error of that slave: if it hangs there, the fault handler writes where. Between two orders it has none.

If the script has left something that must not be copied, the template becomes its first slave.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mwpy._system import forks, memory
from mwpy._transport.channel import Answer, TemplateOrders
from mwpy._values.errors import ExitCode
from mwpy._values.options import (
    SlaveSettings,
    TemplateSettings,
)

if TYPE_CHECKING:
    pass


NAME = b"mwpy-template"
"""The name of the template in `ps`."""


def serve(settings: TemplateSettings) -> SlaveSettings:
    """Fork slaves until the agent closes the orders; then end this process.

    Returns:
        In each slave: its settings.
    """
    if not forks.die_with_parent(settings.agent_pid):
        os._exit(ExitCode.FAILED)
    for number in (signal.SIGINT, signal.SIGTERM):  # as in a slave: only the agent acts on them
        signal.signal(number, signal.SIG_IGN)
    forks.keep_children()  # the script may ignore their ends
    orders = TemplateOrders(settings.orders)
    own_name = forks.name_process(NAME)
    unsafe = _why_unsafe(orders)
    if not unsafe:
        forks.prepare_forks()
    while (order := orders.take()) is not None:
        slave, outputs = order
        answer = Answer(slave.slave, os.getpid(), unsafe) if unsafe else _fork(slave, outputs)
        if answer is not None:
            orders.answer(answer)
        if answer is None or unsafe:
            orders.close()
            forks.name_process(own_name)
            return slave
    os._exit(ExitCode.OK)


def _why_unsafe(orders: TemplateOrders) -> str:
    try:
        return forks.why_unsafe([orders.fileno()])
    except Exception as error:  # an object of the script behaves strangely
        return f"it cannot be found out whether the script can be forked ({type(error).__name__}: {error})"


def _fork(slave: SlaveSettings, outputs: Sequence[int]) -> Answer | None:
    """Fork a slave, and return the answer to the order; None in the slave."""
    forks.flush()
    if outputs:
        _have_outputs(*outputs)
    try:
        pid = forks.fork_orphan()
        answer = Answer(slave.slave, pid, own_bytes=memory.resident_bytes())
    except OSError as error:
        answer = Answer(slave.slave, failure=str(error))
    else:
        if not pid:
            return None
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    _have_outputs(nowhere, os.dup(nowhere))
    for fd in (slave.stream, slave.memory, slave.passage):
        os.close(fd)
    return answer


def _have_outputs(stdout: int, stderr: int) -> None:
    """Replace standard output and error by two descriptors, which are closed."""
    for number, fd in ((1, stdout), (2, stderr)):
        os.dup2(fd, number)
        os.close(fd)
