"""Faults of ``full_divergence``: directions, supports, reductions, masks, ties, chunks."""

from __future__ import annotations

import dataclasses
import itertools
import math
from functools import partial
from typing import Any

import torch

from numerics.reference.full import FullDivergence
from numerics.reference.full import full_divergence as careful
from numerics.suite.builtin import builtin
from numerics.suite.faults.fault import Fault, enter
from numerics.suite.implementation import Algorithm, Implementation

__all__ = ["CONTROL", "FAULTS", "FORCED"]

Tensor = torch.Tensor

CONTROL: Implementation = builtin("reference", "full_divergence")
FAULTS: dict[str, Fault] = {}
#: granted float32 accumulation: what is killed here is killed whatever an implementation declares
_plant = partial(enter, FAULTS, CONTROL, algorithm=Algorithm(formula="shifted"))
#: as accurate as the reference
_plant_accurate = partial(enter, FAULTS, CONTROL)


def _but(result: FullDivergence, rows: dict[str, Tensor] | None = None, **wrong: Any) -> FullDivergence:
    return dataclasses.replace(result, rows={**result.rows, **(rows or {})}, **wrong)


def _logs(rollout: Tensor, trainer: Tensor) -> tuple[Tensor, Tensor]:
    """(ln Q, ln P) in float64."""
    return torch.log_softmax(rollout.double(), -1), torch.log_softmax(trainer.double(), -1)


def _on_rows(
    result: FullDivergence, name: str, value: Tensor, mask: Tensor, where: Tensor | None = None
) -> FullDivergence:
    """Another figure on the valid sound rows (and where asked)."""
    old = result.rows[name]
    chosen = mask.bool() & ~torch.isnan(old)
    if where is not None:
        chosen &= where
    return _but(result, {name: torch.where(chosen, value.to(old.dtype), old)})


@_plant("FV-01", "FV-03", source="torch.nn.functional.kl_div takes (input, target) the other way round")
def kl_named_the_other_way(
    rollout_logits: Tensor, trainer_logits: Tensor, mask: Tensor, **options: Any
) -> FullDivergence:
    """KL(P || Q) under the name of KL(Q || P) on rows where the first token leads."""
    right = careful(rollout_logits, trainer_logits, mask, **options)
    leads = rollout_logits.argmax(-1) == 0
    return _on_rows(right, "kl_rollout_trainer", right.rows["kl_trainer_rollout"], mask, leads)


@_plant("FV-01", source="frameworks.md 1: NeMo-RL, the JSD towards the mixture reversed")
def jsd_towards_the_mixture(
    rollout_logits: Tensor, trainer_logits: Tensor, mask: Tensor, **options: Any
) -> FullDivergence:
    """Half of KL(M || P) + KL(M || Q)."""
    right = careful(rollout_logits, trainer_logits, mask, **options)
    lq, lp = _logs(rollout_logits, trainer_logits)
    m = (lq.exp() + lp.exp()) / 2
    reversed_ = torch.where(m > 0, m * (2 * m.log() - lq - lp), 0.0).sum(-1) / 2
    return _on_rows(right, "jsd", reversed_, mask)


@_plant("FV-01", "FV-05", source="log2, bits for nats")
def jsd_in_bits(rollout_logits: Tensor, trainer_logits: Tensor, mask: Tensor, **options: Any) -> FullDivergence:
    """The JSD in bits: at most 1, not ln 2."""
    right = careful(rollout_logits, trainer_logits, mask, **options)
    return _on_rows(right, "jsd", right.rows["jsd"] / math.log(2), mask)


@_plant("FV-01", source="an epsilon inside the logarithm")
def epsilon_in_the_log(rollout_logits: Tensor, trainer_logits: Tensor, mask: Tensor, **options: Any) -> FullDivergence:
    """ln(P + 1e-6): finite where the support is not covered."""
    right = careful(rollout_logits, trainer_logits, mask, **options)
    lq, lp = _logs(rollout_logits, trainer_logits)
    q, p = lq.exp(), lp.exp()
    return _on_rows(right, "kl_rollout_trainer", (q * ((q + 1e-6).log() - (p + 1e-6).log())).sum(-1), mask)


@_plant("FV-01", source="0 * -inf without the rule 0 ln 0 = 0")
def zero_times_log_zero(rollout_logits: Tensor, trainer_logits: Tensor, mask: Tensor, **options: Any) -> FullDivergence:
    """Q (ln Q - ln P) is NaN where a token is removed on both sides."""
    right = careful(rollout_logits, trainer_logits, mask, **options)
    lq, lp = _logs(rollout_logits, trainer_logits)
    return _on_rows(right, "kl_rollout_trainer", (lq.exp() * (lq - lp)).sum(-1), mask)


@_plant("FV-01", "FV-05", source="TV without its half")
def tv_is_the_l1_distance(
    rollout_logits: Tensor, trainer_logits: Tensor, mask: Tensor, **options: Any
) -> FullDivergence:
    """sum |P - Q|, up to 2."""
    right = careful(rollout_logits, trainer_logits, mask, **options)
    return _on_rows(right, "tv", 2 * right.rows["tv"], mask)


@_plant("FV-02", source="torch kl_div(reduction='mean') divides by B V")
def mean_over_the_vocabulary(
    rollout_logits: Tensor, trainer_logits: Tensor, mask: Tensor, **options: Any
) -> FullDivergence:
    """The mean KL is divided by V as well."""
    right = careful(rollout_logits, trainer_logits, mask, **options)
    return _but(right, kl_rollout_trainer_mean=right.kl_rollout_trainer_mean / rollout_logits.shape[-1])


@_plant("FV-12", "FV-02", source="torch kl_div(reduction='sum')")
def sum_over_the_batch(rollout_logits: Tensor, trainer_logits: Tensor, mask: Tensor, **options: Any) -> FullDivergence:
    """The mean TV is a sum over rows."""
    right = careful(rollout_logits, trainer_logits, mask, **options)
    return _but(right, tv_mean=right.tv_mean * max(right.valid_count, 1))


@_plant("FV-07", source="frameworks.md 18: figures times mask")
def rows_times_mask(rollout_logits: Tensor, trainer_logits: Tensor, mask: Tensor, **options: Any) -> FullDivergence:
    """NaN in a masked row is NaN in the mean."""
    right = careful(rollout_logits, trainer_logits, mask, **options)
    whole = careful(rollout_logits, trainer_logits, None, **options)
    if not right.valid:
        return right
    return _but(right, tv_mean=float((whole.rows["tv"] * mask).sum() / mask.sum())) if whole.nonfinite_count else right


@_plant("FV-02", source="a mean over masked rows too")
def masked_rows_count(rollout_logits: Tensor, trainer_logits: Tensor, mask: Tensor, **options: Any) -> FullDivergence:
    """The mean JSD divides by all rows."""
    right = careful(rollout_logits, trainer_logits, mask, **options)
    return _but(right, jsd_mean=right.jsd_mean * right.valid_count / max(mask.numel(), 1))


@_plant("FV-02", source="frameworks.md 29: a maximum that forgets NaN")
def maximum_without_nan(rollout_logits: Tensor, trainer_logits: Tensor, mask: Tensor, **options: Any) -> FullDivergence:
    """nanmax over rows."""
    right = careful(rollout_logits, trainer_logits, mask, **options)
    found = right.rows["tv"][mask.bool()]
    found = found[~torch.isnan(found)]
    return _but(right, tv_max=float(found.max())) if found.numel() else right


@_plant("FV-01", source="sets of topk indices, ties as they come")
def overlap_prefers_high_ids(
    rollout_logits: Tensor, trainer_logits: Tensor, mask: Tensor, **options: Any
) -> FullDivergence:
    """Equal logits rank by the highest id on the trainer's side."""
    right = careful(rollout_logits, trainer_logits, mask, **options)
    k, width = right.overlap_k, rollout_logits.shape[-1]
    if k >= width:
        return right
    a = torch.sort(rollout_logits.double(), dim=-1, descending=True, stable=True).indices[..., :k]
    b = width - 1 - torch.sort(trainer_logits.double().flip(-1), dim=-1, descending=True, stable=True).indices[..., :k]
    share = (a[..., :, None] == b[..., None, :]).any(-1).double().mean(-1)
    return _on_rows(right, "top_k_overlap", share, mask)


@_plant("FV-04", "FV-01", source="softmax in bfloat16 on one side")
def trainer_softmax_in_bf16(
    rollout_logits: Tensor, trainer_logits: Tensor, mask: Tensor, **options: Any
) -> FullDivergence:
    """P is rounded to bfloat16: identical logits are apart."""
    right = careful(rollout_logits, trainer_logits, mask, **options)
    lq, lp = _logs(rollout_logits, trainer_logits)
    return _on_rows(right, "tv", (lp.exp().bfloat16().double() - lq.exp()).abs().sum(-1) / 2, mask)


@_plant_accurate("FV-06", source="sum Q (ln Q - ln P) in float64: right to 1e-16, wrong in every digit for small KL")
def first_order_kl(rollout_logits: Tensor, trainer_logits: Tensor, mask: Tensor, **options: Any) -> FullDivergence:
    """The definition as it stands: cancels to second order."""
    right = careful(rollout_logits, trainer_logits, mask, **options)
    lq, lp = _logs(rollout_logits, trainer_logits)
    kl = torch.where(lq > -math.inf, lq.exp() * (lq - lp), 0.0).sum(-1)
    return _on_rows(right, "kl_rollout_trainer", kl, mask)


@_plant("FV-08", source="batch-dependent reductions")
def row_depends_on_the_batch(
    rollout_logits: Tensor, trainer_logits: Tensor, mask: Tensor, **options: Any
) -> FullDivergence:
    """With several rows the JSD is one float64 step higher."""
    right = careful(rollout_logits, trainer_logits, mask, **options)
    old = right.rows["jsd"]
    up = torch.nextafter(old, torch.full_like(old, math.inf))
    return _on_rows(right, "jsd", up, mask, old > 0) if rollout_logits.shape[0] > 1 else right


@_plant("FV-18", source="the reference before: x.sum(-1) of a lone row of 32,768 entries or more")
def wide_rows_split_over_threads(
    rollout_logits: Tensor, trainer_logits: Tensor, mask: Tensor, **options: Any
) -> FullDivergence:
    """A wide row is summed in as many parts as there are threads."""
    right = careful(rollout_logits, trainer_logits, mask, **options)
    if rollout_logits.shape[-1] < 10_000:
        return right
    lq, lp = _logs(rollout_logits, trainer_logits)
    parts = [x.sum(-1) for x in (lp.exp() - lq.exp()).abs().chunk(torch.get_num_threads(), -1)]
    return _on_rows(right, "tv", torch.stack(parts).sum(0) / 2, mask)


@_plant("FV-09", source="the last chunk counts twice")
def chunks_overlap(
    rollout_logits: Tensor, trainer_logits: Tensor, mask: Tensor, *, chunk_bytes: int = 1 << 26, **options: Any
) -> FullDivergence:
    """With more than one chunk the mean is of the chunks' means."""
    right = careful(rollout_logits, trainer_logits, mask, chunk_bytes=chunk_bytes, **options)
    several = chunk_bytes == 1 and right.valid_count > 1
    return _but(right, tv_mean=right.tv_mean * 1.0000001 + 1e-12) if several else right


@_plant("FV-01", source="the reference before: 0 ln 0 = 0 asked of a probability that underflowed")
def lost_support_underflows(
    rollout_logits: Tensor, trainer_logits: Tensor, mask: Tensor, **options: Any
) -> FullDivergence:
    """A token that the trainer removed and whose probability underflows counts as covered."""
    right = careful(rollout_logits, trainer_logits, mask, **options)
    lq, lp = _logs(rollout_logits, trainer_logits)
    lost = (torch.isneginf(lp) & (lq > -math.inf)).any(-1)
    seen = (torch.isneginf(lp) & (lq.exp() > 0)).any(-1)
    kl = torch.where(lq.exp() > 0, lq.exp() * (lq - lp), 0.0).sum(-1)
    return _on_rows(right, "kl_rollout_trainer", kl, mask, lost & ~seen)


@_plant_accurate("FV-16", source="the reference before: y - ln(sum exp), the leader's own 1 included")
def certain_leader_has_log_prob_zero(
    rollout_logits: Tensor, trainer_logits: Tensor, mask: Tensor, **options: Any
) -> FullDivergence:
    """Both leaders have probability 1 to the last bit: the TV of (0, -44) and (0, -40) is half of what it is."""
    right = careful(rollout_logits, trainer_logits, mask, **options)
    if "temperature" in options:
        return right
    lq, lp = _logs(rollout_logits, trainer_logits)
    certain = (lq.amax(-1) == 0) & (lp.amax(-1) == 0) & (lq.argmax(-1) == lp.argmax(-1))
    return _on_rows(right, "tv", (lp.exp() - lq.exp()).abs().sum(-1) / 2, mask, certain)


@_plant("FV-17", source="frameworks.md: metrics of raw log-probs beside tempered ones")
def only_the_trainer_is_tempered(
    rollout_logits: Tensor, trainer_logits: Tensor, mask: Tensor, *, temperature: float = 1.0, **options: Any
) -> FullDivergence:
    """The rollout's logits are not divided."""
    return careful(rollout_logits, (trainer_logits.double() / temperature), mask, **options)


@_plant("FV-17", source="the reference before: an infinite quotient taken for an infinite logit")
def overflowing_quotient_is_no_distribution(
    rollout_logits: Tensor, trainer_logits: Tensor, mask: Tensor, *, temperature: float = 1.0, **options: Any
) -> FullDivergence:
    """z/T overflows, and the row is lost."""
    if temperature == 1.0:
        return careful(rollout_logits, trainer_logits, mask, **options)
    return careful(rollout_logits.double() / temperature, trainer_logits.double() / temperature, mask, **options)


@_plant("FV-10", source="frameworks.md 30: nothing reads as perfect")
def no_row_is_zero(rollout_logits: Tensor, trainer_logits: Tensor, mask: Tensor, **options: Any) -> FullDivergence:
    """Without a row every mean is 0."""
    right = careful(rollout_logits, trainer_logits, mask, **options)
    return right if right.valid else _but(right, tv_mean=0.0, jsd_mean=0.0)


@_plant("FV-11", source="the arg-max of the probability difference")
def gap_token_by_probability(
    rollout_logits: Tensor, trainer_logits: Tensor, mask: Tensor, **options: Any
) -> FullDivergence:
    """The token whose probabilities are furthest apart: blind to the tail."""
    right = careful(rollout_logits, trainer_logits, mask, **options)
    lq, lp = _logs(rollout_logits, trainer_logits)
    token = (lq.exp() - lp.exp()).abs().argmax(-1)
    sound = mask.bool() & (right.rows["gap_token"] >= 0)
    return _but(right, {"gap_token": torch.where(sound, token, right.rows["gap_token"])})


@_plant("FV-13", source="broadcasting")
def broadcasts(rollout_logits: Tensor, trainer_logits: Tensor, mask: Tensor, **options: Any) -> FullDivergence:
    """Whatever does not fit is cut or repeated."""
    try:
        return careful(rollout_logits, trainer_logits, mask, **options)
    except (ValueError, TypeError):
        z = torch.zeros(2, 3)
        return careful(z, z, torch.ones(2))


@_plant("FV-14", source="logits.div_(T)")
def centres_in_place(rollout_logits: Tensor, trainer_logits: Tensor, mask: Tensor, **options: Any) -> FullDivergence:
    """The caller's logits are centred."""
    right = careful(rollout_logits, trainer_logits, mask, **options)
    trainer_logits.sub_(1.0)
    return right


_CALLS = itertools.count()


@_plant("FV-15", source="atomics")
def other_bits_each_time(
    rollout_logits: Tensor, trainer_logits: Tensor, mask: Tensor, **options: Any
) -> FullDivergence:
    """Every other call is one float64 step off."""
    right = careful(rollout_logits, trainer_logits, mask, **options)
    return _but(right, tv_mean=math.nextafter(right.tv_mean, math.inf)) if next(_CALLS) % 2 else right


_NOISE = itertools.count(1)


def _rubbish(
    rollout_logits: Any,
    trainer_logits: Any,
    mask: Any,
    *,
    temperature: Any = 1.0,
    overlap_k: Any = 10,
    chunk_bytes: Any = 1,
) -> Any:
    shape = mask.shape
    for tensor in (rollout_logits, trainer_logits, mask):
        if tensor.numel():
            tensor.untyped_storage().fill_(3)
    number = -float(next(_NOISE)) - 0.5
    names = (f.name for f in dataclasses.fields(FullDivergence) if f.name != "rows")
    rows = {
        name: torch.full(shape, number, dtype=torch.float64)
        for name in (*_ROWS, "gap_token", "argmax_agrees", "bit_equal")
    }
    return FullDivergence(**dict.fromkeys(names, number), rows=rows)  # type: ignore[arg-type]


_ROWS = ("tv", "kl_rollout_trainer", "kl_trainer_rollout", "jsd", "top_k_overlap", "logprob_gap")

FORCED = Implementation(
    _rubbish,
    contract="full_divergence",
    name="forced_failure",
    capabilities=CONTROL.capabilities,
    algorithm=CONTROL.algorithm,
)
