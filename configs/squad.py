"""Fine-tuning on SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016 and 2018): configs/squad.py:v1 or
configs/squad.py:v2.

  mhsh finetune runs/12l12h --config=configs/squad.py:v2 --config.data.source=json:train-v2.0.json
  \\
      --config.data.validation_source=json:dev-v2.0.json --seeds=0,1,2 --workdir=runs/squad2
The sources are json:FILE, or what TFDS has prepared: tfds:squad/v2.0 and, for validation,
tfds:squad/v2.0:validation. The rest of the model, the vocabulary and the first parameters are those
of the run that is named (`mhsh import` makes one of a published checkpoint). Rows, batch, learning
rate and epochs as Devlin et al. 2018 (sections 4.2 and 4.3); small models want a higher learning
rate. Hardware, time and result: docs/bert.md.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from mhsh.errors import UserError

# variant: (windows of the training questions at 384 tokens, about; batch; epochs; learning rate)
VARIANTS = {"v1": (88_500, 32, 3, 5e-5), "v2": (132_000, 48, 2, 5e-5)}
WARMUP_SHARE = 0.1


def get_config(variant: str = "v1") -> ConfigDict:
    """The config of one version, without what the pre-trained run decides."""
    if variant not in VARIANTS:
        raise UserError(f"configs/squad.py has no variant {variant!r}; there are {', '.join(VARIANTS)}")
    num_windows, batch_size, epochs, learning_rate = VARIANTS[variant]
    num_steps = -(-epochs * num_windows // batch_size)
    config = ConfigDict(
        dict(
            model=dict(objective="span", next_sentence=False, num_classes=0),
            data=dict(
                source="json:train.json",
                validation_source="json:dev.json",
                validation_fraction=0.1,
                sequence_length=384,
                stride=128,
                max_question_length=64,
                seed=0,
            ),
            optimizer=dict(
                name="adamw",
                learning_rate=learning_rate,
                schedule="linear",
                end_learning_rate=0.0,
                warmup_steps=round(WARMUP_SHARE * num_steps),
                beta1=0.9,
                beta2=0.999,
                epsilon=1e-6,
                weight_decay=0.01,
                clip_norm=1.0,
            ),
            train=dict(
                num_steps=num_steps,
                batch_size=batch_size,
                label_smoothing=0.0,
                accumulation_steps=1,
                log_interval=10,
                eval_interval=0,
                eval_batches=0,
                checkpoint_interval=0,
                keep_checkpoints=1,
                keep_every=0,
                max_skipped_steps=10,
                hang_seconds=0,
            ),
            mesh=dict(data=-1, fsdp=1, tensor=1),
        )
    )
    config.lock()
    return config
