"""Importing this module installs the drop-ins in this process, as verl's modules are loaded.

verl imports the modules that the environment variable ``VERL_USE_EXTERNAL_MODULES`` names, in every process that
imports it: the driver, the trainer's task and all workers. So

    VERL_USE_EXTERNAL_MODULES=numerics.integrations.verl.everywhere

installs the drop-ins for metrics everywhere (in Ray, also as ``runtime_env.env_vars``). ``NUMERICS_VERL_PARTS``, a list
of parts separated by commas, says which instead: ``debug_metrics,aggregator,actor``.
"""

from __future__ import annotations

import os

from numerics.integrations.verl.install import METRICS, install

install(parts=[p.strip() for p in os.environ.get("NUMERICS_VERL_PARTS", ",".join(METRICS)).split(",")], lazily=True)
