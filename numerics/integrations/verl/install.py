"""Putting the drop-ins into a running verl, and taking them out again."""

from __future__ import annotations

import functools
import importlib.metadata
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import MappingProxyType, ModuleType
from typing import Any

from numerics.integrations.verl import actor
from numerics.integrations.verl.aggregator import MetricsAggregator, reduce_metrics
from numerics.integrations.verl.correction import (
    compute_rollout_correction_and_rejection_mask,
    compute_rollout_correction_weights,
    compute_rollout_rejection_mask,
)
from numerics.integrations.verl.debug import calculate_debug_metrics
from numerics.integrations.verl.offpolicy import compute_offpolicy_metrics
from numerics.integrations.verl.sites import KNOWN_VERSIONS, PARTS, SITES, Site

__all__ = ["METRICS", "install", "installed", "uninstall", "waiting"]

#: the parts that change what is logged, and nothing that is trained
METRICS = ("debug_metrics", "offpolicy_metrics", "aggregator", "reduce_metrics")


@dataclass(frozen=True, kw_only=True)
class _Replacement:
    """What stands for verl's object now."""

    site: Site
    original: Any
    replacement: Any


#: key in `SITES` -> what was replaced
_REPLACED: dict[str, _Replacement] = {}
#: key in `SITES` -> whether the user vouches for its source; replaced as soon as its home is imported
_WAITING: dict[str, bool] = {}


def install(*, parts: Collection[str] = METRICS, version: str | None = None, lazily: bool = False) -> list[str]:
    """Replace verl's functions by the drop-ins; returns the places that now hold one, ``module:name``.

    parts, names in ``sites.PARTS``:

    - "debug_metrics": ``training/rollout_*`` figures, counts and raw log-probs (``log_probs_for_metrics``) if the batch
      has them; "offpolicy_metrics": ``rollout_corr/*``; "aggregator" (V1) and "reduce_metrics": reducers by
      declaration, the mismatch count summed; keys that nobody declared go by verl's own rule. These four change what is
      logged and nothing else, and are the default.
    - "rollout_correction": importance weights and rejections, which **training uses**.
    - "actor": verl's engines return raw log-probs too, and the trainer hands them on. It costs one more reading of the
      logits. It must be installed in the worker processes too (``numerics.integrations.verl.everywhere``).

    Every loaded module that holds the function under its name is changed; modules loaded later import it from its home,
    which is changed too. The homes of "actor" are changed when something imports them, since some need Megatron; with
    ``lazily`` this holds for all parts, and nothing is imported here (`waiting` names them). Twice is once. `uninstall`
    puts everything back.

    What is replaced is known by version, parameters and the fingerprint of its source (``sites.SITES``). version: the
    version you vouch for; then only the parameters are checked.

    `ImportError` without verl; `ValueError` for an unknown part; `RuntimeError` for a version whose call sites were not
    read, a home that cannot be imported, a name that is missing, takes other parameters or has other source. Nothing is
    changed then. A home that is imported later raises it from that import.
    """
    for part in parts:
        if part not in PARTS:
            raise ValueError(f"unknown part {part!r}; the parts are {', '.join(PARTS)}")
    found = _version()
    if found not in KNOWN_VERSIONS and version != found:
        raise RuntimeError(
            f"verl is {found}, whose call sites were not read (known: {', '.join(KNOWN_VERSIONS)}); compare "
            f"them with numerics.integrations.verl.sites.SITES, then pass version={found!r}"
        )
    vouched = version == found
    now: dict[str, tuple[ModuleType, Any]] = {}
    later: dict[str, bool] = {}
    for part in parts:
        for key in PARTS[part]:
            if key in _REPLACED:
                continue
            module = _home(SITES[key], part, parts, found, wait=lazily or part == "actor")
            if module is None:
                later[key] = vouched
            else:
                now[key] = module, SITES[key].check(module, found, vouched=vouched)
    for key, (module, original) in now.items():
        _replace(key, module, original)
    _WAITING.update(later)
    if _WAITING and _WATCH not in sys.meta_path:
        sys.meta_path.insert(0, _WATCH)
    return installed()


def uninstall() -> list[str]:
    """Put verl's own objects back, also where they were imported since; returns the places that were restored."""
    places = installed()
    for entry in _REPLACED.values():
        for owner, attribute, _ in _holders(entry.site, entry.replacement):
            setattr(owner, attribute, entry.original)
    _REPLACED.clear()
    _WAITING.clear()
    if _WATCH in sys.meta_path:
        sys.meta_path.remove(_WATCH)
    return places


def installed() -> list[str]:
    """The places that hold a drop-in, ``module:name``."""
    return sorted({place for entry in _REPLACED.values() for _, _, place in _holders(entry.site, entry.replacement)})


def waiting() -> list[str]:
    """The places that will hold a drop-in once their module is imported, ``module:name``."""
    return sorted(SITES[key].place for key in _WAITING)


def _home(site: Site, part: str, parts: Collection[str], version: str, *, wait: bool) -> ModuleType | None:
    """The module of a site; None if it is not loaded and may wait."""
    if wait:
        return sys.modules.get(site.module)
    try:
        return site.import_home()
    except ImportError as error:
        raise RuntimeError(
            f"cannot import {site.module} of verl {version} ({error}), so nothing was changed; leave {part!r} out with "
            f"parts={[p for p in parts if p != part]!r}"
        ) from error


def _replace(key: str, module: ModuleType, original: Any) -> None:
    site = SITES[key]
    replacement = _DROP_INS[key](original)
    replacement.verls_own = original  # how the adapters find it
    _REPLACED[key] = _Replacement(site=site, original=original, replacement=replacement)
    setattr(site.owner(module), site.attribute, replacement)
    for owner, attribute, _ in _holders(site, original):
        setattr(owner, attribute, replacement)


def _holders(site: Site, wanted: Any) -> list[tuple[Any, str, str]]:
    """Who holds an object under the name of a site: (module or class, attribute, place)."""
    if "." in site.name or site.only_here:
        home = sys.modules.get(site.module)
        owner = None if home is None else site.owner(home)
        held = owner is not None and vars(owner).get(site.attribute) is wanted
        return [(owner, site.attribute, site.place)] if held else []
    return [
        (module, site.name, f"{name}:{site.name}")
        for name, module in list(sys.modules.items())
        if isinstance(module, ModuleType) and vars(module).get(site.name) is wanted
    ]


class _Watch(MetaPathFinder):
    """Finds the modules that sites wait for as everyone does, and replaces in them what is to be replaced."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if not any(SITES[key].module == fullname for key in _WAITING):
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Watched(spec.loader)
                return spec
        return None


class _Watched(Loader):
    """A module's own loader, and what comes after it."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        keys = [key for key in _WAITING if SITES[key].module == module.__name__]
        version = _version()
        checked = {key: SITES[key].check(module, version, vouched=_WAITING[key]) for key in keys}
        for key, original in checked.items():
            del _WAITING[key]
            _replace(key, module, original)


_WATCH = _Watch()


def _fresh(function: Callable[..., Any]) -> Callable[[Any], Any]:
    """Makes a function of its own for each installation, so that `uninstall` never takes a user's import of ours."""

    def make(original: Any) -> Any:
        @functools.wraps(function)
        def drop_in(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return drop_in

    return make


def _aggregator(original: Any) -> Any:
    """Our class, asking verl's own rule about keys that nobody declared."""
    names = {"weighted_avg": "mean", "time_sum": "sum"}

    def rule(key: str) -> str:
        found: str = original()._get_aggregation_type(key)
        return names.get(found, found)

    class Installed(MetricsAggregator):
        def __init__(self) -> None:
            super().__init__(unknown=rule)

    Installed.__name__ = Installed.__qualname__ = original.__name__
    return Installed


def _reduce_metrics(original: Any) -> Any:
    """Ours, with verl's own rule for keys that nobody declared."""

    def rule(key: str) -> str:
        return "max" if "max" in key else "min" if "min" in key else "mean"

    @functools.wraps(reduce_metrics)
    def drop_in(metrics: Any) -> Any:
        return reduce_metrics(metrics, unknown=rule)

    return drop_in


#: key in `SITES` -> verl's object to its replacement
_DROP_INS: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        "debug_metrics": _fresh(calculate_debug_metrics),
        "offpolicy_metrics": _fresh(compute_offpolicy_metrics),
        "weights": _fresh(compute_rollout_correction_weights),
        "rejections": _fresh(compute_rollout_rejection_mask),
        "weights_and_rejections": _fresh(compute_rollout_correction_and_rejection_mask),
        "aggregator": _aggregator,
        "reduce_metrics": _reduce_metrics,
        "fsdp_forward_step": actor.fsdp_forward_step,
        "fsdp_model_outputs": actor.fsdp_model_outputs,
        "fused_linear": actor.fused_linear,
        "fused_cross_entropy": actor.fused_cross_entropy,
        "megatron_logits": actor.megatron_logits,
        "megatron_fused": actor.megatron_fused,
        "megatron_unpack": actor.megatron_unpack,
        "ray_old_log_prob": actor.ray_old_log_prob,
        "v1_old_log_prob": actor.v1_old_log_prob,
    }
)


def _version() -> str:
    try:
        return importlib.metadata.version("verl")
    except importlib.metadata.PackageNotFoundError as error:
        raise ImportError("verl is not installed in this environment") from error
