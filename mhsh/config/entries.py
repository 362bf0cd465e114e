"""The registries of residual schemes, optimizers and sources of documents, and their entries."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mhsh.config.registry import Registry, file_flag
from mhsh.config.schema import Config, DataConfig, OptimizerConfig
from mhsh.errors import UserError


@dataclasses.dataclass(frozen=True)
class Variant:
    """A scheme by its name in a sweep and a probe: with fields of `model` beside model.residual."""

    label: str  # as papers write it; `$` encloses formulas
    growth: str = ""  # how E|f(w) - f(w + delta)|^2 should grow with n sublayers; empty: nobody says
    source: str = ""  # who says so
    fields: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Scheme:
    """A residual scheme."""

    residual: Any  # the class: mhsh.models.residual.Residual
    variants: Mapping[str, Variant]  # the plain one has the name of the scheme


@dataclasses.dataclass(frozen=True)
class UpdateRule:
    """An optimizer: what it makes of a gradient before weight decay and the learning rate."""

    build: Callable[[OptimizerConfig], Any]  # an optax.GradientTransformation
    source: str
    trust_ratio: bool = False  # whether LAMB's follows weight decay
    scales_with_depth: bool = False  # whether a scheme may scale the layers' gradients, on which no update's size depends
    whole_matrices: bool = False  # whether it needs each layer's matrices undivided
    flops: Callable[[Config], int] = lambda config: 0  # of one update, beyond passes over the parameters


SCHEMES: Registry[Scheme] = Registry(
    "residual scheme", "model.residual", ["mhsh.models.schemes", "mhsh.models.block_attn_res", "mhsh.models.mhc_lite"]
)
UPDATE_RULES: Registry[UpdateRule] = Registry("optimizer", "optimizer.name", ["mhsh.training.optimizer", "mhsh.training.muon"])
SOURCES: Registry[Any] = Registry("source", "data.source", ["mhsh.data.documents"])
REGISTRIES: Sequence[Registry[Any]] = (SCHEMES, UPDATE_RULES, SOURCES)


def add_residual(
    name: str,
    *,
    label: str = "",
    growth: str = "",
    source: str = "",
    fields: Mapping[str, str] | None = None,
    variants: Mapping[str, Variant] | None = None,
) -> Callable[[Any], Any]:
    """Decorates a class of `mhsh.models.residual.Residual`: makes it the residual scheme `name`,
    with the fields of its plain `Variant` (docs/add_your_own.md); `variants` has further values of
    `scheme=` in a sweep. Raises UserError where it is no such class, or the name is taken.
    """
    own = {name: Variant(label or name, growth, source, fields or {}), **(variants or {})}

    def add(residual: Any) -> Any:
        if not hasattr(residual, "layer_scales"):
            raise UserError(f"the residual scheme {name!r} is no class of mhsh.models.residual.Residual; derive it from that")
        SCHEMES.add(name, Scheme(residual, own), residual)
        return residual

    return add


def add_optimizer(
    name: str,
    *,
    source: str = "",
    trust_ratio: bool = False,
    scales_with_depth: bool = False,
    whole_matrices: bool = False,
    flops: Callable[[Config], int] = lambda config: 0,
) -> Callable[[Any], Any]:
    """Decorates a function from `config.optimizer` to an `optax.GradientTransformation`: makes it
    the optimizer `name`, with the fields of `UpdateRule` (docs/add_your_own.md).

    The transformation turns gradients into directions of ascent. Clipping before it, and weight
    decay and the learning rate after it, are the same for all. Raises UserError where the name is
    taken.
    """

    def add(build: Any) -> Any:
        UPDATE_RULES.add(name, UpdateRule(build, source, trust_ratio, scales_with_depth, whole_matrices, flops), build)
        return build

    return add


def variants() -> dict[str, tuple[Variant, dict[str, str]]]:
    """Every variant of a residual scheme and the fields of `model` that it sets, by its name in a
    sweep.
    """
    return {
        name: (variant, {"residual": residual, **variant.fields})
        for residual in SCHEMES.names()
        for name, variant in SCHEMES[residual].variants.items()
    }


def variant(name: str) -> tuple[Variant, dict[str, str]]:
    """The variant of that name, and its fields. Raises UserError where there is none."""
    known = variants()
    if name not in known:
        SCHEMES.refuse(name, list(known))
    return known[name]


def check_entries(config: Config) -> None:
    """Raises UserError where the config names a residual scheme or an optimizer that is not known
    here, or two that do not go together.
    """
    residual, rule = SCHEMES[config.model.residual].residual, UPDATE_RULES[config.optimizer.name]
    if residual.layer_scales(config.model) is None:
        return
    what = f"allowed with model.residual = {config.model.residual!r}"
    if not rule.scales_with_depth:
        allowed = ", ".join(name for name in UPDATE_RULES.names() if UPDATE_RULES[name].scales_with_depth)
        raise UserError(f"optimizer.name = {config.optimizer.name!r}; {what}: {allowed}")
    if config.model.loops > 1:  # the gradient of a layer is a sum over its passes, which the factors do not know
        raise UserError(f"model.loops = {config.model.loops}; {what}: 1")


def named_entries(config: Config) -> Sequence[tuple[Registry[Any], str]]:
    """The registries of a config's fields, and the names that it has there."""
    sources = [(SOURCES, config.data.source.partition(":")[0])] if isinstance(config.data, DataConfig) else []
    return [(SCHEMES, config.model.residual), (UPDATE_RULES, config.optimizer.name), *sources]


def check_recorded(config: Config, record: Mapping[str, Any], folder: object, needed: Sequence[Registry[Any]]) -> str:
    """Compares a user's entries, in the registries that are needed, with those of a run. Returns
    how the first one differs; empty: none does.

    Args:
      record: the run's run.json; empty where it has none.
      folder: the run's, for messages.

    Raises UserError where an entry of the run is not loaded.
    """
    recorded = record.get("entries", [])
    differing = (registry.check(name, recorded, folder) for registry, name in named_entries(config) if registry in needed)
    return next(filter(None, differing), "")


def files_of(config: Config) -> list[str]:
    """The files of the user's entries that the config names, for --with of another process."""
    return sorted({path for registry, name in named_entries(config) for path in registry.files(name)})


def entry_flags(named: Sequence[tuple[Registry[Any], str]], record: Mapping[str, Any] | None = None) -> str:
    """The flags that a printed command needs for the user's entries among those named:
    ` --with=FILE.py` for each file; empty: it needs nothing.

    Args:
      named: as `named_entries` has them.
      record: run.json of the run that the command is for, which names a file that is not loaded.
    """
    recorded = (record or {}).get("entries", [])
    files = {registry.file_from_here(name, recorded) for registry, name in named}
    return "".join(f" {file_flag(path)}" for path in sorted(filter(None, files)))


def recorded_entries(config: Config) -> list[dict[str, str]]:
    """A user's entries that the config names, for run.json."""
    return [entry for registry, name in named_entries(config) for entry in registry.record(name)]
