"""The fault matrix as a person reads it, and the claims it must meet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table

from numerics.suite.faults.fault import Fault
from numerics.suite.faults.matrix import Kill, caught_by_assert_close, median_examples
from numerics.suite.properties import PROPERTIES

__all__ = ["NOT_ALONE", "markdown", "named_alone", "table", "verdict"]

#: properties that no fault names alone, and why they stay
NOT_ALONE = {
    "LP-07": "implied by LP-01 on every token; needs no oracle, so it guards the oracle too",
    "LP-41": "implied by LP-40; says in one line what goes wrong",
    "LP-42": "implied by LP-40 under the default tie rule; the count is what users of top-k expect",
    "LP-43": "implied by LP-40; measures the renormalisation alone",
    "MM-03": "implied by MM-01 on every such pair; the seed change of the project in one line",
    "MM-10": "implied by MM-02 and MM-01 on every case; compares two calls without the oracle",
    "MM-11": "implied by MM-18 on non-finite cases; compares two calls without the oracle",
    "MM-12": "implied by MM-02; compares two calls without the oracle",
    "MM-13": "implied by MM-02; the zero gate's own promise",
    "MM-19": "implied by MM-02; compares with the unreplicated batch",
    "MM-20": "implied by MM-02; ties the figure to theory instead of arithmetic",
    "CR-06": "implied by CR-01 and CR-03 on undefined units; what NaN must become, without the oracle",
    "CR-07": "implied by CR-01; overflow seen without the oracle",
    "CR-08": "implied by CR-04 and CR-02; diagnostics held against what came back",
    "CR-09": "implied by CR-04; compares two calls without the oracle",
    "CR-10": "implied by CR-01 and CR-02; what on-policy must look like, exactly",
    "CR-15": "implied by CR-01; three levels held against each other",
    "CR-16": "implied by CR-04; needs no oracle",
    "CR-21": "implied by CR-01 and CR-04; compares two calls without the oracle",
    "CR-22": "implied by CR-01; compares two calls without the oracle",
    "CR-24": "implied by CR-04; compares with the unreplicated batch",
    "CR-29": "implied by CR-01; compares two calls without the oracle",
    "DV-05": "implied by DV-02; ties every estimator to the divergence it names, by enumeration, without the oracle",
    "DV-06": "implied by DV-02 where the bound is tighter than the range; needs no oracle",
    "DV-07": "implied by DV-02; what on-policy must look like, exactly",
    "DV-10": "implied by DV-02; compares calls without the oracle, so it sees saturation at any accuracy",
    "DV-17": "implied by DV-02 and DV-03; figures held against each other, sign by sign",
    "DV-22": "implied by DV-02 and DV-03; compares two calls without the oracle",
    "DV-23": "implied by DV-03; compares two calls without the oracle",
    "DV-24": "implied by DV-14 on non-finite cases; compares two calls without the oracle",
    "DV-25": "implied by DV-02; compares two calls without the oracle",
    "DV-27": "implied by DV-02 and DV-03; orientation, without the oracle",
    "DV-28": "implied by DV-02; compares with the unreplicated batch",
    "DV-31": "implied by DV-29 for splits between rows; splits inside rows are its own",
    "FV-03": "implied by FV-01; direction, without the oracle",
    "FV-04": "implied by FV-01; what equal logits must look like, exactly",
    "FV-05": "implied by FV-01 where the bound is tighter than the range; needs no oracle",
    "FV-12": "implied by FV-02; compares with the unreplicated batch",
}


def _where(kills: Iterable[Kill]) -> dict[tuple[str, str], tuple[int, int, float]]:
    return median_examples(kills)


def verdict(kills: Sequence[Kill], faults: Iterable[Fault]) -> list[str]:
    """The claims that do not hold, one line each: nothing if all is well."""
    cells = _where(kills)
    out = [f"control killed by {p} (false alarm)" for (s, p), (hit, _, _) in cells.items() if s == "control" and hit]
    out += [
        f"forced failure survives {p} on {of - hit} of {of} seeds"
        for (s, p), (hit, of, _) in cells.items()
        if s == "forced" and hit < of
    ]
    for fault in faults:
        for prop in fault.breaks:
            hit, of, _ = cells.get((fault.id, prop), (0, 1, 0.0))
            if hit < of:
                out.append(f"{fault.id} survives {prop} on {of - hit} of {of} seeds")
    return out


def named_alone(faults: Iterable[Fault]) -> dict[str, list[str]]:
    """property -> faults that name it and no other: one idea that no other property is claimed to see."""
    alone: dict[str, list[str]] = {}
    for fault in faults:
        if len(fault.breaks) == 1:
            alone.setdefault(fault.breaks[0], []).append(fault.id)
    return alone


def _killers(fault: Fault, cells: dict[tuple[str, str], tuple[int, int, float]]) -> str:
    found = [(p, cell) for (s, p), cell in cells.items() if s == fault.id and cell[0]]
    found.sort(key=lambda item: (item[0] not in fault.breaks, item[0]))
    parts = []
    for prop, (hit, of, median) in found:
        share = "" if hit == of else f" {hit}/{of}"
        parts.append(
            f"{'**' if prop in fault.breaks else ''}{prop}{'**' if prop in fault.breaks else ''}{share} ({median:g})"
        )
    return ", ".join(parts)


def table(kills: Sequence[Kill], faults: Iterable[Fault]) -> Table:
    """A table for the terminal: fault, idea, killers with their examples to kill."""
    cells = _where(kills)
    out = Table(title="fault: killed by (examples to kill)", title_justify="left", box=None)
    for column in ("fault", "idea", "killed by"):
        out.add_column(column, overflow="fold")
    for fault in faults:
        out.add_row(fault.id, fault.idea.splitlines()[0], _killers(fault, cells).replace("**", "") or "SURVIVES")
    return out


def markdown(kills: Sequence[Kill], faults: Iterable[Fault], *, max_examples: int) -> str:
    """The table of ``docs/faults.md``."""
    cells, chosen = _where(kills), list(faults)
    seeds = len({k.seed for k in kills})
    caught = {fault.id: caught_by_assert_close(fault) for fault in chosen}
    lines = [
        f"{len(chosen)} faults, {seeds} seeds, at most {max_examples} generated examples a property. Bold: what the "
        "fault names, which must kill it on every seed; in brackets the median number of examples until the first one "
        "(special cases come first and count). The others: who else noticed on the first seed with a fifth of the "
        "examples. "
        f"`assert_close`: whether 20 random normal inputs with `torch.testing.assert_close`'s defaults notice: "
        f"{sum(caught.values())} of {len(chosen)}.",
        "",
        "| fault | idea | seen in | killed by | `assert_close` |",
        "|---|---|---|---|---|",
    ]
    for fault in chosen:
        idea = " ".join(fault.idea.split()).replace("|", "\\|")
        source = fault.source.replace("|", "\\|")
        lines.append(
            f"| `{fault.id}` | {idea} | {source} | {_killers(fault, cells)} | {'yes' if caught[fault.id] else 'no'} |"
        )
    alarms = sum(hit for (s, _), (hit, _, _) in cells.items() if s == "control")
    forced = [of == hit for (s, _), (hit, of, _) in cells.items() if s == "forced"]
    alone = named_alone(chosen)
    lines += [
        "",
        f"Controls (the correct code the faults are made from): {alarms} alarms. Forced failures (rubbish): killed by "
        f"{sum(forced)} of {len(forced)} properties on every seed.",
        "",
        "Properties that some fault names alone: "
        + ", ".join(f"{p} ({len(f)})" for p, f in sorted(alone.items()))
        + ".",
        "",
        "The others, and why they stay:",
        "",
    ]
    lines += [
        f"- {p}: {NOT_ALONE.get(p, 'NO REASON GIVEN')}"
        for p in PROPERTIES
        if p not in alone and any(k.property == p for k in kills)
    ]
    return "\n".join(lines)
