"""How a stranger's project holds its kernels to the suite: one decorator, one line."""

import toy_kernels

import numerics

TOY = numerics.Implementation(toy_kernels.log_probs, contract="token_logprobs", name="toy", capabilities={"run_to_run"})


@numerics.parametrize_with_checks([TOY], devices=["cpu"], dtypes=["float32", "bfloat16"])
def test_toy(check):
    check()
