"""Judging two arrays of files, which a certificate can repeat."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from numerics.tools.arrays import NamedArray, list_arrays, read_array, split_reference, well_known
from numerics.tools.gate.judge import decide, examine
from numerics.tools.gate.verdict import Declared, Reason, Rules, Verdict
from numerics.tools.inputs import check_shape, read_pair

__all__ = ["Judged", "judge_files"]


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A verdict on arrays of files, and what it was given on."""

    verdict: Verdict
    rollout: NamedArray
    trainer: NamedArray | None  #: None: there is none, which is a declared bypass
    valid: torch.Tensor


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
    if q.key == p.key and Path(q.file).samefile(p.file):
        shared = Reason(
            code="shared_storage",
            message=f"both sides are the array {q.source}, compared with itself; name another KEY for one of them",
        )
        part = replace(part, reasons=(*part.reasons, shared))
    return Judged(verdict=decide(part, rules, declared), rollout=q, trainer=p, valid=pair.valid)
