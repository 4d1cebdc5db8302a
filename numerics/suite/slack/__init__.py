"""Are the bounds evidence? ``python -m numerics.suite.slack`` holds the built-in implementations to them.

A bound that is never approached proves nothing, one that is exceeded accuses honest code. So this prints the largest
and the median error / bound over many seeded rows and batches, drawn by NumPy (Hypothesis is too slow for 100,000 rows,
and a sharp figure needs many). No row is left undecided until ``--exact-rows`` of those that need mpmath are spent.
"""

from numerics.suite.slack.figures import CONTRACTS, measure_figures
from numerics.suite.slack.record import Slack
from numerics.suite.slack.rows import REGIMES, Block, blocks, measure_rows

__all__ = ["CONTRACTS", "REGIMES", "Block", "Slack", "blocks", "measure_figures", "measure_rows"]
