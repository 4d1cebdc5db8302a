"""Judging two arrays of files, which a certificate can repeat."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from numerics.tools.arrays import InputError, NamedArray, list_arrays, read_array, split_reference, well_known
from numerics.tools.gate.full import FullVerdict, gate_full
from numerics.tools.gate.judge import decide, examine
from numerics.tools.gate.verdict import Declared, Reason, Rules, Verdict
from numerics.tools.inputs import check_shape, read_pair, read_valid

__all__ = ["Judged", "judge_files", "judge_full"]


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A verdict on arrays of files, and what it was given on."""

    verdict: Verdict
    rollout: NamedArray
    trainer: NamedArray | None  #: None: there is none, which is a declared bypass
    valid: torch.Tensor

    def inputs(self) -> dict[str, Any]:
        """The arrays that were read: ``FILE:KEY``, dtype, shape, and the framework whose key it is if it was found."""
        sides = {"rollout": self.rollout, "trainer": self.trainer}
        return {
            name: None
            if side is None
            else {"source": side.source, "dtype": side.dtype, "shape": list(side.shape), "origin": side.origin}
            for name, side in sides.items()
        }


def judge_files(
    rollout: str,
    trainer: str | None,
    *,
    mask: str | None = None,
    lengths: str | None = None,
    token_ids: str | None = None,
    rules: Rules,
    declared: Declared,
) -> Judged:
    """The verdict on two arrays, named as in `numerics.tools.inputs.read_pair`; `InputError` as there.

    Without ``trainer`` it is looked for in the rollout's file. Where no array has a well-known name of the trainer's
    log-probs, the batch is without them: a bypass.
    """
    file = split_reference(rollout)[0]
    if trainer is None and not well_known([info.key for info in list_arrays(file)], "trainer"):
        alone = read_array(rollout, "rollout")
        valid = torch.ones(alone.shape, dtype=torch.bool)
        part = examine(alone.tensor, None, None, token_ids=None, rules=rules, declared=declared)
        return Judged(verdict=decide(part, rules, declared), rollout=alone, trainer=None, valid=valid)
    pair = read_pair(rollout, trainer or file, mask=mask, lengths=lengths)
    ids = None if token_ids is None else read_array(token_ids, "token_ids")
    if ids is not None:
        check_shape(ids, "token ids", pair.rollout)
    q, p = pair.rollout, pair.trainer
    part = examine(
        q.tensor,
        p.tensor,
        pair.valid,
        token_ids=None if ids is None else ids.tensor,
        rules=rules,
        declared=declared,
    )
    part = replace(part, reasons=(*part.reasons, *_same_array(q, p)))
    return Judged(verdict=decide(part, rules, declared), rollout=q, trainer=p, valid=pair.valid)


def _same_array(q: NamedArray, p: NamedArray) -> list[Reason]:
    if q.key != p.key or not Path(q.file).samefile(p.file):
        return []
    what = f"both sides are the array {q.source}, compared with itself; name another KEY for one of them"
    return [Reason(code="shared_storage", message=what)]


def judge_full(
    rollout: str, trainer: str | None, *, mask: str | None = None, lengths: str | None = None, **options: Any
) -> FullVerdict:
    """`gate_full` of two arrays of logits [..., V], each named as ``FILE:KEY``; mask: [...], lengths: of its rows.

    Both arrays are read whole; beyond them one chunk is in memory. `InputError` for what cannot be read or fit.
    """
    if trainer is None:
        raise InputError("whole distributions need both sides: give TRAINER as FILE:KEY too")
    for reference, name in ((rollout, "rollout"), (trainer, "trainer")):
        if split_reference(reference)[1] is None:
            raise InputError(f"{reference}: logits have no well-known name; give the {name}'s as FILE:KEY")
    q, p = read_array(rollout, "rollout"), read_array(trainer, "trainer")
    check_shape(p, "trainer", q)
    if not q.shape or q.shape[-1] == 0:
        raise InputError(f"{q.source} has shape {q.shape}; the last axis of logits is the vocabulary")
    valid = read_valid(replace(q, tensor=q.tensor[..., 0]), mask=mask, lengths=lengths)[-1]
    try:
        verdict = gate_full(q.tensor, p.tensor, valid, **options)
    except ValueError as error:  # a temperature or a cut out of range
        raise InputError(str(error)) from error
    return replace(verdict, reasons=(*verdict.reasons, *_same_array(q, p)))
