"""A lock on a folder of a disk, which the kernel keeps, and the mounts that keep none."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # as of Lustre without flock, or NFS without lockd


@contextlib.contextmanager
def hold_lock(folder: Path, wait: bool = False) -> Iterator[None]:
    """Holds the folder's lock inside the `with`. The kernel frees it when the process ends, however
    it ends. Raises BlockingIOError where another process holds it, and this one does not `wait`.
    Raises OSError where the folder cannot be opened; with ENOLCK where its file system has no
    locks.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                raise OSError(errno.ENOLCK, error.strerror, str(folder)) from error
            raise
        yield
    finally:
        os.close(descriptor)


def unlocked_mount(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """The mount of `path` if a lock on it keeps no other machine away; else empty.

    The kernel grants locks to this machine alone on NFS mounted with nolock or local_lock (nfs(5)),
    and on gcsfuse, which has no locks
    (https://cloud.google.com/storage/docs/cloud-storage-fuse/overview).
    """
    if not mounts.exists():
        return ""
    best, kind, options = "", "", ""
    for line in mounts.read_text(errors="replace").splitlines():
        before, _, after = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), before.split()[4])
        fields = after.split()
        if Path(os.path.realpath(path)).is_relative_to(point) and len(point) >= len(best):
            best, kind, options = point, fields[0], fields[2] if len(fields) > 2 else ""
    local = {"nolock", "local_lock=all", "local_lock=flock"} & set(options.split(","))
    if kind.startswith("nfs") and local:
        return f"{kind} mounted with {sorted(local)[0]}"
    return kind if kind == "fuse.gcsfuse" else ""
