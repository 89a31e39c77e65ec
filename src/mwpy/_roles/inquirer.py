"""Asks a running master what it does. The inquirer is a member without slaves; see `_core/master/inquiries.py`."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any, Self, cast

from mwpy import resource_file
from mwpy._roles.join import MasterContact, try_all
from mwpy._system import clock
from mwpy._transport import wire
from mwpy._transport.link import AgentLink, CurvePair
from mwpy._values import messages
from mwpy._values.errors import MasterUnreachable, ProtocolError, Refused
from mwpy._values.ids import Buffer
from mwpy._values.messagepack import decode, encode

__all__ = ["Inquirer", "status"]

ANSWER_S = 60.0
"""Seconds in which a master answers. Other inquirers may be served first."""

Question = messages.AskStatus


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
        """Return what the master does; see `mwpy.status`. A master that ended since the last question may be followed
        by the next one, or be finished, so the resource file is read again."""
        while True:
            if self._content.computation_status == resource_file.FINISHED:
                return self._finished()
            answer = self._ask(messages.AskStatus(self._content.member_id, self._content.generation))
            match answer:
                case messages.Shutdown(finished=True):
                    return self._finished()
                case messages.Shutdown():
                    raise MasterUnreachable(f"the master of {self._path} was interrupted, and ends now")
                case messages.Status():
                    self._answered = True
                    return {"state": "running", **cast(dict[str, Any], decode(encode(answer)))}
            if not self._answered:
                raise MasterUnreachable(
                    f"the master of {self._path} ended the connection. Did it end? Its audit file says why"
                )
            self.close()
            self._content = resource_file.read(str(self._path))

    def _finished(self) -> dict[str, Any]:
        return {
            "state": "finished",
            "member_id": self._content.member_id,
            "generation": self._content.generation,
        }

    def _ask(self, question: Question) -> messages.Status | messages.Shutdown | None:
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
                if isinstance(answer, messages.Status | messages.Shutdown):
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
