"""The treatment, which is meant to differ between two groups, and the factors it is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mhsh.config.fields import all_fields, flatten
from mhsh.config.schema import OBJECTIVES, Config, ModelConfig
from mhsh.config.shapes import layer_parameters
from mhsh.errors import UserError, nearest
from mhsh.sweep.axes import BUDGET, Axis, fields_of

SHAPE = "shape"  # as a treatment: every field whose role is `shape`
DEFAULT_TREATMENT = (SHAPE,)

PARAMETER_MARGIN = 0.02  # by which one count may exceed the other

# Factors of a treatment by the fields that they are made of. Those of `_trade` are read off the
# whole shape.
DEPTH = "depth"
_SHAPE_FACTORS: Mapping[str, tuple[str, ...]] = {
    DEPTH: ("num_layers", "num_decoder_layers"),
    "passes over the layers": ("loops",),
    "heads a layer": ("num_heads", "num_kv_heads"),
    "width": ("embed_dim", "head_dim", "mlp_dim"),
    "residual scheme": ("residual", "admin_omega", "depth_exponent", "residual_blocks", "residual_streams"),
    "positions": ("positions", "rope_theta", "max_positions", "num_token_types"),
    "normalisation": ("norm", "qk_norm"),
}
_SIZES = (DEPTH, "passes over the layers", "heads a layer", "width")
_FOLLOWING = ("base_layers", "layers_per_group")  # what regrouping sets besides


def treatment_of(axes: Sequence[Axis], names: Sequence[str] | None) -> tuple[str, ...]:
    """The fields that are meant to differ: SHAPE and those that were swept, or those of `names`.
    Raises UserError where a name is neither SHAPE nor a field of a config.
    """
    if names is None:
        swept = (field for axis in axes for field in fields_of(axis.path))
        return tuple(dict.fromkeys([SHAPE, *swept]))
    known = [SHAPE, *dict.fromkeys(field.path for objective in OBJECTIVES for field in all_fields(objective))]
    for name in names:
        if name not in known:
            hint = nearest(name, known, otherwise="mhsh configs lists the fields")
            raise UserError(f"--treatment={name} is neither a field of a config nor {SHAPE!r}; {hint}")
    return tuple(names)


def factors(config: Config, baseline: Config, treatment: Sequence[str] = DEFAULT_TREATMENT) -> tuple[str, ...]:
    """The factors of the treatment in which two configs differ."""
    ours, theirs = flatten(config), flatten(baseline)
    differing = {path for path in (*ours, *theirs) if ours.get(path) != theirs.get(path)}
    shape = {field.path for field in all_fields(config.model.objective) if field.role == "shape"}
    found: list[str] = []
    if SHAPE in treatment:
        found += _shape_factors(config, baseline, {path.split(".")[1] for path in differing & shape})
        treatment = [path for path in treatment if path not in shape]
    swept = [path for path in treatment if path in differing]
    if set(fields_of(BUDGET)) <= set(swept):  # a longer run has a longer decay
        found, swept = [*found, BUDGET], [path for path in swept if path not in fields_of(BUDGET)]
    return (*found, *(path.split(".")[1] for path in swept))


def _shape_factors(config: Config, baseline: Config, differing: set[str]) -> list[str]:
    ours, theirs = config.model, baseline.model
    found = []
    if any(differing & set(_SHAPE_FACTORS[name]) for name in _SIZES):
        trade = _trade(ours, theirs)
        found += [trade] if trade else [name for name in _SIZES if differing & set(_SHAPE_FACTORS[name])]
    found += [name for name in _SHAPE_FACTORS if name not in _SIZES and differing & set(_SHAPE_FACTORS[name])]
    known = {*_FOLLOWING, *(field for fields in _SHAPE_FACTORS.values() for field in fields)}
    return found + sorted(differing - known)


def _trade(ours: ModelConfig, theirs: ModelConfig) -> str | None:
    """The name of the trade in which one size was changed for others, as config.shapes does it;
    None: it is none of these.
    """

    def kept_sizes(m: ModelConfig) -> Mapping[str, tuple[int, ...]]:
        depths, width = (m.num_layers, m.num_decoder_layers, m.loops), (m.num_heads * m.head_dim, m.kv_heads * m.head_dim)
        grouped, passed = (m.num_heads, m.kv_heads, m.mlp_dim), (m.loops * m.num_layers, m.loops * m.num_decoder_layers)
        heads = (*(m.num_layers * size for size in grouped), m.num_decoder_layers * m.num_heads)
        return {
            "head grouping": (*heads, m.embed_dim, m.head_dim, m.loops),
            "sharing of the layers": (*passed, *grouped, m.embed_dim, m.head_dim),
            "width of a head": (*depths, *width, m.embed_dim, m.mlp_dim),
            "heads of keys and values at equal size": (*depths, m.num_heads, m.head_dim, m.embed_dim),
            "depth at equal size": (m.num_heads, m.kv_heads, m.loops),
        }

    equal_size = abs(layer_parameters(ours) / layer_parameters(theirs) - 1) <= PARAMETER_MARGIN
    excluded = {
        "heads of keys and values at equal size": not equal_size or ours.kv_heads == theirs.kv_heads,
        "depth at equal size": not equal_size or ours.num_layers == theirs.num_layers,
    }
    one, other = kept_sizes(ours), kept_sizes(theirs)
    return next((name for name in one if one[name] == other[name] and not excluded.get(name)), None)
