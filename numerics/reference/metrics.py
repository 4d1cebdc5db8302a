"""All metrics of a run in one mergeable state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from numerics.reference.correction import CorrectionState
from numerics.reference.divergence import DivergenceState
from numerics.reference.mismatch import MismatchState
from numerics.reference.pairs import cast_pair
from numerics.reference.state import State

__all__ = ["MetricState"]


class MetricState(State):
    """Mismatch, divergence and the diagnostics of any number of correction rules, of the same tokens.

    corrections: name -> the fields of a `numerics.reference.correction.Rule`; the figures of each come out as
    ``correction/NAME/FIELD``. epsilon: the limit of ``fraction_above``, nats. Any split of the rows into updates,
    merges and ranks gives the same figures, bit for bit; memory does not grow with tokens.
    """

    kind = "metrics"

    def __init__(
        self,
        *,
        compare_dtype: torch.dtype = torch.float32,
        epsilon: float = 1e-6,
        corrections: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        given = {name: dict(rule) for name, rule in (corrections or {}).items()}
        if not all(isinstance(name, str) for name in given):
            raise TypeError(f"names of corrections must be strings, got {list(given)!r}")
        self.mismatch = MismatchState(compare_dtype=compare_dtype)
        self.divergence = DivergenceState(compare_dtype=compare_dtype, epsilon=epsilon)
        self.corrections = {name: CorrectionState(compare_dtype=compare_dtype, **rule) for name, rule in given.items()}
        rules = {name: state.rule.as_options() for name, state in self.corrections.items()}
        options = {"compare_dtype": compare_dtype, "epsilon": self.divergence.options["epsilon"], "corrections": rules}
        super().__init__(options=options, totals={})

    @property
    def _parts(self) -> dict[str, State]:
        named = {f"correction/{name}": state for name, state in self.corrections.items()}
        return {"mismatch": self.mismatch, "divergence": self.divergence, **named}

    @property
    def totals(self) -> dict[str, Any]:
        """The totals of the parts, by name."""
        return {name: part.totals for name, part in self._parts.items()}

    @totals.setter
    def totals(self, totals: dict[str, Any]) -> None:
        for name, part_totals in totals.items():
            self._parts[name].totals = part_totals

    def update(
        self,
        rollout: torch.Tensor,
        trainer: torch.Tensor,
        mask: torch.Tensor | None = None,
        *,
        row_ids: torch.Tensor | None = None,
    ) -> MetricState:
        """Add tokens: tensors of one shape and device.

        rollout, trainer: log-probs in nats, float64/32/16 or bfloat16 (each its own). mask: 0/1, None = all valid. Rows
        are the last axis, or what ``row_ids`` says: integers of the same shape; a row must come whole. `TypeError` for
        other dtypes, `ValueError` for unequal shapes or devices or a mask that is not 0/1.
        """
        pair = cast_pair(rollout, trainer, mask, compare_dtype=self.options["compare_dtype"], row_ids=row_ids)
        self.mismatch.add(pair)
        self.divergence.add(pair)
        for state in self.corrections.values():
            state.add(pair)
        return self

    def compute(self, *, ddof: int = 1) -> dict[str, Any]:
        """Every figure by field name: of `Mismatch`, of `Divergence`, and ``correction/NAME/FIELD``.

        Fields that both have (counts of the same tokens) are equal and come once. ``ddof`` belongs to the standard
        deviations of the mismatch.
        """
        out = {**self.divergence.compute().as_dict(), **self.mismatch.compute(ddof=ddof).as_dict()}
        for name, state in self.corrections.items():
            out |= {f"correction/{name}/{field}": value for field, value in state.compute().as_dict().items()}
        return out
