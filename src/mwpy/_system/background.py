"""Work in the background: a slow disk, a hanging file system or an unread pipe never delays the caller.

`Background` calls a function in a thread of its own. `Question` uses it to get a result without waiting for long, and
`TextWriter` to write lines. Everything that waits has a bound. When the bound is reached, further lines are left out,
and the next line that has room says how many.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Generic, NoReturn, TypeVar

__all__ = ["Background", "Question", "TextWriter"]

MOST_CHARACTERS = 4 << 20
"""When this many characters wait to be written, further lines are left out."""

T = TypeVar("T")


class Background(Generic[T]):
    """Calls a function with each item that it is given, in order, in a thread of its own. One thread gives the items.

    The thread starts with the first item. If the system refuses it, `give` calls the function itself. The thread does
    not keep the process alive: what hangs in it is abandoned at the end.

    Args:
        do: the function. It may take long. An exception ends the thread.
        name: the name of the thread.
    """

    def __init__(self, do: Callable[[T], None], name: str) -> None:
        self._do = do
        self._items: SimpleQueue[tuple[T] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._given = 0
        self._done = 0

    @property
    def waiting(self) -> int:
        """How many items were given and are not done."""
        return self._given - self._done

    def give(self, item: T) -> None:
        """Let the thread work on an item; do not wait for it."""
        if not self._given:
            try:
                self._thread.start()
            except RuntimeError:  # the system allows no other thread
                self._do(item)
                return
        self._given += 1
        self._items.put((item,))

    def close(self, patience_s: float) -> bool:
        """Let the thread end, and wait for it at most `patience_s` seconds. Return whether everything was done."""
        self._items.put(None)
        if self._given:
            self._thread.join(patience_s)
        return not self.waiting

    def _run(self) -> None:
        while (item := self._items.get()) is not None:
            self._do(item[0])
            self._done += 1


class Question(Generic[T]):
    """A function that may hang, for example because a file system does. It is called in the background.

    Args:
        do: the function.
        name: the name of the thread.
    """

    def __init__(self, do: Callable[[], T], name: str) -> None:
        self._do = do
        self._answers: SimpleQueue[Callable[[], T]] = SimpleQueue()
        self._background = Background(self._answer, name)
        self._asked = False

    def ask(self, patience_s: float) -> T:
        """Call the function and wait for its result. If an earlier call still hangs, only look for its result.

        Raises:
            TimeoutError: it hangs.
            Exception: the exception of the function.
        """
        if not self._asked:
            self._asked = True
            self._background.give(None)
        else:
            patience_s = 0.0
        try:
            answer = self._answers.get(timeout=patience_s)
        except Empty:
            raise TimeoutError from None
        self._asked = False
        return answer()

    def _answer(self, _: None) -> None:
        try:
            value = self._do()
        except Exception as error:
            self._answers.put(_raising(error))
        else:
            self._answers.put(lambda: value)


def _raising(error: Exception) -> Callable[[], NoReturn]:
    def answer() -> NoReturn:
        raise error

    return answer


class TextWriter:
    """Writes lines in the background. Any thread may give lines.

    Args:
        put: the function that writes a text of whole lines. It may block.
        gap: the line that says that this many lines are missing before it, with its line feed.
        name: the name of the thread.
    """

    def __init__(self, put: Callable[[str], None], gap: Callable[[int], str], name: str) -> None:
        self._put = put
        self._gap = gap
        self._background = Background(self._write, name)
        self._lock = threading.Lock()
        self._given = 0
        self._written = 0
        self._left_out = 0

    def write(self, text: str) -> None:
        """Give the thread a text of whole lines. If too much waits, the text is left out."""
        with self._lock:
            if self._background.waiting and self._given - self._written + len(text) > MOST_CHARACTERS:
                self._left_out += text.count("\n")
                return
            if self._left_out:
                text = self._gap(self._left_out) + text
                self._left_out = 0
            self._given += len(text)
            self._background.give(text)

    def close(self, patience_s: float) -> bool:
        """Wait at most `patience_s` seconds until everything is written. Return whether it is."""
        return self._background.close(patience_s)

    def _write(self, text: str) -> None:
        self._put(text)
        self._written += len(text)
