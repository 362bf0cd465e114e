"""The axes of a sweep over a config, and its cells: one valid config for each combination."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from mhsh.config.entries import check_entries, variant
from mhsh.config.fields import SHAPING, kind_of, parse_value
from mhsh.config.resolve import decay_start, from_dict
from mhsh.config.schema import Config
from mhsh.errors import UserError, nearest

DEPTH = "model.num_layers"
# The axis that sets both seeds: a run with another seed has another initialisation, dropout, split,
# order and masking.
SEED = "seed"
SEEDS = (SEED, "train.seed", "data.seed")

# Short names that no field has, or that two sections have.
SHORT_NAMES = {"train_seed": "train.seed", "data_seed": "data.seed", "lr": "optimizer.learning_rate", "depth": DEPTH}

# The axis that sets two fields: a residual scheme, and for Admin how omega starts.
SCHEME = "scheme"
# The axis of lengths of training: train.num_steps, and optimizer.decay_steps in proportion.
BUDGET = "budget"

_LONGEST_PART = 60  # characters of one value in a cell's name: it becomes a folder's

Value = int | float | bool | str
Fields = Mapping[str, Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Axis:
    """One field of the config (or the scheme), and the values that it takes, in the order given."""

    path: str  # section.field, SCHEME, SEED or BUDGET
    values: tuple[Value, ...]

    @property
    def name(self) -> str:
        """The path without its section."""
        return self.path.split(".")[-1]


@dataclasses.dataclass(frozen=True)
class Cell:
    """One run of the sweep."""

    name: str  # also its folder's; from the settings alone, so that a grown sweep finds its old cells
    settings: Mapping[str, Value]  # by axis path
    config: Config
    cost: Mapping[str, int]  # parameters; tokens and flops of the steps that it trains itself


def parse_axes(texts: Sequence[str], fields: Fields, sample: int | None = None) -> tuple[Axis, ...]:
    """`NAME=VALUE,VALUE...` texts as axes over the config `fields`. With `sample`, one of them is
    NAME=LOW..HIGH, and has so many values of that range.

    NAME is a field's path (optimizer.learning_rate), its last part where one section alone has it
    (learning_rate), `seed` for train.seed and data.seed together, `train_seed` and `data_seed` for
    one of them, `lr` for the learning rate, `depth` for model.num_layers, `budget` for
    train.num_steps with optimizer.decay_steps in proportion, or `scheme`, whose values are residual
    schemes. A value is of the field's type.

    Raises UserError for an unknown field, a value of another type, a value or an axis that is given
    twice, or nothing at all.
    """
    if not texts:
        raise UserError("mhsh sweep needs --axes NAME=VALUE,VALUE,..., for example --axes heads_per_layer=8,4,2,1 seed=0,1,2")
    axes = [_axis(text, fields, sample) for text in texts]
    ranges = sum(_is_range(axis.path, text.partition("=")[2]) for axis, text in zip(axes, texts, strict=True))
    if sample is not None and ranges != 1:
        raise UserError(f"--sample={sample} is for one axis that is a range, such as lr=1e-4..1e-2, and {ranges} are given")
    claimed: dict[str, str] = {}
    for axis in axes:
        for path in fields_of(axis.path):
            if path in claimed:
                raise UserError(f"--axes: {path} is set by {claimed[path]} and by {axis.path}; give each field one axis")
            claimed[path] = axis.path
    return tuple(axes)


def cells_of(axes: Sequence[Axis], fields: Fields, cost_of: Callable[[Config], Mapping[str, int]]) -> tuple[Cell, ...]:
    """Every combination, the last axis changing fastest. `cost_of` gives the cost of a config.
    Raises UserError where the config of a cell is not valid, naming the cell, or two cells are the
    same run.
    """
    short = [axis.name for axis in axes]
    names = {axis.path: axis.name if short.count(axis.name) == 1 else axis.path for axis in axes}
    cells: list[Cell] = []
    seen: dict[Config, str] = {}
    for values in itertools.product(*(axis.values for axis in axes)):
        name = "_".join(f"{names[axis.path]}-{_folder_part(value)}" for axis, value in zip(axes, values, strict=True))
        settings = {axis.path: value for axis, value in zip(axes, values, strict=True)}
        try:
            config = from_dict(_apply_settings(fields, settings))
            check_entries(config)
        except UserError as error:
            raise UserError(f"cell {name}: {error}") from error
        if config in seen:
            raise UserError(f"the cells {seen[config]} and {name} are the same run; leave one of their values out")
        seen[config] = name
        cells.append(Cell(name, settings, config, cost_of(config)))
    return tuple(cells)


def fields_of(path: str) -> tuple[str, ...]:
    """The fields that an axis may set."""
    several = {
        SCHEME: ("model.residual", "model.admin_omega"),
        SEED: ("train.seed", "data.seed"),
        BUDGET: ("train.num_steps", "optimizer.decay_steps"),
    }
    return several.get(path, (path,))


def families(cells: Sequence[Cell]) -> list[list[Cell]]:
    """The cells that differ in their budget alone, in ascending order of it."""
    by_settings: dict[tuple[Value, ...], list[Cell]] = {}
    for cell in cells:
        by_settings.setdefault(tuple(value for path, value in cell.settings.items() if path != BUDGET), []).append(cell)
    return [sorted(family, key=lambda cell: cell.config.train.num_steps) for family in by_settings.values()]


def parents(cells: Sequence[Cell]) -> dict[str, Cell]:
    """The cell of the next smaller budget, by the names of the cells that have one. They
    share its steps before its decay, so they begin after them. Other schedules than wsd share none.
    """
    pairs = [pair for family in families(cells) for pair in itertools.pairwise(family)]
    return {cell.name: parent for parent, cell in pairs if decay_start(parent.config)}


def _axis(text: str, fields: Fields, sample: int | None) -> Axis:
    name, equals, listed = text.partition("=")
    if not equals or not name or not listed:
        raise UserError(f"--axes {text!r} is not NAME=VALUE,VALUE,...; for example heads_per_layer=8,4,2,1")
    path = _path(name, fields)
    if _is_range(path, listed):
        return Axis(path, _sample_range(text, path, listed, sample))
    values = tuple(_value(path, value) for value in listed.split(","))
    for value in values:
        if values.count(value) > 1:
            raise UserError(f"--axes {text}: {value} appears twice")
    return Axis(path, values)


def _is_range(path: str, listed: str) -> bool:
    return ".." in listed and kind_of(path) in (int, float)


def _sample_range(text: str, path: str, listed: str, sample: int | None) -> tuple[Value, ...]:
    """Values of a range, in ascending order: more values are the same ones and others between."""
    from scipy.stats import qmc

    low, high = (_value(path, end) for end in listed.split("..", 1))
    if sample is None or isinstance(low, str) or isinstance(high, str) or not 0 < low < high:
        raise UserError(f"--axes {text}: a range goes with --sample=N, from a number above 0 to a larger one")
    drawn = qmc.Sobol(d=1, scramble=False).random_base2((sample - 1).bit_length())[:sample, 0]
    values = {float(f"{low * (high / low) ** share:.3g}") for share in drawn}
    return tuple(sorted({round(value) for value in values} if kind_of(path) is int else values))


def _path(name: str, fields: Fields) -> str:
    if name in (SCHEME, SEED, BUDGET):
        return name
    known = [f"{section}.{field}" for section, values in fields.items() for field in values]
    known += [path for path in SHAPING if path not in known]
    found = fields_named(name, known)
    if len(found) == 1:
        return found[0]
    if found:
        raise UserError(f"--axes {name}: {' and '.join(found)} are both called so; give the whole path")
    names = [*known, *(path.split(".")[-1] for path in known), *SHORT_NAMES, SCHEME, SEED, BUDGET]
    hint = nearest(name, names, otherwise="give a field's path, such as optimizer.learning_rate")
    raise UserError(f"--axes {name}: the config has no such field; {hint}")


def fields_named(name: str, known: Iterable[str]) -> list[str]:
    """The paths, of those known, that a path, a short name or the last part of a path names."""
    path = SHORT_NAMES.get(name, name)
    return [each for each in known if each == path] or [each for each in known if each.split(".")[-1] == name]


def _value(path: str, text: str) -> Value:
    """The text as a value of the field's type; `from_dict` says whether it is allowed there."""
    try:
        if path == SCHEME:
            variant(text)
            return text
        return parse_value(fields_of(path)[0], text)
    except UserError as error:
        raise UserError(f"--axes: {error}") from error


def _apply_settings(fields: Fields, settings: Mapping[str, Value]) -> dict[str, Any]:
    changed = {section: dict(copy.deepcopy(values)) for section, values in fields.items()}
    for path, value in settings.items():
        if path == SCHEME:
            changed["model"] |= variant(str(value))[1]
            continue
        if path == BUDGET:
            decays = fields["optimizer"]["decay_steps"] * int(value) / fields["train"]["num_steps"]
            changed["train"]["num_steps"], changed["optimizer"]["decay_steps"] = value, round(decays)
            continue
        for target in fields_of(path):
            section, field = target.split(".")
            changed[section][field] = value
    return changed


def _folder_part(value: Value) -> str:
    """The value in a folder's name. A checksum follows one that had to be cut or changed."""
    text = str(value)
    plain = re.sub(r"[^A-Za-z0-9._+-]", "-", text)[:_LONGEST_PART]
    return text if plain == text else f"{plain}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
