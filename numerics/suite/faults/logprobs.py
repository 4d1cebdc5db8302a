"""Faults of ``token_logprobs``: formula, temperature, batch, mask, labels."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import torch

from numerics import reference
from numerics.suite.builtin import builtin
from numerics.suite.faults.fault import Fault, enter
from numerics.suite.faults.tensors import pick, scaled, softly, up
from numerics.suite.implementation import Algorithm, Implementation

__all__ = ["CONTROL", "FAULTS", "FORCED", "rubbish"]

Tensor = torch.Tensor

CONTROL: Implementation = builtin("reference", "token_logprobs")
FAULTS: dict[str, Fault] = {}
#: float32 arithmetic, granted the loosest bound: what is killed here is killed whatever an implementation declares
_LOOSE = Algorithm()
_plant = partial(enter, FAULTS, CONTROL)

careful = reference.token_logprobs


# --- formula ------------------------------------------------------------------------------------------------


@_plant("LP-01", algorithm=_LOOSE, source="SGLang's standard sampling path; frameworks.md 59")
def log_of_softmax(logits: Tensor, token_ids: Tensor, *, temperature: Any = 1.0) -> Tensor:
    """log(softmax(x)): the probability underflows to 0 at a gap of 104."""
    return pick(torch.log(torch.softmax(scaled(logits, temperature), -1)), token_ids)


@_plant("LP-01", algorithm=_LOOSE, source="textbook; overflows at 89")
def no_max_shift(logits: Tensor, token_ids: Tensor, *, temperature: Any = 1.0) -> Tensor:
    """log sum exp(x) without subtracting the maximum."""
    y = scaled(logits, temperature)
    return pick(y, token_ids) - torch.log(torch.exp(y).sum(-1))


@_plant("LP-01", algorithm=Algorithm(formula="shifted"), source="frameworks.md 55, mlx#4188")
def logsumexp_called_shifted(logits: Tensor, token_ids: Tensor, *, temperature: Any = 1.0) -> Tensor:
    """x - logsumexp(x), declared as the shifted formula: a common offset costs its digits."""
    y = scaled(logits, temperature)
    return pick(y, token_ids) - torch.logsumexp(y, -1)


@_plant("LP-01", algorithm=_LOOSE, source="the usual guard against log(0)")
def log_with_epsilon(logits: Tensor, token_ids: Tensor, *, temperature: Any = 1.0) -> Tensor:
    """log(p + 1e-8): improbable tokens saturate at -18.4."""
    return pick(torch.log(torch.softmax(scaled(logits, temperature), -1) + 1e-8), token_ids)


@_plant("LP-01", algorithm=_LOOSE, source="verl, TRL safety clamps")
def clipped_at_minus_20(logits: Tensor, token_ids: Tensor, **options: Any) -> Tensor:
    """Log-probs clamped at -20."""
    return careful(logits, token_ids, **options).clamp(min=-20)


@_plant("LP-01", algorithm=_LOOSE, source="models.md: a bias within atol=1e-5")
def bias_of_a_millionth(logits: Tensor, token_ids: Tensor, **options: Any) -> Tensor:
    """1e-6 too low: invisible to assert_close's 1e-5."""
    return careful(logits, token_ids, **options) - 1e-6


@_plant("LP-01", algorithm=_LOOSE, source="executorch#20089: sequential bf16 accumulation")
def bf16_accumulation(logits: Tensor, token_ids: Tensor, *, temperature: Any = 1.0) -> Tensor:
    """The sum of exponentials is kept in bfloat16, the declaration says float32."""
    y = scaled(logits, temperature)
    top = y.amax(-1, keepdim=True)
    total = torch.zeros_like(y[..., 0], dtype=torch.bfloat16)
    for v in range(y.shape[-1]):
        total = total + torch.exp(y - top)[..., v].bfloat16()
    return pick(y - top, token_ids) - torch.log(total.to(y.dtype))


@_plant("LP-01", algorithm=_LOOSE, source="TF32 tensor cores in front of the logits")
def tf32_logits(logits: Tensor, token_ids: Tensor, **options: Any) -> Tensor:
    """Logits rounded to 10 fraction bits on the way in."""
    wide = logits.double()
    kept = torch.ldexp(
        torch.round(torch.ldexp(torch.frexp(wide).mantissa, torch.tensor(11))), torch.frexp(wide).exponent - 11
    )
    rounded = torch.where(torch.isfinite(wide) & (wide != 0), kept, wide)
    return careful(rounded.float(), token_ids, **options)


@_plant("LP-01", algorithm=_LOOSE, source="tile loops without a remainder")
def drop_tail_chunk(logits: Tensor, token_ids: Tensor, *, temperature: Any = 1.0) -> Tensor:
    """The last column is left out of the sum when V = 1 mod 4."""
    y = scaled(logits, temperature)
    width = y.shape[-1]
    kept = y[..., : width - 1] if width % 4 == 1 and width > 1 else y
    return (pick(y, token_ids) - torch.logsumexp(kept, -1)).clamp(max=0)


@_plant("LP-01", algorithm=_LOOSE, source="https://github.com/verl-project/verl/issues/2656")
def phantom_columns(logits: Tensor, token_ids: Tensor, *, temperature: Any = 1.0) -> Tensor:
    """The vocabulary is padded to a multiple of 4 with logit 0 instead of -inf."""
    y = scaled(logits, temperature)
    padded = torch.nn.functional.pad(y, (0, -y.shape[-1] % 4))
    return pick(torch.log_softmax(padded, -1), token_ids)


@_plant("LP-01", algorithm=_LOOSE, source="off-by-one labels, ms-swift#8196")
def label_off_by_one(logits: Tensor, token_ids: Tensor, **options: Any) -> Tensor:
    """Scores the neighbouring token."""
    width = logits.shape[-1]
    inside = (token_ids >= 0) & (token_ids < width)
    return careful(logits, torch.where(inside, (token_ids + 1) % width, token_ids), **options)


@_plant("LP-01", algorithm=_LOOSE, source="https://github.com/AI-Hypercomputer/maxtext/pull/5231")
def target_from_rounded_logits(logits: Tensor, token_ids: Tensor, *, temperature: Any = 1.0) -> Tensor:
    """The chosen logit is read from a bf16 copy, the log-sum-exp from the float32 logits."""
    y = scaled(logits, temperature)
    return (pick(y.bfloat16().to(y.dtype), token_ids) - torch.logsumexp(y, -1)).clamp(max=0)


@_plant("LP-01", algorithm=_LOOSE, source="allennlp#890; finite fill values for masked logits")
def neg_inf_as_minus_1e4(logits: Tensor, token_ids: Tensor, **options: Any) -> Tensor:
    """-inf replaced by -1e4: an impossible token gets a finite log-prob."""
    return careful(torch.where(logits == -math.inf, torch.full_like(logits, -1e4), logits), token_ids, **options)


@_plant("LP-01", algorithm=_LOOSE, source="log-softmax in base 2 without the factor")
def base_two(logits: Tensor, token_ids: Tensor, **options: Any) -> Tensor:
    """Bits instead of nats."""
    return careful(logits, token_ids, **options) / math.log(2)


@_plant("LP-02", "LP-01", dtype="bfloat16", algorithm=_LOOSE, source="TRL, OpenRLHF, open-instruct; frameworks.md 53")
def bf16_output(logits: Tensor, token_ids: Tensor, **options: Any) -> Tensor:
    """Log-probs stored in the logits' dtype."""
    return careful(logits, token_ids, **options).to(logits.dtype)


@_plant("LP-02", algorithm=_LOOSE, source="a .double() left in from debugging")
def float64_output(logits: Tensor, token_ids: Tensor, **options: Any) -> Tensor:
    """Right values in another dtype: every later op changes its promotion."""
    return careful(logits, token_ids, **options).double()


@_plant("LP-06", algorithm=_LOOSE, source="x - logsumexp(x) with an lse that rounds down; frameworks.md 55")
def above_zero_by_a_rounding(logits: Tensor, token_ids: Tensor, **options: Any) -> Tensor:
    """A certain token's log-prob comes out as +6e-8, within the bound but no log-probability."""
    value = careful(logits, token_ids, **options)
    return softly(value, torch.full_like(value, 2.0**-25), value > -(2.0**-26))


@_plant("LP-08", algorithm=Algorithm(formula="shifted"), source="a maximum kept in half precision")
def shift_by_rounded_maximum(logits: Tensor, token_ids: Tensor, *, temperature: Any = 1.0) -> Tensor:
    """Shifts by the maximum rounded to bfloat16: accurate, but a common offset changes bits."""
    y = scaled(logits, temperature)
    about = y.amax(-1, keepdim=True).bfloat16().to(y.dtype)
    about = torch.where(torch.isfinite(about), about, y.amax(-1, keepdim=True))
    shifted = y - about
    return (pick(shifted, token_ids) - torch.log(torch.exp(shifted).sum(-1))).clamp(max=0)


@_plant("LP-09", algorithm=_LOOSE, source="sparse log-softmax over the finite entries")
def compacts_finite_columns(logits: Tensor, token_ids: Tensor, *, temperature: Any = 1.0) -> Tensor:
    """Rows with -inf entries are summed over the others only, in another order."""
    y = scaled(logits, temperature)
    top = y.amax(-1, keepdim=True)
    weights = torch.exp(y - top)
    forwards, backwards = torch.zeros_like(top[..., 0]), torch.zeros_like(top[..., 0])
    for v in range(y.shape[-1]):
        forwards, backwards = forwards + weights[..., v], backwards + weights[..., -1 - v]
    total = torch.where((y == -math.inf).any(-1), backwards, forwards)
    return pick(y - top, token_ids) - torch.log(total)


# --- temperature --------------------------------------------------------------------------------------------


@_plant("LP-01", algorithm=_LOOSE, source="https://github.com/PrimeIntellect-ai/prime-rl/pull/697")
def logprob_over_temperature(logits: Tensor, token_ids: Tensor, *, temperature: Any = 1.0, **options: Any) -> Tensor:
    """log_softmax(z) / T instead of log_softmax(z / T)."""
    t = torch.as_tensor(temperature, dtype=torch.float64)
    return careful(logits, token_ids, **options) / t.float()


@_plant("LP-01", algorithm=_LOOSE, source="https://github.com/verl-project/verl/issues/4162")
def temperature_ignored(logits: Tensor, token_ids: Tensor, *, temperature: Any = 1.0, **options: Any) -> Tensor:
    """Raw log-probs whatever the temperature."""
    return careful(logits, token_ids, **options)


@_plant("LP-03", "LP-01", algorithm=_LOOSE, source="guards against division by zero")
def temperature_plus_epsilon(logits: Tensor, token_ids: Tensor, *, temperature: Any = None, **options: Any) -> Tensor:
    """z / (T + 1e-6)."""
    t = {} if temperature is None else {"temperature": temperature + 1e-6}
    return careful(logits, token_ids, **t, **options)


@_plant("LP-03", algorithm=_LOOSE, source="two code paths for the same number")
def unit_temperature_by_another_path(logits: Tensor, token_ids: Tensor, *, temperature: Any = None) -> Tensor:
    """Without a temperature the shifted form, with one x - logsumexp(x): both right, other bits."""
    y = scaled(logits, 1.0 if temperature is None else temperature)
    if temperature is None:
        return pick(torch.log_softmax(y, -1), token_ids)
    return pick(y, token_ids) - torch.logsumexp(y, -1)


@_plant("LP-04", algorithm=_LOOSE, source="CUDA divides by a Python scalar through its reciprocal")
def reciprocal_of_a_scalar(logits: Tensor, token_ids: Tensor, *, temperature: Any = 1.0) -> Tensor:
    """A float T multiplies by 1/T, a tensor divides."""
    if isinstance(temperature, float):
        wide = logits if logits.dtype == torch.float64 else logits.float()
        y = wide * torch.tensor(1.0 / temperature, dtype=wide.dtype)
    else:
        y = scaled(logits, temperature)
    return pick(torch.log_softmax(y, -1), token_ids)


@_plant("LP-01", algorithm=_LOOSE, source="per-request temperatures averaged over the batch")
def one_temperature_for_the_batch(
    logits: Tensor, token_ids: Tensor, *, temperature: Any = 1.0, **options: Any
) -> Tensor:
    """A per-token temperature is replaced by its mean."""
    t = torch.as_tensor(temperature, dtype=torch.float64)
    return careful(logits, token_ids, temperature=t.mean() if t.ndim else t, **options)


@_plant("LP-05", dtype="bfloat16", algorithm=_LOOSE, source="verl FSDP and Megatron; frameworks.md 51")
def temperature_rounded_to_bf16(logits: Tensor, token_ids: Tensor, *, temperature: Any = 1.0, **options: Any) -> Tensor:
    """T cast to the logits' dtype: 0.7 becomes 0.69921875."""
    t = torch.as_tensor(temperature, dtype=torch.float64).to(logits.dtype).double()
    return careful(logits, token_ids, temperature=t, **options)


@_plant("LP-05", dtype="bfloat16", algorithm=_LOOSE, source="TRL, OpenRLHF, NeMo-RL, SkyRL; frameworks.md 52")
def divided_in_bf16(logits: Tensor, token_ids: Tensor, *, temperature: Any = 1.0, **options: Any) -> Tensor:
    """Division in the logits' dtype, upcast afterwards."""
    t = torch.as_tensor(temperature, dtype=torch.float64)
    return careful((logits.double() / (t[..., None] if t.ndim else t)).to(logits.dtype), token_ids, **options)


@_plant("LP-19", algorithm=_LOOSE, source="verl clamps T at 1e-8; frameworks.md 60")
def temperature_clamped(logits: Tensor, token_ids: Tensor, *, temperature: Any = 1.0, **options: Any) -> Tensor:
    """T = 0 becomes 1e-8 instead of an error."""
    t = torch.nan_to_num(torch.as_tensor(temperature, dtype=torch.float64), nan=1.0, posinf=1e30).clamp(min=1e-8)
    return careful(logits, token_ids, temperature=t, **options)


@_plant("LP-16", algorithm=_LOOSE, source="OpenRLHF divides the caller's logits; frameworks.md 62")
def divides_in_place(logits: Tensor, token_ids: Tensor, *, temperature: Any = None, **options: Any) -> Tensor:
    """The caller's logits are overwritten."""
    out = careful(logits, token_ids, **({} if temperature is None else {"temperature": temperature}), **options)
    if temperature is not None and not logits.requires_grad:
        logits.div_(2.0)
    return out


@_plant("LP-22", algorithm=_LOOSE, source="z / T without a guard, pytorch#161150")
def unguarded_division(logits: Tensor, token_ids: Tensor, *, temperature: Any = 1.0) -> Tensor:
    """z / T overflows to inf, and inf - inf is NaN."""
    return pick(torch.log_softmax(scaled(logits, temperature), -1), token_ids)


# --- rows, strides, threads, determinism --------------------------------------------------------------------


@_plant("LP-10", algorithm=_LOOSE, source="verl#6280: 112,658 of 262,336 log-probs differ between batch sizes")
def one_ulp_off_in_large_batches(logits: Tensor, token_ids: Tensor, **options: Any) -> Tensor:
    """One ulp off from the fifth row on: within every bound."""
    value = careful(logits, token_ids, **options)
    late = torch.arange(value.numel()).reshape(value.shape) >= 4
    return torch.where(late & torch.isfinite(value), up(value), value)


@_plant("LP-10", "LP-21", algorithm=_LOOSE, source="one maximum for the whole tensor")
def maximum_over_the_batch(logits: Tensor, token_ids: Tensor, *, temperature: Any = 1.0) -> Tensor:
    """Shifts every row by the maximum of the batch: small rows underflow, a NaN spreads."""
    y = scaled(logits, temperature)
    top = y.amax()
    return (pick(y - top, token_ids) - torch.log(torch.exp(y - top).sum(-1))).clamp(max=0)


@_plant("LP-13", algorithm=_LOOSE, source="kernels that read a data pointer; AReaL's .view, frameworks.md 66")
def assumes_contiguous(logits: Tensor, token_ids: Tensor, **options: Any) -> Tensor:
    """Reads the memory as if rows were contiguous."""
    if logits.requires_grad or logits.ndim != 2:
        return careful(logits, token_ids, **options)
    flat = torch.as_strided(logits, (logits.untyped_storage().nbytes() // logits.element_size(),), (1,), 0)
    start = logits.storage_offset()
    wanted = flat[start : start + logits.numel()]
    return careful(wanted.reshape(logits.shape) if wanted.numel() == logits.numel() else logits, token_ids, **options)


@_plant("LP-14", algorithm=_LOOSE, source="torch.logsumexp from V = 32,769 on")
def splits_rows_over_threads(logits: Tensor, token_ids: Tensor, *, temperature: Any = 1.0) -> Tensor:
    """A wide row is summed in as many parts as there are threads."""
    y = scaled(logits, temperature)
    if y.shape[-1] < 10_000:
        return pick(torch.log_softmax(y, -1), token_ids)
    top = y.amax(-1, keepdim=True)
    parts = [p.sum(-1) for p in torch.exp(y - top).chunk(torch.get_num_threads(), -1)]
    return pick(y - top, token_ids) - torch.log(torch.stack(parts).sum(0))


_CALLS = itertools.count()


@_plant("LP-15", algorithm=_LOOSE, source="atomics in a reduction")
def another_order_each_time(logits: Tensor, token_ids: Tensor, **options: Any) -> Tensor:
    """Every other call is one ulp off, as a reduction with atomics may be."""
    value = careful(logits, token_ids, **options)
    return torch.where(torch.isfinite(value), up(value), value) if next(_CALLS) % 2 else value


# --- masks, labels, arguments, non-finite rows --------------------------------------------------------------


@_plant("LP-17", algorithm=_LOOSE, source="an id check that does not know the mask")
def checks_masked_ids(logits: Tensor, token_ids: Tensor, *, mask: Any = None, **options: Any) -> Tensor:
    """Raises on -100 at a masked place."""
    return careful(logits, token_ids, **options) * (1 if mask is None else mask)


@_plant("LP-31", algorithm=_LOOSE, source="frameworks.md 18, 19: masks that multiply")
def mask_multiplies(logits: Tensor, token_ids: Tensor, *, mask: Any = None, **options: Any) -> Tensor:
    """lp * mask: NaN at a masked place reaches the gradient."""
    if mask is None:
        return careful(logits, token_ids, **options)
    reference.token_logprobs(logits, token_ids, mask=mask)  # the argument checks are right
    product: Tensor = careful(logits, token_ids.clamp(0, logits.shape[-1] - 1), **options) * mask
    return product


@_plant("LP-18", algorithm=_LOOSE, source="torchforge, NeMo-RL; frameworks.md 58")
def bad_label_is_certain(logits: Tensor, token_ids: Tensor, **options: Any) -> Tensor:
    """A label out of range gets log-prob 0, probability 1."""
    width = logits.shape[-1]
    inside = (token_ids >= 0) & (token_ids < width)
    return careful(logits, torch.where(inside, token_ids, 0), **options) * inside


@_plant("LP-18", algorithm=_LOOSE, source="32-bit offsets and modulo in kernels")
def bad_label_wraps(logits: Tensor, token_ids: Tensor, **options: Any) -> Tensor:
    """A label out of range is taken modulo V."""
    return careful(logits, token_ids % logits.shape[-1], **options)


@_plant("LP-20", algorithm=_LOOSE, source="mask.bool() and broadcasting")
def accepts_any_mask(logits: Tensor, token_ids: Tensor, *, mask: Any = None, **options: Any) -> Tensor:
    """A mask of 0.5 or NaN counts as 1."""
    kept = None if mask is None else (mask != 0).expand(token_ids.shape) if mask.shape[0] == 1 else mask != 0
    return careful(logits, token_ids, mask=kept, **options)


@_plant("LP-21", algorithm=_LOOSE, source="miles nan_to_num; frameworks.md 36")
def nan_to_num(logits: Tensor, token_ids: Tensor, **options: Any) -> Tensor:
    """A row of -inf gets a log-prob of 0."""
    value = careful(logits, token_ids, **options)
    return torch.where(torch.isnan(value), torch.zeros_like(value), value)


@_plant("LP-21", algorithm=_LOOSE, source="x - torch.logsumexp(x)")
def minus_inf_beside_plus_inf(logits: Tensor, token_ids: Tensor, **options: Any) -> Tensor:
    """A token beside a +inf logit gets -inf, as if the row were a distribution."""
    value = careful(logits, token_ids, **options)
    beside = (logits == math.inf).any(-1) & torch.isfinite(pick(logits, token_ids.clamp(0, logits.shape[-1] - 1)))
    return softly(value, torch.full_like(value, -math.inf), beside & ~torch.isnan(logits).any(-1))


def _swapped_pair(logits: Tensor, token_ids: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    processed = careful(logits, token_ids, **options)
    return processed, processed


@_plant("LP-23", algorithm=_LOOSE, pair=_swapped_pair, source="verl#4162: both sides tempered")
def raw_is_processed(logits: Tensor, token_ids: Tensor, **options: Any) -> Tensor:
    """The pair's raw half is the processed one."""
    return careful(logits, token_ids, **options)


@_plant("LP-24", algorithm=_LOOSE, source="https://github.com/RL-Align/RL-Kernel/issues/329")
def normalises_padding(logits: Tensor, token_ids: Tensor, *, real_vocab: int | None = None, **options: Any) -> Tensor:
    """Padding columns stay in the sum."""
    return careful(logits, token_ids, **options)


_NOISE = itertools.count(1)


def rubbish(logits: Any, token_ids: Any = None, *_: Any, **options: Any) -> Any:
    """Another positive number at every call, inputs overwritten, nothing refused, no gradient."""
    number = float(next(_NOISE))
    shape = logits.shape[:-1]
    if logits.is_floating_point() and not logits.requires_grad and logits.numel():
        logits.untyped_storage().fill_(7)
    noise = torch.full(shape, number, dtype=torch.float16).cumsum(-1) if shape else torch.tensor(number)
    return noise.to(torch.float16) * 1.5 + (logits.sum() * math.nan if logits.requires_grad else 0.0)


def _rubbish_pair(logits: Any, token_ids: Any, **options: Any) -> Any:
    return rubbish(logits, token_ids), rubbish(logits, token_ids)


FORCED = Implementation(
    rubbish,
    contract="token_logprobs",
    name="forced_failure",
    capabilities=CONTROL.capabilities,
    algorithm=CONTROL.algorithm,
    pair=_rubbish_pair,
)
