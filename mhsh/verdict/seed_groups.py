"""Runs that differ only in their seeds."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from msgspec.structs import replace

from mhsh.config.schema import Config


def seed_groups(alike: Sequence[Hashable], configs: Sequence[Config]) -> list[list[int]]:
    """The indices of the runs by experiment.GROUP_RULE, in the order of each group's first run.

    Args:
      alike: of each run, what is equal in a group, without seeds.
      configs: of each run, for its seeds.
    """
    # The first runs of each config and seed apart from the second ones.
    rounds: dict[Hashable, list[int]] = {}
    seen: dict[Hashable, int] = {}
    for index, (key, config) in enumerate(zip(alike, configs, strict=True)):
        seeds = (key, config.train.seed, config.data.seed)
        seen[seeds] = seen.get(seeds, 0) + 1
        rounds.setdefault((key, seen[seeds]), []).append(index)
    groups: list[list[int]] = []
    for indices in rounds.values():
        data_seeds = [configs[index].data.seed for index in indices]
        train_seeds = {configs[index].train.seed for index in indices}
        if len(set(data_seeds)) == len(train_seeds) == len(indices):
            groups.append(indices)
            continue
        by_data_seed: dict[int, list[int]] = {}
        for index, data_seed in zip(indices, data_seeds, strict=True):
            by_data_seed.setdefault(data_seed, []).append(index)
        groups += by_data_seed.values()
    return sorted(groups)


def without_seeds(config: Config) -> Config:
    """The config with both seeds 0."""
    return replace(config, train=replace(config.train, seed=0), data=replace(config.data, seed=0))
