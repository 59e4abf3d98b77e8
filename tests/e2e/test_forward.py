"""POST /forward as other heads and nodes see it: chained, driven, with five headers only, with and without session state."""

import json

import pytest
import torch
from cluster import Cluster, call
from safetensors.torch import load_file

PROMPT = [5, 17, 300, 2000]


@pytest.fixture(scope="module")
def embeddings(tiny):
    table = load_file(tiny / "model.safetensors")["model.embed_tokens.weight"]
    return table[PROMPT]


def raw(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def shape(dtype):
    return {"X-Meshnet-Dtype": dtype, "X-Meshnet-Shape": f"1,{len(PROMPT)},64"}


def prefill(**more):
    return {
        "X-Meshnet-Session": "s1",
        "X-Meshnet-Cache": "prefill",
        **{f"X-Meshnet-{k}": v for k, v in more.items()},
    }


def forward(cluster, name, body, headers):
    return call(cluster.url(name) + "/forward", body, headers, method="POST")


@pytest.fixture(scope="module")
def expected(pair):
    return pair.complete("head", PROMPT, max_tokens=1).json()["choices"][0]["token_ids"][0]


def test_chained(pair, embeddings, expected):
    answer = forward(
        pair,
        "head",
        raw(embeddings),
        {**prefill(Protocol="1", Route="head,tail"), **shape("bfloat16")},
    )
    assert answer.status == 200
    assert answer.json()["token_id"] == expected
    assert answer.headers["X-Meshnet-Protocol"] == "1"
    for part, node in (("compute", "head"), ("wire", "tail"), ("compute", "tail")):
        assert f'{part};desc="{node}"' in answer.headers["Server-Timing"]


def test_driven_with_the_five_fixed_headers(pair, embeddings, expected):
    headers = prefill(**{"Past-Len": "0", "Hop-Index": "0", "Start-Layer": "0"})
    seam = forward(pair, "head", raw(embeddings), headers)
    assert seam.status == 200
    assert (
        seam.headers["X-Meshnet-Dtype"] == "bfloat16"
        and seam.headers["X-Meshnet-Shape"] == f"1,{len(PROMPT)},64"
    )
    assert len(seam.body) == len(PROMPT) * 64 * 2
    headers = prefill(**{"Past-Len": "0", "Hop-Index": "1", "Start-Layer": "2"})
    assert forward(pair, "tail", seam.body, headers).json()["token_id"] == expected


def test_a_stateless_step_decodes_the_token_alone(pair, embeddings, expected, tiny):
    from transformers import AutoTokenizer

    seam = forward(pair, "head", raw(embeddings), shape("bfloat16"))
    answer = forward(pair, "tail", seam.body, shape("bfloat16")).json()
    assert answer == {
        "text": AutoTokenizer.from_pretrained(tiny).decode([expected]),
        "token_id": expected,
    }


def test_more_skips_the_tail_work(pair, embeddings):
    answer = forward(
        pair, "head", raw(embeddings), prefill(Protocol="1", Route="head,tail", More="1")
    )
    assert answer.status == 200 and answer.json() == {"text": "", "token_id": None}


def test_state_that_is_not_held_is_a_miss_with_its_reason(pair, embeddings):
    unknown = {**prefill(**{"Past-Len": "4"}), "X-Meshnet-Session": "never-seen"}
    for headers, body in (
        ({**unknown, "X-Meshnet-Cache": "decode"}, raw(embeddings[:1])),
        (unknown, raw(embeddings)),
    ):
        answer = forward(pair, "tail", body, headers)
        assert answer.status == 409
        error = answer.json()
        assert (error["error"], error["reason"]) == ("cache_miss", "unknown_session")
        assert (error["node"], error["layers"]) == ("tail", "2-3")
    assert (
        b'meshnet_cache_misses_total{reason="unknown_session"}'
        in call(pair.url("tail") + "/metrics").body
    )


def test_decode_goes_on_from_state_and_text_from_its_session(pair, tiny):
    """Driven, cached: each decode carries one row; the texts joined are the decoded answer."""
    from transformers import AutoTokenizer

    table = load_file(tiny / "model.safetensors")["model.embed_tokens.weight"]
    expected = pair.complete("head", PROMPT, max_tokens=20).json()["choices"][0]["token_ids"]
    ids, text, past = [], "", 0
    rows = table[PROMPT]
    while len(ids) < len(expected):
        mode = "prefill" if past == 0 else "decode"
        body = raw(rows)
        for name, start in (("head", 0), ("tail", 2)):
            headers = {
                "X-Meshnet-Session": "driven",
                "X-Meshnet-Cache": mode,
                "X-Meshnet-Past-Len": str(past),
                "X-Meshnet-Start-Layer": str(start),
            }
            answer = forward(pair, name, body, headers)
            assert answer.status == 200, answer.body
            body = answer.body
        past += len(rows)
        ids.append(answer.json()["token_id"])
        text += answer.json()["text"]
        rows = table[ids[-1:]]
    assert ids == expected
    whole = AutoTokenizer.from_pretrained(tiny).decode(ids, skip_special_tokens=True)
    # What is left is at most a character whose last token has not come.
    assert text and whole.startswith(text) and whole[len(text) :] in ("", "\ufffd")
    for name in ("head", "tail"):
        released = call(pair.url(name) + "/sessions/driven", method="DELETE").json()
        assert released == {"released": True}


def test_sampling_parameters_travel_in_meta(pair, embeddings):
    def token(seed):
        meta = json.dumps(
            {"sampling": {"temperature": 2.0, "top_k": 0, "top_p": 1.0, "seed": seed}}
        ).encode()
        headers = {
            **prefill(Protocol="1", Route="head,tail"),
            "X-Meshnet-Meta-Length": str(len(meta)),
        }
        return forward(pair, "head", meta + raw(embeddings), headers).json()["token_id"]

    assert token(1) == token(1)
    assert len({token(seed) for seed in range(8)}) > 3


def test_another_dtype_is_converted_once_and_said(pair, embeddings, expected):
    seam = forward(pair, "head", raw(embeddings.float()), shape("float32"))
    assert seam.headers["X-Meshnet-Dtype"] == "bfloat16", "a node answers in its own dtype"
    assert forward(pair, "tail", seam.body, {}).json()["token_id"] == expected
    status = call(pair.url("head") + "/status").json()
    assert status["shard"]["converted_dtypes"] == ["float32"]
    assert "arrive in float32 and are converted to bfloat16" in pair.log("head")


def test_activations_that_are_not_finite_are_said(pair, expected):
    body = raw(torch.full((1, 64), float("nan"), dtype=torch.bfloat16))
    answer = forward(pair, "tail", body, {})
    assert answer.status == 500 and answer.json()["error"] == "non_finite_logits"
    assert pair.complete("head", PROMPT, max_tokens=1).json()["choices"][0]["token_ids"] == [
        expected
    ]


def test_an_error_climbs_the_chain_with_the_node_that_made_it(tiny, tmp_path, embeddings):
    with Cluster(tmp_path, tiny, {"head": "0", "middle": "1-2", "tail": "3"}) as cluster:
        cluster.start().wait_ready()
        route = prefill(Protocol="1", Route="head,middle,tail")
        assert forward(cluster, "head", raw(embeddings), route).status == 200
        cluster.kill("tail")
        answer = forward(cluster, "head", raw(embeddings), route)
        assert answer.status == 502
        assert answer.json()["node"] == "tail" and answer.json()["hop_index"] == 2
