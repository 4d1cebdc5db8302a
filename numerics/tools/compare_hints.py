"""What the figures of a comparison do not say by themselves: padding, casts, wrong keys, 16-bit storage."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator

import torch

from numerics.formats import FORMATS, narrow, widen
from numerics.reference.mismatch import Mismatch
from numerics.tools.arrays import WELL_KNOWN, NamedArray, Role, list_arrays, well_known

__all__ = ["first_place", "hints"]

_FEW = 8  #: so many numbers say something about how they were stored; fewer fit 16 bits by chance


def hints(
    rollout: NamedArray, trainer: NamedArray, valid: torch.Tensor, found: Mismatch, *, selected: bool
) -> Iterator[str]:
    """What the figures do not say by themselves, most important first."""
    if found.valid == 0:
        yield f"nothing was compared: no token is valid, of {math.prod(rollout.shape)}; check the mask or the lengths"
    if rollout.source == trainer.source:
        yield f"both sides are the same array, {rollout.source}; name another KEY for one of them"
    if found.nonfinite_count:
        yield _nonfinite_hint(rollout, trainer, valid, found, selected=selected)
    if found.narrowed_count:
        yield (
            f"the cast to {found.compare_dtype} changed {found.narrowed_count} values, and differences below its "
            "resolution are not seen; compare what is stored with --compare-dtype float64"
        )
    if found.positive_count:
        yield (
            f"{found.positive_count} values are above 0, which no log-probability is: do the keys hold probabilities, "
            "negated log-probs, ratios, or logits?"
        )
    yield from _storage_hints(rollout, trainer, valid)


def _nonfinite_hint(
    rollout: NamedArray, trainer: NamedArray, valid: torch.Tensor, found: Mismatch, *, selected: bool
) -> str:
    q, p = (widen(narrow(x.tensor, FORMATS[found.compare_dtype].dtype)) for x in (rollout, trainer))
    place = first_place(valid & ~(torch.isfinite(q) & torch.isfinite(p)))
    what = (
        f"{found.nonfinite_count} valid tokens hold NaN or infinity, the first at {list(place)} "
        f"(rollout {q[place].item()!r}, trainer {p[place].item()!r})"
    )
    if selected:
        return f"{what}: does the mask end where the response ends? A trainer-side top-p or top-k cut gives -inf"
    options = _selections(rollout, trainer)
    advice = f"try {' or '.join(options)}" if options else "give --mask FILE:KEY or --lengths FILE:KEY"
    return f"{what}; no mask is given, so padding counts as tokens: {advice}"


def _selections(rollout: NamedArray, trainer: NamedArray) -> list[str]:
    """Options that name a well-known mask or lengths array of the right shape, of either file."""
    wanted: tuple[tuple[Role, tuple[int, ...]], ...] = (("mask", rollout.shape), ("lengths", rollout.shape[:-1]))
    prefix = _prefix(rollout.key)
    options = []
    for file in dict.fromkeys((rollout.file, trainer.file)):
        shapes = {
            info.key.removeprefix(prefix): info.shape for info in list_arrays(file) if info.key.startswith(prefix)
        }
        for role, shape in wanted:
            keys = [key for key in well_known(shapes, role) if shapes[key] == shape]
            options += [f"--{role} {shlex.quote(f'{file}:{prefix}{key}')}" for key in keys]
    return options


def _prefix(key: str) -> str:
    """What stands before a well-known name: ``s0__`` of ``s0__sampling_per_token_logps``, ``""`` of anything else."""
    names = [known.name for known in WELL_KNOWN if known.role == "rollout" and key.endswith(known.name)]
    return key.removesuffix(max(names, key=len)) if names else ""


def _storage_hints(rollout: NamedArray, trainer: NamedArray, valid: torch.Tensor) -> Iterator[str]:
    for name in ("bfloat16", "float16"):
        sides = [side for side, x in (("rollout", rollout), ("trainer", trainer)) if _stored_in(x.tensor[valid], name)]
        if sides:
            yield (
                f"{' and '.join(sides)} hold{'' if len(sides) > 1 else 's'} only {name} values: rounding to {name} "
                f"alone moves a log-prob by up to {FORMATS[name].u:.2%}; keep log-probs in float32"
            )


def _stored_in(values: torch.Tensor, name: str) -> bool:
    """Whether 16-bit storage explains every one of ``values``."""
    if values.dtype == FORMATS[name].dtype:
        return values.numel() > 0
    wide = widen(values)
    wide = wide[torch.isfinite(wide) & (wide != 0)]
    return wide.numel() >= _FEW and torch.equal(widen(narrow(wide, FORMATS[name].dtype)), wide)


def first_place(places: torch.Tensor) -> tuple[int, ...]:
    """Index of the first True of a bool tensor that has one."""
    return tuple(int(i) for i in places.nonzero()[0])
