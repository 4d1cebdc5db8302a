"""The contracts: how an implementation is called, what it must return, and what is exactly right.

`call` builds fresh tensors from a case, calls the implementation, and reads what came back into an `Outcome` (float64
numbers, exactly as returned) after checking kind and shape. Whatever goes wrong inside the implementation becomes
`Raised`; a result of the wrong kind or shape becomes `BadResult`: one clear message each.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from numerics.formats import bits_differ, widen
from numerics.strategies.cases import Logits, LogitsCase, PairCase, PairRow, UlpCase
from numerics.strategies.full_cases import FullCase, FullRow
from numerics.suite.implementation import Implementation

__all__ = ["CONTRACTS", "BadResult", "Contract", "Outcome", "Raised", "call"]

Array = npt.NDArray[np.float64]
Case = LogitsCase | PairCase | FullCase | UlpCase


class Raised(Exception):  # noqa: N818 - it carries an error, it is none of ours
    """The implementation raised; ``error`` is what it raised."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.error = error


class BadResult(Exception):  # noqa: N818
    """The implementation returned something of the wrong kind or shape."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What an implementation returned.

    values: [n] numbers of a tensor result (raw then processed for a pair, distances for ulp_distance, weights).
    format: the dtype they came in. fields: the figures of a mapping result. gradient: [n * V] if asked for.
    kept: [n], what the mask of a correction keeps.
    modified: names of inputs that are no longer what they were.
    """

    values: Array = dataclasses.field(default_factory=lambda: np.zeros(0))
    format: str = "float64"
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    distances: tuple[int | None, ...] = ()
    gradient: Array | None = None
    kept: npt.NDArray[np.bool_] | None = None
    modified: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Contract:
    """One quantity an implementation promises."""

    name: str
    summary: str
    signature: str
    returns: str
    smoke: Case
    read: Callable[[Any, Any, dict[str, torch.Tensor]], Outcome]
    arguments: tuple[str, ...]
    #: the tensor of a result that a gradient starts from
    differentiated: Callable[[Any], torch.Tensor] = lambda result: result


def call(implementation: Implementation, case: Any, device: str) -> Outcome:
    """Call ``implementation`` on fresh tensors of ``case`` and read the result."""
    contract = CONTRACTS[implementation.contract]
    tensors = case.tensors(device)
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    leaf = "logits" if "logits" in tensors else "trainer"
    backward = getattr(case, "backward", False)
    if backward:
        tensors[leaf].requires_grad_()
    fn = implementation.pair if getattr(case, "pair", False) and implementation.pair else implementation.fn
    positional = [tensors[name] for name in contract.arguments if name in tensors]
    named = {k: v for k, v in tensors.items() if k not in contract.arguments and k != "token_ids"}
    with _flushing(getattr(case, "flush_to_zero", False)), warnings.catch_warnings():
        # what an implementation warns about is its own affair, whatever pytest's filters say
        warnings.simplefilter("ignore")
        try:
            result = fn(*positional, **named, **case.keywords())
            if backward:
                value = contract.differentiated(result)
                torch.autograd.backward([value], [torch.ones_like(value)])
        except Exception as error:  # whatever an implementation raises is a result of the check
            raise Raised(error) from error
    outcome = contract.read(result, case, tensors)
    if backward:
        grad = tensors[leaf].grad
        if grad is None or grad.shape != tensors[leaf].shape:
            raise BadResult(f"no gradient of the shape of {leaf} arrived")
        gradient = widen(grad).cpu().numpy().ravel()
        outcome = dataclasses.replace(outcome, gradient=gradient)
    return dataclasses.replace(outcome, modified=tuple(k for k, v in before.items() if _changed(v, tensors[k])))


@contextmanager
def _flushing(on: bool) -> Iterator[None]:
    """Flush-to-zero on this thread around the implementation's call only; the judge works in IEEE mode."""
    if not on:
        yield
        return
    if not torch.set_flush_denormal(True):
        raise RuntimeError("this CPU cannot flush subnormals to zero, so the property cannot be checked on it")
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def _changed(before: torch.Tensor, after: torch.Tensor) -> bool:
    if before.shape != after.shape or before.dtype != after.dtype:
        return True
    if before.is_floating_point():
        return bool(bits_differ(before, after.detach()).any())
    return not torch.equal(before, after)


def _numbers(x: Any, what: str, shape: torch.Size) -> tuple[Array, str]:
    if not isinstance(x, torch.Tensor):
        raise BadResult(f"{what} must be a torch.Tensor, got {type(x).__name__}")
    if x.shape != shape:
        raise BadResult(f"{what} has shape {tuple(x.shape)}, expected {tuple(shape)}")
    if not x.is_floating_point():
        raise BadResult(f"{what} has dtype {x.dtype}, expected a floating-point one")
    return widen(x.detach()).cpu().numpy().ravel(), str(x.dtype).removeprefix("torch.")


def _read_logprobs(result: Any, case: Any, tensors: dict[str, torch.Tensor]) -> Outcome:
    shape = tensors["token_ids"].shape
    if case.pair:
        if not isinstance(result, tuple) or len(result) != 2:
            raise BadResult(f"the pair form must return (raw, processed), got {type(result).__name__}")
        raw, fmt = _numbers(result[0], "raw", shape)
        return Outcome(values=np.concatenate([raw, _numbers(result[1], "processed", shape)[0]]), format=fmt)
    values, fmt = _numbers(result, "the result", shape)
    return Outcome(values=values, format=fmt)


def _read_entropy(result: Any, case: Any, tensors: dict[str, torch.Tensor]) -> Outcome:
    values, fmt = _numbers(result, "the result", tensors["logits"].shape[:-1])
    return Outcome(values=values, format=fmt)


def _read_figures(result: Any, case: Any, tensors: dict[str, torch.Tensor]) -> Outcome:
    if isinstance(result, Mapping):
        fields = dict(result)
    elif dataclasses.is_dataclass(result) and not isinstance(result, type):
        fields = {f.name: getattr(result, f.name) for f in dataclasses.fields(result)}
    else:
        raise BadResult(f"the result must be a mapping or a dataclass of figures, got {type(result).__name__}")
    return Outcome(fields={str(k): _plain(v) for k, v in fields.items()})


def _read_full(result: Any, case: Any, tensors: dict[str, torch.Tensor]) -> Outcome:
    outcome = _read_figures(result, case, tensors)
    rows = outcome.fields.get("rows")
    if not isinstance(rows, Mapping):
        return outcome
    shape = tensors["mask"].shape
    for name, values in rows.items():
        if not isinstance(values, torch.Tensor) or values.shape != shape:
            raise BadResult(f"rows[{name!r}] must be a tensor of shape {tuple(shape)}")
    plain = {str(k): tuple(v.detach().cpu().double().ravel().tolist()) for k, v in rows.items()}
    return dataclasses.replace(outcome, fields={**outcome.fields, "rows": plain})


def _read_correction(result: Any, case: Any, tensors: dict[str, torch.Tensor]) -> Outcome:
    if isinstance(result, tuple) and len(result) == 3:
        weights, mask, diagnostics = result
    elif all(hasattr(result, name) for name in ("weights", "mask", "diagnostics")):
        weights, mask, diagnostics = result.weights, result.mask, result.diagnostics
    else:
        raise BadResult(
            "the result must be (weights, mask, diagnostics), or an object with these attributes, "
            f"got {type(result).__name__}"
        )
    shape = tensors["rollout"].shape
    values, fmt = _numbers(weights, "weights", shape)
    if not isinstance(mask, torch.Tensor) or mask.shape != shape:
        raise BadResult(f"mask must be a tensor of shape {tuple(shape)}")
    kept = (mask.detach().cpu() != 0).numpy().ravel()
    outcome = _read_figures(diagnostics, case, tensors)
    return dataclasses.replace(outcome, values=values, format=fmt, kept=kept)


def _weights(result: Any) -> torch.Tensor:
    found: torch.Tensor = result[0] if isinstance(result, tuple) else result.weights
    return found


def _plain(x: Any) -> Any:
    """0-d tensors and NumPy scalars as Python numbers; anything else as it is."""
    if isinstance(x, torch.Tensor):
        return x.item() if x.ndim == 0 else tuple(x.tolist())
    return x.item() if isinstance(x, np.generic) else x


def _read_ulps(result: Any, case: Any, tensors: dict[str, torch.Tensor]) -> Outcome:
    if not isinstance(result, tuple) or len(result) != 2 or not all(isinstance(x, torch.Tensor) for x in result):
        raise BadResult("the result must be a pair of tensors (distance, defined)")
    distance, defined = result
    if distance.shape != tensors["a"].shape or defined.shape != tensors["a"].shape:
        raise BadResult(
            f"distance {tuple(distance.shape)} and defined {tuple(defined.shape)} must have the inputs' shape"
        )
    if distance.dtype not in (torch.int64, torch.uint64):
        raise BadResult(f"distance has dtype {distance.dtype}, expected int64 (uint64 for float64)")
    steps, known = distance.cpu().ravel().numpy().tolist(), defined.cpu().ravel().tolist()
    return Outcome(distances=tuple(int(k) if d else None for k, d in zip(steps, known, strict=True)))


_SMOKE_LOGITS = LogitsCase((Logits((0.0, 1.0, -2.0), 1), Logits((3.0, 3.0, 0.5), 2)))
_SMOKE_PAIRS = PairCase((PairRow((-0.5, -1.0, -2.0), (-0.5, -1.5, -2.0), (True, True, False)),))

CONTRACTS: Mapping[str, Contract] = MappingProxyType(
    {
        "token_logprobs": Contract(
            name="token_logprobs",
            summary="log softmax(logits / T) at the given token ids, in nats",
            signature="impl(logits, token_ids, *, temperature=1.0, mask=None, min_p=None, top_k=None, top_p=None)",
            returns="a tensor of the shape of token_ids",
            smoke=_SMOKE_LOGITS,
            read=_read_logprobs,
            arguments=("logits", "token_ids"),
        ),
        "entropy": Contract(
            name="entropy",
            summary="Shannon entropy of softmax(logits / T), in nats",
            signature="impl(logits, *, temperature=1.0)",
            returns="a tensor of the shape of logits without its last axis",
            smoke=_SMOKE_LOGITS,
            read=_read_entropy,
            arguments=("logits",),
        ),
        "mismatch": Contract(
            name="mismatch",
            summary="how far apart rollout and trainer log-probs of the same tokens are",
            signature="impl(rollout, trainer, mask)",
            returns="a mapping or dataclass with the fields of numerics.Mismatch (those it knows)",
            smoke=_SMOKE_PAIRS,
            read=_read_figures,
            arguments=("rollout", "trainer", "mask"),
        ),
        "divergence": Contract(
            name="divergence",
            summary="divergences, ratios and perplexities, estimated from tokens that the rollout sampled",
            signature="impl(rollout, trainer, mask, *, row_ids=None, epsilon=1e-6)",
            returns="a mapping or dataclass with the fields of numerics.Divergence (those it knows)",
            smoke=_SMOKE_PAIRS,
            read=_read_figures,
            arguments=("rollout", "trainer", "mask"),
        ),
        "correction": Contract(
            name="correction",
            summary="importance weights and rejections by one declared rule",
            signature="impl(rollout, trainer, mask, *, rule, level, lower, upper, statistic, threshold, normalize)",
            returns="(weights, mask, diagnostics), or an object with these: two tensors of the input's shape, and a "
            "mapping or dataclass with the fields of numerics.Diagnostics (those it knows)",
            smoke=_SMOKE_PAIRS.replace(options=(("rule", "truncate"), ("level", "token"), ("upper", 2.0))),
            read=_read_correction,
            arguments=("rollout", "trainer", "mask"),
            differentiated=_weights,
        ),
        "full_divergence": Contract(
            name="full_divergence",
            summary="whole distributions of two logits tensors compared row by row",
            signature="impl(rollout_logits, trainer_logits, mask, *, temperature=1.0, overlap_k=10)",
            returns="a mapping or dataclass with the fields of numerics.FullDivergence (those it knows), rows included",
            smoke=FullCase((FullRow((0.0, 1.0, -2.0), (0.5, 1.0, -2.0)), FullRow((1.0, 0.0, 0.0), (1.0, 0.0, 0.0)))),
            read=_read_full,
            arguments=("rollout_logits", "trainer_logits", "mask"),
        ),
        "ulp_distance": Contract(
            name="ulp_distance",
            summary="steps between two numbers on the ordered line of their format",
            signature="impl(a, b)",
            returns="(distance, defined): int64 (uint64 for float64) and bool tensors",
            smoke=UlpCase((1.0, -1.0), (1.0, 1.0)),
            read=_read_ulps,
            arguments=("a", "b"),
        ),
    }
)
