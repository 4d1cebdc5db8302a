"""A mergeable state under test. What it raises is a finding, like what a function raises."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from numerics.suite.contracts import Outcome, Raised

__all__ = ["StateUnderTest"]


class StateUnderTest:
    """A state that an implementation made; `Raised` carries what it raises."""

    def __init__(self, make: Callable[[], Any], device: str) -> None:
        self._state = _guarded(make)
        self._device = device

    def update(self, case: Any) -> StateUnderTest:
        """Add the tokens of a case; returns the state."""
        tensors = case.tensors(self._device)
        self._state = _guarded(self._state.update, tensors["rollout"], tensors["trainer"], tensors["mask"])
        return self

    def merge(self, other: StateUnderTest) -> StateUnderTest:
        """Add what another state has seen; returns the state."""
        self._state = _guarded(self._state.merge, other._state)
        return self

    def outcome(self) -> Outcome:
        """The figures."""
        return Outcome(fields=dataclasses.asdict(_guarded(self._state.compute)))


def _guarded(fn: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return fn(*arguments)
    except Exception as error:  # whatever an implementation raises is a result of the check
        raise Raised(error) from error
