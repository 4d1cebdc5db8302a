"""Numbers of a real rollout: what guards see beside the special cases.

SmolLM2-135M-Instruct, vLLM 0.32.0 (rollout) and transformers 5.24.0 (trainer) in bfloat16 on a CPU, temperature 1, raw
log-probs: the first tokens of three responses of ``tests/data/rollouts/vllm_bf16_raw_T1_batch1.npz``, in float32.
"""

from __future__ import annotations

__all__ = ["PAIRS", "TOP"]


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float.fromhex(word) for word in text.split())


#: (rollout, trainer) log-probs of the sampled tokens of three responses
PAIRS = (
    (
        _numbers(
            "-0x1.449dbap+3 -0x1.1750e8p-3 -0x1.9c4adep+0 -0x1.0f346cp+2 -0x1.14e2f4p+1 -0x1.ee60a6p+0 "
            "-0x1.639472p+0 -0x1.19c908p+1 "
        ),
        _numbers(
            "-0x1.45aa6cp+3 -0x1.05f65cp-3 -0x1.9dae9ap+0 -0x1.1034e4p+2 -0x1.16cb18p+1 -0x1.cc2858p+0 "
            "-0x1.4ebbfap+0 -0x1.1dd55ep+1 "
        ),
    ),
    (
        _numbers(
            "-0x1.0085c8p+1 -0x1.2ab83ep+2 -0x1.d0d6p-1 -0x1.19d8c2p+2 -0x1.82f5ap-9 -0x1.89b9a8p-1 "
            "-0x1.4101aep+0 -0x1.582bd8p+1 -0x1.83f9f8p+1 -0x1.7df2e8p-1 -0x1.f8414cp+2 -0x1.b6933cp+0 "
            "-0x1.302e36p+1 -0x1.7ef8p+3 -0x1.849cd6p+2 -0x1.48176p-1 "
        ),
        _numbers(
            "-0x1.ff833p+0 -0x1.312bd8p+2 -0x1.d74846p-1 -0x1.195e3cp+2 -0x1.5307a8p-9 -0x1.78e456p-1 "
            "-0x1.2ef9b6p+0 -0x1.5d30dp+1 -0x1.90040cp+1 -0x1.8808d6p-1 -0x1.fc9d08p+2 -0x1.ab4e14p+0 "
            "-0x1.2dc166p+1 -0x1.8134cap+3 -0x1.891ea2p+2 -0x1.50789p-1 "
        ),
    ),
    (
        _numbers(
            "-0x1.8dbfccp+1 -0x1.d9265p+0 -0x1.d6a3ep-3 -0x1.377a98p-1 -0x1.5f0006p-7 -0x1.ee601ep-4 "
            "-0x1.33ee7p-7 -0x1.985194p-6 -0x1.56e064p-2 -0x1.1986fcp+1 -0x1.dc1684p+2 -0x1.81dc9ep-6 "
            "-0x1.49ca5cp-4 -0x1.3ac8f4p-5 -0x1.af039p-3 -0x1.5f95a6p+0 "
        ),
        _numbers(
            "-0x1.899292p+1 -0x1.d474a4p+0 -0x1.99ab0ep-3 -0x1.54037cp-1 -0x1.441266p-7 -0x1.eaa54p-4 "
            "-0x1.500c5cp-7 -0x1.8b6ff8p-6 -0x1.6686a6p-2 -0x1.1988d8p+1 -0x1.dee128p+2 -0x1.8a3fe2p-6 "
            "-0x1.232282p-4 -0x1.9185c4p-5 -0x1.801a48p-3 -0x1.5fdb6cp+0 "
        ),
    ),
)
#: the eight largest log-probs at four places of the second response, as rows of logits
TOP = (
    _numbers(
        "-0x1.410b9p+0 -0x1.810b9p+0 -0x1.0085c8p+1 -0x1.7085c8p+1 -0x1.9085c8p+1 -0x1.e085c8p+1 "
        "-0x1.0042e4p+2 -0x1.1042e4p+2 "
    ),
    _numbers(
        "-0x1.176306p+0 -0x1.576306p+0 -0x1.4bb184p+1 -0x1.e3b184p+1 -0x1.fbb184p+1 -0x1.09d8c2p+2 "
        "-0x1.19d8c2p+2 -0x1.21d8c2p+2 "
    ),
    _numbers(
        "-0x1.1057aep+0 -0x1.9057aep+0 -0x1.082bd8p+1 -0x1.582bd8p+1 -0x1.982bd8p+1 -0x1.b82bd8p+1 "
        "-0x1.f82bd8p+1 -0x1.1415ecp+2 "
    ),
    _numbers(
        "-0x1.302e36p+1 -0x1.502e36p+1 -0x1.702e36p+1 -0x1.702e36p+1 -0x1.802e36p+1 -0x1.902e36p+1 "
        "-0x1.a02e36p+1 -0x1.c02e36p+1 "
    ),
)
