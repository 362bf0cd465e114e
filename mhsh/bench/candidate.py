"""What is timed: a piece of work that can be done over and over, and all that is known of it beside
its time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from mhsh.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """One of those that take turns. `facts` are for the JSON (see `document`)."""

    name: str  # config, against, or that of a peer, `torch-eager`
    label: str  # what it is, for people
    run: Callable[[int], None]  # so many repetitions; returns when the results are there
    work: int  # tokens (programs, for compile) of one repetition
    baseline: str | None  # the candidate whose time its own is divided by
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    check: Callable[[], None] = lambda: None  # raises UserError where what was computed is no number


def whole_numbers(flag: str, text: str) -> list[int]:
    """The whole numbers of a list such as 1,4,16.

    Raises:
      UserError: one is none, or less than 1.
    """
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise UserError(f"--{flag}={text}: give whole numbers of at least 1, as in --{flag}=1,4,16")
    return [int(part) for part in parts]
