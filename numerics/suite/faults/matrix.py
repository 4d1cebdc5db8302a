"""Fault x property: who kills what, after how many examples.

The cases of a property are drawn once (`record_cases`) and shown to every fault, so that the oracle is paid for once.
"""

from __future__ import annotations

import statistics
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from numerics import reference
from numerics.suite.faults import CONTROLS, FAULTS, FORCED
from numerics.suite.faults.fault import Fault
from numerics.suite.implementation import Implementation
from numerics.suite.properties import PROPERTIES
from numerics.suite.property import Domain, NotProvided
from numerics.suite.runner import Check, record_cases

__all__ = ["Kill", "caught_by_assert_close", "kill", "matrix", "median_examples"]


@dataclass(frozen=True, kw_only=True)
class Kill:
    """What one property said of one implementation: examples until its first failure, None if it survived."""

    subject: str
    property: str
    seed: int
    examples: int | None


def kill(implementation: Implementation, property_id: str, dtype: str, *, seed: int, max_examples: int) -> int | None:
    """How many cases the property needs to fail the implementation; None if it never does or does not apply."""
    prop = PROPERTIES[property_id]
    if prop.requires - implementation.provides or dtype not in prop.dtypes:
        return None
    check = Check(property=prop, implementation=implementation, device="cpu", dtype=dtype)
    ctx = check.context
    own = zlib.crc32(f"{prop.slug}-{dtype}-{seed}".encode())
    cases = record_cases(prop, Domain.of(implementation, dtype), max_examples=max_examples, seed=own)
    try:
        for n, case in enumerate(cases, start=1):
            found, _ = check.examine(case, ctx)
            if found is not None and found.severity > 1:
                return n
    except NotProvided:
        return None
    return None


def matrix(
    *,
    seeds: Sequence[int],
    max_examples: int = 100,
    faults: Iterable[Fault] = tuple(FAULTS.values()),
    full: bool = True,
    progress: Callable[[str], None] = lambda text: None,
) -> list[Kill]:
    """Every fault against the properties it names, on every seed; controls and forced failures against all, in float32.

    full: on the first seed, with a fifth of the generated examples, every fault against every other property of its
    contract too (who else would notice).
    """
    out = []
    chosen = list(faults)
    contracts = {fault.implementation.contract for fault in chosen}
    for seed in seeds:
        for prop in PROPERTIES.values():
            if prop.contract not in contracts:
                continue
            progress(f"seed {seed}  {prop.slug}")
            home = "float32" if "float32" in prop.dtypes else prop.dtypes[0]
            subjects = [("control", CONTROLS[prop.contract], home), ("forced", FORCED[prop.contract], home)]
            subjects += [
                (f.id, f.implementation, f.dtype)
                for f in chosen
                if f.implementation.contract == prop.contract and (prop.id in f.breaks or (full and seed == seeds[0]))
            ]
            for name, implementation, dtype in subjects:
                named = name not in FAULTS or prop.id in FAULTS[name].breaks
                budget = max_examples if named else max(1, max_examples // 5)
                examples = kill(implementation, prop.id, dtype, seed=seed, max_examples=budget)
                out.append(Kill(subject=name, property=prop.id, seed=seed, examples=examples))
    return out


def median_examples(kills: Iterable[Kill]) -> dict[tuple[str, str], tuple[int, int, float]]:
    """(subject, property) -> (seeds that killed, seeds run, median examples to kill)."""
    table: dict[tuple[str, str], list[int | None]] = {}
    for k in kills:
        table.setdefault((k.subject, k.property), []).append(k.examples)
    return {
        key: (len(hit), len(values), statistics.median(hit) if hit else float("nan"))
        for key, values in table.items()
        for hit in [[v for v in values if v is not None]]
    }


def caught_by_assert_close(fault: Fault, *, seed: int = 0) -> bool:
    """Whether the usual unit test sees the fault: 20 random normal inputs against the reference, `assert_close`."""
    generator = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, fault.dtype)
    fn, contract = fault.implementation.fn, fault.implementation.contract
    for _ in range(20):
        logits = (torch.randn(4, 8, generator=generator) * 3).to(dtype)
        ids = torch.randint(0, 8, (4,), generator=generator)
        try:
            if contract == "token_logprobs":
                torch.testing.assert_close(fn(logits.clone(), ids), reference.token_logprobs(logits, ids))
            elif contract == "entropy":
                torch.testing.assert_close(fn(logits.clone()), reference.entropy(logits))
            elif contract in ("mismatch", "divergence"):
                q = -logits.abs()
                p = q + 0.01 * torch.randn(4, 8, generator=generator).to(dtype)
                mask = torch.ones(4, 8, dtype=torch.bool)
                right = getattr(reference, contract)
                got, want = fn(q.clone(), p.clone(), mask).as_dict(), right(q, p, mask).as_dict()
                for name, value in want.items():
                    if isinstance(value, int | float):
                        torch.testing.assert_close(torch.tensor(float(got[name])), torch.tensor(float(value)))
            elif contract == "full_divergence":
                other = logits + (0.01 * torch.randn(4, 8, generator=generator)).to(dtype)
                mask = torch.ones(4, dtype=torch.bool)
                got, want = fn(logits.clone(), other.clone(), mask), reference.full_divergence(logits, other, mask)
                for name, values in want.rows.items():
                    torch.testing.assert_close(got.rows[name].double(), values.double())
                for name, value in want.as_dict().items():
                    torch.testing.assert_close(torch.tensor(float(got.as_dict()[name])), torch.tensor(float(value)))
            elif contract == "correction":
                q = -logits.abs()
                p = q + 0.01 * torch.randn(4, 8, generator=generator).to(dtype)
                mask = torch.ones(4, 8, dtype=torch.bool)
                right = partial(reference.correction, rule="truncate", level="token", upper=2.0)
                wrong = fn(q.clone(), p.clone(), mask, rule="truncate", level="token", upper=2.0)
                torch.testing.assert_close(wrong.weights, right(q, p, mask).weights)
            else:
                a, b = logits[..., 0], logits[..., 1]
                torch.testing.assert_close(fn(a.clone(), b.clone())[0], reference.ulp_distance(a, b)[0])
        except (AssertionError, RuntimeError, ValueError, IndexError):
            return True
    return False
