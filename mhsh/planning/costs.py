"""What a training run will cost: its parameters, tokens and FLOPs."""

from __future__ import annotations

import functools
from typing import NamedTuple

from mhsh.config.schema import Config, ModelConfig, rows_in_batch
from mhsh.models.costs import parameter_counts, step_flops


class RunCost(NamedTuple):
    """The figures of one run of train.num_steps steps."""

    parameters: int  # all of them, omega included
    tokens: int  # positions in its training rows, padding included
    flops: int  # forward and backward, without recomputation and validation


def run_cost(config: Config) -> RunCost:
    """The cost of one run of `config`, computed from the config alone."""
    steps = config.train.num_steps
    return RunCost(
        parameters=_parameters(config.model),
        tokens=steps * rows_in_batch(config) * config.data.sequence_length,
        flops=steps * step_flops(config),
    )


@functools.cache
def _parameters(model: ModelConfig) -> int:
    # Counting traces the model, and many runs of a sweep have the same one.
    return parameter_counts(model)["total"]
