"""`numerics compare`: reading, well-known names, figures, hints, output, exit codes, and every error message.

Figures are held to calculations of our own in numpy float64, on pairs that vLLM, transformers, CTranslate2 and TRL
gave (``data/rollouts/README.md``).
"""

from __future__ import annotations

import io
import json
import math
import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from rich.console import Console
from safetensors.torch import save_file

from numerics.tools import arrays
from numerics.tools.arrays import ArrayInfo, InputError, list_arrays, read_array, split_reference
from numerics.tools.compare import Comparison, as_json, as_table, compare
from numerics.tools.compare_cli import compare_command
from numerics.tools.show import ulp_labels

DATA = Path(__file__).parent / "data" / "rollouts"
VLLM, HF16, HF32, CT2, TRL = (
    str(DATA / f"{name}.npz")
    for name in (
        "vllm_bf16_raw_T1_batch1",
        "hf_bf16_generate_batch1",
        "hf_fp32_generate_batch1",
        "ct2_fp32",
        "trl_vllm_bf16",
    )
)
PAIRS = [
    (HF16, "lp__bf16_sdpa_1_none_cache", 0, 128),
    (HF16, "lp__bf16_sdpa_1_none", 128, 128),
    (HF32, "lp__fp32_sdpa_1_none_cache", 4, 128),
    (HF32, "lp__fp32_sdpa_1_none_compile", 124, 128),
    (CT2, "lp__fp32_sdpa_8_left", 374, 377),
    (CT2, "ct2_score_lp", 375, 377),
    (VLLM, "lp__bf16_sdpa_1_none", 277, 277),
]
Q = np.array([[-0.5, -1.25, -3.0], [-0.1, -2.0, -0.7]], np.float32)  # rollout
P = np.array([[-0.5, -1.5, -3.0], [-0.1, -2.0, -0.8]], np.float32)  # trainer


# --- helpers -----------------------------------------------------------------------------------------------


@pytest.fixture
def dump(tmp_path: Path) -> Callable[..., str]:
    """Writes arrays to an npz file and gives its path."""

    def write(name: str = "dump.npz", /, **contents: Any) -> str:
        np.savez(tmp_path / name, **contents)
        return str(tmp_path / name)

    return write


@pytest.fixture
def tensors(tmp_path: Path) -> Callable[..., str]:
    """Writes tensors to a safetensors file and gives its path."""

    def write(**contents: torch.Tensor) -> str:
        path = str(tmp_path / "dump.safetensors")
        save_file(contents, path)
        return path

    return write


def run(*arguments: str) -> Result:
    return CliRunner().invoke(compare_command, list(arguments), catch_exceptions=False)


def strict(text: str) -> Any:
    """Parses JSON and refuses the NaN and Infinity that Python would let pass."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def table(comparison: Comparison, **console: Any) -> str:
    stream = io.StringIO()
    as_table(comparison, Console(file=stream, highlight=False, **console))
    return stream.getvalue()


def hint(comparison: Comparison, words: str) -> str:
    (found,) = (text for text in comparison.hints if words in text)
    return found


def refused(words: str, *arguments: str) -> None:
    """The command prints ``error: ...`` with ``words`` on stderr, nothing on stdout, and exits 2."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert words in result.stderr, result.stderr


def places(x: np.ndarray) -> np.ndarray:
    """float32 on the ordered line, as int64."""
    bits = x.view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


# --- figures -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("file", "key", "count", "tokens"), PAIRS)
def test_figures_of_real_pairs(file: str, key: str, count: int, tokens: int) -> None:
    found = compare(f"{file}:rollout_lp", f"{file}:{key}", lengths=f"{file}:rlen").mismatch
    with np.load(file) as stored:
        inside = np.arange(stored["rollout_lp"].shape[1]) < stored["rlen"][:, None]
        q, p = stored["rollout_lp"][inside], stored[key][inside]
    assert (found.logprobs_mismatch_count, found.valid_count) == (count, tokens)
    assert found.logprobs_mismatch_count == int((p != q).sum())
    distance = np.abs(places(p) - places(q))
    bins = [int(d).bit_length() for d in distance]
    assert found.ulp_histogram == tuple(bins.count(k) for k in range(34))

    wide_p, wide_q = p.astype(np.float64), q.astype(np.float64)
    probs_p, probs_q = (np.exp(x).astype(np.float32).astype(np.float64) for x in (wide_p, wide_q))
    for name, a, b in (("logprobs", wide_p, wide_q), ("probs", probs_p, probs_q)):
        diff = np.abs(a - b)
        want = {"max": diff.max(), "mean": diff.mean(), "std": diff.std(ddof=1)}
        for statistic, value in want.items():
            assert math.isclose(getattr(found, f"{name}_diff_{statistic}"), value, rel_tol=1e-12)
        assert math.isclose(getattr(found, f"{name}_pearson"), np.corrcoef(a, b)[0, 1], rel_tol=1e-12)


def test_same_bits_are_zero_mismatch() -> None:
    result = run(f"{HF16}:rollout_lp", f"{HF16}:lp__bf16_sdpa_1_none_cache", "--lengths", f"{HF16}:rlen")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "0 of 128 tokens differ: zero mismatch (exit code 0)"


def test_trl_step_with_its_float_mask() -> None:
    found = compare(
        f"{TRL}:s0__sampling_per_token_logps",
        f"{TRL}:s0__old_per_token_logps",
        mask=f"{TRL}:s0__completion_mask",
    )
    assert (found.mismatch.logprobs_mismatch_count, found.mismatch.valid_count) == (256, 256)
    assert 0.0445 < found.mismatch.logprobs_diff_mean < 0.0446
    assert found.exit_code == 1


def test_one_sided_sources(dump: Callable[..., str]) -> None:
    engine, trainer = dump("engine.npz", rollout_lp=Q), dump("trainer.npz", old_log_probs=P)
    found = compare(engine, trainer)
    assert found.rollout.source == f"{engine}:rollout_lp"
    assert found.trainer.source == f"{trainer}:old_log_probs"
    assert found.verdict == "2 of 6 tokens differ: mismatch (exit code 1)"
    assert found.mismatch.logprobs_diff_max == 0.25


def test_compare_dtype(dump: Callable[..., str]) -> None:
    wide = Q.astype(np.float64)
    file = dump(rollout_lp=wide, old_log_probs=wide + 1e-12)
    narrow = compare(file, file)
    assert narrow.exit_code == 0
    assert "--compare-dtype float64" in hint(narrow, "the cast to float32 changed 6 values")
    exact = compare(file, file, compare_dtype=torch.float64)
    assert exact.mismatch.logprobs_mismatch_count == 6
    assert exact.mismatch.compare_dtype == "float64"
    assert exact.hints == ()
    assert run(file, file, "--compare-dtype", "float64").exit_code == 1


@pytest.mark.parametrize("mask", [np.array([[1, 0, 1], [1, 1, 0]], t) for t in ("bool", "u1", "u2", "i8", "f2", "f8")])
def test_masks_of_every_dtype(dump: Callable[..., str], mask: np.ndarray) -> None:
    file = dump(rollout_lp=Q, old_log_probs=P, response_mask=mask)
    result = run(file, "--mask", file, "--json")
    assert result.exit_code == 0
    assert strict(result.stdout)["mismatch"]["valid_count"] == 4


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "u8", "i1", "i4", "i8", ">i4"])
def test_lengths(dump: Callable[..., str], dtype: str) -> None:
    file = dump(rollout_lp=Q, old_log_probs=P, rlen=np.array([1, 2], dtype))
    found = compare(file, file, lengths=file)
    assert found.mismatch.valid_count == 3
    assert found.exit_code == 0
    assert found.lengths is not None
    assert (found.lengths.source, found.lengths.dtype) == (f"{file}:rlen", np.dtype(dtype).name)


def test_lengths_of_one_row_and_of_stacked_rows(dump: Callable[..., str]) -> None:
    row = dump("row.npz", rollout_lp=Q[0], old_log_probs=P[0], n=np.array([1]))
    assert compare(row, row, lengths=f"{row}:n").mismatch.valid_count == 1
    stack = dump("stack.npz", rollout_lp=np.stack([Q, Q]), old_log_probs=np.stack([P, P]), n=np.array([[3, 0], [1, 2]]))
    assert compare(stack, stack, lengths=f"{stack}:n").mismatch.valid_count == 6


def test_masked_places_may_hold_anything(dump: Callable[..., str]) -> None:
    q, p = Q.copy(), P.copy()
    q[:, 2], p[:, 2] = (np.nan, np.inf), (1e30, -np.inf)
    file = dump(rollout_lp=q, old_log_probs=p, rlen=np.array([2, 2]))
    found = compare(file, file, lengths=file)
    assert found.hints == ()
    assert found.mismatch.logprobs_diff_max == 0.25


# --- reading -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_safetensors_keeps_its_dtype(tensors: Callable[..., str], dtype: torch.dtype) -> None:
    q = torch.tensor(Q).to(dtype)
    file = tensors(rollout_log_probs=q, old_log_probs=q.clone(), n=torch.tensor([3, 1], dtype=torch.uint16))
    array = read_array(file, "rollout")
    assert array.tensor.dtype == dtype
    assert torch.equal(array.tensor, q)
    found = compare(file, file, lengths=f"{file}:n")
    assert found.mismatch.valid_count == 4
    assert found.lengths is not None
    assert found.lengths.dtype == "uint16"
    assert found.rollout.dtype == str(dtype).removeprefix("torch.")
    assert found.exit_code == 0


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npz_keeps_values_and_dtype(dump: Callable[..., str], dtype: str, order: Any) -> None:
    stored = np.asarray(Q, dtype=dtype, order=order)
    array = read_array(dump(rollout_lp=stored), "rollout")
    assert array.dtype == stored.dtype.name
    assert np.array_equal(array.tensor.numpy(), stored)


def test_only_the_asked_array_is_read(dump: Callable[..., str]) -> None:
    file = Path(dump(rollout_lp=Q, other=np.full(64, 7.0)))
    contents = bytearray(file.read_bytes())
    at = contents.index(np.float64(7.0).tobytes())
    contents[at] ^= 1
    file.write_bytes(contents)
    assert np.array_equal(read_array(str(file), "rollout").tensor.numpy(), Q)
    refused("damaged", f"{file}:other", f"{file}:rollout_lp")


def test_split_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a:b.npz", "plain", "x.npz:y.npz"):
        (tmp_path / name).touch()
    assert split_reference("a.npz") == ("a.npz", None)
    assert split_reference("a.npz:k") == ("a.npz", "k")
    assert split_reference("a.npz:k:l") == ("a.npz", "k:l")
    assert split_reference("s3:a.safetensors:k") == ("s3:a.safetensors", "k")
    assert split_reference("a:b.npz") == ("a:b.npz", None)
    assert split_reference("a:b.npz:k") == ("a:b.npz", "k")
    assert split_reference("plain:k") == ("plain", "k")
    assert split_reference("absent:k") == ("absent:k", None)
    assert split_reference("x.npz:y.npz") == ("x.npz:y.npz", None)


def test_listing(dump: Callable[..., str], tensors: Callable[..., str]) -> None:
    objects = np.array([[1], [2, 3]], dtype=object)
    file = dump(lp=Q, words=np.array("abc"), rows=objects, bf=Q.astype(ml_dtypes.bfloat16), n=np.float16(1))
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("notes.txt", "no array")
    assert list_arrays(file) == (
        ArrayInfo(key="lp", shape=(2, 3), dtype="float32"),
        ArrayInfo(key="words", shape=(), dtype="<U3"),
        ArrayInfo(key="rows", shape=(2,), dtype="object (pickled, refused)"),
        ArrayInfo(key="bf", shape=(2, 3), dtype="|V2"),
        ArrayInfo(key="n", shape=(), dtype="float16"),
        ArrayInfo(key="notes.txt", shape=(), dtype="no array"),
    )
    stored = tensors(lp=torch.tensor(Q).bfloat16(), mask=torch.ones(2, 3, dtype=torch.bool))
    for arguments in ((f"{file}:?",), (f"{stored}:?", "nowhere.npz"), ("nowhere.npz", f"{stored}:?")):
        result = run(*arguments)
        assert result.exit_code == 0
        assert "[2, 3]" in result.stdout
    assert [line.split() for line in run(f"{stored}:?").stdout.splitlines()[1:]] == [
        ["key", "dtype", "shape"],
        ["lp", "bfloat16", "[2,", "3]"],
        ["mask", "bool", "[2,", "3]"],
    ]
    listed = strict(run(f"{stored}:?", "--json").stdout)
    assert listed["schema"] == "numerics.arrays/1"
    assert listed["files"][0]["arrays"][0] == {"key": "lp", "shape": [2, 3], "dtype": "bfloat16"}


# --- well-known names --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "known", [known for known in arrays.WELL_KNOWN if known.role != "token_ids"], ids=lambda known: known.name
)
def test_each_well_known_name_is_found_and_named(dump: Callable[..., str], known: arrays.WellKnown) -> None:
    key = known.name.replace("*", "fp32_sdpa_1_none")
    stand_in = {"rollout": Q, "trainer": P, "mask": Q < 0, "lengths": np.array([3, 3])}
    file = dump(**{key: stand_in[known.role]})
    other = dump("other.npz", q=Q, p=P)
    references = {"rollout": f"{other}:q", "trainer": f"{other}:p", known.role: file}
    found = compare(**references)
    source = getattr(found, known.role)
    assert (source.source, source.origin) == (f"{file}:{key}", known.origin)
    assert f"found by name ({known.origin})" in table(found)
    assert strict(as_json(found))[known.role]["origin"] == known.origin


def test_unscaled_log_probs_come_before_old_ones(dump: Callable[..., str]) -> None:
    file = dump(rollout_log_probs=Q, old_log_probs=P, log_probs_for_metrics=Q)
    found = compare(file, file)
    assert found.trainer.source == f"{file}:log_probs_for_metrics"
    assert found.exit_code == 0


def test_several_candidates_are_an_error_that_lists_them(dump: Callable[..., str]) -> None:
    refused("lp__bf16_sdpa_1_none_cache, lp__bf16_sdpa_1_none, lp__bf16_sdpa_4_left; name one", HF16, HF16)
    refused(f"such as {HF16}:lp__bf16_sdpa_1_none_cache", HF16)
    file = dump(rollout_lp=Q, old_log_probs=P, log_probs_for_metrics=Q, lp__x=P)
    refused("several arrays may be the trainer log-probs: log_probs_for_metrics, lp__x", file)


def test_a_name_with_a_prefix_is_never_taken(dump: Callable[..., str]) -> None:
    """``ref__log_probs`` would be another policy's."""
    refused("Similar: s0__sampling_per_token_logps, s1__sampling_per_token_logps", TRL)
    file = dump(rollout_lp=Q, ref__log_probs=P)
    refused("no array has a well-known name of trainer log-probs (log_probs_for_metrics, ", file)
    refused("Similar: ref__log_probs", file)


# --- bad input ---------------------------------------------------------------------------------------------


def test_missing_file_folder_and_extension(tmp_path: Path) -> None:
    refused("absent.npz: no such file", "absent.npz")
    refused("absent.npz: no such file", "absent.npz:?")
    refused("absent.pt: no such file", "absent.pt:?")
    (tmp_path / "folder.npz").mkdir()
    refused("is a folder", f"{tmp_path}/folder.npz:k")
    torch.save({"k": torch.zeros(1)}, tmp_path / "dump.pt")
    refused("unknown extension '.pt'; only .npz and .safetensors", f"{tmp_path}/dump.pt:k")
    refused("a pickle such as .pt or .pkl never is", f"{tmp_path}/dump.pt:?")


def test_missing_key_names_near_ones_and_all(dump: Callable[..., str]) -> None:
    refused(
        f"{VLLM} has no array 'rollout_pl'; did you mean rollout_lp? It holds: prompt_ids, ", f"{VLLM}:rollout_pl", VLLM
    )
    file = dump(**{f"a{i}": Q for i in range(30)})
    refused("has no array 'zz'. It holds: a0, a1, ", f"{file}:zz")
    refused("a19 and 10 more", f"{file}:zz")
    refused("has no array ''", f"{file}:")
    refused("It holds no arrays", f"{dump('empty.npz')}:k")


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        (b"", "it is empty"),
        (b"\x93NUMPY\x01\x00", "it is a single .npy array"),
        (pickle.dumps({"rollout_lp": [1.0]}), "it looks like a pickle, which is refused"),
        (b"PK\x03\x04", "the zip archive is truncated or damaged"),
        (b"hello", "it is no zip archive"),
    ],
)
def test_files_that_are_no_npz(tmp_path: Path, contents: bytes, words: str) -> None:
    path = tmp_path / "dump.npz"
    path.write_bytes(contents)
    refused(f"{path} is no npz file: {words}", str(path))


def test_truncated_and_damaged_files(tmp_path: Path, dump: Callable[..., str], tensors: Callable[..., str]) -> None:
    for file in (dump(rollout_lp=Q, old_log_probs=P), tensors(rollout_lp=torch.tensor(Q))):
        whole = Path(file).read_bytes()
        for length in range(0, len(whole), 37):
            Path(file).write_bytes(whole[:length])
            with pytest.raises(InputError, match=r"truncated|empty"):
                read_array(f"{file}:rollout_lp", "rollout")
        for at in range(len(whole)):
            Path(file).write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
            try:
                array = read_array(f"{file}:rollout_lp", "rollout")
            except InputError:
                continue
            # what is read in spite of a flipped byte is the array (npz has a check sum, safetensors has none)
            assert file.endswith(".safetensors") or np.array_equal(array.tensor.numpy(), Q)


def test_a_header_beyond_memory(tmp_path: Path) -> None:
    path = tmp_path / "dump.npz"
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (1 << 50,)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("rollout_lp.npy", header.getvalue())
    refused("cannot be read: damaged or truncated?", str(path))


def test_permission_denied(dump: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(self: Path, mode: str = "r") -> Any:
        raise PermissionError(13, "Permission denied")

    file = dump(rollout_lp=Q)
    monkeypatch.setattr(zipfile, "is_zipfile", lambda path: False)
    monkeypatch.setattr(Path, "open", denied)
    refused(f"{file} cannot be read: Permission denied", file)


def test_safetensors_is_optional(tensors: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    file = tensors(rollout_lp=torch.tensor(Q))
    monkeypatch.setitem(sys.modules, "safetensors", None)
    refused("pip install 'rollout-numerics[safetensors]'", file)


def test_dtypes_that_are_refused(dump: Callable[..., str], tensors: Callable[..., str]) -> None:
    file = dump(
        rows=np.array([[1.0], [2.0, 3.0]], dtype=object),
        bf16=Q.astype(ml_dtypes.bfloat16),
        words=np.array(["a"]),
        complex=Q.astype(np.complex64),
        long=Q.astype(np.longdouble),
        fields=np.zeros(2, [("a", "f4"), ("b", "f4")]),
        ids=np.arange(6).reshape(2, 3),
        rollout_lp=Q,
        float_lengths=np.array([1.0, 2.0]),
        flags=Q < 0,
    )
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("notes.txt", "no array")
    lp = f"{file}:rollout_lp"
    refused("rows holds Python objects", f"{file}:rows", lp)
    refused("bf16 has raw bytes of dtype |V2, which is how numpy stores the bfloat16 of ml_dtypes", lp, f"{file}:bf16")
    refused("words has dtype <U1", f"{file}:words", lp)
    refused("complex has dtype complex64", f"{file}:complex", lp)
    refused("long has dtype", f"{file}:long", lp)
    refused("fields has dtype", f"{file}:fields", lp)
    refused("ids has dtype int64; log-probs must be floating: float64", lp, f"{file}:ids")
    refused("flags has dtype bool; log-probs must be floating", f"{file}:flags", lp)
    refused("float_lengths has dtype float64; lengths must be integers", lp, lp, "--lengths", f"{file}:float_lengths")
    refused("flags has dtype bool; lengths must be integers", lp, lp, "--lengths", f"{file}:flags")
    refused("notes.txt is no array", lp, f"{file}:notes.txt")
    stored = tensors(
        fp8=torch.zeros(2, 3, dtype=torch.float8_e4m3fn), c=torch.zeros(2, 3, dtype=torch.complex64), q=torch.tensor(Q)
    )
    refused("fp8 has dtype F8_E4M3; log-probs must be floating", f"{stored}:fp8", f"{stored}:q")
    refused("fp8 has dtype F8_E4M3; a mask must be", f"{stored}:q", f"{stored}:q", "--mask", f"{stored}:fp8")
    refused("c has dtype C64", f"{stored}:c", f"{stored}:q")


def test_shapes_masks_and_lengths_that_do_not_fit(dump: Callable[..., str]) -> None:
    file = dump(
        q=Q,
        p=P,
        short=P[:, :2],
        row=P[0],
        one=np.float32(-1),
        half=np.array([[1, 1, 0.5], [1, 1, 1]]),
        unknown=np.array([[1, 1, 1], [np.nan, 1, 1]]),
        long=np.array([3, 4]),
        negative=np.array([-1, 3]),
        three=np.array([1, 1, 1]),
    )
    q, p = f"{file}:q", f"{file}:p"
    refused(f"shapes are unequal: trainer {file}:short has (2, 2), rollout {q} has (2, 3)", q, f"{file}:short")
    refused(f"shapes are unequal: mask {file}:row has (3,), rollout {q} has (2, 3)", q, p, "--mask", f"{file}:row")
    refused("half holds 0.5 at [0, 2]; only 0 and 1", q, p, "--mask", f"{file}:half")
    refused("unknown holds nan at [1, 0]; only 0 and 1", q, p, "--mask", f"{file}:unknown")
    refused("long holds 4 at [1], outside 0..3", q, p, "--lengths", f"{file}:long")
    refused("negative holds -1 at [0], outside 0..3", q, p, "--lengths", f"{file}:negative")
    refused("three has shape (3,), but rollout", q, p, "--lengths", f"{file}:three")
    refused("one length for each row, shape (1,)", f"{file}:row", f"{file}:row", "--lengths", f"{file}:three")
    refused("is a single number and has no rows", f"{file}:one", f"{file}:one", "--lengths", f"{file}:three")
    refused("both mask and lengths are given", q, p, "--mask", q, "--lengths", q)


def test_bad_options_exit_2() -> None:
    assert run().exit_code == 2
    assert run(VLLM, "--compare-dtype", "bfloat16").exit_code == 2


# --- hints -------------------------------------------------------------------------------------------------


def test_padding_without_a_mask_names_the_options() -> None:
    for file, key, option in ((CT2, "lp__fp32_sdpa_8_left", "rlen"), (VLLM, "lp__bf16_sdpa_1_none", "rlen")):
        found = compare(f"{file}:rollout_lp", f"{file}:{key}")
        text = hint(found, "hold NaN or infinity")
        assert f"try --lengths {file}:{option}" in text
        assert "no mask is given" in text
        assert found.mismatch.nonfinite_count > 0
        assert math.isnan(found.mismatch.logprobs_diff_mean)
        assert found.exit_code == 1
    assert "the first at [7, 41] (rollout nan, trainer nan)" in hint(compare(CT2, CT2), "hold NaN")


def test_options_are_those_of_the_right_shape_and_step(dump: Callable[..., str]) -> None:
    q = Q.copy()
    q[1, 2] = np.nan
    step = {"s0__rollout_log_probs": q, "s0__old_log_probs": P, "s1__response_mask": Q < 0}
    file = dump("two words.npz", **step, s0__response_mask=Q < 0, s0__loss_mask=Q[0] < 0, s0__rlen=np.array([3, 2]))
    text = hint(compare(f"{file}:s0__rollout_log_probs", f"{file}:s0__old_log_probs"), "hold NaN")
    assert text.endswith(f"try --mask '{file}:s0__response_mask' or --lengths '{file}:s0__rlen'")
    file = dump(a=q, b=P)
    text = hint(compare(f"{file}:a", f"{file}:b"), "hold NaN")
    assert text.endswith("give --mask FILE:KEY or --lengths FILE:KEY")


def test_nonfinite_under_a_mask(dump: Callable[..., str]) -> None:
    p = P.copy()
    p[0, 1] = -np.inf
    file = dump(rollout_lp=Q, old_log_probs=p, rlen=np.array([3, 3]))
    text = hint(compare(file, file, lengths=file), "1 valid tokens hold NaN or infinity, the first at [0, 1]")
    assert "does the mask end where the response ends?" in text
    assert "(rollout -1.25, trainer -inf)" in text


def test_nothing_compared(dump: Callable[..., str]) -> None:
    file = dump(rollout_lp=Q, old_log_probs=Q, rlen=np.array([0, 0]))
    found = compare(file, file, lengths=file)
    assert found.exit_code == 1
    assert found.verdict == "0 of 0 tokens differ: nothing was compared (exit code 1)"
    assert hint(found, "nothing was compared: no token is valid, of 6")
    assert found.verdict in table(found)
    assert strict(as_json(found))["mismatch"]["logprobs_diff_max"] == "nan"
    empty = dump("empty.npz", rollout_lp=Q[:0], old_log_probs=P[:0])
    assert compare(empty, empty).exit_code == 1


def test_positive_values_and_the_same_array_twice(dump: Callable[..., str]) -> None:
    file = dump(rollout_lp=-Q, old_log_probs=P)
    assert hint(compare(file, file), "6 values are above 0")
    assert hint(compare(f"{file}:rollout_lp", f"{file}:rollout_lp"), "both sides are the same array")


def test_sixteen_bit_storage(dump: Callable[..., str], tensors: Callable[..., str]) -> None:
    generator = np.random.default_rng(0)
    values = -generator.random((4, 8)).astype(np.float32)
    rounded = values.astype(ml_dtypes.bfloat16).astype(np.float32)
    file = dump(full=values, bf16=rounded, bf16_too=rounded - 0.0, fp16=values.astype(np.float16))
    assert compare(f"{file}:full", f"{file}:full").hints[1:] == ()
    text = "rollout and trainer hold only bfloat16 values: rounding to bfloat16 alone moves a log-prob by up to 0.39%"
    assert hint(compare(f"{file}:bf16", f"{file}:bf16_too"), text)
    assert hint(compare(f"{file}:full", f"{file}:bf16"), "trainer holds only bfloat16 values")
    assert hint(compare(f"{file}:fp16", f"{file}:full"), "rollout holds only float16 values")
    few = dump("few.npz", rollout_lp=Q[:, :1], old_log_probs=P[:, :1])
    assert compare(few, few).hints == ()
    stored = tensors(rollout_lp=torch.tensor([-0.5], dtype=torch.bfloat16), log_probs=torch.tensor([-0.3]))
    assert hint(compare(stored, stored), "rollout holds only bfloat16 values")


# --- output ------------------------------------------------------------------------------------------------


def test_histogram_labels_and_rows(dump: Callable[..., str]) -> None:
    q = np.full(2001, -1.0, np.float32)
    p = (q.view(np.int32) + np.repeat([0, 1, 3, 4, 1 << 20], [1000, 500, 400, 100, 1]).astype(np.int32)).view(
        np.float32
    )
    q[0] = np.nan
    found = compare(*(f"{dump(q=q, p=p)}:{key}" for key in "qp"))
    labels = ulp_labels(found.mismatch)
    assert labels[:6] == ("0", "1", "2-3", "4-7", "8-15", "16-31")
    assert labels[-2:] == ("2147483648-4294967295", "undefined")
    assert len(labels) == len(found.mismatch.ulp_histogram) == 34
    lines = table(found).splitlines()
    start = next(i for i, line in enumerate(lines) if "ULPs apart" in line)
    assert [line.split() for line in lines[start : start + 7]] == [
        ["ULPs", "apart", "tokens", "share"],
        ["0", "999", "49.9%", "█" * 20],
        ["1", "500", "25.0%", "█" * 10],
        ["2-3", "400", "20.0%", "█" * 8],
        ["4-7", "100", "5.0%", "█" * 2],
        ["1048576-2097151", "1", "<", "0.1%", "█"],
        ["undefined", "1", "<", "0.1%", "█"],
    ]
    ends = {line.index("%") for line in lines[start + 1 : start + 7]}
    assert len(ends) == 1, "numbers are right-aligned"


def test_table_holds_every_figure_in_full() -> None:
    found = compare(f"{HF32}:rollout_lp", f"{HF32}:lp__fp32_sdpa_1_none_cache")
    for width in (20, 80, 200):
        text = table(found, width=width)
        rows = {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}
        for name, value in found.mismatch.as_dict().items():
            if name != "ulp_histogram":
                assert rows[name][1] == str(value)
        assert "…" not in text
        assert found.rollout.source in text
        assert found.trainer.source in text
    assert float(rows["logprobs_diff_mean"][1]) == found.mismatch.logprobs_diff_mean


def test_plain_text_and_colour(dump: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    file = dump("[bold]x.npz", rollout_lp=-Q, old_log_probs=P)
    found = compare(file, file)
    assert "\x1b" not in table(found)
    assert f"{file}:rollout_lp" in table(found), "brackets are no markup"
    assert "hint: 6 values are above 0" in table(found)
    assert "\x1b[1;31m6 of 6 tokens differ" in table(found, force_terminal=True, color_system="standard")
    assert "\x1b" not in run(file).stdout


def test_bars_without_unicode() -> None:
    found = compare(f"{HF16}:rollout_lp", f"{HF16}:lp__bf16_sdpa_1_none_cache")
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    as_table(found, Console(file=stream))
    stream.flush()
    assert b"100.0%  ####################" in stream.buffer.getvalue()  # type: ignore[attr-defined]


def test_json_is_strict(dump: Callable[..., str]) -> None:
    q = np.array([[-0.5, -np.inf, -np.inf], [np.inf, -0.25, -3.0]], np.float32)
    p = np.array([[-0.5, -np.inf, -2.0], [-1.0, -0.5, -3.0]], np.float32)
    file = dump(rollout_lp=q, old_log_probs=p, rlen=np.array([3, 3]))
    result = run(file, "--lengths", file, "--json")
    assert result.exit_code == 1
    found = strict(result.stdout)
    assert found["schema"] == "numerics.compare/1"
    assert list(found) == [
        "schema",
        "rollout",
        "trainer",
        "mask",
        "lengths",
        "mismatch",
        "ulp_bins",
        "hints",
        "verdict",
        "exit_code",
    ]
    assert found["rollout"] == {
        "source": f"{file}:rollout_lp",
        "shape": [2, 3],
        "dtype": "float32",
        "origin": "recorded pairs",
    }
    assert found["mask"] is None
    assert found["lengths"]["dtype"] == "int64"
    figures = found["mismatch"]
    assert figures["logprobs_diff_max"] == "inf"
    assert figures["logprobs_diff_std"] == "nan"
    assert figures["logprobs_mismatch_count"] == 3
    assert len(figures["ulp_histogram"]) == len(found["ulp_bins"]) == 34
    assert found["exit_code"] == 1
    assert len(found["hints"]) == 2


def test_json_gives_the_exact_figures() -> None:
    want = compare(f"{CT2}:rollout_lp", f"{CT2}:lp__fp32_sdpa_8_left", lengths=f"{CT2}:rlen").mismatch.as_dict()
    result = run(CT2, "--lengths", CT2, "--json")
    found = strict(result.stdout)["mismatch"]
    assert found == {**want, "ulp_histogram": list(want["ulp_histogram"])}


def test_help_says_what_json_does_with_nan() -> None:
    result = run("--help")
    assert result.exit_code == 0
    for words in ('"nan"', '"-inf"', "Examples:\n    numerics compare 'dump.npz:?'\n", "Exit code:"):
        assert words in result.stdout


def test_help_needs_no_torch() -> None:
    code = "import sys, numerics.tools.compare_cli; sys.exit('torch' in sys.modules)"
    root = Path(arrays.__file__).parents[2]
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    assert (
        subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, check=False).returncode
        == 0
    )
