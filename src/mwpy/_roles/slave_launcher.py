"""Starts slave processes with the channel to their agent."""

from __future__ import annotations

import os
from collections.abc import Sequence

from attrs import frozen

from mwpy._roles.edges import SlaveParts
from mwpy._system import process
from mwpy._system.streams import Inlet
from mwpy._transport.channel import open_channel
from mwpy._values import messages
from mwpy._values.environment import FAULT_HANDLER, SLAVE_VARIABLE, SlaveSettings, thread_limits
from mwpy._values.last_words import LAST_WORDS_BYTES

__all__ = ["Launcher"]


MESSAGE_SLACK = 2 << 20
"""Bytes of a slave's message beyond its results: the header, and the results that are not counted in it."""


@frozen
class Launcher:
    """Starts real slave processes.

    Args:
        command: the command line that starts a slave.
        slaves: how many slaves share the cores of this agent.
        max_memory_bytes: how much memory a slave may have between two tasks; 0 if there is no limit.
    """

    command: Sequence[str]
    slaves: int
    max_memory_bytes: int = 0

    def start(self, number: int, welcome: messages.Welcome) -> SlaveParts:
        """Start a slave of an agent that the master has accepted.

        Raises:
            OSError: it cannot be started.
        """
        channel, fds = open_channel(welcome.max_result_bytes + MESSAGE_SLACK)
        limits = welcome.result_group, welcome.max_result_bytes, self.max_memory_bytes
        settings = SlaveSettings(*fds.numbers(), number, os.getpid(), *limits)
        share = thread_limits(os.environ, process.count_cores(), self.slaves)
        try:
            child = process.start(
                self.command,
                environment={SLAVE_VARIABLE: settings.to_json(), FAULT_HANDLER: "1", **share},
                pass_fds=fds.numbers(),
                keep_output=True,
            )
        except OSError:
            channel.close()
            raise
        finally:
            fds.close()
        return SlaveParts(child, channel, {number: Inlet(fd, LAST_WORDS_BYTES) for number, fd in child.outputs.items()})
