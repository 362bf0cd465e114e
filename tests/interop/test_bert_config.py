"""The tables of what transformers computes name every field, and no later one passes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import pytest

from mhsh.config.fields import all_fields
from mhsh.config.schema import OBJECTIVES, SCHEMA_VERSION, ModelConfig, field_meta
from mhsh.data.wordpiece import ByteTokenizer
from mhsh.errors import UserError
from mhsh.interop import bert_config, llama
from mhsh.interop.export_bert import check_exportable
from mhsh.interop.import_bert import import_bert
from tests.interop.small_bert import GOLDEN, HEADS, small_model, trained_params
from tests.interop.small_llama import small_model as small_llama

Cap = Annotated[float, field_meta("loss", "of logits", "task", since=SCHEMA_VERSION + 1, before=0.0)]
# The model section of the next schema.
NextModel = msgspec.defstruct("NextModel", [("cap", Cap, 30.0)], bases=(ModelConfig,), frozen=True, kw_only=True)


def in_the_next(model: ModelConfig, **fields: Any) -> ModelConfig:
    return NextModel(**msgspec.structs.asdict(model) | fields)


@pytest.mark.parametrize(
    ("section", "table"),
    [("model", bert_config.EXPORTABLE), ("model", llama._EXPORTABLE), ("data", {"tokenizer": (), **bert_config.DATA})],
)
def test_a_table_names_every_field(section, table):
    """A field without a row has a value that stands for what was done before it."""
    objectives = ("mlm", "clm", "classification", "span") if section == "data" else OBJECTIVES
    fields = {field.name: field for each in objectives for field in all_fields(each) if field.path.startswith(section)}
    assert set(table) <= set(fields)
    assert all(field.before is not None for name, field in fields.items() if name not in table)


@pytest.mark.parametrize(
    ("model", "check"), [(small_model(**HEADS["mlm"]), check_exportable), (small_llama(), llama.check_exportable)]
)
def test_a_later_field_is_exported_with_its_value_of_before_alone(model, check):
    check(in_the_next(model, cap=0.0))
    with pytest.raises(
        UserError, match=r"^model.cap = 2.0 cannot be exported: no .* computes what this model does; exportable: 0.0$"
    ):
        check(in_the_next(model, cap=2.0))


def test_a_checkpoint_is_imported_with_its_value_of_before_alone(tmp_path):
    base = small_llama()
    llama.export_llama(tmp_path, base, trained_params(base), ByteTokenizer())
    bert = small_model(**HEADS["pretraining"])
    readers: dict[Any, Callable[[ModelConfig], Any]] = {
        base: lambda model: llama.import_llama(tmp_path, model),
        bert: lambda model: import_bert(GOLDEN / "pretraining", model, fresh_heads=False),
    }
    for model, read in readers.items():
        assert read(in_the_next(model, cap=0.0)).model.cap == 0.0
        with pytest.raises(UserError, match=r"^model.cap = 2.0 cannot be imported: .*; importable: 0.0$"):
            read(in_the_next(model, cap=2.0))
