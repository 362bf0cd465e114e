"""What may change in the config of a run that has begun: whatever does not change its losses."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from mhsh.config.fields import format_differences, free_fields
from mhsh.config.resolve import from_dict
from mhsh.config.schema import Config, to_dict
from mhsh.configs import override
from mhsh.errors import UserError


def with_changes(config: Config, changes: Sequence[tuple[str, Any]], run: str | os.PathLike[str]) -> Config:
    """The config of `run` with other values by path. Raises UserError where there is no such field,
    the value is not allowed, or the field decides losses.
    """
    changed = from_dict(override(to_dict(config), changes, "--config."))
    refused = format_differences(config, changed, without=free_fields(config.model.objective))
    if refused:
        raise UserError(
            f"{run} is a run of another config ({refused}); leave that flag away: of a run only fields of the roles clock and "
            "bookkeeping change, such as data.source"
        )
    return changed


def check_goes_on(before: Config, config: Config, path: str | os.PathLike[str]) -> None:
    """Raises UserError unless the run in `path` may go on with `config`: with other values of
    `free_fields`, and more steps under a schedule that does not depend on their number.
    """
    steps, more = before.train.num_steps, config.train.num_steps
    free = [*free_fields(before.model.objective), *(["train.num_steps"] if more >= steps else [])]
    refused = format_differences(before, config, without=free)
    if refused:
        raise UserError(
            f"{path} holds a run of another config ({refused}); choose another --workdir, or leave there what decides its losses: "
            "fields of the roles clock and bookkeeping may change"
        )
    if more > steps and (config.optimizer.schedule in ("linear", "cosine") or config.optimizer.decay_steps):
        raise UserError(
            f"{path} cannot be extended from {steps} to {more} steps: its learning rate (optimizer.schedule = "
            f"{config.optimizer.schedule!r}) ends with them; start another run from it with --config.train.start_from={path}"
        )
