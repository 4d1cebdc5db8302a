"""Putting the drop-ins into a running verl, and taking them out again."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from collections.abc import Callable, Collection
from typing import Any

from numerics.integrations.verl.aggregator import MetricsAggregator
from numerics.integrations.verl.debug import calculate_debug_metrics
from numerics.integrations.verl.offpolicy import compute_offpolicy_metrics

__all__ = ["KNOWN_VERSIONS", "PARTS", "install", "installed", "uninstall"]

#: versions of verl whose call sites were read
KNOWN_VERSIONS = ("0.9.1",)

#: part -> (module, name) where verl defines what is replaced
PARTS = {
    "debug_metrics": ("verl.utils.debug.metrics", "calculate_debug_metrics"),
    "offpolicy_metrics": ("verl.trainer.ppo.rollout_corr_helper", "compute_offpolicy_metrics"),
    "aggregator": ("verl.trainer.ppo.v1.utils", "MetricsAggregator"),
}

#: what stood where: (module, attribute) -> verl's own object
_REPLACED: dict[tuple[str, str], Any] = {}


def install(*, parts: Collection[str] = tuple(PARTS), version: str | None = None) -> list[str]:
    """Replace verl's functions by the drop-ins; returns the places that now hold one, ``module:name``.

    parts: names in `PARTS`. "debug_metrics": log-prob figures, counts and the raw log-probs of
    ``log_probs_for_metrics`` where the batch has them. "offpolicy_metrics": ``rollout_corr/*``. "aggregator": reducers
    by declaration, the mismatch count summed; keys that nobody declared go by verl's own rule.

    Every module of verl that is loaded and holds the function under its name is changed; modules loaded later import it
    from its home, which is changed too. Twice is once. `uninstall` puts everything back.

    `ImportError` without verl, `RuntimeError` for a version whose call sites were not read (give ``version`` to vouch
    for it), a home that cannot be imported or lacks the name, `ValueError` for an unknown part.

    Raw log-probs from the actor itself (``log_probs_for_metrics`` from one pass over the logits) are not part of this
    yet: a batch has them only if the training loop puts them there.
    """
    unknown = sorted(set(parts) - set(PARTS))
    if unknown:
        raise ValueError(f"unknown part {unknown[0]!r}; the parts are {', '.join(PARTS)}")
    found = _version()
    if found not in KNOWN_VERSIONS and version != found:
        raise RuntimeError(
            f"verl is {found}, whose call sites were not read (known: {', '.join(KNOWN_VERSIONS)}); compare "
            f"them with numerics.integrations.verl.PARTS, then pass version={found!r}"
        )
    homes = {}
    for part in parts:
        module_name, name = PARTS[part]
        try:
            module = importlib.import_module(module_name)
        except ImportError as error:
            raise RuntimeError(
                f"cannot import {module_name} of verl {found} ({error}), so nothing was changed; leave {part!r} out "
                f"with parts={[p for p in parts if p != part]!r}"
            ) from error
        if not hasattr(module, name):
            raise RuntimeError(f"{module_name} of verl {found} has no {name}: nothing was changed")
        homes[part] = getattr(module, name)
    for part, original in homes.items():
        if (PARTS[part]) not in _REPLACED:
            _replace(PARTS[part][1], original, _drop_in(part, original))
    return installed()


def uninstall() -> list[str]:
    """Put verl's own objects back; returns the places that were restored."""
    places = installed()
    for (module_name, name), original in _REPLACED.items():
        if module_name in sys.modules:
            setattr(sys.modules[module_name], name, original)
    _REPLACED.clear()
    return places


def installed() -> list[str]:
    """The places that hold a drop-in, ``module:name``."""
    return sorted(f"{module}:{name}" for module, name in _REPLACED)


def _replace(name: str, original: Any, replacement: Any) -> None:
    for module_name, module in list(sys.modules.items()):
        inside = module_name == "verl" or module_name.startswith("verl.")
        if inside and module is not None and vars(module).get(name) is original:
            _REPLACED[module_name, name] = original
            setattr(module, name, replacement)


def _drop_in(part: str, original: Any) -> Any:
    if part == "debug_metrics":
        return calculate_debug_metrics
    if part == "offpolicy_metrics":
        return compute_offpolicy_metrics
    return _aggregator(original)


def _aggregator(original: Any) -> Any:
    """Our class, asking verl's own rule about keys that nobody declared."""
    names = {"weighted_avg": "mean", "time_sum": "sum"}

    def rule(key: str) -> str:
        found: str = original()._get_aggregation_type(key)
        return names.get(found, found)

    def make() -> MetricsAggregator:
        return MetricsAggregator(unknown=rule)

    return _named(make, original)


def _named(make: Callable[[], MetricsAggregator], original: Any) -> Callable[[], MetricsAggregator]:
    make.__name__ = make.__qualname__ = original.__name__
    return make


def _version() -> str:
    try:
        return importlib.metadata.version("verl")
    except importlib.metadata.PackageNotFoundError as error:
        raise ImportError("verl is not installed in this environment") from error
