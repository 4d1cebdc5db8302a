"""Raw log-probs beside the tempered ones, from one forward pass of verl's actor.

Training needs the log-probs of softmax(logits / T), metrics must compare like with like: a rollout engine that reports
raw log-probs (T = 1) is compared with the raw ones of the trainer. The replacements here add them to what verl's
engines return, under ``log_probs_for_metrics``, next to ``log_probs`` and in the same layout, float32 and without
gradient; the tempered ones stay bit for bit what they were. Both the old log-probs and the policy update go through
these functions, so the loss function of an update finds the key in ``model_output`` too.

Where logits exist (FSDP, Megatron) they are read once more, a chunk of rows at a time. Where a fused kernel never holds
them, that kernel runs a second time with T = 1, forward only. Neither runs the model again. With T = 1 and float32
log-probs nothing is computed twice: both keys hold the same values.

Each function here takes verl's own function and returns what replaces it; `numerics.integrations.verl.install` puts it
in. What was run, and what was not: ``tests/verl_optional/README.md``.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

from numerics.integrations.verl.debug import calculate_debug_metrics

__all__ = ["KEY", "raw_logprobs"]

#: what the raw log-probs are called, in ``model_output`` and in the batch
KEY = "log_probs_for_metrics"

#: bytes of float32 logits at a time
_CHUNK = 1 << 26

_log = logging.getLogger(__name__)


class _Fused:
    """What the fused kernels of one forward pass found: raw log-probs as the kernel returns them, and as packed."""

    def __init__(self) -> None:
        self.raw: list[torch.Tensor] = []
        self.packed: list[torch.Tensor] = []

    def only(self, found: list[torch.Tensor], where: str) -> torch.Tensor:
        """The one tensor; `RuntimeError` if the model does not end in the kernel that was replaced."""
        if len(found) != 1:
            raise RuntimeError(
                f"{where}: the fused forward of this model made {len(found)} sets of raw log-probs instead of 1, so it "
                "does not go through the kernels that were replaced; install without the part 'actor'"
            )
        return found[0]


#: the forward pass that is going on; None outside, as in a recomputation during backward
_FORWARD: ContextVar[_Fused | None] = ContextVar("numerics_verl_forward", default=None)


@contextmanager
def _forward() -> Iterator[_Fused]:
    fused = _Fused()
    token = _FORWARD.set(fused)
    try:
        yield fused
    finally:
        _FORWARD.reset(token)


def raw_logprobs(logits: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """Log-probs of ``token_ids`` [...] under softmax(logits [..., V]), nats, float32 (float64 for float64 logits).

    No temperature, no gradient; logits are upcast before anything else, 64 MiB at a time, and stay as they are.
    """
    wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
    found = torch.empty(token_ids.shape, dtype=wide, device=logits.device).reshape(-1)
    with torch.no_grad():
        rows = logits.detach().flatten(0, -2) if logits.ndim > 1 else logits.detach()[None]
        ids = token_ids.reshape(-1, 1)
        step = max(1, _CHUNK // (4 * max(1, rows.shape[-1])))
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            found[part] = torch.log_softmax(rows[part].to(wide), dim=-1).gather(-1, ids[part])[:, 0]
    return found.reshape(token_ids.shape)


def fsdp_forward_step(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces ``FSDPEngineWithLMHead.forward_step``: opens the place where fused kernels leave raw log-probs."""

    @functools.wraps(original)
    def forward_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _forward():
            return original(self, *args, **kwargs)

    return forward_step


def fsdp_model_outputs(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces ``FSDPEngineWithLMHead.prepare_model_outputs``: adds `KEY` where it gives ``log_probs``."""

    @functools.wraps(original)
    def prepare_model_outputs(
        self: Any, output: Any, output_args: Any, micro_batch: Any, logits_processor_func: Any
    ) -> Any:
        found = original(self, output, output_args, micro_batch, logits_processor_func)
        tempered = found.get("log_probs")
        if tempered is not None:
            if output_args.get("temperature_is_one", False) and tempered.dtype == torch.float32:
                found[KEY] = tempered.detach()
            else:
                found[KEY] = _fsdp_raw(self, output, output_args, micro_batch)
        return found

    return prepare_model_outputs


def _fsdp_raw(engine: Any, output: Any, output_args: Any, micro_batch: Any) -> torch.Tensor:
    """The raw log-probs of a micro-batch, nested [B, j], as verl's engine lays out ``log_probs``."""
    tensordicts = importlib.import_module("verl.utils.tensordict_utils")
    packed = tensordicts.get_non_tensor_data(data=micro_batch, key="use_remove_padding", default=True)
    fused = tensordicts.get_non_tensor_data(data=micro_batch, key="use_fused_kernels", default=False)
    offsets = micro_batch["input_ids"].offsets()
    lengths = offsets.diff().tolist()
    with torch.no_grad():
        if fused:
            forward = _FORWARD.get() or _Fused()
            raw = forward.only(forward.raw, "FSDP").detach().reshape(output.log_probs.shape)
            values = raw.squeeze(0) if packed else torch.cat([row[:n] for row, n in zip(raw, lengths, strict=True)])
        else:
            logits = output.logits.detach()
            if hasattr(logits, "full_tensor"):  # tensor parallel: a DTensor, sharded over the vocabulary
                logits = logits.full_tensor()
            ids = output_args["input_ids_rmpad_rolled"]
            if packed:
                values = raw_logprobs(logits.squeeze(0), ids)
            else:
                parts = zip(logits, torch.split(ids, lengths), lengths, strict=True)
                values = torch.cat([raw_logprobs(row[:n], y) for row, y, n in parts])
        if packed:
            values = engine._gather_and_unpad_packed(values, output_args["pad_size"])
    return torch.nested.nested_tensor_from_jagged(values, offsets)


def fused_linear(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces ``FusedLinearForPPO.forward``, the torch and liger kernels."""

    @functools.wraps(original)
    def forward(self: Any, hidden_states: Any, vocab_weights: Any, input_ids: Any, temperature: float = 1.0) -> Any:
        found = original(self, hidden_states, vocab_weights, input_ids, temperature)

        def at_one() -> torch.Tensor:
            raw: torch.Tensor = original(self, hidden_states.detach(), vocab_weights.detach(), input_ids, 1.0)[0]
            return raw

        _leave(found[0], temperature, at_one)
        return found

    return forward


def fused_cross_entropy(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces ``linear_cross_entropy``, the Triton kernel of FSDP and of Megatron."""

    def linear_cross_entropy(hidden: Any, weight: Any, labels: Any, temperature: float = 1.0, *rest: Any) -> Any:
        found = original(hidden, weight, labels, temperature, *rest)

        def at_one() -> torch.Tensor:
            raw: torch.Tensor = original(hidden.detach(), weight.detach(), labels, 1.0, *rest)[0]
            return raw

        _leave(found[0], temperature, at_one)
        return found

    return linear_cross_entropy


def _leave(tempered: torch.Tensor, temperature: float, at_one: Callable[[], torch.Tensor]) -> None:
    """Leave raw log-probs with the forward pass that is going on, if one is."""
    forward = _FORWARD.get()
    if forward is None:
        return
    with torch.no_grad():
        forward.raw.append(tempered.detach() if temperature == 1.0 else at_one())


def megatron_logits(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces ``MegatronEngineWithLMHead._lm_head_logits_processor``, whose dictionary verl unpacks key by key."""

    @functools.wraps(original)
    def _lm_head_logits_processor(self: Any, logits: Any, label: Any, temperature: Any, **options: Any) -> Any:
        # before: verl divides by the temperature in place, and its cross-entropy subtracts in place
        raw = None if options.get("distillation_only") else _vocab_parallel_raw(logits, label)
        found = original(self, logits, label, temperature, **options)
        if raw is not None and "log_probs" in found:
            found[KEY] = raw
        return found

    return _lm_head_logits_processor


def _vocab_parallel_raw(logits: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """Raw log-probs [B, S] of logits [B, S, V/tp] that are split over tensor-parallel ranks, float32."""
    parallel = importlib.import_module("verl.utils.megatron.tensor_parallel")
    steps = logits.shape[1]
    step = max(1, _CHUNK // (4 * max(1, logits.shape[0] * logits.shape[-1])))
    parts = []
    with torch.no_grad():
        for start in range(0, steps, step):
            part = slice(start, start + step)
            copy = logits.detach()[:, part].to(torch.float32, copy=True)
            parts.append(parallel.vocab_parallel_log_probs_from_logits(copy, label[:, part]))
    return torch.cat(parts, dim=1) if parts else logits.new_zeros(label.shape, dtype=torch.float32)


def megatron_fused(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces ``fused_forward_model_engine``, which makes Megatron's fused forward."""

    @functools.wraps(original)
    def fused_forward_model_engine(*args: Any, **kwargs: Any) -> Any:
        inner = original(*args, **kwargs)

        @functools.wraps(inner)
        def forward(*inner_args: Any, **inner_kwargs: Any) -> Any:
            with _forward() as fused:
                found = inner(*inner_args, **inner_kwargs)
            if isinstance(found, dict) and "log_probs" in found:  # else a pipeline stage that is not the last
                found[KEY] = fused.only(fused.packed, "Megatron")
            return found

        return forward

    return fused_forward_model_engine


def megatron_unpack(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces ``postprocess_thd_engine`` in the module of the fused forward: unpacks the raw ones too.

    The fused forward unpacks log-probs first, entropies second.
    """

    @functools.wraps(original)
    def postprocess_thd_engine(output: Any, *args: Any, **kwargs: Any) -> Any:
        forward = _FORWARD.get()
        if forward is not None and not forward.packed:
            raw = forward.only(forward.raw, "Megatron")
            forward.packed.append(original(raw.reshape(output.shape), *args, **kwargs))
        return original(output, *args, **kwargs)

    return postprocess_thd_engine


class _Recorder:
    """A worker group that remembers what ``compute_log_prob`` was given and returned, and is the group otherwise."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self.calls: list[tuple[Any, Any]] = []

    def compute_log_prob(self, batch: Any) -> Any:
        """The group's answer."""
        found = self._group.compute_log_prob(batch)
        self.calls.append((batch, found))
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)


def ray_old_log_prob(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces ``RayPPOTrainer._compute_old_log_prob``: hands `KEY` on to the batch, where the metrics find it."""

    @functools.wraps(original)
    def _compute_old_log_prob(self: Any, batch: Any) -> Any:
        if not _reports_raw(self.config):
            return original(self, batch)
        group = self.actor_rollout_wg
        recorder = _Recorder(group)
        self.actor_rollout_wg = recorder
        try:
            found = original(self, batch)
        finally:
            self.actor_rollout_wg = group
        tensordicts = importlib.import_module("verl.utils.tensordict_utils")
        padding = importlib.import_module("verl.workers.utils.padding")
        [(given, output)] = recorder.calls
        found[0].batch[KEY] = padding.no_padding_2_padding(_carried(tensordicts.get(output, KEY)), given).float()
        return found

    return _compute_old_log_prob


def v1_old_log_prob(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces ``_compute_old_log_prob`` of the V1 trainer: the metrics that it logged are made of `KEY` instead."""

    @functools.wraps(original)
    def _compute_old_log_prob(self: Any, batch: Any, metrics: dict[str, Any]) -> Any:
        found = original(self, batch, metrics)
        correction = self.config.algorithm.get("rollout_correction", None)
        bypass = bool(correction and correction.get("bypass_mode", False))
        if bypass or not self.config.actor_rollout_ref.rollout.calculate_log_probs or not _reports_raw(self.config):
            return found
        trainer = importlib.import_module("verl.trainer.ppo.v1.trainer_base")
        padding = importlib.import_module("verl.workers.utils.padding")
        names = [KEY, "rollout_log_probs", "response_mask"]
        data = trainer.tq.kv_batch_get(keys=found.keys, partition_id=found.partition_id, select_fields=names)
        data[KEY] = padding.response_from_nested(_carried(data.pop(KEY, None)), data["response_mask"])
        metrics.update(calculate_debug_metrics(data.to_padded_tensor()))
        return found

    return _compute_old_log_prob


def _carried(raw: Any) -> Any:
    if raw is None:
        raise RuntimeError(
            f"the workers returned no {KEY!r}: the part 'actor' must be installed in their processes too (set "
            "VERL_USE_EXTERNAL_MODULES=numerics.integrations.verl.everywhere for all of them), and the engine must be "
            "FSDP or Megatron"
        )
    return raw


def _reports_raw(config: Any) -> bool:
    """Whether the rollout engine reports raw log-probs; if not, raw ones of the trainer would be no match for them."""
    mode = config.actor_rollout_ref.rollout.get("logprobs_mode", None)
    if mode != "raw_logprobs":
        _log_once(mode)
    return bool(mode == "raw_logprobs")


@functools.lru_cache(maxsize=8)
def _log_once(mode: Any) -> None:
    _log.warning(
        "rollout.logprobs_mode is %r: the rollout's log-probs are tempered, so that the metrics compare them with "
        "old_log_probs, which are too; raw ones are handed on with logprobs_mode: raw_logprobs",
        mode,
    )
