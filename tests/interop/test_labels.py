"""The classes of a fine-tuned checkpoint: whatever order they have there, the logits are those of
the task's.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from mhsh.data.glue import GLUE_TASKS
from mhsh.errors import UserError
from mhsh.interop.export_bert import export_bert
from mhsh.interop.import_bert import import_bert
from mhsh.interop.labels import in_task_order
from tests.interop.small_bert import HEADS, as_batch, outputs, random_inputs, small_model, small_tokenizer, trained_params

TASKS = [task for task in GLUE_TASKS.values() if task.label_names]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Checkpoints with a head of 1, 2 and 3 outputs, whose config.json names none of them."""
    made = {}
    for count in (1, 2, 3):
        model = small_model(**HEADS["classification"] | {"num_classes": count})
        folder = tmp_path_factory.mktemp("checkpoints")
        export_bert(folder, model, trained_params(model), small_tokenizer(), lowercase=True, labels=())
        made[count] = import_bert(folder, model, fresh_heads=False)
    return made


def logits(imported):
    return np.asarray(outputs(imported.model, imported.params, as_batch(*random_inputs(imported.model))).logits)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_the_logits_are_in_the_order_of_the_task(checkpoints, task):
    """By --labels, and by id2label in other spellings."""
    there = checkpoints[task.num_classes]
    theirs = logits(there)
    for names in itertools.permutations(task.label_names):
        written = tuple(name.upper().replace("_", " ") for name in names)
        for taken in (
            in_task_order(there, task, names),
            in_task_order(dataclasses.replace(there, labels=written), task, None),
            in_task_order(dataclasses.replace(there, labels=names[::-1]), task, names),
        ):
            ours = logits(taken)
            assert taken.labels == task.label_names
            for number, name in enumerate(task.label_names):
                np.testing.assert_array_equal(ours[:, number], theirs[:, names.index(name)])
        is_moved = names != task.label_names
        assert any("put into the order of" in note for note in in_task_order(there, task, names).notes) == is_moved
    assert any("--labels goes before" in note for note in taken.notes)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_an_order_that_nobody_has_said_is_asked_for(checkpoints, task):
    there = checkpoints[task.num_classes]
    others = (there.labels, [str(number) for number in range(task.num_classes)], [task.label_names[0]] * task.num_classes)
    for labels in others:
        with pytest.raises(
            UserError, match=rf"^the checkpoint calls its classes {labels[0]}, .* add --labels=..., these names of {task.name} "
        ):
            in_task_order(dataclasses.replace(there, labels=tuple(labels)), task, None)
    for given in (task.label_names[1:], (*task.label_names, "other"), [task.label_names[0]] * task.num_classes):
        with pytest.raises(UserError, match=r"^--labels=.*: give .*, each once, in the order of the checkpoint's outputs"):
            in_task_order(there, task, given)


def test_one_output_has_no_order_but_a_scale(checkpoints):
    there = checkpoints[1]
    taken = in_task_order(there, GLUE_TASKS["stsb"], None)
    assert taken.params is there.params and taken.labels == ()
    assert taken.notes == ("its one output is taken as the score of stsb, from 0 to 5",)
    with pytest.raises(UserError, match="--labels names classes, and stsb has one score"):
        in_task_order(there, GLUE_TASKS["stsb"], ["score"])
