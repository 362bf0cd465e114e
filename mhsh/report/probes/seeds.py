"""Probed runs that differ only in their seeds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

Model = dict[str, Any]  # an entry of a probe's JSON


def seed_groups(models: Sequence[Model]) -> list[list[int]]:
    """The indices of the models whose configs and steps are equal but for train.seed and data.seed,
    in the order of the first of each group. A second model of the same seed starts another group.
    """
    groups: dict[tuple[str, int], list[int]] = {}
    times: dict[str, int] = {}
    for index, model in enumerate(models):
        config = model["config"]
        seedless = config | {"train": config["train"] | {"seed": 0}, "data": config["data"] | {"seed": 0}}
        alike = json.dumps([seedless, model["step"]], sort_keys=True)
        same = f"{alike} {config['train']['seed']}"
        times[same] = times.get(same, 0) + 1
        groups.setdefault((alike, times[same]), []).append(index)
    return list(groups.values())


def group_name(models: Sequence[Model]) -> str:
    """The name of a single model; of several, their shape, scheme and number."""
    if len(models) == 1:
        return models[0]["name"]
    model = models[0]["config"]["model"]
    decoder = f"-{model['num_decoder_layers']}L" if model["num_decoder_layers"] else ""
    return f"{model['num_layers']}L{decoder}{model['num_heads']}H {model['residual']}, {len(models)} seeds"
