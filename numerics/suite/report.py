"""Results as a person reads them, and the same as JSON.

A failure shows what failed where, the rule in one line, the simplest and the worst case, each with got / exact /
allowed in decimal, hex and ULPs, how all elements lie against the bound, a hint, and a reproduction that needs only
torch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from numerics.formats import FORMATS
from numerics.strategies.cases import LogitsCase, PairCase, Tail, UlpCase
from numerics.suite.contracts import CONTRACTS
from numerics.suite.measure import mp
from numerics.suite.runner import EDGES, STATUSES, Finding, Result

__all__ = [
    "as_record",
    "counts",
    "describe",
    "findings",
    "headline",
    "reproduction",
    "status_line",
    "summary",
    "throughput",
]


def headline(result: Result) -> str:
    """``LP-03 within_bound   reference   cpu   float32   passed``, with the worst error / bound of a failure."""
    check = result.check
    where = f"{check.property.id} {check.property.name}   {check.implementation.name}   {check.device}   {check.dtype}"
    tail = f"   worst error/bound = {result.worst.severity:.3g}" if result.worst and not result.worst.error else ""
    return f"{where}   {result.status.upper() if not result.ok else result.status}{tail}"


def describe(result: Result) -> str:
    """The whole report of one result."""
    prop = result.check.property
    lines = [headline(result), f"  rule      {prop.statement}      (numerics explain {prop.id})"]
    if result.reason:
        lines.append(f"  because   {result.reason}")
    shown = result.simplest or result.worst
    if shown is None:
        return "\n".join(lines)
    lines += _finding_lines("simplest" if result.simplest else "worst", shown)
    worst = result.worst
    if worst is not None and result.simplest is not None and repr(worst.case) != repr(shown.case):
        lines += _finding_lines("worst", worst)
    if not shown.error:
        lines.append(f"  measured  {_histogram(result)}")
    if shown.alone is False:
        lines.append("  batch     the row alone is fine: it is what stands beside it that changes its bits")
    hint = _hint(result, shown)
    if hint:
        lines.append(f"  hint      the planted fault {hint} gives the same numbers here (a hint, no diagnosis)")
    lines.append("  repro     " + reproduction(result, shown).replace("\n", "\n            "))
    lines.append(
        f"  again     numerics check {_spec(result)} --contract {prop.contract} --only {prop.id} "
        f"--dtype {result.check.dtype} --device {result.check.device} --seed {result.seed} "
        f"--max-examples {result.max_examples}"
    )
    return "\n".join(lines)


def _finding_lines(name: str, f: Finding) -> list[str]:
    lines = [f"  {name:9} {_short(f.case)}"]
    if f.error:
        return [*lines, f"            raised {f.error}"]
    if f.called is not None and repr(f.called) != repr(f.case):
        lines.append(f"  derived   {_short(f.called)}")
    where = f"{f.label}, row {f.row}" if f.row >= 0 else f.label
    if f.format == "truth":
        return [*lines, f"            false   {where}"]
    lines.append(f"            got     {_number(f.got)}   {where}")
    lines.append(f"            exact   {_exact(f.exact)}")
    if f.bits:
        lines.append("            allowed none: the bits must be equal")
        return lines
    ulps = _ulps(abs(mp.mpf(f.got) - mp.mpf(f.exact)), f) if math.isfinite(f.got) and mp.isfinite(f.exact) else ""
    allowed_ulps = _ulps(mp.mpf(f.allowed), f) if mp.isfinite(f.exact) and math.isfinite(f.allowed) else ""
    error = f"{float(abs(mp.mpf(f.got) - mp.mpf(f.exact))):.4g}" if ulps else "not finite"
    lines.append(f"            error   {error}{ulps} | allowed {f.allowed:.4g}{allowed_ulps}")
    return lines


def _number(x: float) -> str:
    return f"{x!r}   {x.hex() if math.isfinite(x) else ''}".rstrip()


def _exact(x: Any) -> str:
    if not mp.isfinite(x):
        return str(float(x))
    return f"{mp.nstr(mp.mpf(x), 25)}   ~ {float(x).hex()}"


def _ulps(error: Any, f: Finding) -> str:
    if f.exact == 0:
        return ""  # an ulp of 0 is the smallest subnormal, and says nothing
    unit = FORMATS[f.format].ulp(FORMATS[f.format].round(float(f.exact)))
    return f" = {float(error / unit):.3g} ulp" if math.isfinite(unit) and unit > 0 else ""


def _short(case: Any, limit: int = 1200) -> str:
    text = repr(case)
    return text if len(text) <= limit else text[:limit] + f" ... ({len(text)} characters)"


def _histogram(result: Result) -> str:
    names = ("<= 1", "1 .. 4", "4 .. 64", "64 .. 2^20", "> 2^20")
    parts = "   ".join(f"{n}: {k}" for n, k in zip(names, result.histogram, strict=True))
    return f"{result.elements} elements in {result.examples} examples, error/bound   {parts}"


def _hint(result: Result, shown: Finding) -> str:
    from numerics.suite.faults import nearest

    return "" if shown.error else nearest(result.check, shown)


def _spec(result: Result) -> str:
    fn = result.check.implementation.fn
    module, name = getattr(fn, "__module__", ""), getattr(fn, "__qualname__", "")
    builtin = result.check.implementation.name
    from numerics.suite.builtin import BUILTIN

    if builtin in BUILTIN:
        return builtin
    return f"{module}:{name}" if module and name.isidentifier() else builtin


def reproduction(result: Result, found: Finding) -> str:
    """Lines of Python that call the implementation on the finding's tensors; they need only torch (and it)."""
    case, fn = found.called or found.case, result.check.implementation.fn
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", "")
    lines = ["import torch; from math import inf, nan"]
    importable = module and name.isidentifier()
    lines.append(
        f"from {module} import {name}" if importable else f"# {result.check.implementation.name}: your callable"
    )
    lines += _tensor_lines(case)
    arguments = CONTRACTS[result.check.property.contract].arguments
    tensors = case.tensors("cpu")
    named = [f"{k}={k}" for k in tensors if k not in arguments and k != "token_ids"]
    named += [f"{k}={v!r}" for k, v in case.keywords().items()]
    call = ", ".join([*(a for a in arguments if a in tensors), *named])
    lines.append(f"print({name if importable else 'implementation'}({call}))")
    return "\n".join(lines)


def _tensor_lines(case: LogitsCase | PairCase | UlpCase) -> list[str]:
    lines = []
    if isinstance(case, LogitsCase) and case.width > 64 and isinstance(case.tail, Tail):
        tail = case.tail
        head = [list(row.values) for row in case.rows]
        lines.append("import numpy as np")
        lines.append(
            f"drawn = np.random.Generator(np.random.Philox({tail.seed})).uniform({tail.low}, {tail.high}, {tail.count})"
        )
        lines.append(f"tail = torch.from_numpy(drawn).to(torch.{case.dtype})")
        lines.append(
            f"logits = torch.cat([torch.tensor({head}, dtype=torch.{case.dtype}), tail.expand({case.size}, -1)], dim=1)"
        )
    for name, tensor in case.tensors("cpu").items():
        if name == "logits" and lines:
            continue
        lines.append(f"{name} = torch.tensor({tensor.tolist()}, dtype={tensor.dtype})")
    return lines


def findings(results: Iterable[Result]) -> dict[tuple[str, str, str, str], list[Result]]:
    """Failures grouped by (contract, property, kind, dtype): distinct defects, not a list of symptoms."""
    groups: dict[tuple[str, str, str, str], list[Result]] = {}
    for result in results:
        if result.ok:
            continue
        shown = result.simplest or result.worst
        kind = "smoke" if shown is None else ("raised" if shown.error else shown.label or "value")
        key = (result.check.property.contract, result.check.property.id, kind, result.check.dtype)
        groups.setdefault(key, []).append(result)
    return groups


def summary(results: Sequence[Result]) -> str:
    """``304 passed, 2 failed, 12 not applicable``; every status apart."""
    return status_line(counts(results))


def counts(results: Iterable[Result]) -> Counter[str]:
    """How many results have each status."""
    return Counter(result.status for result in results)


def status_line(found: Counter[str]) -> str:
    """Counts by status as one line, every status apart."""
    return ", ".join(f"{found[s]} {s}" for s in STATUSES if found[s]) or "no checks"


def throughput(results: Iterable[Result]) -> list[tuple[str, int, int, float]]:
    """(contract, examples, rows, seconds) per contract, the oracle counted in."""
    totals: dict[str, list[float]] = {}
    for r in results:
        total = totals.setdefault(r.check.property.contract, [0, 0, 0.0])
        total[0] += r.examples
        total[1] += r.rows
        total[2] += r.seconds
    return [(name, int(a), int(b), c) for name, (a, b, c) in totals.items()]


def as_record(result: Result) -> dict[str, Any]:
    """One result as JSON-ready data; NaN and infinities are the strings "nan", "inf", "-inf"."""
    check = result.check
    return {
        "property": check.property.id,
        "name": check.property.name,
        "contract": check.property.contract,
        "statement": check.property.statement,
        "implementation": check.implementation.name,
        "device": check.device,
        "dtype": check.dtype,
        "status": result.status,
        "reason": result.reason,
        "examples": result.examples,
        "rows": result.rows,
        "elements": result.elements,
        "slack": result.slack,
        "histogram": dict(
            zip([str(int(e)) if math.isfinite(e) else str(e) for e in EDGES], result.histogram, strict=True)
        ),
        "seed": result.seed,
        "seconds": round(result.seconds, 6),
        "worst": _finding_record(result.worst),
        "simplest": _finding_record(result.simplest),
    }


def _finding_record(f: Finding | None) -> dict[str, Any] | None:
    if f is None:
        return None
    return {
        "case": repr(f.case),
        "called": repr(f.called or f.case),
        "severity": _text(f.severity),
        "label": f.label,
        "row": f.row,
        "got": _text(f.got),
        "got_hex": f.got.hex(),
        "exact": mp.nstr(mp.mpf(f.exact), 30) if mp.isfinite(f.exact) else _text(float(f.exact)),
        "allowed": _text(f.allowed),
        "error": f.error,
        "alone": f.alone,
    }


def _text(x: float) -> float | str:
    return x if math.isfinite(x) else str(x)
