"""Files that travel with tasks: to programs as their input, and back as their output."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from hashlib import file_digest, sha256
from pathlib import Path
from pickle import PickleBuffer
from platform import machine, node
from typing import Any

import mwpy
from mwpy import UsageError

SMALL_BYTES = 64 * 1024
"""A smaller file travels with each task. A larger one travels once to each host."""


class File:
    """The content of a file, with its name. `mwpy.file` makes one, and the value of a program has those that it wrote.

    Args:
        name: its name, without a folder.
        content: what is in it, or a handle of that.
        executable: whether it can be run as a program.
        digest: the SHA-256 of its content; empty to make it when it is asked for.

    Examples:
        >>> File("energy.txt", b"-1.5").read_text()
        '-1.5'
    """

    __slots__ = ("_content", "_digest", "_origin", "executable", "name")

    def __init__(
        self, name: str, content: Any, *, executable: bool = False, digest: str = "", origin: str = ""
    ) -> None:
        self.name = name
        self.executable = executable
        self._content = content
        self._digest = digest
        self._origin = origin

    @property
    def content(self) -> bytes | memoryview:
        """What is in it, without a copy."""
        return Path(self._origin).read_bytes() if self._origin else self._content

    @property
    def digest(self) -> str:
        """The SHA-256 of its content, in hexadecimal digits."""
        if not self._digest:
            self._digest = sha256(self.content).hexdigest()
        return self._digest

    def read_bytes(self) -> bytes:
        """Return the content."""
        return bytes(self.content)

    def read_text(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Return the content as text.

        Raises:
            UnicodeDecodeError: it is not text of this encoding, and `errors` is "strict".
        """
        return str(self.content, encoding, errors)

    def save(self, path: str | os.PathLike[str] = ".") -> Path:
        """Write the file, and return where it is.

        Args:
            path: a name, or a folder that exists, in which it gets its own name.

        Raises:
            OSError: it cannot be written.
        """
        target = Path(path)
        if target.is_dir():
            target /= self.name
        with open(target, "wb", opener=_opened_with(0o777 if self.executable else 0o666)) as file:
            file.write(self.content)
        return target

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        content = self._content
        if isinstance(content, bytes | memoryview | mmap.mmap):
            is_small = len(content) < SMALL_BYTES or protocol < 5
            content = bytes(content) if is_small else PickleBuffer(content)
        return _file, (self.name, content, self.executable, self._digest)

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, File) and (other.name, other.executable) == (self.name, self.executable)
        return same and isinstance(other, File) and other.digest == self.digest

    def __hash__(self) -> int:
        return hash((self.name, self.digest))

    def __repr__(self) -> str:
        return f"<File {self.name!r}>"


def place(file: File, path: Path) -> None:
    """Write a file where other programs may use it at the same time, unless it is there already.

    Raises:
        OSError: it cannot be written.
    """
    if not _is_at(path, file):
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.{node()}.{os.getpid()}")
        file.save(unfinished)
        unfinished.replace(path)


def _is_at(path: Path, file: File) -> bool:
    if not path.is_file() or not os.access(path, os.X_OK if file.executable else os.R_OK):
        return False
    with path.open("rb") as there:
        return file_digest(there, "sha256").hexdigest() == file.digest


def _file(name: str, content: Any, executable: bool, digest: str) -> File:
    return File(name, content, executable=executable, digest=digest)


def _opened_with(mode: int) -> Any:
    return lambda path, flags: os.open(path, flags | os.O_CLOEXEC, mode)


def file(path: str | os.PathLike[str], name: str | None = None) -> File:
    """Return a file of this machine for the arguments of tasks. It is read now, and travels once to each host.

    Args:
        path: where it is.
        name: its name where it is used; None for the same one.

    Raises:
        UsageError: it cannot be read; the caller's fault.

    Examples:
        >>> grid = mwpy.file("data/grid.dat")                  # doctest: +SKIP
        >>> mw.submit(simulate.task(alpha=0.1, grid=grid))     # doctest: +SKIP
    """
    path = os.path.abspath(os.fspath(path))
    try:
        with open(path, "rb") as opened:
            found = os.fstat(opened.fileno())
            executable = bool(found.st_mode & 0o100)
            name = os.path.basename(path) if name is None else name
            if found.st_size < SMALL_BYTES:
                return File(name, opened.read(), executable=executable)
            with mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as content:
                digest = sha256(content).hexdigest()
                buffer = PickleBuffer(content)
                handle = mwpy.share(buffer)
                buffer.release()
    except OSError as error:
        raise UsageError(f"the file {path} cannot be read: {error.strerror}") from error
    return File(name, handle, executable=executable, digest=digest, origin=path)


def text_of(path: Path, what: str, encoding: str = "utf-8-sig") -> str:
    """Read a text of the user.

    Args:
        what: what it is, for messages.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        return path.read_text(encoding=encoding)
    except OSError as error:
        raise UsageError(f"{what} {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        advice = "convert it, as with iconv -f latin1 -t utf-8"
        raise UsageError(f"{what} {path} is not text in UTF-8 (line {line}): {advice}") from error


class _Output:
    """Stands for an output of a task in the arguments of a later task."""

    __slots__ = ("name", "task_id")

    def __init__(self, task_id: mwpy.TaskId, name: str) -> None:
        self.task_id = task_id
        self.name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return _picked, (mwpy.result(self.task_id), self.name, int(self.task_id))

    def __repr__(self) -> str:
        return f"mwpy.output({self.task_id}, {self.name!r})"


def _picked(outcome: Any, name: str, task_id: int) -> Any:
    outputs: Mapping[str, Any] = getattr(outcome, "outputs", {})
    if name not in outputs:
        there = ", ".join(outputs) or "none"
        raise UsageError(f"task {task_id} has no output {name} (there are: {there}): name it in outputs of its command")
    return outputs[name]


def output(task_id: mwpy.TaskId, name: str) -> Any:
    """Return what stands for an output of a program in the arguments of a later task, as `mwpy.result` for a value.

    The later task gets a `File`, or a list of files if the name is that of a pattern. A later program finds the files
    in its folder.

    Args:
        task_id: what `mw.submit` returned for the program.
        name: the name in `outputs` of its command.

    Examples:
        >>> mesh = mw.submit(make_mesh.task(size=10))                                  # doctest: +SKIP
        >>> mw.submit(solve.task(mesh=mwpy.output(mesh, "mesh.dat")))                   # doctest: +SKIP
    """
    mwpy.result(task_id)  # it refuses what is no id
    return _Output(task_id, name)


def files_in(value: object) -> Iterator[File]:
    """Yield the files that a value is or lists."""
    for each in value if isinstance(value, list | tuple) else [value]:
        if isinstance(each, File):
            yield each


def shown(value: Any) -> Any:
    """Return a value as a program gets it: files as their names."""
    if isinstance(value, list | tuple):
        return [shown(each) for each in value]
    return value.name if isinstance(value, File | _Output) else value


def for_this_machine(source: File | Mapping[str, File]) -> File:
    """Return the file of this machine's kind, such as `x86_64`, if there is one for each kind.

    Raises:
        UsageError: there is none for this machine.
    """
    if not isinstance(source, Mapping):
        return source
    if machine() not in source:
        raise UsageError(f"there is a file for {', '.join(source)}, and none for this machine, a {machine()}")
    return source[machine()]
