"""Judging one batch: examine what it holds, decide by the rules.

The count is the one of `numerics.mismatch`; there is no second formula.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from numerics.reference.inputs import check_alike, valid_places
from numerics.reference.mismatch import MismatchState
from numerics.tools.gate.patterns import patterns
from numerics.tools.gate.tokens import find
from numerics.tools.gate.vacuous import declared_reasons, storage_reasons
from numerics.tools.gate.verdict import Declared, GateFailure, Pattern, Reason, Rules, Token, Verdict

__all__ = ["Part", "assert_no_mismatch", "decide", "examine", "judge"]


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one batch says: figures, and what speaks against it whatever they are."""

    state: MismatchState
    places: int
    reasons: tuple[Reason, ...]
    first: tuple[Token, ...]
    worst: tuple[Token, ...]
    patterns: tuple[Pattern, ...]


def examine(
    rollout: torch.Tensor,
    trainer: torch.Tensor | None,
    mask: torch.Tensor | None,
    *,
    token_ids: torch.Tensor | None,
    rules: Rules,
    declared: Declared,
) -> Part:
    """Read one batch; see `judge` for the arguments."""
    state = MismatchState(compare_dtype=rules.compare_dtype)
    reasons = list(declared_reasons(declared, trainer_absent=trainer is None))
    if trainer is None:
        return Part(state=state, places=rollout.numel(), reasons=tuple(reasons), first=(), worst=(), patterns=())
    state.update(rollout, trainer, mask)
    reasons += storage_reasons(rollout, trainer, rules)
    valid = valid_places(mask, rollout, "rollout")
    if token_ids is not None:
        if token_ids.dtype == torch.bool or token_ids.is_floating_point() or token_ids.is_complex():
            raise TypeError(f"token_ids has dtype {token_ids.dtype}; it must be an integer dtype such as torch.int64")
        check_alike("token_ids", token_ids, "rollout", rollout)
    first, worst = find(rollout, trainer, valid, token_ids, rules)
    return Part(
        state=state,
        places=rollout.numel(),
        reasons=tuple(reasons),
        first=first,
        worst=worst,
        patterns=tuple(patterns(rollout, trainer, valid, rules, declared)),
    )


def decide(part: Part, rules: Rules, declared: Declared) -> Verdict:
    """The verdict on what was examined."""
    found = part.state.compute()
    count = found.bit_mismatch_count if rules.bits else found.logprobs_mismatch_count

    def against() -> Iterator[Reason]:
        if count > rules.allow:
            how = "in bits" if rules.bits else "by value"
            yield Reason(
                code="mismatch",
                message=f"{count} of {found.valid_count} tokens differ {how}, {rules.allow} allowed; the largest "
                f"difference is {found.logprobs_diff_max!r} nats",
            )
        if found.nonfinite_count > rules.allow_nonfinite:
            yield Reason(
                code="nonfinite",
                message=f"{found.nonfinite_count} valid tokens hold NaN or infinity, {rules.allow_nonfinite} allowed: "
                "does the mask end where the response ends? A cut (top-p, top-k) gives -inf to a token it removes",
            )
        if found.narrowed_count:
            yield Reason(
                code="narrowed",
                message=f"the cast to {found.compare_dtype} changed {found.narrowed_count} values, and differences "
                "below its resolution are not seen; compare in float64, or store what is compared in float32",
            )
        absent = any(r.code == "bypass" for r in part.reasons)
        if part.places == 0:
            yield Reason(code="nothing_compared", message="there is no place to compare: both sides are empty")
        elif found.valid == 0 and not absent:
            yield Reason(
                code="all_masked",
                message=f"no token is valid, of {part.places} places: an all-masked batch agrees with anything; check "
                "the mask or the lengths",
            )
        yield from part.reasons

    return Verdict(
        rules=rules,
        declared=declared,
        mismatch=found,
        places=part.places,
        reasons=tuple(dict.fromkeys(against())),
        first=part.first,
        worst=part.worst,
        patterns=part.patterns,
    )


def judge(
    rollout: torch.Tensor,
    trainer: torch.Tensor | None,
    mask: torch.Tensor | None = None,
    *,
    token_ids: torch.Tensor | None = None,
    declared: Declared = Declared(),  # noqa: B008  (frozen)
    **rules: Any,
) -> Verdict:
    """Whether no more tokens differ than allowed, and passing means something.

    rollout, trainer: log-probs in nats of the same tokens, one shape [...], float64/32/16 or bfloat16; a trainer that
    is None is a declared bypass. mask: [...], 0/1, None = all valid. token_ids: [...], integers, for the report.
    declared: see `Declared`. rules: the fields of `Rules`, such as ``allow=0`` and ``bits=True``.

    `TypeError` and `ValueError` as of `numerics.mismatch`, and for rules that are none. Failing is no error: see
    `Verdict.passed`, and `CODES` for the reasons.
    """
    chosen = Rules(**rules)
    part = examine(rollout, trainer, mask, token_ids=token_ids, rules=chosen, declared=declared)
    return decide(part, chosen, declared)


def assert_no_mismatch(
    rollout: torch.Tensor,
    trainer: torch.Tensor | None,
    mask: torch.Tensor | None = None,
    *,
    token_ids: torch.Tensor | None = None,
    declared: Declared = Declared(),  # noqa: B008  (frozen)
    **rules: Any,
) -> Verdict:
    """The verdict, if it passes; otherwise `GateFailure`, an AssertionError with the whole report.

    Arguments and errors as of `numerics.tools.gate.judge`: tensors of log-probs and a 0/1 mask, ``allow``, ``bits``,
    ``allow_nonfinite``, ``strict_dtype``, ``compare_dtype``.
    """
    __tracebackhide__ = True
    verdict = judge(rollout, trainer, mask, token_ids=token_ids, declared=declared, **rules)
    if not verdict.passed:
        from numerics.tools.gate.report import as_text

        raise GateFailure(verdict, as_text(verdict))
    return verdict
