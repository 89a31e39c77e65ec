"""Asks a running master what it does. The inquirer is a member without slaves; see `_core/master/inquiries.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, Self, cast

from mwpy import resource_file
from mwpy._roles.join import MasterContact, try_all
from mwpy._system import clock
from mwpy._transport import wire
from mwpy._transport.link import AgentLink, CurvePair
from mwpy._values import messages
from mwpy._values.errors import MasterUnreachable, ProtocolError, Refused, UsageError
from mwpy._values.explanations import explained
from mwpy._values.ids import Buffer
from mwpy._values.messagepack import decode, encode
from mwpy.resource_file import ResourceFile

__all__ = ["Inquirer", "explain", "status"]

ANSWER_S = 60.0
"""Seconds in which a master answers. Other inquirers may be served first."""

Question = messages.AskStatus | messages.AskTask
Answer = messages.Status | messages.Explanation


class Inquirer:
    """A connection to a running master. Close it, or use it in a `with` block.

    Args:
        path: the resource file that the master writes.

    Raises:
        ResourceFileError: the file is missing, or is no resource file.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self._path = path
        self._content = resource_file.read(str(path))
        self._link: AgentLink | None = None
        self._answered = False
        """Whether the master has answered on this connection."""

    def status(self) -> dict[str, Any]:
        """Return what the master does; see `mwpy.status`."""
        answer = self._answer(lambda mine: messages.AskStatus(mine.member_id, mine.generation))
        if answer is not None:
            return {"state": "running", **cast(dict[str, Any], decode(encode(answer)))}
        return {
            "state": "finished",
            "member_id": self._content.member_id,
            "generation": self._content.generation,
        }

    def explanation(self, task: int) -> messages.Explanation:
        """Return why a task waits, or how it ended.

        Raises:
            UsageError: the computation is finished, so nobody knows.
        """
        answer = self._answer(lambda mine: messages.AskTask(mine.member_id, mine.generation, task))
        if not isinstance(answer, messages.Explanation):
            raise UsageError(
                f"the computation of {self._path} is finished, so no task waits; `mwpy logs AUDIT_FILE {task}` shows "
                f"whether slaves died while they ran the task"
            )
        return answer

    def _answer(self, question: Callable[[ResourceFile], Question]) -> Answer | None:
        """Ask, and return the answer; None if the computation is finished.

        A master that ended since the last question may be followed by the next one, or be finished, so the resource
        file is read again.

        Args:
            question: makes the question for the content of the resource file.
        """
        while self._content.computation_status != resource_file.FINISHED:
            answer = self._ask(question(self._content))
            if isinstance(answer, messages.Shutdown):
                if answer.finished:
                    return None
                raise MasterUnreachable(f"the master of {self._path} was interrupted, and ends now")
            if answer is not None:
                self._answered = True
                return answer
            if not self._answered:
                raise MasterUnreachable(
                    f"the master of {self._path} ended the connection. Did it end? Its audit file says why"
                )
            self.close()
            self._content = resource_file.read(str(self._path))
        return None

    def _ask(self, question: Question) -> Answer | messages.Shutdown | None:
        """Return the answer to a question; None if the master has ended the connection.

        Raises:
            Refused: the master refuses this process.
            MasterUnreachable: no master answers.
        """
        link = self._link = self._link or self._connect()
        link.send(wire.encode(question))
        deadline = clock.monotonic() + ANSWER_S
        while (left_s := deadline - clock.monotonic()) > 0:
            fates, received, _ = link.poll(left_s)
            for frames in received:
                answer = self._read(frames)
                if isinstance(answer, messages.Refused):
                    raise Refused(f"the master of {self._path} refused to answer: {answer.reason}")
                if isinstance(answer, messages.Status | messages.Explanation | messages.Shutdown):
                    return answer
            if fates:
                return None
        raise MasterUnreachable(
            f"the master of {self._path} accepted the connection, and gave no answer for {ANSWER_S:.0f} s: is its "
            f"process stopped, or its machine overloaded?"
        )

    def _connect(self) -> AgentLink:
        keys, mine = self._content.keys, self._content
        member = CurvePair(keys.member_public, keys.member_secret)
        own = mine.member_id, mine.generation, mine.client_timeout
        return try_all(MasterContact(mine.master_addresses, keys.server_public, member, *own))

    def _read(self, frames: Sequence[Buffer]) -> messages.Message:
        try:
            return wire.decode(frames, wire.TO_INQUIRER)[0]
        except ProtocolError as error:
            raise Refused(f"the master of {self._path} cannot be asked: {error}") from error

    def close(self) -> None:
        """Close the connection."""
        if self._link is not None:
            self._link.close(0.0)
            self._link = None
        self._answered = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def status(resource_file: str | PathLike[str]) -> dict[str, Any]:
    """Ask a running master what it does: what `mwpy status RESOURCE_FILE --json` prints.

    Args:
        resource_file: the file that the master writes (`--mw-resource-file`).

    Returns:
        A dictionary of texts, numbers, lists and dictionaries; the manual describes its keys. `"state"` is `"running"`,
        or `"finished"` if the file says that the computation is complete; then only its name is known.

    Raises:
        ResourceFileError: the file is missing or damaged; start the master, or copy the file again.
        MasterUnreachable: no master answers at its addresses. The master may have ended without finishing.
        Refused: the program there is another master, or has another version of mwpy.
    """
    with Inquirer(resource_file) as inquirer:
        return inquirer.status()


def explain(resource_file: str | PathLike[str], task_id: int) -> str:
    """Ask a running master why a task waits, or how it ended: what `mwpy explain RESOURCE_FILE TASK` prints.

    Args:
        resource_file: the file that the master writes (`--mw-resource-file`).
        task_id: the id of the task, which `mw.submit` has returned.

    Returns:
        Sentences, one a line. For a task that waits: the reasons, and for each agent why it is not sent the task.

    Raises:
        UsageError: the computation is finished, or the resource file is missing or damaged.
        MasterUnreachable: no master answers at its addresses.
        Refused: the program there is another master, or has another version of mwpy.
    """
    with Inquirer(resource_file) as inquirer:
        return explained(inquirer.explanation(task_id))
