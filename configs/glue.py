"""Fine-tuning on GLUE, a variant a task.

    mhsh finetune runs/12l12h --config=glue:cola --config.data.source=tsv:GLUE \\
        --seeds=0,1,2 --workdir=runs/glue/cola

GLUE: Wang et al. 2019 (arXiv 1804.07461). The source is tsv:DIR, with GLUE's original files in a
folder a task. The rest of the model, the
vocabulary and the first parameters are those of the run that is named (`mhsh import` makes one of a
published checkpoint). Three epochs of 32 examples a step, as Devlin et al. 2018 (section 4.1), who
choose the learning rate among 5e-5, 4e-5, 3e-5 and 2e-5 on the development set; small models want a
higher one. Hardware, time and result: docs/study/bert.md.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from mhsh.configs.base import find_variant, make_fine_tuning_config

# task: (classes, or 1 for a regression; training examples)
VARIANTS = {
    "cola": (2, 8_551),
    "sst2": (2, 67_349),
    "mrpc": (2, 3_668),
    "stsb": (1, 5_749),
    "qqp": (2, 363_846),
    "mnli": (3, 392_702),
    "qnli": (2, 104_743),
    "rte": (2, 2_490),
    "wnli": (2, 635),
}


def get_config(variant: str) -> ConfigDict:
    """The config of one task, without what the pre-trained run decides."""
    num_classes, num_examples = find_variant(__file__, VARIANTS, variant)
    changes = dict(
        model=dict(objective="classification", next_sentence=False, num_classes=num_classes),
        data=dict(task=variant),
        optimizer=dict(learning_rate=3e-5),
    )
    return make_fine_tuning_config(num_examples, 3, 32, changes)
