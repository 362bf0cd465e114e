"""A run goes on with every field that changes no loss, and with no other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from mhsh.config.fields import flatten
from mhsh.config.schema import DATA_SECTIONS, Config
from mhsh.errors import UserError
from mhsh.storage.run_folder import RunFolder, check_goes_on
from tests.verdict.test_fairness import CASES, another

# What may change, by hand: all else decides losses.
FREE = {
    "model": ("kernels", "remat_policy", "scan_unroll"),
    "data": ("source", "validation_source", "vocab_path"),
    "mesh": ("data", "fsdp", "tensor"),
    "train": (
        *("accumulation_steps", "log_interval", "tracker", "eval_interval", "checkpoint_interval", "keep_checkpoints"),
        *("max_skipped_steps", "profile_steps", "hang_seconds", "storage_minutes"),
    ),
}


def with_value(config: Config, path: str, value: object) -> Config:
    section, name = path.split(".")
    return replace(config, **{section: replace(getattr(config, section), **{name: value})})


@pytest.fixture(scope="module")
def configs(make_config: Callable[..., Config]) -> dict[str, Config]:
    """A config of each kind of data; its fields need not fit together."""
    config = make_config("bert", "2l8h")
    others = {name: replace(config, data=cls(), model=replace(config.model, objective=name)) for name, cls in DATA_SECTIONS.items()}
    return others | {"mlm": config}


@pytest.mark.parametrize(("objective", "path"), CASES)
def test_fields_change_by_their_role(configs, objective, path):
    config = configs[objective]
    section, name = path.split(".")
    value = flatten(config)[path]
    new = "other" if path == "train.start_from" else another(CASES[objective, path], value)
    changed = with_value(config, path, new)
    if name in FREE.get(section, ()):
        check_goes_on(config, changed, "RUN")
    elif path == "train.num_steps":
        with pytest.raises(
            UserError, match=r"^RUN cannot be extended from 40 to 41 steps: .*schedule = 'linear'.*--config.train.start_from=RUN$"
        ):
            check_goes_on(config, changed, "RUN")
    else:
        with pytest.raises(UserError) as refused:
            check_goes_on(config, changed, "RUN")
        differing = f"holds a run of another config ({path} is {value!r} there, {new!r} here)"
        assert str(refused.value).startswith(f"RUN {differing}; choose another --workdir")


def test_run_json_says_what_changed_from_which_step_on(tmp_path, configs):
    """Every reader has the config that the run went on with; what it began with stays. A field that
    is gone since is passed over.
    """
    begun = configs["mlm"]
    folder = RunFolder.open_for_training(tmp_path / "run", begun)
    folder.write_run({"changed": {"24": {"mesh.fsdp": 1, "train.log_interval": 7}, "9": {"mesh.fsdp": 4, "train.keep_every": 5}}})
    assert folder.initial_config() == begun
    assert [folder.config_at(step).mesh.fsdp for step in (9, 24, 25, None)] == [-1, 4, 1, 1]
    now = folder.read_config([("data.source", "text:moved")])
    assert (now.mesh.fsdp, now.train.log_interval, now.data.source) == (1, 7, "text:moved")
    assert RunFolder.open_for_training(folder.path, begun).initial_config() == begun
    with pytest.raises(
        UserError, match=r"another config \(optimizer.schedule is 'linear' there, 'constant' here\); leave out that flag"
    ):
        folder.read_config([("optimizer.schedule", "constant")])
    for damaged in ({"x": {}}, {"24": 3}, []):
        folder.write_run({"changed": damaged})
        with pytest.raises(UserError, match=r"run\.json is damaged: .*`\$\.changed"):
            folder.read_config()
    folder.write_run({"changed": {"24": {"mesh.width": 3}}})
    with pytest.raises(UserError, match=r"run\.json, changed: mesh.width: the config has no field"):
        folder.read_config()
