"""README.md of an exported folder: what the model is, and what it was made with."""

from __future__ import annotations

import json

from mhsh.config.schema import Config, to_dict
from mhsh.config.shapes import shape_in_words
from mhsh.storage.run_folder import RunFolder

CARD_FILE = "README.md"
_CARD = """---
library_name: transformers
tags: [mhsh]
---

# {architecture}, {shape}

{what} by mhsh, as `{architecture}` of transformers, which computes what mhsh does. The tokenizer
beside it gives the ids that it was trained with{marks}.

    from transformers import AutoTokenizer, {architecture}

    model = {architecture}.from_pretrained("DIR")
    tokenizer = AutoTokenizer.from_pretrained("DIR")

| | |
|---|---|
{rows}

Everything that the run was asked for:

```json
{config}
```
"""

# What its tokenizer does with marks, by model.objective.
_MARKS = {
    "clm": "; [SEP] ends a text, nothing begins one",
    "mlm": """. [MASK] in a text is the mask; so are
[SEP] and the like what they stand for, which training read as ordinary text:
`split_special_tokens=True` does too""",
}


def model_card(folder: RunFolder, config: Config, step: int, architecture: str) -> str:
    """The text of the file for the checkpoint `step` of a run, exported as this class."""
    counters, metrics = folder.counters(step), folder.read_metrics()
    losses = [loss for at, loss in zip(*metrics.series("validation", "step", "loss"), strict=True) if at == step]
    rows = {
        "trained": f"step {step} of {config.train.num_steps}",
        **({} if counters is None else {"tokens": f"{counters.tokens:,}", "FLOPs": f"{counters.flops:.3g}"}),
        **({"validation loss": f"{losses[-1]:.4f}"} if losses else {}),
        "data": f"{config.data.source}, rows of {config.data.sequence_length} tokens ({config.data.tokenizer})",
        "optimizer": f"{config.optimizer.name}, {config.optimizer.schedule}, {config.optimizer.learning_rate:g}",
        "residual scheme": config.model.residual,
    }
    return _CARD.format(
        architecture=architecture,
        shape=shape_in_words(config.model),
        what="Trained" if step else "Imported, and exported again",
        marks=_MARKS.get(config.model.objective, ""),
        rows="\n".join(f"| {name} | {value} |" for name, value in rows.items()),
        config=json.dumps(to_dict(config), indent=2),
    )
