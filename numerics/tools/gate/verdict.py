"""What a gate is asked, what it is told, and what it answers."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch

from numerics.formats import format_of
from numerics.reference.mismatch import Mismatch
from numerics.reference.pairs import check_compare_dtype
from numerics.tools.show import plain

__all__ = ["CODES", "MODES", "Declared", "GateFailure", "Pattern", "Reason", "Rules", "Token", "Verdict"]

MODES = ("raw", "processed")

#: Every reason for which a gate fails. All but the first two say that passing would mean nothing.
CODES: Mapping[str, str] = MappingProxyType(
    {
        "mismatch": "more tokens differ than `allow` permits, by value (by bits under `bits`)",
        "nonfinite": "more valid tokens hold NaN or infinity than `allow_nonfinite` permits",
        "nothing_compared": "there is no place to compare",
        "all_masked": "there are places, but no token is valid",
        "shared_storage": "both sides are one tensor, the same memory, or the same file and key",
        "bypass": "the trainer's log-probs are declared to be the rollout's own, or are absent",
        "mode": "one side is declared raw and the other processed",
        "narrowed": "the cast to `compare_dtype` changed values: differences below its resolution are not seen",
        "both_bf16": "under `strict_dtype`: both sides are stored in bfloat16, which hides differences",
    }
)


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What passes.

    allow: how many tokens may differ. bits: count other bits instead of other values (+0 and -0 differ, all NaNs are
    alike). allow_nonfinite: how many valid tokens may hold NaN or infinity; a NaN differs from everything by value, so
    such a token needs ``allow`` too, or ``bits`` and a NaN on both sides. strict_dtype: fail where both sides are
    stored in bfloat16. compare_dtype: torch.float32 or torch.float64, the one cast of both sides.
    """

    allow: int = 0
    bits: bool = False
    allow_nonfinite: int = 0
    strict_dtype: bool = False
    compare_dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        for name in ("allow", "allow_nonfinite"):
            number = getattr(self, name)
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise ValueError(f"{name} is {number!r}; it must be a number of tokens: an int of at least 0")
        for name in ("bits", "strict_dtype"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} is {getattr(self, name)!r}; it must be True or False")
        check_compare_dtype(self.compare_dtype)

    def as_dict(self) -> dict[str, Any]:
        """The rules as plain values."""
        return {**dataclasses.asdict(self), "compare_dtype": format_of(self.compare_dtype).name}


@dataclass(frozen=True, kw_only=True)
class Declared:
    """What the caller knows about the two sides and the numbers do not show. All of it is optional.

    rollout_mode, trainer_mode: "raw" (log-softmax of the logits) or "processed" (after temperature and cuts).
    bypass: the trainer's log-probs are copies of the rollout's (verl's bypass mode, for one).
    rollout_source, trainer_source: who computed them, such as "vllm" and "fsdp"; one source on both sides is a bypass.
    rollout_policy, trainer_policy: versions of the weights. sampling: parameters such as ``{"temperature": 0.7}``.
    """

    rollout_mode: str | None = None
    trainer_mode: str | None = None
    bypass: bool = False
    rollout_source: str | None = None
    trainer_source: str | None = None
    rollout_policy: str | None = None
    trainer_policy: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for side in ("rollout", "trainer"):
            mode = getattr(self, f"{side}_mode")
            if mode not in (None, *MODES):
                raise ValueError(f"{side}_mode is {mode!r}; it must be one of {', '.join(map(repr, MODES))}, or None")
            for what in ("source", "policy"):
                text = getattr(self, f"{side}_{what}")
                if text is not None and not isinstance(text, str):
                    raise TypeError(f"{side}_{what} is {text!r}; it must be a string or None: write str(...)")
        if not isinstance(self.bypass, bool):
            raise TypeError(f"bypass is {self.bypass!r}; it must be True or False")
        if not isinstance(self.sampling, Mapping) or not all(isinstance(k, str) for k in self.sampling):
            raise TypeError(f"sampling is {self.sampling!r}; it must be a mapping of names to parameters")
        try:
            json.dumps(dict(self.sampling), allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"sampling holds what JSON does not ({error}); write numbers, strings, lists") from error

    def as_dict(self) -> dict[str, Any]:
        """The declaration as plain values."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)} | {"sampling": dict(self.sampling)}


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why a gate fails: a code of `CODES`, and a sentence with the numbers and the fix."""

    code: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """A first word on what the differences look like, with its evidence. A hint, no diagnosis."""

    name: str
    evidence: str


@dataclass(frozen=True, kw_only=True)
class Token:
    """A token at which the two sides differ, or one of them is not finite."""

    row: tuple[int, ...]  #: index of its row, () where there is one
    position: int  #: place in the row
    token_id: int | None
    rollout: float  #: log-probs in nats, after the cast
    trainer: float
    ulps: int | None  #: steps between them on the ordered line of ``compare_dtype``; None with a NaN
    rank: int | None = None  #: in a training loop: the rank
    micro_batch: int | None = None  #: and its micro-batch of this step

    def as_dict(self) -> dict[str, Any]:
        """The token as plain values, both sides also as hexadecimal floats."""
        own = {f.name: plain(getattr(self, f.name)) for f in dataclasses.fields(self)}
        return own | {"row": list(self.row), "rollout_hex": self.rollout.hex(), "trainer_hex": self.trainer.hex()}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The answer: passed if there is no reason against it."""

    rules: Rules
    declared: Declared
    mismatch: Mismatch
    places: int  #: compared and masked
    reasons: tuple[Reason, ...]
    first: tuple[Token, ...]  #: the first tokens that differ or are not finite
    worst: tuple[Token, ...]  #: those furthest apart: without a distance first, then by ULPs
    patterns: tuple[Pattern, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing speaks against it."""
        return not self.reasons

    @property
    def count(self) -> int:
        """Tokens that differ, as the rules count them."""
        return self.mismatch.bit_mismatch_count if self.rules.bits else self.mismatch.logprobs_mismatch_count

    @property
    def headline(self) -> str:
        """The verdict in one line."""
        differ = "differ in bits" if self.rules.bits else "differ"
        return (
            f"numerics gate: {'PASSED' if self.passed else 'FAILED'}: {self.count} of {self.mismatch.valid_count} "
            f"tokens {differ}, {self.rules.allow} allowed"
        )

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values that strict JSON holds: NaN and the infinities are strings."""
        return {
            "passed": self.passed,
            "count": self.count,
            "reasons": [dataclasses.asdict(r) for r in self.reasons],
            "patterns": [dataclasses.asdict(p) for p in self.patterns],
            "rules": self.rules.as_dict(),
            "declared": self.declared.as_dict(),
            "places": self.places,
            "mismatch": {name: plain(value) for name, value in self.mismatch.as_dict().items()},
            "first": [t.as_dict() for t in self.first],
            "worst": [t.as_dict() for t in self.worst],
        }


class GateFailure(AssertionError):  # noqa: N818  (a verdict, as AssertionError is one)
    """A gate that does not pass; ``verdict`` says why, and so does the message."""

    def __init__(self, verdict: Verdict, text: str) -> None:
        super().__init__(text)
        self.verdict = verdict
