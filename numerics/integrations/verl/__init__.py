"""verl: drop-ins for its metrics and its aggregator, their installation, and adapters that let the suite check verl.

- `calculate_debug_metrics`, `compute_offpolicy_metrics` and `MetricsAggregator` take what verl's functions and class of
  these names take. They need no verl.
- `install` puts them into a running verl, `uninstall` takes them out again.
- `debug_metrics` and `offpolicy_metrics` are verl's **own** functions as implementations of the ``mismatch`` and
  ``divergence`` contracts (``--impl numerics.integrations.verl:offpolicy_metrics``); ``drop_in`` and
  ``offpolicy_drop_in`` are ours through the same adapters.

Read in verl 0.9.1; definitions: ``docs/semantics.md``.
"""

from numerics.integrations.verl.aggregator import VERL_REDUCERS, MetricsAggregator
from numerics.integrations.verl.debug import (
    KEYS,
    calculate_debug_metrics,
    debug_metrics,
    drop_in,
    numerics_debug_metrics,
    verl_debug_metrics,
)
from numerics.integrations.verl.install import KNOWN_VERSIONS, install, installed, uninstall
from numerics.integrations.verl.offpolicy import (
    OFFPOLICY_KEYS,
    compute_offpolicy_metrics,
    offpolicy_drop_in,
    offpolicy_metrics,
)

__all__ = [
    "KEYS",
    "KNOWN_VERSIONS",
    "OFFPOLICY_KEYS",
    "VERL_REDUCERS",
    "MetricsAggregator",
    "calculate_debug_metrics",
    "compute_offpolicy_metrics",
    "debug_metrics",
    "drop_in",
    "install",
    "installed",
    "numerics_debug_metrics",
    "offpolicy_drop_in",
    "offpolicy_metrics",
    "uninstall",
    "verl_debug_metrics",
]
