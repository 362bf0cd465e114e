"""What a run remarks on: the rows of runs that train, that stay on the plateau, and that spike."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from mhsh.config.schema import Config, Objective
from mhsh.storage.outcome import LEFT, ON_PLATEAU, outcome_words, plateau_deadline, plateau_words
from mhsh.training.progress import Remarks
from tests.conftest import MakeConfig

ENTROPY = 3.288
# Of quickstart:24l1h_admin with 20 steps of warm-up, from step 11 on, a row a step.
SPIKING = (3.80, 4.02, 3.71, 3.75, 3.53, 3.41, 3.44, 3.64, 3.50, 3.18, 8.26, 6.75, 3.21, 3.41, 3.45, 3.44)
PLATEAU = (3.292, 3.198, 3.273, 3.232, 3.224, 3.226)  # validation of quickstart:24l1h_post_ln, every 50 steps
TRAINED = (3.630, 3.187, 2.809, 2.75, 2.70, 2.65)  # of a run that is still on the plateau after the warm-up


def remarks(config: Config, train: Sequence[float] = (), validation: Sequence[float] = ()) -> list[str]:
    said: list[str] = []
    watching = Remarks(config, ENTROPY, said.append)
    for split, losses, interval in (
        ("train", train, config.train.log_interval),
        ("validation", validation, config.train.eval_interval),
    ):
        for number, loss in enumerate(losses, 1):
            watching.on_row({"step": number * interval, "split": split, "loss": loss})
    return said


def test_a_run_that_stays_on_the_plateau_is_told_once_and_what_to_try(make_config: MakeConfig) -> None:
    said = remarks(make_config("quickstart", "24l1h_post_ln"), validation=PLATEAU)
    assert said == [
        "step 150 is still on the unigram plateau: the validation loss 3.273 is not 0.1 below the unigram entropy 3.288; to try in "
        "another --workdir: --config.model.residual=admin, --config.optimizer.learning_rate=0.0005, "
        "--config.optimizer.warmup_steps=200 or --config.train.num_steps=1200"
    ]


@pytest.mark.parametrize(
    ("objective", "num_classes", "known"),
    [("classification", 2, "class frequencies"), ("classification", 1, "the mean score"), ("span", 0, "the frequencies of places")],
)
def test_a_task_has_no_unigrams(make_config: MakeConfig, objective: Objective, num_classes: int, known: str) -> None:
    config = make_config("bert", "2l8h")
    config = replace(config, model=replace(config.model, objective=objective, num_classes=num_classes))
    due, words = plateau_deadline(config), outcome_words(ON_PLATEAU, config, 0.69)
    assert plateau_words(config, due, "validation", 0.68, 0.69).startswith(
        f"step {due}: the validation loss 0.680 is not 0.1 below 0.690, that of {known} alone; to try in another --workdir: "
    )
    assert words == f"no better than {known} alone (a loss of 0.690)" and "plateau" not in outcome_words(LEFT, config, 0.69)


def test_a_fine_tuning_that_answers_well_with_a_high_loss_is_told_nothing(make_config: MakeConfig) -> None:
    config = make_config("bert", "2l8h", **{"train.eval_interval": 10})
    config = replace(config, model=replace(config.model, objective="classification", num_classes=2))
    assert remarks(config, train=[0.5] * 40, validation=[5.0] * 4) == []
    assert len(remarks(config, train=[3.3] * 40, validation=[5.0] * 4)) == 1


def test_a_run_that_leaves_it_is_not(make_config: MakeConfig) -> None:
    assert remarks(make_config("quickstart", "24l1h_admin"), validation=TRAINED) == []


def test_one_that_comes_back_to_it_is(make_config: MakeConfig) -> None:
    assert remarks(make_config("quickstart", "24l1h_admin"), validation=(3.1, 2.9, 2.8, 3.3, 3.3, 3.3))[0].startswith("step 200 is")


@pytest.mark.parametrize(("loss", "count"), [(3.3, 1), (3.0, 0)])
def test_without_evaluations_the_training_loss_tells(make_config: MakeConfig, loss: float, count: int) -> None:
    """Its mean over a tenth of the run: single rows are above the plateau's margin."""
    config = make_config("quickstart", "24l1h_admin", **{"train.eval_interval": 0})
    said = remarks(config, train=[loss + 0.3 * (-1) ** row for row in range(60)])
    assert len(said) == count and all("step 150 is" in line and "training loss 3.3" in line for line in said)


def test_a_spike_is_one_remark(make_config: MakeConfig) -> None:
    config = make_config("quickstart", "24l1h_admin", **{"train.log_interval": 1})
    assert remarks(config, train=SPIKING) == ["step 11: the training loss spikes from 3.180 to 8.260"]


def test_a_spike_between_two_logged_steps_is_one_remark(make_config: MakeConfig) -> None:
    """The row that the log writes for it has few rows before it."""
    said: list[str] = []
    watching = Remarks(make_config("quickstart", "24l1h_admin"), ENTROPY, said.append)
    rows = ((5, 4.84, {}), (20, 3.18, {}), (21, 8.26, {"spike": True}), (22, 6.75, {"spike": True}), (25, 3.45, {}))
    for step, loss, marks in rows:
        watching.on_row({"step": step, "split": "train", "loss": loss, **marks})
    assert said == ["step 21: the training loss spikes from 3.180 to 8.260"]


def test_a_spike_may_be_the_first_row(make_config: MakeConfig) -> None:
    """Of a run, or since it went on: the next logged step is far."""
    said: list[str] = []
    watching = Remarks(make_config("quickstart", "24l1h_admin", **{"train.log_interval": 100}), ENTROPY, said.append)
    for step, loss in ((12, 8.26), (13, 6.75)):
        watching.on_row({"step": step, "split": "train", "loss": loss, "spike": True})
    assert said == ["step 12: the training loss spikes to 8.260"]
