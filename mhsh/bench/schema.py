"""The JSON of a bench run: what it holds, and how the grids of shapes in it are read back. Nothing
here imports jax.

Format 1, all times in seconds:

  format        1
  kind          train, inference, compile, input or decode
  unit          of work: token (train, inference, input), program (compile), target token (decode)
  environment   versions, git_revision, devices, processes (as in a run.json); cores: that the
                process may use; processor; torch: null, or versions, threads and device of the
                peers; xla_preallocates; omp_wait_policy and glibc_tunables, where they are set
  settings      the options that the run was measured with
  configs       by name (config, against): the whole config, as config.json has it
  ceilings      matmul and copy, on one device: unit, work of a repetition, turns, rate (the best
                turn's, per second), and what they are of; {} where the kind has none
  peak_flops    FLOP/s of one device by its public data sheet (dense bf16); null where the kind of
                device is not known, or the config computes in another dtype
  cells         one for each setting:
    setting       batch and length (train, inference), or what else the kind varies
    candidates   in the order in which they took turns:
      name, label   by which it is found, and what it is for people
      baseline      the candidate that ratios are to; null for the first
      config        whose shape and batch it has: config or against
      implementation  mhsh, or the peer
      parameters    that it has; omega: how many of them are Admin's, which peers do not have
      dtype, devices  what it computes in, and on how many
      remat_policy  of mhsh: what `auto` came to; without meaning in inference and decode
      work          units in one repetition
      repetitions   in a turn
      turns         one list a round: seconds of each repetition, or (train) one figure, the turn's
      mean
      cpu           CPU seconds of a repetition, a figure a round: all threads, and children that
      have ended
      seconds       of a repetition: median (over the medians of the turns), low, high, confidence;
      the interval's own
      rate          units per second, at the median
      time_ratio    seconds per unit over the baseline's, of the same round: median, low, high,
      confidence; above 1 is slower
      cpu_ratio     CPU seconds per unit, the same way
      best_ratio    of the fastest turns
      flops         of one repetition, by the ledger: matrix products, recomputation left out
      flops_per_second, share_of_matmul, share_of_peak   achieved on one device, and over what one
      device can do
      bytes_accessed  of one repetition, on one device, by XLA's count (null where the program has
      loops) bytes_per_second, share_of_copy   the same for bytes
      memory        mhsh: arguments, temporaries, peak, by XLA's account; peers on CUDA: peak, that
      torch allocated. Bytes a device

What a kind does not measure is null or absent.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from mhsh.errors import UserError

FORMAT = 1
GRID_KINDS = ("train", "inference")  # whose settings are batch and length


class Interval(NamedTuple):
    """A median, and the interval that holds the true one with `confidence`; all above 0."""

    median: float
    low: float
    high: float
    confidence: float

    def scaled(self, factor: float) -> Interval:
        """Times a positive number."""
        return self._replace(median=factor * self.median, low=factor * self.low, high=factor * self.high)

    def inverse(self) -> Interval:
        """Of 1 / x: order statistics stay order statistics, and 1 / median is a median of the
        reciprocals.
        """
        return self._replace(median=1 / self.median, low=1 / self.high, high=1 / self.low)


@dataclasses.dataclass(frozen=True)
class Entry:
    """One candidate of one setting; the fields are those of the JSON."""

    name: str
    label: str
    baseline: str | None
    config: str
    implementation: str
    devices: int
    work: int  # tokens of a repetition
    seconds: Interval  # of a repetition
    time_ratio: Interval | None  # seconds a token over the baseline's
    memory: int | None  # bytes a device


@dataclasses.dataclass(frozen=True)
class Cell:
    """One setting; entries in the order of their turns, their names all different."""

    batch: int
    length: int
    entries: tuple[Entry, ...]


@dataclasses.dataclass(frozen=True)
class BenchFile:
    """What `mhsh bench train` or `mhsh bench inference` measured."""

    path: str
    kind: str
    device: str  # in words
    configs: Mapping[str, Mapping[str, Any]]  # by name, as config.json has them
    cells: tuple[Cell, ...]  # no setting twice


def memory_bytes(memory: Mapping[str, int]) -> int:
    """Of the JSON's `memory`, what has to be there at once."""
    # XLA's peak leaves the temporaries out on CPU.
    return max(memory.get("peak", 0), memory.get("arguments", 0) + memory.get("temporaries", 0))


def read_bench(path: str) -> BenchFile:
    """The grid in a file.

    Raises:
      UserError: it cannot be read, is of another kind or format, or is damaged.
    """
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}; give what mhsh bench --out wrote") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is no JSON, or is cut short ({error}); give what mhsh bench --out wrote") from error
    if not isinstance(found, dict) or not {"format", "kind", "cells"} <= found.keys():
        raise UserError(f"{path} is not what mhsh bench wrote; give its --out file")
    if found["format"] != FORMAT:
        raise UserError(f"{path} is of format {found['format']!r}, and this mhsh reads format {FORMAT}; measure again")
    if found["kind"] not in GRID_KINDS:
        raise UserError(f"{path} is of mhsh bench {found['kind']}; shapes are compared by {' and '.join(GRID_KINDS)} alone")
    return _bench(path, _Part(path, "", found))


def _bench(path: str, document: _Part) -> BenchFile:
    configs = document.at("configs")
    for name in configs.mapping():
        for field in ("num_heads", "num_layers"):
            configs.at(name).at("model").at(field).whole()
    cells = tuple(_cell(cell, configs.mapping()) for cell in document.at("cells").items())
    settings = [(cell.batch, cell.length) for cell in cells]
    for batch, length in settings:
        if settings.count((batch, length)) > 1:
            raise UserError(f"{path} measured batch {batch} x length {length} more than once; name each but once to mhsh bench")
    environment = document.at("environment")
    devices = environment.at("devices")
    device = devices.at("kind").text()
    if devices.at("platform").text() == "cpu":  # whose kind says no more than that
        device = f"{device} ({environment.at('processor').text()}, {environment.at('cores').whole()} cores)"
    return BenchFile(path, document.at("kind").text(), device, configs.mapping(), cells)


def _cell(part: _Part, configs: Mapping[str, Any]) -> Cell:
    entries = tuple(_entry(entry, configs) for entry in part.at("candidates").items())
    names = [entry.name for entry in entries]
    for entry in entries:
        if names.count(entry.name) > 1:
            raise part.damaged(f"has {entry.name} more than once")
        if entry.baseline is not None and entry.baseline not in names:
            raise part.damaged(f"has no {entry.baseline}, the baseline of {entry.name}")
    setting = part.at("setting")
    return Cell(setting.at("batch").whole(), setting.at("length").whole(), entries)


def _entry(part: _Part, configs: Mapping[str, Any]) -> Entry:
    baseline, ratio, memory = part.at("baseline"), part.at("time_ratio"), part.at("memory")
    if part.at("config").text() not in configs:
        raise part.at("config").damaged("is the name of no config in it")
    return Entry(
        name=part.at("name").text(),
        label=part.at("label").text(),
        baseline=None if baseline.value is None else baseline.text(),
        config=part.at("config").text(),
        implementation=part.at("implementation").text(),
        devices=part.at("devices").whole(),
        work=part.at("work").whole(),
        seconds=_interval(part.at("seconds")),
        time_ratio=None if ratio.value is None else _interval(ratio),
        memory=memory_bytes({key: memory.at(key).count() for key in memory.mapping()}) if memory.value else None,
    )


def _interval(part: _Part) -> Interval:
    found = Interval(*(part.at(field).number() for field in Interval._fields))
    if not found.low <= found.median <= found.high:
        raise part.damaged("has its median outside its interval")
    return found


@dataclasses.dataclass(frozen=True)
class _Part:
    """A value of the document, with its place in it for whoever has to mend it. What is not there
    is None.
    """

    path: str
    place: str
    value: Any

    def at(self, key: str) -> _Part:
        return _Part(self.path, f"{self.place}.{key}".lstrip("."), self.mapping().get(key))

    def mapping(self) -> Mapping[str, Any]:
        if not isinstance(self.value, dict):
            raise self.damaged("is no object")
        return self.value

    def items(self) -> list[_Part]:
        if not isinstance(self.value, list) or not self.value:
            raise self.damaged("is no list of anything")
        return [_Part(self.path, f"{self.place}[{index}]", value) for index, value in enumerate(self.value)]

    def text(self) -> str:
        if not isinstance(self.value, str):
            raise self.damaged("is no text")
        return self.value

    def number(self) -> float:
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise self.damaged("is no number")
        if not 1e-300 < self.value < 1e300:
            raise self.damaged("is no number above 0")
        return float(self.value)

    def count(self) -> int:
        if isinstance(self.value, bool) or not isinstance(self.value, int) or not 0 <= self.value < 1 << 63:
            raise self.damaged("is no whole number")
        return self.value

    def whole(self) -> int:
        if self.count() == 0:
            raise self.damaged("is 0")
        return self.count()

    def damaged(self, reason: str) -> UserError:
        return UserError(f"{self.path} is damaged: {self.place or 'it'} {reason}; measure again with mhsh bench")
