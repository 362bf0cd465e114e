"""An object of a bucket that one process owns: every write names the generation that it replaces,
and is refused where the object has another one. What a process writes late, after another has taken
the object, changes nothing.

Source: https://cloud.google.com/storage/docs/request-preconditions
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from mhsh.errors import UserError
from mhsh.storage.bucket import bucket_objects, server

_TAKES = 5  # tries against others who write at that moment


class Taken(Exception):
    """Another process has written, or removed, the object."""


class LostRun(UserError):
    """Another process has taken the run that this one trains."""


class GuardedObject:
    """The object gs://BUCKET/NAME. Each write bears its writer's mark, so that one whose answer was
    lost is told from another's.

    A write raises `Taken`, and what `bucket_objects` raises.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._bucket, _, self._name = path.removeprefix("gs://").partition("/")
        self._mark = {"writer": uuid.uuid4().hex}
        self._generation, self._size = 0, 0  # of the last own write; 0: there is no object

    def generation(self) -> int:
        """That of the object as it is now; 0: there is none."""
        return int(self._current().get("generation", 0))

    def write(self, content: bytes, generation: int | None = None) -> None:
        """Replaces the object of that generation, by default that of the last own write."""
        try:
            self._note(self._upload(self._name, content, self._generation if generation is None else generation))
        except FileExistsError:
            self._note(self._own())

    def take(self) -> None:
        """From now on the object, if there is one, is this process's: it is composed of itself."""
        for _ in range(_TAKES):
            now = self._current()
            try:
                others = bool(now) and now.get("metadata") != self._mark
                self._note(self._compose([now], int(now["generation"])) if others else now)
            except (FileExistsError, FileNotFoundError):
                continue
            return
        raise Taken(self._path)

    def append(self, content: bytes) -> None:
        """Adds to the object, which `take` has seen. It is composed of itself and the part that is
        new, so that the cost does not depend on its size. After an exception, what was to be
        appended is given again, with or without more after it.
        """
        while content:
            before = self._size
            try:
                self._note(self._added(content) if self._generation else self._upload(self._name, content, 0))
            except (FileExistsError, FileNotFoundError):
                self._note(self._own())
                content = content[self._size - before :]  # less what an earlier request has added
            else:
                return

    def delete(self) -> None:
        """Deletes what this process wrote."""
        with bucket_objects(self._path) as objects:
            objects.call("DELETE", "b/{}/o/{}", self._bucket, self._name, ifGenerationMatch=str(self._generation))

    def _added(self, content: bytes) -> Mapping[str, Any]:
        folder, _, name = self._name.rpartition("/")
        part = self._upload(f"{folder}/.{name}.tmp", content)
        return self._compose([{"name": self._name, "generation": self._generation}, part], self._generation)

    def _note(self, written: Mapping[str, Any]) -> None:
        self._generation, self._size = int(written.get("generation", 0)), int(written.get("size", 0))

    def _own(self) -> Mapping[str, Any]:
        now = self._current()
        if now.get("metadata") != self._mark:
            raise Taken(self._path)
        return now

    def _current(self) -> Mapping[str, Any]:
        """The object's record; empty: there is none."""
        with bucket_objects(self._path) as objects:
            try:
                return objects.call("GET", "b/{}/o/{}", self._bucket, self._name, json_out=True)
            except FileNotFoundError:
                return {}

    def _upload(self, name: str, content: bytes, generation: int | None = None) -> Mapping[str, Any]:
        """Writes an object in one request; None: whatever its generation is."""
        boundary = uuid.uuid4().hex
        record = json.dumps({"name": name, "metadata": self._mark})
        head = f"--{boundary}\nContent-Type: application/json\n\n{record}\n--{boundary}\nContent-Type: application/octet-stream\n\n"
        guard = {} if generation is None else {"ifGenerationMatch": str(generation)}
        return self._post(
            f"{server()}/upload/storage/v1/b/{{}}/o",
            uploadType="multipart",
            headers={"Content-Type": f"multipart/related; boundary={boundary}"},
            data=head.encode() + content + f"\n--{boundary}--".encode(),
            **guard,
        )

    def _compose(self, sources: list[Mapping[str, Any]], generation: int) -> Mapping[str, Any]:
        """Replaces the object of that generation by these objects, one after the other.

        Source: https://cloud.google.com/storage/docs/composite-objects
        """
        named = [{"name": each["name"], "generation": str(each["generation"])} for each in sources]
        what = {"destination": {"metadata": self._mark}, "sourceObjects": named}
        return self._post("b/{}/o/{}/compose", self._name, json=what, ifGenerationMatch=str(generation))

    def _post(self, path: str, *names: str, **request: Any) -> Mapping[str, Any]:
        with bucket_objects(self._path) as objects:
            return objects.call("POST", path, self._bucket, *names, json_out=True, **request)


class OwnObject:
    """An object of the run that this process trains; it takes it at its first write."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._guarded: GuardedObject | None = None

    @contextlib.contextmanager
    def taken(self) -> Iterator[GuardedObject]:
        """The object, for writing. Raises LostRun where another process has taken it since."""
        try:
            if self._guarded is None:
                taken = GuardedObject(self._path)
                taken.take()
                self._guarded = taken
            yield self._guarded
        except Taken:
            raise LostRun(
                f"another process has taken this run, and writes {self._path}; this one has stopped and changed nothing of it: "
                "let that one train, or stop it and run the same command again"
            ) from None
