"""Properties: numbered rules that return measurements, and the context they are given.

A property is a plain function of ``(case, ctx)``. It holds no dtype, device, tolerance, pytest or ``given``. It asks
``ctx``: `Context.call` runs the implementation on a case, `Context.state` makes its mergeable state, `Context.exact`
gives the exact answer. What it returns, the runner judges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hypothesis import strategies as st

from numerics.formats import FORMATS
from numerics.suite.contracts import Outcome, Raised, call
from numerics.suite.implementation import Algorithm, Implementation
from numerics.suite.measure import Measurement
from numerics.suite.states import StateUnderTest

__all__ = ["Context", "Domain", "NotProvided", "Property", "refuses", "rule"]


class NotProvided(Exception):  # noqa: N818 - no error: the check is not applicable
    """The implementation does not return what the property is about."""


@dataclass(frozen=True, kw_only=True)
class Domain:
    """What cases may use: the check's dtype, all dtypes the implementation takes, and the forms of a temperature."""

    dtype: str
    dtypes: tuple[str, ...] = tuple(FORMATS)
    temperature_forms: tuple[str, ...] = ("absent",)

    @classmethod
    def of(cls, implementation: Implementation, dtype: str) -> Domain:
        """The domain of an implementation that takes ``dtype``."""
        if "temperature" not in implementation.provides:
            return cls(dtype=dtype, dtypes=implementation.dtypes)
        extra = ("zero_dim", "per_token") if "per_token_temperature" in implementation.provides else ()
        return cls(dtype=dtype, dtypes=implementation.dtypes, temperature_forms=("absent", "float", *extra))


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a property may ask: the implementation's answer and the exact one."""

    implementation: Implementation
    device: str
    dtype: str
    exact: Callable[..., Any]
    fields: frozenset[str] = frozenset()

    @property
    def algorithm(self) -> Algorithm:
        """What the implementation declares of its algorithm; bounds need it."""
        return self.implementation.algorithm

    def call(self, case: Any) -> Outcome:
        """The implementation's answer on fresh tensors of ``case``."""
        return call(self.implementation, case, self.device)

    def state(self, **options: Any) -> StateUnderTest:
        """An empty state of the implementation."""
        make = self.implementation.state
        assert make is not None, "the property must require 'state'"
        return StateUnderTest(partial(make, **options), self.device)

    def refuses(self, case: Any) -> bool:
        """Whether the implementation raises on ``case``."""
        try:
            self.call(case)
        except Raised:
            return True
        return False


@dataclass(frozen=True, kw_only=True)
class Property:
    """One numbered rule of a contract.

    id: "LP-03"; name: "within_bound". statement: the rule in one line of mathematics. cases: the strategy for a domain.
    special: cases that must be met, not left to luck. requires: capabilities or keywords without which the check is not
    applicable. devices, dtypes: where the rule says anything. Rule numbers are never reused.
    """

    id: str
    name: str
    contract: str
    statement: str
    body: Callable[[Any, Context], Measurement | Sequence[Measurement]]
    cases: Callable[[Domain], st.SearchStrategy[Any]]
    special: Callable[[Domain], Iterable[Any]] = field(default=lambda domain: ())
    requires: frozenset[str] = frozenset()
    devices: tuple[str, ...] = ("cpu", "cuda")
    dtypes: tuple[str, ...] = tuple(FORMATS)

    @property
    def slug(self) -> str:
        """``LP-03_within_bound``."""
        return f"{self.id}_{self.name}"

    @property
    def doc(self) -> str:
        """Why the rule is there, from the function's docstring."""
        return (self.body.__doc__ or "").strip()

    def measure(self, case: Any, ctx: Context) -> list[Measurement]:
        """What the rule finds on one case."""
        found = self.body(case, ctx)
        return [found] if isinstance(found, Measurement) else list(found)


def rule(
    registry: dict[str, Property],
    id: str,
    *,
    contract: str,
    statement: str,
    cases: Callable[[Domain], st.SearchStrategy[Any]],
    special: Callable[[Domain], Iterable[Any]] = lambda domain: (),
    requires: Iterable[str] = (),
    devices: tuple[str, ...] = ("cpu", "cuda"),
    dtypes: tuple[str, ...] = tuple(FORMATS),
) -> Callable[[Callable[[Any, Context], Any]], Property]:
    """Decorator: make a function of ``(case, ctx)`` the property ``id`` and enter it in ``registry``."""

    def enter(body: Callable[[Any, Context], Any]) -> Property:
        if id in registry:
            raise ValueError(f"property {id} exists already ({registry[id].name}); numbers are never reused")
        registry[id] = Property(
            id=id,
            name=body.__name__,
            contract=contract,
            statement=statement,
            body=body,
            cases=cases,
            special=special,
            requires=frozenset(requires),
            devices=devices,
            dtypes=dtypes,
        )
        return registry[id]

    return enter


def refuses(fn: Callable[..., Any], *args: Any, **named: Any) -> bool:
    """Whether ``fn`` raises an error of bad input on these arguments."""
    try:
        fn(*args, **named)
    except (ValueError, TypeError, IndexError, RuntimeError):
        return True
    return False
