"""The suite, held against the built-in implementations, or against whatever ``--impl`` names.

Each test is filled by the repository's conftest with every check of its contract; ids read
``test_token_logprobs[LP-01_within_bound-reference-cpu-bfloat16]``, so ``-k "LP-01 and bfloat16"`` works.
"""


def test_token_logprobs(check):
    check()


def test_entropy(check):
    check()


def test_mismatch(check):
    check()


def test_divergence(check):
    check()


def test_correction(check):
    check()


def test_full_divergence(check):
    check()


def test_ulp_distance(check):
    check()
