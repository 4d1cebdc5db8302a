"""Attaching a `Gate` to a training framework in two lines. No framework is imported before it is used.

The names are those of TRL 1.16.0, verl 0.9.1 and Lightning 2.6.6, read in their source.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from numerics.tools.gate.loop import Gate
from numerics.tools.gate.verdict import Verdict

__all__ = ["TRL", "VERL", "BatchKeys", "as_metrics", "attach_trl", "lightning_callback", "record", "verl_metrics"]


@dataclass(frozen=True, kw_only=True)
class BatchKeys:
    """Where a batch keeps its tensors; of several names for the trainer's log-probs the first that is there counts."""

    rollout: str
    trainer: tuple[str, ...]
    mask: str | None
    token_ids: str | None = None


TRL = BatchKeys(
    rollout="sampling_per_token_logps",
    trainer=("old_per_token_logps",),
    mask="completion_mask",
    token_ids="completion_ids",
)
VERL = BatchKeys(
    rollout="rollout_log_probs",
    trainer=("log_probs_for_metrics", "old_log_probs"),
    mask="response_mask",
    token_ids="responses",
)


def record(gate: Gate, batch: Any, keys: BatchKeys) -> None:
    """Give one batch to the gate. batch: a mapping of tensors, or what holds one as ``.batch`` (verl's DataProto).

    A batch without trainer log-probs is a bypass, and fails. `KeyError` for one without the rollout's, or its mask.
    """
    tensors = getattr(batch, "batch", batch)
    names = list(tensors.keys())
    for name in (keys.rollout, keys.mask):
        if name is not None and name not in names:
            raise KeyError(f"the batch has no {name!r}, which the gate reads; it has {', '.join(map(str, names))}")
    trainer = next((tensors[name] for name in keys.trainer if name in names), None)
    gate.update(
        tensors[keys.rollout],
        trainer,
        None if keys.mask is None else tensors[keys.mask],
        token_ids=tensors[keys.token_ids] if keys.token_ids in names else None,
    )


def attach_trl(trainer: Any, gate: Gate) -> Callable[[], None]:
    """Gate every batch that a TRL trainer (GRPO, RLOO) generates; returns a function that takes the gate off again.

    ::

        gate = numerics.Gate(on_failure="warn")
        attach_trl(trainer, gate)

    A TRL batch is not shown to a TrainerCallback: what is wrapped is ``trainer._generate_and_score_completions``, and
    every rank gives its verdict there. Only with vLLM are there sampling log-probs to compare. `AttributeError` for a
    trainer without that method.
    """
    inner = trainer._generate_and_score_completions

    @functools.wraps(inner)
    def generate_and_score(*arguments: Any, **options: Any) -> Any:
        batch = inner(*arguments, **options)
        record(gate, batch, TRL)
        gate.step()
        return batch

    trainer._generate_and_score_completions = generate_and_score

    def detach() -> None:
        trainer._generate_and_score_completions = inner

    return detach


def verl_metrics(gate: Gate, batch: Any) -> dict[str, float]:
    """Gate one verl batch, where its trainer logs ``calculate_debug_metrics(batch)``; returns metrics to log beside it.

    ::

        gate = numerics.Gate(on_failure="record")
        metrics.update(verl_metrics(gate, batch))

    verl's bypass mode puts the rollout's tensor under ``old_log_probs``: shared storage, which fails.
    """
    record(gate, batch, VERL)
    return as_metrics(gate.step())


def as_metrics(verdict: Verdict) -> dict[str, float]:
    """What a logger takes of a verdict."""
    return {
        "gate/passed": float(verdict.passed),
        "gate/mismatch_count": float(verdict.count),
        "gate/valid_count": float(verdict.mismatch.valid_count),
        "gate/nonfinite_count": float(verdict.mismatch.nonfinite_count),
        "gate/logprobs_diff_max": verdict.mismatch.logprobs_diff_max,
    }


def lightning_callback(gate: Gate, keys: BatchKeys) -> Any:
    """A Lightning ``Callback`` that gates what ``training_step`` returns, a mapping with ``keys``, after every batch.

    ::

        gate = numerics.Gate()
        lightning.Trainer(callbacks=[lightning_callback(gate, VERL)])

    `ImportError` without Lightning.
    """
    try:
        home = importlib.import_module("lightning.pytorch.callbacks")
    except ImportError:
        home = importlib.import_module("pytorch_lightning.callbacks")
    base: Any = home.Callback

    class GateCallback(base):  # type: ignore[misc]
        def on_train_batch_end(
            self, trainer: Any, pl_module: Any, outputs: Mapping[str, Any], batch: Any, batch_idx: int
        ) -> None:
            record(gate, outputs, keys)
            pl_module.log_dict(as_metrics(gate.step()))

    return GateCallback()
