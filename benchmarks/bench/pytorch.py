"""A torch module as a candidate, in training and in inference."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch  # pyrefly: ignore[missing-import]
from torch import Tensor, nn  # pyrefly: ignore[missing-import]
from torch.nn import functional  # pyrefly: ignore[missing-import]

from benchmarks.bench import peers
from mhsh.bench.steps import setting_config, synthetic_batch
from mhsh.bench.timing import Candidate
from mhsh.config.schema import Config, OptimizerConfig
from mhsh.errors import UserError
from mhsh.models.costs import row_flops, row_tokens, step_flops
from mhsh.training.optimizer import learning_rate

# Programs that dynamo compiles (one for each shape and depth) before it stops compiling.
RECOMPILE_LIMIT = 64

TorchBatch = dict[str, Tensor]


def training_candidate(peer: str, name: str, config: Config) -> Candidate:
    """Training of the config called `name` in torch."""
    module, title = peers.build(config)
    device = peers.device()
    before = _allocated_bytes(device)
    trainer = Training(peer, module, config, device)
    trainer.run(1)  # the memory that compiling needs is not counted
    memory = _peak(device, before, lambda: trainer.run(2))
    return Candidate(
        name=peers.peer_name(peer, name),
        label=peers.label(config, title, peer),
        run=trainer.run,
        check=trainer.check,
        work=config.train.batch_size * row_tokens(config),
        baseline=name,
        facts=peers.facts(config, name, title) | {"flops": step_flops(config), "memory": memory},
    )


class Training:
    """The training step in torch, doing what mhsh's does.

    Fused AdamW (torch's fastest) with decay on the same parameters, clipping, micro-batches, fp32
    parameters, and matrix products in model.compute_dtype by autocast. The learning rate is that of
    the first step.
    """

    def __init__(self, peer: str, module: nn.Module, config: Config, device: torch.device) -> None:
        self._peer, self._config, self._device = peer, config, device
        self._module = module.to(device).train()
        self._optimizer = adamw(module, config.optimizer, np.asarray(learning_rate(config.optimizer, config.train)(0)).item())
        self._forward = compile_forward(peer, self._module, self._micro_loss)
        self._batch = torch_batch(config, config.train.batch_size, device)
        self._loss = torch.zeros((), device=device)

    def run(self, repetitions: int) -> None:
        """Steps; the device is waited for after the last."""
        count, clip = self._config.train.accumulation_steps, self._config.optimizer.clip_norm
        parts = [{key: rows[index::count] for key, rows in self._batch.items()} for index in range(count)]
        for _ in range(repetitions):
            self._optimizer.zero_grad(set_to_none=True)
            for part in parts:
                self._loss = self._forward(part) / count
                self._loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(self._module.parameters(), clip)
            self._optimizer.step()
        _wait(self._device)

    def check(self) -> None:
        """Raises UserError where the last loss is not finite."""
        if not bool(torch.isfinite(self._loss)):
            raise UserError(f"{self._peer}: the loss is not finite; give a smaller optimizer.learning_rate")

    def _micro_loss(self, batch: TorchBatch) -> Tensor:
        with _precision(self._config, self._device):
            return loss(self._module, batch, self._config.train.label_smoothing)


def loss(module: nn.Module, batch: TorchBatch, label_smoothing: float = 0.0) -> Tensor:
    """The loss of mhsh in fp32: the weighted mean over predictions, plus the next-sentence loss."""
    logits, next_sentence = module(batch)

    def mean(logits: Tensor, labels: Tensor, weights: Tensor, smoothing: float) -> Tensor:
        nats = functional.cross_entropy(
            logits.flatten(0, -2).float(), labels.flatten(), reduction="none", label_smoothing=smoothing
        )
        return (nats * weights.flatten()).sum() / weights.sum()

    total = mean(logits, batch["targets"], batch["weights"], label_smoothing)
    if next_sentence is not None:
        total = total + mean(next_sentence, batch["next_sentence"], batch["row_weights"], 0.0)
    return total


def adamw(module: nn.Module, config: OptimizerConfig, rate: float) -> torch.optim.Optimizer:
    """AdamW with weight decay on matrices and tables only, as mhsh's DECAYED_PARAMETERS."""
    named = list(module.named_parameters())
    decayed = [values for name, values in named if values.ndim > 1 and not re.search("norm", name, re.IGNORECASE)]
    others = [values for _, values in named if all(values is not other for other in decayed)]
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=(config.beta1, config.beta2), eps=config.epsilon, fused=True)


class TorchInference:
    """Forward passes of one peer of one config, with parameters in model.compute_dtype."""

    def __init__(self, peer: str, name: str, config: Config) -> None:
        module, self._title = peers.build(config)
        self._peer, self._name, self._config, self._device = peer, name, config, peers.device()
        self._module = module.to(self._device, getattr(torch, config.model.compute_dtype)).train(False)
        self._forward = compile_forward(peer, self._module, self._module)

    def candidate(self, batch: int, length: int) -> Candidate:
        """The forward pass of `batch` rows of `length` tokens up to the logits."""
        config = setting_config(self._config, batch, length)
        arrays = torch_batch(config, batch, self._device)
        before = _allocated_bytes(self._device)
        outputs: list[Any] = []

        def run(repetitions: int) -> None:
            with torch.inference_mode():
                for _ in range(repetitions):
                    outputs[:] = [self._forward(arrays)]
                    _wait(self._device)

        def check() -> None:
            if not all(bool(torch.isfinite(values).all()) for values in outputs[0] if values is not None):
                raise UserError(f"{self._peer}: its logits are not finite")

        run(1)
        return Candidate(
            name=peers.peer_name(self._peer, self._name),
            label=peers.label(config, self._title, self._peer),
            run=run,
            check=check,
            work=batch * row_tokens(config),
            baseline=self._name,
            facts=peers.facts(config, self._name, self._title)
            | {"flops": row_flops(config).total * batch, "memory": _peak(self._device, before, lambda: run(1))},
        )


def compile_forward(peer: str, module: nn.Module, forward: Callable[[TorchBatch], Any]) -> Callable[[TorchBatch], Any]:
    """Compiles `forward`, which calls the module, as the peer of this name does."""
    if peer == "torch-eager":
        return forward
    torch._dynamo.config.recompile_limit = RECOMPILE_LIMIT
    if peer == "torch-compile":
        return torch.compile(forward, dynamic=False)
    for layer in module.layers:
        layer.compile(dynamic=False)
    return forward


def torch_batch(config: Config, rows: int, device: torch.device) -> TorchBatch:
    """mhsh's synthetic batch on the device, its integers as int64."""
    batch = {key: torch.from_numpy(values.copy()) for key, values in synthetic_batch(config, rows).items()}
    return {key: (values if values.is_floating_point() else values.long()).to(device) for key, values in batch.items()}


def _precision(config: Config, device: torch.device) -> AbstractContextManager[Any]:
    if config.model.compute_dtype == "float32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, getattr(torch, config.model.compute_dtype))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _allocated_bytes(device: torch.device) -> int:
    return torch.cuda.memory_allocated() if device.type == "cuda" else 0


def _peak(device: torch.device, before: int, work: Callable[[], None]) -> dict[str, int]:
    """The most bytes that torch allocated during `work`, less `before`; empty on a CPU."""
    if device.type != "cuda":
        return {}
    torch.cuda.reset_peak_memory_stats()
    work()
    return {"peak": torch.cuda.max_memory_allocated() - before}
