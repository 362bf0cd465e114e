"""mhsh export: checkpoints of a run as folders that transformers loads."""

from __future__ import annotations

from pathlib import Path

from mhsh.cli.parser import RunFolderArgument, StepFlag
from mhsh.config.schema import ClassificationDataConfig, TranslationDataConfig
from mhsh.config.shapes import shape_in_words
from mhsh.data.glue import find_task
from mhsh.data.wordpiece import Tokenizer, WordPieceTokenizer
from mhsh.errors import UserError
from mhsh.interop import bert_config, llama
from mhsh.interop.bert_config import DATA, check_fields
from mhsh.interop.model_card import CARD_FILE, model_card
from mhsh.storage.files import check_new_folder, make_folder, new_folder
from mhsh.storage.run_folder import RunFolder

EXAMPLES = ("mhsh export runs/12l12h --out=exported", "mhsh export runs/12l12h --step=1000 --out=exported")


def run(folder: RunFolderArgument, /, *, out: str, step: StepFlag = None, all_steps: bool = False) -> int:
    """Writes a run's checkpoint as a folder that transformers loads: a BERT or, of a standard
    decoder, a Llama or Qwen3.

    Args:
      out: the new folder
      all_steps: write every checkpoint that is kept, each into OUT/STEP
    """
    from mhsh.data.load import load_tokenizer
    from mhsh.interop.export_bert import check_exportable, export_bert
    from mhsh.training.checkpoints.checkpoint import StoredCheckpoints
    from mhsh.training.checkpoints.restore import load_for_inference

    check_new_folder(out)
    if all_steps and step is not None:
        raise UserError("give --step or --all-steps, not both")
    run_folder = RunFolder(folder)
    config = run_folder.read_config()
    model, data = config.model, config.data
    is_decoder = model.objective == "clm"
    (llama.check_exportable if is_decoder else check_exportable)(model)
    assert not isinstance(data, TranslationDataConfig), "its objective is refused"
    tokenizers = ("wordpiece", "bytes") if is_decoder else ("wordpiece",)
    check_fields("data", data, {"tokenizer": tokenizers, **DATA}, "BERT, Llama or Qwen3")
    tokenizer = load_tokenizer(run_folder, config)
    assert isinstance(tokenizer, Tokenizer)
    labels = find_task(data.task).label_names if isinstance(data, ClassificationDataConfig) else ()
    checkpoints = StoredCheckpoints(run_folder.checkpoints_path)
    steps = [checkpoints.existing_step(step)]
    if all_steps:
        steps = sorted(checkpoints.steps())
    checkpoints.close()
    with new_folder(out) as unfinished:
        for kept in steps:
            target = Path(unfinished, str(kept)) if all_steps else Path(unfinished)
            make_folder(target)
            _, params = load_for_inference(run_folder, config, kept, 1)
            if is_decoder:
                plain, architecture = llama.export_llama(target, model, params, tokenizer), llama.architecture_of(model)
            else:
                assert isinstance(tokenizer, WordPieceTokenizer)
                plain = export_bert(target, model, params, tokenizer, lowercase=data.lowercase, labels=labels)
                architecture = bert_config.architecture_of(plain)
            (target / CARD_FILE).write_text(model_card(run_folder, config, kept, architecture), encoding="utf-8")
            print(
                f"{Path(out, target.relative_to(unfinished))}: {architecture} of {folder}, step {kept}, {shape_in_words(plain)} of "
                f"{plain.head_dim}, D = {plain.embed_dim}, F = {plain.mlp_dim}"
            )
    hidden = 0.0 if is_decoder else model.hidden_dropout
    written = {"hidden_dropout": hidden, "mlp_dropout": 0.0, "embedding_dropout": hidden}  # as transformers reads config.json
    lost = [f"model.{name} = {getattr(model, name)}" for name, value in written.items() if getattr(model, name) != value]
    if lost:
        print(f"not in config.json: {', '.join(lost)}; only further training would show it")
    return 0
