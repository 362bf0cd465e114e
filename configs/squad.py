"""Fine-tuning on SQuAD 1.1 (v1) and 2.0 (v2).

    mhsh finetune runs/12l12h --config=squad:v2 --seeds=0,1,2 --workdir=runs/squad2 \\
        --config.data.source=json:train-v2.0.json \\
        --config.data.validation_source=json:dev-v2.0.json

SQuAD: Rajpurkar et al. 2016 and 2018. The rest of the model, the
vocabulary and the first parameters are those of the run that is named (`mhsh import` makes one of a
published checkpoint). Rows, batch, learning rate and epochs as Devlin et al. 2018 (sections 4.2 and
4.3); small models want a higher learning rate. Hardware, time and result: docs/study/bert.md.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from mhsh.configs.base import find_variant, make_fine_tuning_config

# variant: (windows of the training questions at 384 tokens, about; batch; epochs; learning rate)
VARIANTS = {"v1": (88_500, 32, 3, 5e-5), "v2": (132_000, 48, 2, 5e-5)}


def get_config(variant: str) -> ConfigDict:
    """The config of one version, without what the pre-trained run decides."""
    num_windows, batch_size, epochs, learning_rate = find_variant(__file__, VARIANTS, variant)
    changes = dict(
        model=dict(objective="span", next_sentence=False, num_classes=0),
        optimizer=dict(learning_rate=learning_rate),
    )
    return make_fine_tuning_config(num_windows, epochs, batch_size, changes)
