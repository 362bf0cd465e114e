"""A config that an older or a newer mhsh wrote: what is filled in, renamed, removed and refused."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec.structs import replace

from mhsh.config import fields as config_fields
from mhsh.config import recorded, resolve
from mhsh.config.fields import all_fields, section_class
from mhsh.config.recorded import Removal, Renaming, from_record, identity, to_record
from mhsh.config.schema import OBJECTIVES, SCHEMA_VERSION, Config, DataConfig, field_meta
from mhsh.configs import base
from mhsh.errors import UserError

NEXT = SCHEMA_VERSION + 1

# One for each schema that was ever on main: fields, types, values and bounds.
DIGESTS = {
    1: "d07074cb8c4d",
    2: "4412f479c7d0",
    3: "79b51c884267",
    4: "3fa41d97f935",
    5: "6b694c5e9d0b",
    6: "35731335e0ff",
    7: "353167035924",
}


def test_a_changed_schema_has_a_version_of_its_own() -> None:
    fields = [(objective, field) for objective in OBJECTIVES for field in all_fields(objective)]
    lines = [f"{objective} {field.path} {field.values} {field.since}" for objective, field in fields]
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]
    assert DIGESTS.get(SCHEMA_VERSION) == digest, (
        "fields, values or bounds have changed: raise SCHEMA_VERSION by one, say since= and before= in the lines of new fields "
        f"and CHANGES of those that are gone, and add {SCHEMA_VERSION + 1}: and the new digest here (now {digest})"
    )


def test_every_later_field_says_what_was_before() -> None:
    for field in (field for objective in OBJECTIVES for field in all_fields(objective)):
        assert 1 <= field.since <= SCHEMA_VERSION
        assert (field.before is None) == (field.since == 1), field.path
        assert field.since == 1 or msgspec.convert(field.before, field.annotation) == field.before


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next schema: data has a colour, train.seed was called train.start, and optimizer.nesterov
    is gone.
    """
    colour = Annotated[Literal["red", "blue"], field_meta("loss", "the colour", "task", since=NEXT, before="red")]
    extended = msgspec.defstruct("Extended", [("colour", colour, "blue")], bases=(DataConfig,), frozen=True, kw_only=True)

    def with_colour(section: str, objective: str) -> type:
        return extended if section == "data" and objective in ("mlm", "clm") else section_class(section, objective)

    for module in (config_fields, resolve, base):
        monkeypatch.setattr(module, "section_class", with_colour)
    changes = (Renaming(NEXT, "train.start", "train.seed"), Removal(NEXT, "optimizer.nesterov", False))
    monkeypatch.setattr(recorded, "CHANGES", changes)
    monkeypatch.setattr(recorded, "SCHEMA_VERSION", NEXT)
    monkeypatch.setattr(recorded, "WRITER", {"schema": NEXT, "mhsh": "0.9"})
    monkeypatch.setattr(recorded, "_said", set())


@pytest.fixture
def old(make_config, planted) -> dict[str, Any]:
    """What the mhsh before wrote."""
    fields = resolve.to_dict(make_config("bert", "2l8h", **{"train.seed": 7}))
    fields["train"]["start"] = fields["train"].pop("seed")
    fields["optimizer"]["nesterov"] = False
    del fields["data"]["colour"]
    return {"schema": SCHEMA_VERSION, **fields}


def test_an_older_record_is_brought_up_and_says_so_once(old, make_config, capsys) -> None:
    config = from_record(old, "RUN/config.json")
    assert config == make_config("bert", "2l8h", **{"train.seed": 7, "data.colour": "red"}) and config.data.colour == "red"
    assert from_record(old | {"schema": 1}, "other") == config  # a version before it
    said = capsys.readouterr()
    assert said.out == "" and said.err.splitlines()[0] == (
        f"mhsh: RUN/config.json is of schema {SCHEMA_VERSION}, before data.colour = 'red', which holds for it and all others of "
        "that schema"
    )
    from_record(old, "RUN2/config.json")
    assert capsys.readouterr().err == ""
    assert from_record(to_record(config), "RUN/config.json") == config and capsys.readouterr().err == ""


def test_a_value_that_is_no_longer_known_and_a_missing_field_are_refused(old) -> None:
    gone = old | {"optimizer": old["optimizer"] | {"nesterov": True}}
    with pytest.raises(UserError, match=rf"^R: optimizer.nesterov = True; since schema {NEXT} there is only False: open it with"):
        from_record(gone, "R")
    with pytest.raises(UserError, match=r"^R: data.colour is missing from the config; give every field"):
        from_record(old | {"schema": NEXT}, "R")
    with pytest.raises(UserError, match=r"^R: train.seed is missing from the config"):
        from_record(old | {"train": {}}, "R")


@pytest.mark.parametrize("damaged", [{}, {"model": 1}, {"model": {"objective": ["mlm"]}}, {"model": {"objective": "no"}}])
def test_damaged_records_are_named(planted, damaged) -> None:
    with pytest.raises(UserError, match=r"^R: "):
        from_record(damaged, "R")


def test_a_newer_record_is_refused_with_what_to_install(make_config) -> None:
    record = to_record(make_config("bert", "2l8h"))
    assert record["schema"] == SCHEMA_VERSION
    with pytest.raises(UserError, match=rf"^R was written by mhsh 7.8 with schema {NEXT}, and this is mhsh .*: install that mhsh"):
        from_record(record | {"schema": NEXT, "mhsh": "7.8"}, "R")
    for version in (0, True, "1", None, 2.0):
        with pytest.raises(UserError, match=r"^R is damaged: schema is .*; put it back from a copy$"):
            from_record(record | {"schema": version}, "R")


def test_hashes_outlive_a_version(make_config, planted) -> None:
    """A newer field counts where its value is another than before."""
    config: Config = make_config("bert", "2l8h", **{"data.colour": "red"})
    assert set(identity(config.data, "data")) == set(DataConfig.__struct_fields__)
    assert identity(replace(config.data, colour="blue"), "data")["colour"] == "blue"
