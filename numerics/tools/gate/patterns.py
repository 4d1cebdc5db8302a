"""A first word on what the differences look like. Each is a count with its evidence: a hint, no diagnosis."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from numerics.formats import FORMATS, narrow, widen
from numerics.tools.gate.verdict import Declared, Pattern, Rules

__all__ = ["patterns"]

_FEW = 8  #: below so many tokens a pattern is as likely chance: eight fair coins agree once in 128
_SHIFTS = (1, -1, 2, -2)  #: tokens; labels are off by one or two where prompts and responses are cut


def patterns(
    rollout: torch.Tensor, trainer: torch.Tensor, valid: torch.Tensor, rules: Rules, declared: Declared
) -> Iterator[Pattern]:
    """What is seen in a batch in which valid tokens differ. Tensors of one shape, the last axis along a row."""
    if not valid.any():
        return
    q, p = (
        widen(narrow(x.detach(), rules.compare_dtype)).reshape(-1, x.shape[-1] if x.ndim else 1)
        for x in (rollout, trainer)
    )
    valid = valid.reshape(q.shape)
    differs = valid & (q != p)
    if not differs.any():
        return
    yield from _policies(declared)
    yield from _grid(q[valid], p[valid])
    yield from _shifted(q, p, valid)
    yield from _first_only(differs, valid)
    yield from _padding(q, p, differs)
    finite = torch.isfinite(q) & torch.isfinite(p)
    yield from _one_sign((p - q)[differs & finite])
    yield from _proportional(q[valid & finite], p[valid & finite])


def _policies(declared: Declared) -> Iterator[Pattern]:
    versions = (declared.rollout_policy, declared.trainer_policy)
    if None not in versions and versions[0] != versions[1]:
        yield Pattern(name="other policy", evidence=f"declared versions: rollout {versions[0]}, trainer {versions[1]}")


def _grid(q: torch.Tensor, p: torch.Tensor) -> Iterator[Pattern]:
    """One side holds only values of a 16-bit format, and the other does not."""
    for name in ("bfloat16", "float16"):
        off: list[tuple[int, int]] = []
        for values in (q, p):
            numbers = values[torch.isfinite(values) & (values != 0)]
            off.append((int((widen(narrow(numbers, FORMATS[name].dtype)) != numbers).sum()), numbers.numel()))
        for side, other, (wrong, number), (others, all_others) in (
            ("rollout", "trainer", off[0], off[1]),
            ("trainer", "rollout", off[1], off[0]),
        ):
            if wrong == 0 and number >= _FEW and others > 0:
                yield Pattern(
                    name=f"{side} rounded to {name}",
                    evidence=f"all {number} values of the {side} other than 0 are {name} values; {others} of "
                    f"{all_others} of the {other} are not",
                )
                return  # values of the coarser format may be ones of the finer too


def _shifted(q: torch.Tensor, p: torch.Tensor, valid: torch.Tensor) -> Iterator[Pattern]:
    """trainer[j + k] equals rollout[j] at most places."""
    unshifted = float((q == p)[valid].double().mean())
    best = []
    for k in _SHIFTS:
        if abs(k) < q.shape[-1]:
            here, there = slice(max(0, -k), q.shape[-1] - max(0, k)), slice(max(0, k), q.shape[-1] + min(0, k))
            both = valid[:, here] & valid[:, there]
            equal, of = int((both & (q[:, here] == p[:, there])).sum()), int(both.sum())
            best.append((equal / max(1, of), equal, of, k))
    share, equal, of, k = max(best, default=(0.0, 0, 0, 0), key=lambda found: found[0])
    if equal >= _FEW and share > max(0.5, unshifted):
        yield Pattern(
            name=f"shifted by {k:+d}",
            evidence=f"trainer[j{k:+d}] equals rollout[j] at {equal} of {of} places; unshifted {unshifted:.0%} agree",
        )


def _first_only(differs: torch.Tensor, valid: torch.Tensor) -> Iterator[Pattern]:
    first = valid & (valid.cumsum(-1) == 1)
    number, later = int(differs.sum()), int((valid & ~first).sum())
    if later and not (differs & ~first).any():
        yield Pattern(
            name="only first tokens",
            evidence=f"all {number} differing tokens are the first valid ones of their rows; {later} later ones agree",
        )


def _padding(q: torch.Tensor, p: torch.Tensor, differs: torch.Tensor) -> Iterator[Pattern]:
    """Every differing token lies where one side only repeats its row's last value, twice or more: a filler."""
    for side, x in (("rollout", q), ("trainer", p)):
        same = (x == x[:, -1:]) | (x.isnan() & x[:, -1:].isnan())
        tail = same.flip(-1).cumprod(-1).flip(-1).bool()
        tail &= tail.sum(-1, keepdim=True) > 1
        if not (differs & ~tail).any():
            fills = sorted({str(v) for v in x[:, -1][differs.any(-1)].tolist()})
            yield Pattern(
                name="only padding",
                evidence=f"each of the {int(differs.sum())} differing tokens lies in the end of a row that the {side} "
                f"fills with {' or '.join(fills[:3])}: does the mask end where the response ends?",
            )
            return


def _one_sign(d: torch.Tensor) -> Iterator[Pattern]:
    number = d.numel()
    if number >= _FEW and (bool((d > 0).all()) or bool((d < 0).all())):
        side = "above" if d[0] > 0 else "below"
        yield Pattern(
            name="one sign",
            evidence=f"the trainer is {side} the rollout at all {number} differing tokens; fair coins would do so once "
            f"in 2^{number - 1}",
        )


def _proportional(q: torch.Tensor, p: torch.Tensor) -> Iterator[Pattern]:
    """trainer = a rollout, as a temperature roughly makes it: least squares through the origin."""
    if q.numel() < _FEW or not q.any():
        return
    a = float((q * p).sum() / (q * q).sum())
    before, after = float(((p - q) ** 2).sum()), float(((p - a * q) ** 2).sum())
    if before > 0 and after < before / 2:
        yield Pattern(
            name="proportional",
            evidence=f"trainer = {a:.7g} rollout leaves {after / before:.1%} of the squared differences: another "
            "temperature, or raw on one side and processed on the other?",
        )
