"""mhsh export: checkpoints of a run as folders that transformers loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mhsh.cli.parser import RunFolderArgument, StepFlag
from mhsh.config.schema import ClassificationDataConfig, Config, ModelConfig, TranslationDataConfig
from mhsh.config.shapes import shape_in_words
from mhsh.data.glue import find_task
from mhsh.data.load import load_tokenizer
from mhsh.data.wordpiece import Tokenizer, WordPieceTokenizer, load_wordpiece
from mhsh.errors import UserError
from mhsh.files import check_new_folder, new_folder
from mhsh.interop.bert_config import architecture_of
from mhsh.interop.llama import ARCHITECTURES, export_llama
from mhsh.interop.llama import check_exportable as check_llama
from mhsh.interop.model_card import CARD_FILE, model_card
from mhsh.run_folder import WORDPIECE_FILE, RunFolder

EXAMPLES = ("mhsh export runs/12l12h --out=exported", "mhsh export runs/12l12h --step=1000 --out=exported")


def run(folder: RunFolderArgument, /, *, out: str, step: StepFlag = None, all_steps: bool = False) -> int:
    """Writes a run's checkpoint as a folder that transformers loads: a BERT or, of a standard
    decoder, a Llama or Qwen3.

    Args:
      out: where it goes, new
      all_steps: write every checkpoint that is kept, each into OUT/STEP

    Raises:
      UserError: transformers has no model that computes what the run's does, there is no such
        checkpoint or vocabulary, or `out` is not new.
    """
    from mhsh.training.checkpoints.checkpoint import StoredCheckpoints

    check_new_folder(out)
    if all_steps and step is not None:
        raise UserError("give --step or --all-steps, not both")
    run_folder = RunFolder(folder)
    config = run_folder.read_config()
    tokenizer = _tokenizer(run_folder, config)
    checkpoints = StoredCheckpoints(run_folder.checkpoints_path)
    newest = checkpoints.existing_step(step)
    steps = sorted(checkpoints.steps()) if all_steps else [newest]
    checkpoints.close()
    with new_folder(out) as unfinished:
        for each in steps:
            into = Path(unfinished) / str(each) if all_steps else Path(unfinished)
            into.mkdir(exist_ok=True)
            plain, architecture = _export(into, run_folder, config, each, tokenizer)
            text = model_card(run_folder, config, each, architecture)
            (into / CARD_FILE).write_text(text, encoding="utf-8")
            print(
                f"{Path(out) / into.relative_to(unfinished)}: {architecture} of {folder}, step {each}, {shape_in_words(plain)} "
                f"of {plain.head_dim}, D = {plain.embed_dim}, F = {plain.mlp_dim}"
            )
    _print_dropout(config.model)
    return 0


def _tokenizer(run_folder: RunFolder, config: Config) -> Tokenizer:
    """The run's tokenizer, after checking that its model and it can be exported."""
    from mhsh.interop.export_bert import check_exportable

    data = config.data
    if config.model.objective == "clm":
        check_llama(config.model)
        tokenizer = load_tokenizer(run_folder, config)
        assert isinstance(tokenizer, Tokenizer), "it does not translate"
        return tokenizer
    check_exportable(config.model)
    assert not isinstance(data, TranslationDataConfig), "no BERT has its objective"
    if data.tokenizer != "wordpiece":
        raise UserError(f"data.tokenizer = {data.tokenizer!r} cannot be exported: a BERT of transformers reads WordPiece alone")
    return load_wordpiece(run_folder.path / WORDPIECE_FILE, data.lowercase)


def _export(folder: Path, run_folder: RunFolder, config: Config, step: int, tokenizer: Tokenizer) -> tuple[ModelConfig, str]:
    """Writes the checkpoint of `step`; returns the model that `folder` holds, and its class."""
    from mhsh.interop.export_bert import export_bert
    from mhsh.training.checkpoints.restore import load_for_inference

    params: Any = load_for_inference(run_folder, config, step, 1)[1]
    if config.model.objective == "clm":
        export_llama(folder, config.model, params, tokenizer)
        return config.model, ARCHITECTURES["qwen3" if config.model.qk_norm else "llama"]
    data = config.data
    assert isinstance(tokenizer, WordPieceTokenizer) and not isinstance(data, TranslationDataConfig)
    labels = find_task(data.task).label_names if isinstance(data, ClassificationDataConfig) else ()
    plain = export_bert(folder, config.model, params, tokenizer, lowercase=data.lowercase, labels=labels)
    return plain, architecture_of(plain)


def _print_dropout(model: ModelConfig) -> None:
    there = 0.0 if model.objective == "clm" else model.hidden_dropout  # what config.json has, besides attention's
    expected = {"hidden_dropout": there, "mlp_dropout": 0.0, "embedding_dropout": there}
    lost = [f"model.{name} = {getattr(model, name)}" for name, value in expected.items() if getattr(model, name) != value]
    if lost:
        print(f"not in config.json: {', '.join(lost)}; only further training would show it")
