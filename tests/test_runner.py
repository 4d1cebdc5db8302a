"""The runner: one seed, two passes, five statuses that are never mixed up; `numerics.check` and `resolve`."""

from __future__ import annotations

import dataclasses
import math
import sys
import types
import warnings
from importlib.metadata import EntryPoint
from typing import Any

import pytest
import torch
from hypothesis import settings

import numerics
from numerics.strategies.cases import Logits, LogitsCase
from numerics.strategies.logits import logits_cases
from numerics.suite import implementation as implementation_module
from numerics.suite.builtin import BUILTIN, torch_log_softmax, torch_mismatch
from numerics.suite.implementation import Algorithm, Implementation, ResolveError, resolve
from numerics.suite.measure import holds
from numerics.suite.properties import PROPERTIES
from numerics.suite.property import Domain, Property
from numerics.suite.runner import STATUSES, Check, CheckFailure, Result, checks_for, record_cases, smoke

LP = "token_logprobs"


def lp(fn: Any, **declared: Any) -> Implementation:
    return Implementation(fn, contract=LP, **declared)


def run(impl: Implementation, prop: str | Property = "LP-01", dtype: str = "float32", **options: Any) -> Result:
    prop = PROPERTIES[prop] if isinstance(prop, str) else prop
    return Check(property=prop, implementation=impl, device="cpu", dtype=dtype).run(
        **{"max_examples": 15, "seed": 1, **options}
    )


def good(logits, token_ids, *, temperature=1.0):
    return torch_log_softmax(logits, token_ids, temperature=temperature)


def unshifted(logits, token_ids):
    x = logits.float()
    return x.gather(-1, token_ids[..., None])[..., 0] - x.exp().sum(-1).log()


def a_little_low(logits, token_ids):
    return good(logits, token_ids) - 1e-4


def low_in_proportion(logits, token_ids):
    """Its error grows with the value, so that mild and severe failures exist."""
    value = good(logits, token_ids)
    return torch.where(value > -1e30, value * 1.001, value)  # finite everywhere


def wrong_in_big_batches(logits, token_ids):
    return good(logits, token_ids) - (1.0 if len(logits) > 4 else 0.0)


# --- one seed -----------------------------------------------------------------------------------------------


def without_time(result: Result) -> Result:
    return dataclasses.replace(result, seconds=0.0)


@pytest.mark.parametrize("fn", [good, low_in_proportion])
def test_same_seed_same_result(fn):
    impl = lp(fn)
    first = run(impl)
    record_cases.cache_clear()  # drawn again, not remembered
    assert repr(without_time(run(impl))) == repr(without_time(first))


def test_same_seed_same_cases_for_every_implementation():
    seen: dict[str, list[str]] = {"one": [], "two": []}

    def recorder(name: str) -> Implementation:
        def fn(logits, token_ids):
            seen[name].append(repr((logits.tolist(), token_ids.tolist())))
            return good(logits, token_ids)

        return lp(fn, name=name)

    for name in seen:
        record_cases.cache_clear()
        run(recorder(name))
    assert seen["one"] == seen["two"]
    assert len(set(seen["one"])) > 15


def test_other_seed_other_cases():
    domain = Domain.of(lp(good), "float32")
    drawn = [record_cases(PROPERTIES["LP-01"], domain, max_examples=10, seed=s) for s in (1, 2)]
    special = len(list(PROPERTIES["LP-01"].special(domain)))
    assert drawn[0][:special] == drawn[1][:special], "the special cases come with every seed"
    assert drawn[0][special:] != drawn[1][special:]
    assert len(drawn[0]) == special + 10


def test_seed_without_being_asked():
    """Fresh for a developer; where the profile is derandomised, derived from the rule: the same for all."""
    before = settings.get_current_profile_name()
    settings.register_profile("test-fresh", derandomize=False)
    settings.register_profile("test-derandomised", derandomize=True)
    try:
        settings.load_profile("test-fresh")
        assert run(lp(good), "LP-02", seed=None).seed != run(lp(good), "LP-02", seed=None).seed
        settings.load_profile("test-derandomised")
        seeds = {run(impl, "LP-02", seed=None).seed for impl in (lp(good), lp(unshifted))}
    finally:
        settings.load_profile(before)
    assert len(seeds) == 1


def test_global_profile_stays(monkeypatch):
    before = settings.default
    run(lp(low_in_proportion))
    assert settings.default is before


# --- two passes ---------------------------------------------------------------------------------------------


def test_infinite_failure_is_shown_as_one():
    result = run(lp(unshifted))
    assert result.status == "failed"
    assert result.worst.severity == result.simplest.severity == math.inf
    assert not math.isfinite(result.simplest.got)
    assert result.simplest.case.size == 1, "rows that do not matter are shrunk away"


@pytest.mark.parametrize("fn", [a_little_low, low_in_proportion])
def test_simplest_is_no_mild_failure(fn):
    result = run(lp(fn), max_examples=40)
    assert result.status == "failed"
    assert math.isfinite(result.worst.severity)
    assert result.worst.severity > 16, "else this test says nothing"
    # "half" is half in log space: the square root of the severity
    assert result.simplest.severity >= math.sqrt(result.worst.severity)
    assert len(repr(result.simplest.case)) <= len(repr(result.worst.case))
    assert sum(result.histogram) == result.elements
    assert sum(result.histogram[1:]) > 0


def test_failure_only_on_a_special_case_is_still_shown():
    """Not met by the second pass: the special case itself is the simplest."""
    case = LogitsCase((Logits((0.0, 12345.0), 0),))
    prop = dataclasses.replace(PROPERTIES["LP-01"], special=lambda domain: [case])

    def fn(logits, token_ids):
        return good(logits, token_ids) + (logits == 12345.0).any()

    result = run(lp(fn), prop)
    assert result.status == "failed"
    assert result.simplest.case == result.worst.case == case


def of_six_rows(domain: Domain) -> Any:
    return logits_cases(
        dtype=domain.dtype, min_rows=6, max_rows=6, max_width=3, tails=False, temperature_forms=("absent",)
    )


SIX_ROWS = dataclasses.replace(PROPERTIES["LP-01"], cases=of_six_rows, special=lambda domain: ())


@pytest.mark.parametrize(("fn", "alone"), [(wrong_in_big_batches, False), (a_little_low, True)])
def test_row_and_batch_faults_are_told_apart(fn, alone):
    result = run(lp(fn), SIX_ROWS)
    assert result.status == "failed"
    assert result.simplest.alone is alone


def test_batch_fault_is_shrunk_to_the_smallest_batch():
    result = run(lp(wrong_in_big_batches), max_examples=60)
    assert (result.status, result.simplest.case.size, result.simplest.alone) == ("failed", 5, False)


# --- implementations that misbehave -------------------------------------------------------------------------


def only_smoke(bad: Any) -> Any:
    """Right in the smoke call, ``bad`` in every wider one."""

    def fn(logits, token_ids):
        right = good(logits, token_ids)
        return bad(logits, right) if logits.shape[-1] > 3 else right

    return fn


def _raises(logits, right):
    raise RuntimeError("no kernel image")


MISBEHAVING = {
    "raises": (_raises, "RuntimeError: no kernel image"),
    "wrong shape": (lambda logits, right: right[..., None], "expected ("),
    "scalar": (lambda logits, right: right.sum(), "has shape (), expected"),
    "list": (lambda logits, right: right.tolist(), "must be a torch.Tensor, got list"),
    "None": (lambda logits, right: None, "must be a torch.Tensor, got NoneType"),
    "integers": (lambda logits, right: right.long(), "torch.int64, expected a floating-point one"),
}


@pytest.mark.parametrize("bad", MISBEHAVING)
def test_misbehaviour_is_errored_with_one_message(bad):
    wrong, message = MISBEHAVING[bad]
    results = numerics.check(
        lp(only_smoke(wrong)), only=["LP-01", "LP-02"], dtypes=["float32"], max_examples=15, seed=1
    )
    errored, after = results
    assert errored.status == "errored"
    assert message in errored.reason
    assert "\n" not in errored.reason
    assert errored.simplest.error == errored.reason
    assert after.check.property.id == "LP-02", "the run goes on"
    assert after.status == "passed", "LP-02 has no case that wide"


def test_modified_input_is_a_failure_and_the_run_goes_on():
    def fn(logits, token_ids):
        right = good(logits, token_ids)
        logits.mul_(2)
        return right

    (modified,) = (p.id for p in PROPERTIES.values() if p.contract == LP and p.name == "inputs_unmodified")
    results = numerics.check(lp(fn), dtypes=["float32"], only=["LP-01", "LP-02", modified], max_examples=5, seed=1)
    status = {r.check.property.id: r.status for r in results}
    assert status == {"LP-01": "passed", "LP-02": "passed", modified: "failed"}


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda logits, token_ids: 1 / 0, "ZeroDivisionError"),
        (lambda logits: logits, "TypeError"),
        (lambda logits, token_ids: logits, "has shape (2, 3), expected (2,)"),
    ],
)
def test_smoke_failure_is_exactly_one_errored_result(fn, message):
    results = numerics.check(lp(fn), max_examples=5)
    assert [r.status for r in results] == ["errored"]
    assert results[0].reason.startswith("smoke call failed: ")
    assert message in results[0].reason
    assert results[0].examples == 0


def test_smoke_call_uses_a_declared_dtype():
    def only_half(logits, token_ids):
        assert logits.dtype == torch.bfloat16
        return good(logits, token_ids)

    assert smoke(lp(only_half, dtypes=("bfloat16",)), "cpu") == ""
    assert "AssertionError" in smoke(lp(only_half), "cpu")


def test_warnings_of_an_implementation_fail_nothing():
    def loud(logits, token_ids):
        warnings.warn("deprecated kernel", DeprecationWarning, stacklevel=2)
        return good(logits, token_ids)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(lp(loud)).status == "passed"


# --- statuses -----------------------------------------------------------------------------------------------


def test_undeclared_is_not_applicable_and_never_a_pass():
    """A callable that declares nothing: what needs something neither passes nor fails, and says what it needs."""

    def plain(logits, token_ids):
        return good(logits, token_ids)

    needy = [p for p in PROPERTIES.values() if p.contract == LP and p.requires]
    assert {"temperature", "batch_invariant", "autograd", "pair", "mask", "top_k"} <= set().union(
        *(p.requires for p in needy)
    )
    for prop in needy:
        result = run(lp(plain), prop, dtype=prop.dtypes[0])
        assert result.status == "not applicable"
        assert result.examples == 0
        assert all(need in result.reason for need in prop.requires)


def test_keyword_of_the_signature_is_declared():
    assert run(lp(good), "LP-03", max_examples=3).status == "passed"
    assert run(lp(unshifted), "LP-03").status == "not applicable"


def test_device_without_the_rule():
    prop = dataclasses.replace(PROPERTIES["LP-02"], devices=("cuda",))
    assert run(lp(good), prop).reason == "is a rule of cuda"


def mm(fn: Any, **declared: Any) -> Implementation:
    return Implementation(fn, contract="mismatch", **declared)


def without(*names: str) -> Any:
    def fn(rollout, trainer, mask):
        return {k: v for k, v in torch_mismatch(rollout, trainer, mask).items() if k not in names}

    return fn


def test_fields_that_never_come_are_not_applicable():
    def counts_only(rollout, trainer, mask):
        return {"valid_count": int(mask.sum())}

    results = numerics.check(mm(counts_only), dtypes=["float32"], only=["MM-01", "MM-02", "MM-16"], max_examples=3)
    assert [r.status for r in results] == ["passed", "not applicable", "not applicable"]
    assert results[2].reason == "does not return probs_pearson or logprobs_pearson"
    pearson = numerics.check(mm(without("probs_pearson")), dtypes=["float32"], max_examples=3, seed=1)
    assert {"passed", "not applicable"} == {r.status for r in pearson}


def test_fields_that_never_come_are_never_errored():
    result = run(mm(lambda rollout, trainer, mask: {"valid_count": int(mask.sum())}), "MM-13", max_examples=3)
    assert result.status == "not applicable"


def test_field_that_is_missing_later_is_errored():
    def forgetful(rollout, trainer, mask):
        found = torch_mismatch(rollout, trainer, mask)
        return found if mask.sum() == 2 else without("logprobs_diff_max")(rollout, trainer, mask)

    result = run(mm(forgetful), "MM-02")
    assert result.status == "errored"
    assert result.reason == "field 'logprobs_diff_max' was returned by the smoke call but is missing here"


@pytest.mark.parametrize("wrong", ["many", None, [1.0], torch.zeros(2)], ids=["str", "None", "list", "tensor"])
def test_field_that_is_no_number(wrong):
    result = run(mm(lambda rollout, trainer, mask: {"valid_count": wrong}), "MM-01")
    assert result.status == "errored"
    assert "expected a number" in result.reason


def test_expected_failures_are_strict():
    reason = {"LP-01": "known: https://example.org/1"}
    known = run(lp(unshifted, expected_failures=reason))
    assert (known.status, known.reason, known.ok) == ("expected failure", reason["LP-01"], True)
    fixed = run(lp(good, expected_failures=reason))
    assert (fixed.status, fixed.ok) == ("failed", False)
    assert "was expected to fail (known: https://example.org/1) but passed" in fixed.reason
    raised = run(lp(only_smoke(_raises), expected_failures=reason))
    assert raised.status == "expected failure"


def toy_property(body: Any) -> Property:
    return Property(
        id="XX-01",
        name="toy",
        contract=LP,
        statement="true",
        body=body,
        cases=lambda domain: logits_cases(dtype=domain.dtype, max_rows=1, max_width=2, tails=False),
    )


@pytest.mark.parametrize("nothing", [[], holds([], label="none")], ids=["no measurement", "empty measurement"])
def test_measuring_nothing_is_errored(nothing):
    result = run(lp(good), toy_property(lambda case, ctx: nothing), max_examples=7)
    assert (result.status, result.examples, result.elements) == ("errored", 7, 0)
    assert result.reason == "vacuous: XX-01 measured nothing in 7 examples"


def test_error_in_a_property_is_not_the_implementations():
    """A bug of the suite itself must surface, not be put down to the implementation."""

    def body(case, ctx):
        raise ZeroDivisionError("our own")

    with pytest.raises(ZeroDivisionError, match="our own"):
        run(lp(good), toy_property(body))


def test_calling_a_check_raises_the_whole_report():
    check = Check(property=PROPERTIES["LP-01"], implementation=lp(unshifted), device="cpu", dtype="float32")
    with pytest.raises(CheckFailure, match=r"(?s)LP-01 within_bound   unshifted .*FAILED.*repro"):
        check(max_examples=5, seed=1)
    assert issubclass(CheckFailure, AssertionError)


def test_statuses_are_complete():
    assert STATUSES == ("passed", "failed", "errored", "not applicable", "expected failure")
    assert [s for s in STATUSES if not Result(check=None, status=s).ok] == ["failed", "errored"]


# --- numerics.check -----------------------------------------------------------------------------------------


def test_check_arguments():
    seen: list[Result] = []
    results = numerics.check(
        good,
        contract=LP,
        only=["LP-01", "LP-02_output_dtype"],
        dtypes=["float32", "bfloat16"],
        devices=["cpu"],
        max_examples=4,
        seed=9,
        progress=seen.append,
    )
    assert [(r.check.property.id, r.check.dtype) for r in results] == [
        ("LP-01", "float32"),
        ("LP-01", "bfloat16"),
        ("LP-02", "float32"),
        ("LP-02", "bfloat16"),
    ]
    assert {r.seed for r in results} == {9}
    assert seen == results
    assert results[0].check.id == "LP-01_within_bound-good-cpu-float32"


def test_fail_fast():
    results = numerics.check(lp(unshifted), dtypes=["float32"], only=["LP-01", "LP-02"], max_examples=3, fail_fast=True)
    assert [r.status for r in results] == ["failed"]


def test_check_by_name():
    results = numerics.check("torch", contract="entropy", only=["EN-01"], dtypes=["float32"], max_examples=2)
    assert [r.check.implementation.name for r in results] == ["torch"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"contract": LP, "only": ["LP-99"]}, "no property 'LP-99'"),
        ({}, "contract is None; a plain callable needs contract="),
        ({"contract": "token_logprob"}, "contract is 'token_logprob'; did you mean token_logprobs"),
    ],
)
def test_check_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        numerics.check(good, **arguments)


@pytest.mark.parametrize("option", [{"dtypes": ["flaot32"]}, {"devices": ["gpu"]}])
def test_check_refuses_unknown_dtypes_and_devices(option):
    with pytest.raises(ValueError, match=r"flaot32|gpu"):
        numerics.check(good, contract=LP, only=["LP-02"], max_examples=1, **option)


def test_checks_for_keeps_to_what_is_declared():
    impl = lp(good, dtypes=("bfloat16",), devices=("cpu",))
    checks = list(checks_for([impl]))
    assert {(c.dtype, c.device, c.property.contract) for c in checks} == {("bfloat16", "cpu", LP)}
    assert list(checks_for([impl], contract="entropy")) == []


# --- resolve and Implementation -----------------------------------------------------------------------------


@pytest.fixture
def stranger(monkeypatch):
    module = types.ModuleType("a_stranger")
    module.log_probs = good
    module.declared = lp(good, name="declared")
    module.several = [lp(good, name="one"), Implementation(torch_mismatch, contract="mismatch", name="two")]
    module.factory = lambda: module.declared
    module.number = 3
    module.nested = types.SimpleNamespace(log_probs=good)
    monkeypatch.setitem(sys.modules, "a_stranger", module)
    return module


@pytest.mark.parametrize("name", BUILTIN)
def test_resolve_built_in(name):
    assert resolve(name) == list(BUILTIN[name])


@pytest.mark.parametrize(
    ("spec", "contract", "names"),
    [
        ("a_stranger:declared", None, ["declared"]),
        ("a_stranger:several", None, ["one", "two"]),
        ("a_stranger:several", "mismatch", ["two"]),
        ("a_stranger:factory", None, ["declared"]),
        ("a_stranger:log_probs", LP, ["a_stranger:log_probs"]),
        ("a_stranger:nested.log_probs", LP, ["a_stranger:nested.log_probs"]),
    ],
)
def test_resolve_module_and_object(stranger, spec, contract, names):
    assert [impl.name for impl in resolve(spec, contract=contract)] == names


def test_resolve_factory_with_a_contract(stranger):
    assert resolve("a_stranger:factory", contract=LP) == [stranger.declared]


def test_resolve_entry_point(stranger, monkeypatch):
    point = EntryPoint(name="my-kernels", value="a_stranger:several", group="numerics.implementations")
    monkeypatch.setattr(
        implementation_module, "entry_points", lambda group: [point] if group == "numerics.implementations" else []
    )
    assert resolve("my-kernels") == stranger.several
    with pytest.raises(ResolveError, match="did you mean my-kernels"):
        resolve("my-kernel")


@pytest.mark.parametrize(
    ("spec", "contract", "message"),
    [
        ("refrence", None, "no implementation named 'refrence'; did you mean reference"),
        ("xyz", None, "known: cpu, reference, torch, torch-logsumexp; or give pkg.mod:obj"),
        ("a_stranger:log_prob", LP, "a_stranger has no 'log_prob'; did you mean log_probs"),
        ("a_stranger:number", LP, "is a int, neither a callable nor an Implementation"),
        ("a_stranger:log_probs", None, "plain callable: say which contract it claims"),
        ("a_stranger:declared", "entropy", "has no implementation of 'entropy'"),
        ("no_such_package.kernels:fn", LP, "cannot import 'no_such_package.kernels'"),
    ],
)
def test_resolve_says_where_it_went_wrong(stranger, spec, contract, message):
    with pytest.raises(ResolveError, match=message):
        resolve(spec, contract=contract)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"contract": "logprobs"}, ValueError, r"contract is 'logprobs'.*known: token_logprobs"),
        ({"contract": LP, "capabilities": {"autgrad"}}, ValueError, "capability is 'autgrad'; did you mean autograd"),
        ({"contract": LP, "dtypes": ("bf16",)}, ValueError, r"dtype is 'bf16'.*bfloat16"),
        ({"fn": 3, "contract": LP}, TypeError, "fn must be callable, got int"),
    ],
)
def test_implementation_validates(arguments, error, message):
    with pytest.raises(error, match=message):
        Implementation(**{"fn": good, **arguments})


@pytest.mark.parametrize("arguments", [{"formula": "naive"}, {"accumulate": "fp32"}])
def test_algorithm_validates(arguments):
    (name, value), *_ = arguments.items()
    with pytest.raises(ValueError, match=f"{name} is '{value}'; it must be"):
        Algorithm(**arguments)


def test_implementation_provides():
    def anything(logits, token_ids, **options):
        return good(logits, token_ids)

    assert lp(good).provides == {"temperature"}
    assert lp(good, capabilities={"autograd"}, pair=good).provides == {"temperature", "autograd", "pair"}
    assert {"temperature", "mask", "top_k", "min_p"} <= lp(anything).provides
    assert lp(good).name == "good"
    assert lp(torch.nn.Identity()).name == "Identity"


@pytest.mark.parametrize("method", ["__init__", "update", "merge", "compute"])
def test_a_state_that_raises_is_a_finding(method):
    def broken(self, *arguments):
        raise ArithmeticError("out of digits")

    state = type("Broken", (numerics.MismatchState,), {method: broken})
    implementation = Implementation(
        numerics.mismatch, contract="mismatch", capabilities=frozenset({"exact_merge"}), state=state
    )
    (check,) = checks_for([implementation], only=["MM-26"], dtypes=["float32"])
    result = check.run(max_examples=3, seed=0)
    assert result.status == "errored"
    assert "ArithmeticError: out of digits" in (result.worst.error or "")
