"""Every family and kernel on this machine's GPU, or without one on its CPU, beside transformers and our own twins.

The models and their golden values are those of make_golden.py (float32 on a CPU), or of the folder that
MESHNET_TINY_MODELS names.
"""

import contextlib
import os
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from slices import ROOT, Route, ops  # noqa: E402

CUDA = torch.cuda.is_available()
DEVICE = "cuda:0" if CUDA else "cpu"
LENGTHS = (1, 2, 3, 5, 63, 64, 65, 130)
PROMPT = 5  # tokens before the golden greedy ids
needs_gpu = pytest.mark.skipif(not CUDA, reason="no GPU here")


def tiny_models() -> Path:
    if folder := os.environ.get("MESHNET_TINY_MODELS"):
        return Path(folder)
    from golden import make_golden

    out = ROOT / "build/release/golden/tiny"
    out.parent.mkdir(parents=True, exist_ok=True)
    make_golden.make_once(out, make_golden.stamp_of(), make_golden.make_tiny)
    return out


TINY = tiny_models()
every_model = pytest.mark.parametrize(
    "name", sorted(file.name.split(".")[0] for file in TINY.glob("*.golden.safetensors"))
)


@pytest.fixture(autouse=True)
def without_gradients():
    torch.manual_seed(0)
    with torch.inference_mode():
        yield


def golden(name):
    return load_file(TINY / f"{name}.golden.safetensors")


def error(actual, expected) -> float:
    """The largest difference, as a part of the largest expected value."""
    expected = expected.double().cpu()
    return float((actual.double().cpu() - expected).abs().max() / expected.abs().max())


@every_model
def test_logits(name):
    values = golden(name)
    route = Route(TINY / name, torch.float32, [DEVICE])
    for length in LENGTHS:
        logits = route.logits(values["input_ids"][:length])
        assert error(logits, values[f"logits.{length}"]) < 1e-4, length


@every_model
@pytest.mark.parametrize("devices", [[DEVICE], [DEVICE, "cpu"], ["cpu", DEVICE]], ids="-".join)
def test_greedy_ids_from_state(name, devices):
    """Whole, and cut between this device and the CPU."""
    values = golden(name)
    cuts = [2] if len(devices) > 1 else []
    route = Route(TINY / name, torch.float32, devices, cuts)
    session = route.open()
    ids = values["input_ids"][:PROMPT]
    for step, expected in enumerate(values["greedy_logits"]):
        logits = route.logits(ids, session)[-1]
        assert error(logits, expected) < 1e-4, step
        ids = logits.argmax(-1, keepdim=True).cpu()
        assert ids.item() == values["greedy_ids"][step], step


@every_model
def test_bfloat16(name):
    """These weights are wide, so that rounding shows; a wrong formula shows more."""
    values = golden(name)
    ids = values["input_ids"]
    route = Route(TINY / name, torch.bfloat16, [DEVICE])
    whole = route.logits(ids[:64])
    session = route.open()
    logits = [route.logits(ids[:40], session)]
    logits += [route.logits(ids[at : at + 1], session) for at in range(40, 64)]
    assert error(torch.cat(logits)[-1], whole[-1]) < 0.15
    reference = Route(TINY / name, torch.bfloat16, ["cpu"]).logits(ids[:64])
    assert error(whole[-1], reference[-1]) < 0.15


@contextlib.contextmanager
def no_waiting():
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@needs_gpu
@every_model
def test_the_host_waits_for_nothing(name):
    route = Route(TINY / name, torch.bfloat16, [DEVICE])
    session = route.open()
    ids = golden(name)["input_ids"].to(DEVICE)
    route.next_id(ids[:40], session)
    route.next_id(ids[40:41], session)
    with no_waiting():
        route.next_id(ids[41:50], session)
        for at in range(50, 54):
            route.next_id(ids[at : at + 1], session)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("heads", [(2, 4, 32, 48), (8, 16, 128, 128), (1, 3, 17, 33)], ids=str)
@pytest.mark.parametrize("tokens", [1, 2, 5, 64, 65, 130])
def test_gated_delta_rule(dtype, heads, tokens):
    k_heads, v_heads, k_dim, v_dim = heads
    arguments = [
        torch.randn(tokens, k_heads, k_dim).to(dtype),
        torch.randn(tokens, k_heads, k_dim).to(dtype),
        torch.randn(tokens, v_heads, v_dim).to(dtype),
        -torch.rand(tokens, v_heads),
        torch.rand(tokens, v_heads),
    ]
    before = torch.randn(v_heads, k_dim, v_dim)
    expected_state = before.clone()
    expected = ops.gated_delta_rule_reference(*arguments, expected_state)
    state = before.to(DEVICE)
    if DEVICE == "cpu":
        state = state.clone()
    out = ops.gated_delta_rule(*(each.to(DEVICE) for each in arguments), state)
    assert error(out, expected) < (1e-4 if dtype == torch.float32 else 2e-2)
    assert error(state, expected_state) < 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(1, 2 * 4864), (5, 2 * 307), (512, 2 * 1536)], ids=str)
def test_silu_and_mul(dtype, shape):
    gate_up = (4 * torch.randn(shape)).to(dtype)
    expected = ops.silu_and_mul_reference(gate_up)
    assert error(ops.silu_and_mul(gate_up.to(DEVICE)), expected) < (
        1e-6 if dtype == torch.float32 else 1e-2
    )


@needs_gpu
@pytest.mark.parametrize("tokens", [1, 3, 64, 130])
def test_experts_in_grouped_products(tokens):
    experts, hidden, width, top_k = 16, 128, 64, 4
    x = torch.randn(tokens, hidden).bfloat16()
    index = torch.stack([torch.randperm(experts)[:top_k] for _ in range(tokens)])
    weights = torch.rand(tokens, top_k).bfloat16()
    gate_up = (torch.randn(experts, 2 * width, hidden) / 8).bfloat16()
    down = (torch.randn(experts, hidden, width) / 8).bfloat16()
    arguments = (x, index, weights, gate_up, down)
    expected = ops.experts_one_by_one(
        *(each.float() if each.is_floating_point() else each for each in arguments)
    )
    on_device = [each.to(DEVICE) for each in arguments]
    assert error(ops.experts_grouped(*on_device), expected) < 2e-2
    assert error(ops.experts_one_by_one(*on_device), expected) < 2e-2
