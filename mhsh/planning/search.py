"""The plan of a training step that fits a device and does the most tokens a second: its
rematerialisation and its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace

from mhsh.config.schema import Config
from mhsh.errors import UserError
from mhsh.planning.chips import CHIPS
from mhsh.training.memory import CANDIDATES, with_policy


def plans(config: Config, kind: str) -> Iterator[Config]:
    """The configs to try on this kind of device (of a TPU, or local): a remat policy of `auto`
    takes every value that could be faster somewhere.
    """
    policy, platform = config.model.remat_policy, "cpu" if kind == "local" else "tpu"
    for each in CANDIDATES[platform] if policy == "auto" else (policy,):
        yield with_policy(config, each)


def least_seconds(report: dict[str, Any]) -> float | None:
    """A step of a compiled program takes at least so long: its products at the chip's peak, its
    bytes of main memory, and what it sends over all links, whichever is longest. None where the
    program or the chip is not known.
    """
    chip = CHIPS.get(report["topology"].split(":")[0])
    if chip is None or "traffic" not in report:
        return None
    links = 2 * chip.dimensions if chip.dimensions else 1
    return max(
        report["flops"]["matrix_products"] / chip.peak_flops,
        (report["traffic"]["read"] + report["traffic"]["written"]) / chip.hbm_bandwidth,
        sum(each["sent_bytes"] for each in report["collectives"]) / (links * chip.link_bandwidth),
    )


def tokens_per_second(report: dict[str, Any], config: Config) -> float | None:
    """Of one device, at most; None where `least_seconds` is."""
    seconds = least_seconds(report)
    tokens = report["batch_size"] * config.data.sequence_length
    return None if seconds is None else tokens / seconds / report["num_devices"]


def best_plan(
    config: Config, kind: str, measure_plan: Callable[[Config], dict[str, Any]], unit: int
) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """The report of the plan that fits and could do the most tokens a second, or has the largest
    batch where no chip is known (None: nothing fits), and all reports in the order of the tries.

    Every report has `tokens_per_second`. Each plan's search of the batch begins at the largest of
    the plan before.

    Raises:
      UserError: the memory of a device is not known.
    """

    def measured(plan: Config) -> dict[str, Any]:
        report = measure_plan(plan)
        return report | {"tokens_per_second": tokens_per_second(report, plan)}

    tried: list[dict[str, Any]] = []
    train = config.train
    for plan in plans(config, kind):
        found, reports = largest_batch(replace(plan, train=train), measured, unit)
        tried += reports
        if found:
            train = replace(train, batch_size=found["batch_size"])
    fitting = [report for report in tried if report["fits"]]
    return max(fitting, key=lambda report: report["tokens_per_second"] or report["batch_size"], default=None), tried


def largest_batch(
    config: Config, measure_batch: Callable[[Config], dict[str, Any]], unit: int, max_tries: int = 14
) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """The report of the largest `train.batch_size` that fits (None: not even the smallest), and all
    reports in the order of the tries.

    The search starts from the config's batch, rounded to a multiple of `unit` (one row a device and
    micro-batch). It doubles or halves, then bisects until the next try would gain less than a
    sixteenth, with at most `max_tries` compilations.

    Raises:
      UserError: the memory of a device is not known.
    """
    tried: list[dict[str, Any]] = []

    def fits(units: int) -> bool:
        batch = replace(config.train, batch_size=units * unit)
        tried.append(measure_batch(replace(config, train=batch)))
        if tried[-1]["fits"] is None:
            raise UserError(f"the memory of a device of {tried[-1]['topology']} is not known; give it with --hbm=GIB")
        return tried[-1]["fits"]

    low, high, units = 0, 0, max(1, config.train.batch_size // unit)  # low fits, high does not; 0: not known yet
    while units and len(tried) < max_tries:
        if fits(units):
            low = units
        else:
            high = units
        if not high:
            units = 2 * low
        elif not low:
            units = high // 2
        elif high - low > max(1, low // 16):
            units = (low + high) // 2
        else:
            break
    best = next((report for report in tried if report["fits"] and report["batch_size"] == low * unit), None)
    return best, tried
