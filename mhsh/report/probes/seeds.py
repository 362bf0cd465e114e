"""Probed runs that differ only in their seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mhsh.config.resolve import from_dict
from mhsh.config.shapes import shape_name
from mhsh.verdict.seed_groups import seed_groups, without_seeds

Model = dict[str, Any]  # an entry of a probe's JSON


def model_groups(models: Sequence[Model]) -> list[tuple[str, list[int]]]:
    """Name and indices of each group of models at the same step, by GROUP_RULE. The name is that of
    a single model; of several, their shape, scheme and number.
    """
    configs = [from_dict(model["config"]) for model in models]
    alike = [(without_seeds(config), model["step"]) for config, model in zip(configs, models, strict=True)]
    groups = []
    for indices in seed_groups(alike, configs):
        first = configs[indices[0]].model
        several = f"{shape_name(first)} {first.residual}, {len(indices)} seeds"
        groups.append((several if len(indices) > 1 else models[indices[0]]["name"], indices))
    return groups
