"""Real files behind a hook that sees every operation first, and may count it, hold it up, fail it or end the process."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path

from coordinator.filesystem.files import FileStorage
from coordinator.filesystem.storage import File, Lock, in_doubt

Hook = Callable[[str, str], None]
"""Called with the operation and the path before it happens; what it raises happens instead."""


class Killed(BaseException):
    """The process ended here: nothing it would have done afterwards happens."""


class KillAt:
    """A hook that ends the process at the ``number``-th operation that changes something, counted from 0."""

    def __init__(self, number: int) -> None:
        self.left = number

    @property
    def killed(self) -> bool:
        return self.left < 0

    def __call__(self, operation: str, path: str) -> None:
        if operation in {"read", "open", "list"}:
            if self.killed:
                raise Killed
            return
        self.left -= 1
        if self.left < 0:
            self.left = -1
            raise Killed


class HookedStorage:
    """A ``Storage``. An append that the hook fails leaves half of its bytes in the file, as a real one may."""

    def __init__(self, root: Path, hook: Hook) -> None:
        self._inner = FileStorage(root)
        self._hook = hook

    def open(self, path: str, create: bool = False) -> File:
        self._hook("create" if create else "open", path)
        return HookedFile(self._inner.open(path, create), path, self._hook)

    def list(self, path: str) -> list[str]:
        self._hook("list", path)
        return self._inner.list(path)

    def exists(self, path: str) -> bool:
        self._hook("read", path)
        return self._inner.exists(path)

    def make_directory(self, path: str) -> None:
        self._hook("make_directory", path)
        self._inner.make_directory(path)

    def remove(self, path: str) -> None:
        self._hook("remove", path)
        self._inner.remove(path)

    def remove_tree(self, path: str) -> None:
        self._hook("remove_tree", path)
        self._inner.remove_tree(path)

    def rename(self, source: str, target: str) -> None:
        self._hook_in_doubt("rename", target)
        self._inner.rename(source, target)

    def sync_directory(self, path: str) -> None:
        self._hook_in_doubt("sync_directory", path)
        self._inner.sync_directory(path)

    def read_file(self, path: str) -> bytes:
        self._hook("read", path)
        return self._inner.read_file(path)

    def write_file(self, path: str, data: bytes) -> None:
        self._hook_in_doubt("write_file", path)
        self._inner.write_file(path, data)

    def _hook_in_doubt(self, operation: str, path: str) -> None:
        try:
            self._hook(operation, path)
        except OSError as error:
            if error.errno == errno.EIO:  # as ``Storage`` says of these three
                raise in_doubt(path, error) from error
            raise

    def lock(self, path: str) -> Lock:
        return self._inner.lock(path)


class HookedFile:
    def __init__(self, inner: File, path: str, hook: Hook) -> None:
        self._inner = inner
        self._path = path
        self._hook = hook

    def append(self, pieces: Sequence[bytes | memoryview]) -> None:
        try:
            self._hook("append", self._path)
        except BaseException:
            whole = b"".join(pieces)
            self._inner.append([whole[: len(whole) // 2]])
            raise
        self._inner.append(pieces)

    def read(self, position: int, length: int) -> bytes:
        self._hook("read", self._path)
        return self._inner.read(position, length)

    def sync(self) -> None:
        try:
            self._hook("sync", self._path)
        except OSError as error:
            raise in_doubt(self._path, error) from error
        self._inner.sync()

    def truncate(self, size: int) -> None:
        self._hook("truncate", self._path)
        self._inner.truncate(size)

    def size(self) -> int:
        return self._inner.size()

    def close(self) -> None:
        self._inner.close()
