"""Which models transformers computes too, by tables that name what is known of every field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mhsh.config.fields import fields_of
from mhsh.config.schema import Section
from mhsh.errors import UserError

# By field, the values that are exportable; None: all of them.
Table = Mapping[str, Sequence[Any] | None]

# Fields of the model that act on its start, its training or its rounding, or are read only with a
# residual scheme or positions, of which the tables name those that they know.
OF_TRAINING: Table = dict.fromkeys(
    (
        *("init", "fans", "layers_per_group", "hidden_dropout", "attention_dropout", "mlp_dropout", "embedding_dropout"),
        *("compute_dtype", "residual_dtype", "attention_implementation", "kernels", "remat_policy", "scan_unroll"),
        *("admin_omega", "depth_exponent", "base_layers", "residual_blocks", "residual_streams", "rope_theta"),
    )
)
# Fields of the data section: the files of a tokenizer are written by its kind and `lowercase`.
DATA: Table = dict.fromkeys(
    (
        *("source", "validation_source", "validation_fraction", "task", "seed", "vocab_path", "lowercase"),
        *("sequence_length", "max_predictions", "mask_fraction", "stride", "max_question_length"),
    )
)


def check_fields(section: str, config: Section, table: Table, architectures: str, verb: str = "export") -> None:
    """Raises UserError where a field of the section `section` has a value that is not in the table:
    nobody has shown that `architectures` of transformers compute the same. A field that the table
    does not name is a later one, and has the value that stands for what was done before.

    Args:
      verb: what cannot be done: export or import.
    """
    fields = fields_of(section, type(config))
    later = {name: (field.before,) for name, field in fields.items() if name not in table}
    for name, values in {**table, **later}.items():
        if name not in fields or values is None:
            continue
        value = getattr(config, name)
        if value not in values:
            raise UserError(
                f"{section}.{name} = {value!r} cannot be {verb}ed: no {architectures} of transformers computes what this model "
                f"does; {verb}able: {', '.join(map(str, values))}"
            )
