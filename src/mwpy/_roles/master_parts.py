"""What a master is made of, besides its connections. It is imported while the local agent starts: it takes as long."""

from __future__ import annotations

from mwpy._core.master.core import MasterCore, MasterSettings
from mwpy._roles.master_io import MasterIo
from mwpy._system import clock
from mwpy._values.options import Options
from mwpy._values.records import Notice, Started
from mwpy.audit import AuditFile

__all__ = ["MasterCore", "MasterIo", "Notice", "Started", "say_past_end", "settings_of"]

SAVING_S = 60.0
SAVING_SHARE = 0.1
"""Before a master ends, its algorithm gets a tenth of its time to save what it has, and at most a minute. The manual
names these numbers."""


def settings_of(options: Options, generation: str, only_here: bool) -> MasterSettings:
    left_s = options.seconds_left(clock.wall())
    ends_at = None if left_s is None else clock.monotonic() + left_s
    saving_s = 0.0 if left_s is None else min(SAVING_S, SAVING_SHARE * left_s)
    return MasterSettings(
        member_id=options.member_id,
        generation=generation,
        task_group=options.slave_task_group,
        result_group=options.slave_result_group or 0,
        max_result_bytes=options.max_read_buffer_size,
        max_call_bytes=options.max_write_buffer_size,
        client_timeout_s=options.silence_s(),
        only_here=only_here,
        max_failures=options.max_failures,
        max_waiting_bytes=options.max_waiting_results,
        feeds_until=None if ends_at is None else ends_at - saving_s,
        ends_at=ends_at,
        started_at=clock.monotonic(),
    )


def say_past_end(options: Options, audit: AuditFile) -> None:
    """Say so if the end of the job that the environment names has passed."""
    if past := options.about_past_end(clock.wall()):
        audit.write([Notice(past)], clock.wall())
