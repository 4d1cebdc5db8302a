"""What all mergeable states share: merging, saving, and reducing over ranks.

A state is its options (what must agree for two states to be merged) and its totals: integers, exact sums, extremes and
dataclasses, tuples and dictionaries of them. `merged` adds two totals. Everything in them is exact, so any split into
micro-batches, ranks and steps gives the same bits.
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from numerics.reference import collect
from numerics.reference.moments import CoMoments, Extremes, Moments
from numerics.reference.sums import ExactSum
from numerics.reference.weights import WeightSums, WideSum

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["CELLS", "SCHEMA", "State", "merged"]

#: the version of `State.state_dict`
SCHEMA = "numerics.state/1"
#: the kinds of cells that totals are made of, by the name under which they are saved
CELLS: dict[str, Any] = {c.__name__: c for c in (CoMoments, ExactSum, Extremes, Moments, WeightSums, WideSum)}


def merged(a: Any, b: Any) -> Any:
    """The totals of what two totals have seen: integers add, cells merge, containers place by place."""
    if isinstance(a, int):
        return a + b
    if isinstance(a, tuple):
        return tuple(merged(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return {k: merged(v, b[k]) for k, v in a.items()}
    return a.merge(b)


class State:
    """Options and totals; a subclass names its options and says how tokens come in and figures go out."""

    #: the name under which a saved state is known
    kind: ClassVar[str]

    def __init__(self, options: dict[str, Any], totals: dict[str, Any]) -> None:
        self.options = options
        self.totals = totals

    def merge(self, other: Self) -> Self:
        """Add what another state has seen; returns this state.

        `TypeError` for another kind of state, `ValueError` for one with other options.
        """
        if not isinstance(other, State) or other.kind != self.kind:
            raise TypeError(f"cannot merge a {type(other).__name__} into a {type(self).__name__}")
        if other.options != self.options:
            raise ValueError(f"cannot merge states with different options: {_apart(self.options, other.options)}")
        self.totals = merged(self.totals, other.totals)
        return self

    def reduce(self, group: Any = None) -> Self:
        """The state of all ranks of a torch.distributed group together, the same bits on every one of them.

        Every rank must call it. Two all_gathers of equal-sized tensors on the device that the backend needs, no
        pickling; this state stays as it is. Without an initialised process group it is a copy. `ValueError`, on every
        rank, if the options differ; what torch raises if a rank is gone or the group's timeout is over.
        """
        parts = collect.gather(self.to_json().encode(), group)
        states = [type(self).from_json(part.decode()) for part in parts]
        for rank, state in enumerate(states):
            if state.options != states[0].options:
                raise ValueError(
                    f"rank {rank} has other options than rank 0: {_apart(states[0].options, state.options)}"
                )
        whole = states[0]
        for state in states[1:]:
            whole.merge(state)
        return whole

    def state_dict(self) -> dict[str, Any]:
        """Options and totals as plain numbers, strings, lists and dictionaries, ready for JSON or ``torch.save``."""
        return {
            "schema": SCHEMA,
            "kind": self.kind,
            "options": _encode(self.options),
            "totals": _encode(self.totals),
        }

    @classmethod
    def from_state_dict(cls, saved: dict[str, Any]) -> Self:
        """The state that `state_dict` saved. `ValueError` for another schema or kind, or for what is no saved state."""
        if not isinstance(saved, dict) or saved.get("schema") != SCHEMA:
            found = saved.get("schema") if isinstance(saved, dict) else type(saved).__name__
            raise ValueError(f"not a saved state of schema {SCHEMA!r}: found {found!r}")
        if saved.get("kind") != cls.kind:
            raise ValueError(f"a saved {saved.get('kind')!r} state cannot be read as {cls.kind!r}")
        try:
            options, totals = _decode(saved["options"]), _decode(saved["totals"])
            state = cls(**options)
        except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RecursionError) as error:
            raise ValueError(f"a saved {cls.kind} state is damaged: {type(error).__name__}: {error}") from error
        if options != state.options:
            raise ValueError(f"a saved {cls.kind} state has incomplete options: {_apart(state.options, options)}")
        if wrong := _misfit(totals, state.totals, "totals"):
            raise ValueError(f"a saved {cls.kind} state does not hold the totals of this version: {wrong}")
        state.totals = totals
        return state

    def to_json(self) -> str:
        """`state_dict` as JSON text; every number is exact."""
        return json.dumps(self.state_dict(), separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The state that `to_json` wrote; `ValueError` for what it did not write."""
        try:
            saved = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"not a saved state: the text is no JSON ({error})") from error
        return cls.from_state_dict(saved)


def _apart(mine: dict[str, Any], theirs: dict[str, Any]) -> str:
    names = [n for n in {**mine, **theirs} if mine.get(n) != theirs.get(n)]
    return ", ".join(f"{n} is {mine.get(n)!r} here and {theirs.get(n)!r} there" for n in names)


def _misfit(found: Any, like: Any, place: str) -> str:
    """Where ``found`` is built otherwise than ``like``, whatever the numbers; "" if nowhere."""
    if type(found) is not type(like):
        return f"{place} is a {type(found).__name__}, not a {type(like).__name__}"
    if isinstance(like, WideSum):
        fine = isinstance(found.digits, dict) and all(
            type(i) is type(d) is int and d >= 0 for i, d in found.digits.items()
        )
        return "" if fine else f"{place}.digits does not map integers to counts"
    if isinstance(like, dict) and found.keys() != like.keys():
        return f"{place} has {sorted(map(str, found))}, not {sorted(map(str, like))}"
    if isinstance(like, tuple) and len(found) != len(like):
        return f"{place} has {len(found)} entries, not {len(like)}"
    if isinstance(like, int):
        return f"{place} is {found}, a negative count" if found < 0 and not place.endswith(".units") else ""
    return next(filter(None, (_misfit(_inside(found)[k], v, f"{place}.{k}") for k, v in _inside(like).items())), "")


def _inside(x: Any) -> dict[Any, Any]:
    """What a container or a cell holds, by name."""
    if isinstance(x, tuple):
        return dict(enumerate(x))
    if isinstance(x, dict):
        return x
    return {f.name: getattr(x, f.name) for f in dataclasses.fields(x)} if dataclasses.is_dataclass(x) else {}


def _encode(x: Any) -> Any:
    if x is None or isinstance(x, str | bool):
        return x
    if isinstance(x, int):
        return x if abs(x) < 1 << 53 else {"int": hex(x)}
    if isinstance(x, float):
        return {"float": x.hex()}
    if isinstance(x, torch.dtype):
        return {"dtype": str(x).removeprefix("torch.")}
    if isinstance(x, tuple):
        return [_encode(v) for v in x]
    if isinstance(x, dict):
        return {"items": [[_encode(k), _encode(v)] for k, v in x.items()]}
    return {"cell": type(x).__name__, **{name: _encode(v) for name, v in _inside(x).items()}}


def _decode(x: Any) -> Any:
    if x is None or isinstance(x, str | int):
        return x
    if isinstance(x, list):
        return tuple(_decode(v) for v in x)
    if "int" in x:
        return int(x["int"], 16)
    if "float" in x:
        return math.nan if x["float"] == "nan" else float.fromhex(x["float"])
    if "dtype" in x:
        return getattr(torch, x["dtype"])
    if "items" in x:
        return {_decode(k): _decode(v) for k, v in x["items"]}
    kind, fields = CELLS[x["cell"]], {name: _decode(v) for name, v in x.items() if name != "cell"}
    missing = [f.name for f in dataclasses.fields(kind) if f.name not in fields]  # no default stands in for a lost sum
    if missing:
        raise KeyError(f"{x['cell']} without {', '.join(missing)}")
    return kind(**fields)
