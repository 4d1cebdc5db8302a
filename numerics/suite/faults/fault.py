"""What a fault is, and how one is entered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numerics.suite.implementation import Algorithm, Implementation

__all__ = ["Fault", "enter"]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A wrong implementation made from a correct one by one idea.

    breaks: the properties that must kill it. dtype: the format it is run in. source: where it was seen.
    """

    id: str
    idea: str
    breaks: tuple[str, ...]
    dtype: str
    source: str
    implementation: Implementation


def enter(
    registry: dict[str, Fault],
    control: Implementation,
    *breaks: str,
    dtype: str = "float32",
    source: str = "",
    algorithm: Algorithm | None = None,
    **changes: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: plant a function as a fault of ``control``'s contract, declared like the control.

    The function's name is the fault's id, its docstring the idea. ``changes`` replace fields of the declaration.
    """

    def plant(fn: Callable[..., Any]) -> Callable[..., Any]:
        name = fn.__name__
        if name in registry:
            raise ValueError(f"fault {name} exists already")
        registry[name] = Fault(
            id=name,
            idea=(fn.__doc__ or "").strip(),
            breaks=breaks,
            dtype=dtype,
            source=source,
            implementation=Implementation(
                fn,
                contract=control.contract,
                name=name,
                capabilities=control.capabilities,
                algorithm=algorithm or control.algorithm,
                **{"pair": control.pair, "state": control.state, **changes},
            ),
        )
        return fn

    return plant
