"""What an error suggests: a name that was meant."""

from __future__ import annotations

import pytest

from mhsh.cli.main import NAMES
from mhsh.config.fields import all_fields
from mhsh.errors import closest

KNOWN = ["shape", *NAMES, *(field.path for field in all_fields("mlm"))]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("num_layer", "model.num_layers"),
        ("model.nun_heads", "model.num_heads"),
        ("model.learning_rate", "optimizer.learning_rate"),
        ("wieght_decay", "optimizer.weight_decay"),
        ("batch", "train.batch_size"),
        ("warmup", "optimizer.warmup_steps"),
        ("shapes", "shape"),
        ("model.colour", None),
        ("colour", None),
        ("trian", "train"),
        ("plot", None),
        ("lr", None),
        ("", None),
    ],
)
def test_a_field_or_command_is_suggested_only_where_it_is_near(name, meant):
    assert closest(name, KNOWN) == meant
