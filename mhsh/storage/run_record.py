"""The types of run.json's values that its readers count on. The file may come from anybody; a key
may be missing, or be one of a later use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from mhsh.errors import UserError

# `status` of run.json: that of a run that a signal ended, or that gave up, is STOPPED.
RUNNING, STOPPED, FINISHED = "running", "stopped", "finished"

Step = Annotated[str, Meta(pattern=r"^[0-9]{1,18}$")]


class Entry(Struct):
    """A user's scheme, optimizer or source (`mhsh.config.registry`)."""

    field: str
    name: str
    file: str
    sha256: str


class _Ancestor(Struct):
    step: int
    folder: str | None = None
    tokens: float | None = None
    flops: float | None = None
    seconds: float | None = None
    fingerprint: str | None = None
    code: dict[Step, str] | None = None
    numerics: dict[Step, dict[str, Any]] | None = None
    entries: list[Entry] | None = None
    imported: str | None = None
    config: dict[str, Any] | None = None


class _Start(Struct):
    lineage: list[_Ancestor]


class _Data(Struct):
    fingerprint: str | None = None
    unigram_entropy: float | None = None


class _RunRecord(Struct):
    status: str = ""
    outcome: str | None = None
    remat_policy: str | None = None
    checkpoint: int | None = None
    vocabulary: str | None = None
    data: _Data = msgspec.field(default_factory=_Data)
    parameters: dict[str, int] = {}
    weight_decayed_parameters: int = 0
    code: dict[Step, str] = {}
    numerics: dict[Step, dict[str, Any]] = {}
    entries: list[Entry] = []
    wall_seconds: dict[str, float] = {}
    lost_rows: dict[Step, int] = {}
    changed: dict[Step, dict[str, Any]] = {}
    started_from: _Start | None = None
    imported: str | None = None


def check_record(record: dict[str, Any], path: object, required: Sequence[str]) -> None:
    """Raises UserError where a value of run.json is of another type than its readers count on, or
    one of those that are needed is missing.
    """
    lacking = [name for name in required if name not in record]
    if lacking:
        raise UserError(f"{path} is damaged: it has no {', '.join(lacking)}; put it back from a copy")
    try:
        msgspec.convert(record, _RunRecord)
    except (msgspec.ValidationError, OverflowError) as error:
        raise UserError(f"{path} is damaged: {error}; put it back from a copy") from error
