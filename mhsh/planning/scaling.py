"""The step time of a config on many devices, predicted from compiled programs: their arithmetic,
their memory traffic and their collectives.

Nothing here is measured. Time is bytes over bandwidth plus hops times latency, on the public
figures of `chips`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from mhsh.config.schema import Config
from mhsh.errors import UserError
from mhsh.models.costs import STEP_OVER_FORWARD, row_flops, step_flops
from mhsh.planning.chips import Chip


class Axis(NamedTuple):
    """A line or ring of chips that neighbours of a group form along one axis of a slice."""

    size: int
    wrapped: bool  # a ring
    stride: int  # hops between neighbours: as many such groups share each link

    @property
    def lanes(self) -> float:
        """Links that a device of the group has along it, a shared one counted by its share."""
        return (2 if self.wrapped else 1) / self.stride if self.size > 1 else 0.0

    @property
    def hops(self) -> int:
        """From one end to the other, or half around the ring."""
        return (self.size // 2 if self.wrapped else self.size - 1) * self.stride

    @property
    def distance(self) -> float:
        """Mean hops between two of its chips, as an all-to-all travels."""
        mean = self.size / 4 if self.wrapped else (self.size**2 - 1) / (3 * self.size)
        return mean * self.stride


class Group(NamedTuple):
    """Devices that run a collective together: `inside` of them in each of `outside` domains."""

    inside: int
    outside: int
    lanes: float  # links that carry a gather at the same time, of one device
    ring_lanes: float  # links that carry a shift to the next device of a ring
    hops: int  # of a gather within the domain
    distance: float  # mean hops between two devices of the domain

    @property
    def size(self) -> int:
        """All of them."""
        return self.inside * self.outside


class Traffic(NamedTuple):
    """The collectives of one kind over one mesh axis in a step, on one device."""

    kind: str  # as in training/hlo.py
    axis: str  # data, fsdp, or all: both
    count: float
    bytes: float  # payload: the whole array that is reduced, gathered or sent, as one device sees it


class Exchange(NamedTuple):
    """Seconds of a step."""

    latency: float
    transfer: float

    @property
    def total(self) -> float:
        """Both."""
        return self.latency + self.transfer


class Work(NamedTuple):
    """What one device does in a step besides sending; seconds."""

    compute: float
    hbm: float

    @property
    def total(self) -> float:
        """The longer of the two: a device computes while it reads."""
        return max(self.compute, self.hbm)


class Prediction(NamedTuple):
    """A step on `data` x `fsdp` devices; seconds, between two bounds of what the collectives
    cost.
    """

    data: int
    fsdp: int
    rows: int  # on one device
    work: Work
    exchanges: dict[tuple[str, str], Exchange]  # by kind and mesh axis

    @property
    def exchange(self) -> Exchange:
        """All collectives, one after the other."""
        parts = self.exchanges.values()
        return Exchange(sum(part.latency for part in parts), sum(part.transfer for part in parts))

    @property
    def hidden(self) -> float:
        """The lower bound: every collective runs while the device works."""
        return max(self.work.total, self.exchange.total)

    @property
    def exposed(self) -> float:
        """The upper bound: the device waits for every collective."""
        return self.work.total + self.exchange.total

    @property
    def limit(self) -> str:
        """What the lower bound consists of: compute, HBM, or the dearest collective and whether
        bytes or hops make it dear.
        """
        if self.work.total >= self.exchange.total:
            return "compute" if self.work.compute >= self.work.hbm else "HBM"
        (kind, axis), dearest = max(self.exchanges.items(), key=lambda item: item[1].total)
        return f"{kind} over {axis}: {'latency' if dearest.latency > dearest.transfer else 'bandwidth'}"


def slice_layout(chip: Chip, num_devices: int) -> list[Axis]:
    """The axes of a TPU slice of that many chips: powers of two, as even as they can be (8: 2x2x2,
    1024: 8x8x16; 2x4, 16x16).

    Raises:
      UserError: `num_devices` is no power of two.
    """
    if num_devices & (num_devices - 1):
        raise UserError(f"--devices: {num_devices} chips are no slice that is known here; allowed: powers of two")
    sizes = [1] * chip.dimensions
    for _ in range(num_devices.bit_length() - 1):
        sizes[max(place for place, size in enumerate(sizes) if size == min(sizes))] *= 2
    closed = [size % chip.wraps == 0 for size in sizes]
    if chip.dimensions == 3:
        closed = [all(closed)] * 3  # the switches that close rings stand between cubes of 4x4x4
    return [Axis(size, wrapped, 1) for size, wrapped in zip(sizes, closed, strict=True)]


def split_axes(axes: Sequence[Axis], size: int) -> tuple[list[Axis], list[Axis]]:
    """The axes for a group of `size` neighbours, and those that are left for the groups across.

    Whole axes where some multiply to `size`, the most of them (as jax's mesh_utils does it); else
    parts, from the first axis on.
    """
    for count in range(len(axes), 0, -1):
        for chosen in itertools.combinations(range(len(axes)), count):
            if math.prod(axes[place].size for place in chosen) == size:
                return [axes[place] for place in chosen], [axis for place, axis in enumerate(axes) if place not in chosen]
    taken: list[Axis] = []
    left: list[Axis] = []
    for axis in axes:
        part = math.gcd(axis.size, size // math.prod(one.size for one in taken))
        taken.append(Axis(part, axis.wrapped and part == axis.size, 1))
        left.append(Axis(axis.size // part, axis.wrapped and part == 1, part))
    return taken, left


def place(chip: Chip, data: int, fsdp: int) -> dict[str, Group]:
    """Where the groups of a mesh lie: fsdp on neighbours, data across, both first within a domain,
    then between domains.

    Raises:
      UserError: the devices make no slice, or no whole number of domains.
    """
    devices = data * fsdp
    inside = min(devices, chip.domain) if not chip.dimensions else min(devices, 1 << (chip.domain.bit_length() - 1))
    fsdp_inside = min(fsdp, inside)
    if devices % inside or fsdp % fsdp_inside or inside % fsdp_inside:
        raise UserError(f"data {data} x fsdp {fsdp} does not lie evenly on domains of {inside} devices")
    sizes = {"fsdp": (fsdp_inside, fsdp // fsdp_inside), "all": (inside, devices // inside)}
    sizes["data"] = (inside // fsdp_inside, data * fsdp_inside // inside)
    if not chip.dimensions:
        return {name: Group(*size, 1.0, 1.0, size[0] - 1, 1.0) for name, size in sizes.items()}
    axes = slice_layout(chip, inside)
    near, across = split_axes(axes, fsdp_inside)
    return {name: _group(*sizes[name], on) for name, on in (("fsdp", near), ("data", across), ("all", axes))}


def _group(inside: int, outside: int, axes: Sequence[Axis]) -> Group:
    used = [axis for axis in axes if axis.size > 1]
    lanes = sum(axis.lanes for axis in used)
    distance = max(1.0, sum(axis.distance for axis in used))
    return Group(inside, outside, lanes, min(2.0, lanes), sum(axis.hops for axis in used), distance)


def exchange_seconds(traffic: Traffic, group: Group, chip: Chip) -> Exchange:
    """What `traffic` takes over `group`, one collective after the other.

    A gather of n shares over k domains: within a domain a device sends (n-1)/n of the payload over
    all its links, between them (k-1)/k of its own domain's part over the network, in log2(k) hops.
    A scatter is a gather backwards, an all-reduce one of each. An all-to-all travels the mean
    distance; a permute is a shift to the next device, half of them in each direction of a ring.
    """
    if group.size == 1:
        return Exchange(0.0, 0.0)
    link = chip.link_bandwidth
    if traffic.kind == "collective-permute":
        slowest = chip.network_bandwidth if group.outside > 1 else link * group.ring_lanes
        hop = chip.network_hop_seconds if group.outside > 1 else chip.hop_seconds / group.ring_lanes
        return Exchange(traffic.count * (chip.start_seconds + hop), traffic.bytes / slowest)
    phases = 2 if traffic.kind == "all-reduce" else 1
    travelled, share = traffic.bytes, 1 / group.inside
    if traffic.kind == "all-to-all":
        travelled, share = traffic.bytes * group.distance, 1.0
    transfer = 0.0
    if group.inside > 1:
        transfer += travelled * (group.inside - 1) / group.inside / (link * group.lanes)
    if group.outside > 1:
        transfer += traffic.bytes * share * (group.outside - 1) / group.outside / chip.network_bandwidth
    hops = group.hops * chip.hop_seconds + math.ceil(math.log2(group.outside)) * chip.network_hop_seconds
    return Exchange(traffic.count * (chip.start_seconds + phases * hops), phases * transfer)


def memory_bytes(reports: Sequence[dict[str, Any]], rows: int) -> float:
    """What one device with `rows` rows moves to and from its memory in a step.

    It was counted in the compiled programs. Between two of them, by their rows a device, it lies on
    the line through them. Beyond them, the update and what belongs to no layer stay as in the
    nearest one, and all else grows with the rows, which is too much by the weights. The line would
    not do there: a stream of few rows stays on the chip, and one of many does not.
    """
    counted: dict[int, tuple[float, float]] = {}
    for report in reports:
        moved = {phase: part["moved"] for phase, part in report["traffic"]["by_phase"].items()}
        counted[report["batch_size"] // report["num_devices"]] = (sum(moved.values()), moved["optimizer"] + moved["other"])
    known = sorted(counted)
    nearest = min(max(rows, known[0]), known[-1])
    if nearest != rows or len(known) == 1:
        total, fixed = counted[nearest]
        return fixed + (total - fixed) * rows / nearest
    low, high = _nearest_two(known, rows)
    return counted[low][0] + (rows - low) / (high - low) * (counted[high][0] - counted[low][0])


def _nearest_two(known: Sequence[int], at: int) -> tuple[int, int]:
    """The neighbours of `at` in a sorted sequence, or the two at the end beyond which it lies."""
    place = next((i for i, value in enumerate(known[1:-1], 1) if at <= value), len(known) - 1)
    return known[place - 1], known[place]


class Family:
    """The collectives of one config on meshes of one fsdp size, as compiled for one or more numbers
    of devices.

    Between and beyond compiled programs, counts and bytes lie on the line through the two nearest
    ones over the rows of the global
    batch: gradients and gathered weights do not grow with it, an activation that is gathered over
    all devices does. A program of one device along `data` says nothing about more.
    """

    def __init__(self, config: Config, reports: Sequence[dict[str, Any]]):
        """`reports`: of `mhsh aot --json`, of one fsdp size.

        Raises:
          UserError: a report is of another config or of several slices, did not fit, or has mesh
            axes of equal size.
        """
        for report in reports:
            _check(config, report)
        self.reports = sorted(reports, key=lambda report: report["batch_size"])
        self.fsdp = self.reports[0]["mesh"]["fsdp"]
        batches = [report["batch_size"] for report in self.reports]
        self.points = {report["batch_size"]: _by_axis(report) for report in self.reports}
        if len(self.points) != len(batches):
            raise UserError(f"two reports of fsdp {self.fsdp} have the same batch ({batches}); give one of them, or other batches")
        flops = self.reports[0]["flops"]
        self.passes = STEP_OVER_FORWARD * flops["matrix_products"] / flops["ledger"]

    def knows(self, devices: int) -> bool:
        """Whether these reports say what a mesh of that many devices exchanges."""
        along_data = {report["mesh"]["data"] for report in self.reports}
        return devices == self.fsdp if along_data == {1} else devices % self.fsdp == 0 and devices > self.fsdp

    def traffic(self, batch: int) -> list[Traffic]:
        """What one device exchanges in a step of `batch` rows over all devices."""
        if len(self.points) == 1:
            (alone,) = self.points.values()
            return [Traffic(*key, *value) for key, value in alone.items()]
        low, high = _nearest_two(list(self.points), batch)
        before, after = self.points[low], self.points[high]
        share, line = (batch - low) / (high - low), []
        for key in sorted(before.keys() | after.keys()):
            (count, num_bytes), (later_count, later_bytes) = before.get(key, (0, 0)), after.get(key, (0, 0))
            here = [max(0.0, a + share * (b - a)) for a, b in ((count, later_count), (num_bytes, later_bytes))]
            line.append(Traffic(*key, *here))
        return line

    def predict(self, config: Config, chip: Chip, devices: int, rows: int, efficiency: float) -> Prediction:
        """A step with `rows` rows on each of `devices` chips whose matrix units reach `efficiency`
        of their peak.
        """
        groups = place(chip, devices // self.fsdp, self.fsdp)
        flops = self.passes * row_flops(config).total * rows
        work = Work(flops / (chip.peak_flops * efficiency), memory_bytes(self.reports, rows) / chip.hbm_bandwidth)
        exchanges = {(one.kind, one.axis): exchange_seconds(one, groups[one.axis], chip) for one in self.traffic(rows * devices)}
        return Prediction(devices // self.fsdp, self.fsdp, rows, work, exchanges)


def _check(config: Config, report: dict[str, Any]) -> None:
    name, mesh = f"the report of {report['topology']}, {report['mesh']}", report["mesh"]
    if "collectives" not in report:
        raise UserError(f"{name} has no program: the step did not fit")
    if "traffic" not in report:
        raise UserError(f"{name} is of an earlier mhsh, which did not count memory traffic; run mhsh aot --json again")
    if report["num_slices"] != 1 or mesh["tensor"] != 1:
        raise UserError(f"{name}: give a report of one slice and of tensor 1; the traffic between slices is computed from that")
    if mesh["data"] == mesh["fsdp"] > 1:
        raise UserError(
            f"{name}: data and fsdp have the same size, so their collectives cannot be separated; compile a mesh where they differ"
        )
    told = report["flops"]["ledger"] * report["num_devices"] / report["batch_size"]
    here = step_flops(config) / config.train.batch_size
    if not math.isclose(told, here, rel_tol=1e-6):
        raise UserError(f"{name} is of another config: {told:.6g} FLOPs a row there, {here:.6g} in --config")
    if config.train.accumulation_steps != 1:
        raise UserError("train.accumulation_steps: the prediction is for steps without accumulation; compile and predict with 1")


def _by_axis(report: dict[str, Any]) -> dict[tuple[str, str], tuple[int, int]]:
    """Counts and payload bytes of a step by kind and mesh axis."""
    mesh = report["mesh"]
    axes = {mesh["data"] * mesh["fsdp"]: "all", mesh["data"]: "data", mesh["fsdp"]: "fsdp"}
    if 1 in (mesh["data"], mesh["fsdp"]):
        axes = {report["num_devices"]: "data" if mesh["fsdp"] == 1 else "fsdp"}
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for one in report["collectives"]:
        # The HLO of a permute names pairs, not groups: it is a piece of a gather over fsdp where
        # there is fsdp.
        axis = ("fsdp" if mesh["fsdp"] > 1 else "data") if one["kind"] == "collective-permute" else axes.get(one["group"])
        if axis is None:
            raise UserError(f"the report of {report['topology']}: groups of {one['group']} devices are no axis of {mesh}")
        count, num_bytes = found.get((one["kind"], axis), (0, 0))
        found[one["kind"], axis] = (count + one["count"], num_bytes + one["bytes"])
    return found
