"""verl: drop-ins for its metrics, its corrections and its aggregators, their installation, and adapters for the suite.

- `calculate_debug_metrics`, `compute_offpolicy_metrics`, `compute_rollout_correction_weights`,
  `compute_rollout_rejection_mask`, `compute_rollout_correction_and_rejection_mask`, `reduce_metrics` and
  `MetricsAggregator` take what verl's functions and class of these names take. They need no verl.
- `install` puts them into a running verl, `uninstall` takes them out again; its part "actor" adds raw log-probs to what
  verl's engines return. ``numerics.integrations.verl.everywhere`` does it in every process.
- `debug_metrics`, `offpolicy_metrics` and `rollout_correction` are verl's **own** functions as implementations of the
  ``mismatch``, ``divergence`` and ``correction`` contracts (``--impl numerics.integrations.verl:offpolicy_metrics``);
  ``drop_in``, ``offpolicy_drop_in`` and ``rollout_correction_drop_in`` are ours through the same adapters;
  `offpolicy_metrics_nonempty` and `rollout_correction_nonzero` are verl's where they do not raise.

Read in verl 0.9.1; definitions: ``docs/semantics.md``.
"""

from numerics.integrations.verl.adapters import (
    offpolicy_metrics_nonempty,
    rollout_correction,
    rollout_correction_drop_in,
    rollout_correction_nonzero,
)
from numerics.integrations.verl.aggregator import MetricsAggregator, reduce_metrics
from numerics.integrations.verl.correction import (
    compute_rollout_correction_and_rejection_mask,
    compute_rollout_correction_weights,
    compute_rollout_rejection_mask,
)
from numerics.integrations.verl.debug import (
    KEYS,
    calculate_debug_metrics,
    debug_metrics,
    drop_in,
    numerics_debug_metrics,
    verl_debug_metrics,
)
from numerics.integrations.verl.install import METRICS, install, installed, uninstall, waiting
from numerics.integrations.verl.offpolicy import (
    OFFPOLICY_KEYS,
    compute_offpolicy_metrics,
    offpolicy_drop_in,
    offpolicy_metrics,
)
from numerics.integrations.verl.reducers import VERL_REDUCERS, VERL_WEIGHTS
from numerics.integrations.verl.sites import KNOWN_VERSIONS, PARTS

__all__ = [
    "KEYS",
    "KNOWN_VERSIONS",
    "METRICS",
    "OFFPOLICY_KEYS",
    "PARTS",
    "VERL_REDUCERS",
    "VERL_WEIGHTS",
    "MetricsAggregator",
    "calculate_debug_metrics",
    "compute_offpolicy_metrics",
    "compute_rollout_correction_and_rejection_mask",
    "compute_rollout_correction_weights",
    "compute_rollout_rejection_mask",
    "debug_metrics",
    "drop_in",
    "install",
    "installed",
    "numerics_debug_metrics",
    "offpolicy_drop_in",
    "offpolicy_metrics",
    "offpolicy_metrics_nonempty",
    "reduce_metrics",
    "rollout_correction",
    "rollout_correction_drop_in",
    "rollout_correction_nonzero",
    "uninstall",
    "verl_debug_metrics",
    "waiting",
]
