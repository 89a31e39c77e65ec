"""The run database of a master: opened at its start, and read for what was answered before."""

from __future__ import annotations

from mwpy._core.master.core import MasterCore
from mwpy._core.master.restart import GENERATIONS_KEPT, FormerAgents, Reuse
from mwpy._database.store import Writer
from mwpy._values.code import captured_changes, changes
from mwpy._values.options import Options
from mwpy._values.phrases import counted, first_of

LOST = (
    "parts of the run database are missing or damaged: {parts}. The results in them do not count, so their tasks run "
    "again"
)

ALONE = (
    "the run database {path} is on a network file system ({kind}), so nothing else can open it until this master ends. "
    "On a local disk, mwpy runs and sqlite3 can read it meanwhile"
)


def open_writer(options: Options, path: str, name: str) -> Writer:
    """Open the run database of a computation, and start its threads.

    Args:
        path: the file.
        name: the name of this generation.

    Raises:
        RunDatabaseError: it cannot be used; the message says why.
    """
    writer = Writer.open(path, member_id=options.member_id, full=options.run_database_sync == "full", name=name)
    writer.start()
    return writer


def read_into(core: MasterCore, writer: Writer, options: Options) -> None:
    """Let a core use the results that are in a run database, and begin the next generation.

    Raises:
        RunDatabaseError: the file is damaged.
    """
    stored, rerun = writer.stored, options.rerun == "failed"
    core.reuse = reuse = Reuse(core.state, stored.read, changes, captured_changes, rerun, options.reuse_changed_code)
    for entry in stored.earlier():
        reuse.apply(entry)
    reuse.begin()
    reuse.awaited.former = FormerAgents(stored.agents(GENERATIONS_KEPT))
    writer.begin()
    reuse.names = stored.generations()
    if writer.network:
        core.state.notice(ALONE.format(path=writer.path, kind=writer.network))
    if lost := [*dict.fromkeys(stored.lost)]:
        core.state.notice(LOST.format(parts=first_of(lost, len(lost))))
    reuse.says_misses = options.run_database_notices
    if reuse.answered and options.run_database_notices:
        core.state.notice(
            f"the run database {writer.path} has the results of {counted(reuse.answered, 'task')}. Those of them "
            f"that this run submits again are not computed again"
        )
