"""How an agent starts the processes that become its slaves, or the template from which slaves are forked."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from mwpy._system import process
from mwpy._transport.orders import AgentOrders, open_orders
from mwpy._values.environment import FAULT_HANDLER, SLAVE_VARIABLE, TemplateSettings, thread_limits

__all__ = ["NewTemplate", "SlaveCommand"]


class NewTemplate(NamedTuple):
    """A template without orders: a process that loads the script, and then waits."""

    child: process.Child
    orders: AgentOrders

    def kill(self) -> None:
        """End it."""
        self.child.kill()
        self.child.close()
        self.orders.close()


class SlaveCommand(Struct, frozen=True):
    """The command line that starts a slave, and how many slaves share the cores of this agent."""

    line: Sequence[str]
    slaves: int

    def start(self, settings: str, fds: Sequence[int]) -> process.Child:
        """Start a process that has these settings, as JSON, and inherits these descriptors.

        Raises:
            OSError: it cannot be started.
        """
        share = thread_limits(os.environ, process.count_cores(), self.slaves)
        environment = {SLAVE_VARIABLE: settings, FAULT_HANDLER: "1", **share}
        return process.start(self.line, environment=environment, pass_fds=fds, keep_output=True)

    def start_template(self) -> NewTemplate:
        """Start a template.

        Raises:
            OSError: it cannot be started.
        """
        orders, fd = open_orders()
        try:
            return NewTemplate(self.start(TemplateSettings(fd, os.getpid()).to_json(), [fd]), orders)
        except OSError:
            orders.close()
            raise
        finally:
            os.close(fd)
