"""A stranger's kernels: they know torch and nothing of numerics."""

import torch


def log_probs(logits, token_ids, *, temperature=1.0):
    """Right: the shifted formula in float32 (float64 for float64 logits)."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return torch.log_softmax(wide / temperature, dim=-1).gather(-1, token_ids[..., None])[..., 0]


def log_probs_without_shift(logits, token_ids, *, temperature=1.0):
    """Wrong: exp overflows in float32 from 89 on."""
    wide = (logits if logits.dtype == torch.float64 else logits.float()) / temperature
    return wide.gather(-1, token_ids[..., None])[..., 0] - wide.exp().sum(-1).log()


def log_probs_a_little_low(logits, token_ids):
    """Wrong by a finite amount: a millionth too low."""
    return log_probs(logits, token_ids) - 1e-6
