"""The first message of a process to its master."""

from __future__ import annotations

import os
import platform

from mwpy._values import messages
from mwpy._values.algorithm import PYTHON
from mwpy._values.bounds import MAX_NAME, shortened
from mwpy._values.environment import JOB_VARIABLE

__all__ = ["hello_of_this_process"]


def hello_of_this_process(member_id: str, generation: str, slaves: int) -> messages.Hello:
    """Return the first message of this process.

    Args:
        generation: the life of the master that the process wants to join; empty for any.
        slaves: how many slaves it will start.
    """
    job = shortened(os.environ.get(JOB_VARIABLE, ""), MAX_NAME)
    return messages.Hello(member_id, generation, platform.node(), os.getpid(), PYTHON, slaves, job)
