"""The head as clients see it: the official openai client, streams, usage, stop strings, sampling."""

import json

import openai
import pytest
from cluster import call, sse_events


@pytest.fixture(scope="module")
def client(pair):
    return openai.OpenAI(base_url=pair.url("head") + "/v1", api_key="unused", max_retries=0)


MESSAGES = [{"role": "user", "content": "Say something."}]


def test_openai_client_chat(client):
    answer = client.chat.completions.create(
        model="test-model", messages=MESSAGES, max_tokens=8, temperature=0
    )
    choice = answer.choices[0]
    assert choice.message.role == "assistant"
    assert choice.finish_reason in ("stop", "length")
    assert answer.usage.completion_tokens <= 8
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_openai_client_stream_equals_the_whole_answer(client):
    whole = client.chat.completions.create(
        model="test-model", messages=MESSAGES, max_tokens=12, temperature=0
    )
    chunks = list(
        client.chat.completions.create(
            model="test-model",
            messages=MESSAGES,
            max_tokens=12,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage
    body = chunks[:-1]
    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in body)
        == whole.choices[0].message.content
    )
    assert [chunk.choices[0].finish_reason for chunk in body][-1] == whole.choices[0].finish_reason
    assert len({chunk.id for chunk in chunks}) == 1


def test_openai_client_completions_and_models(client):
    answer = client.completions.create(
        model="test-model", prompt="Once upon a time", max_tokens=5, temperature=0
    )
    assert answer.object == "text_completion" and answer.usage.completion_tokens <= 5
    assert [model.id for model in client.models.list()] == ["test-model"]


def test_openai_client_errors(client):
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model="test-model", messages=[])
    assert error.value.body["type"] == "invalid_request_error"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=MESSAGES)


def test_stream_without_usage_has_no_empty_choices(pair):
    events = list(sse_events(pair.chat("head", "Hi", stream=True, max_tokens=4).body))
    assert events[-1] == "[DONE]"
    assert all(json.loads(event)["choices"] for event in events[:-1])


def test_token_ids_whole_and_streamed(pair):
    whole = pair.complete("head", "The sky is", max_tokens=10).json()["choices"][0]
    events = [
        json.loads(event)
        for event in sse_events(
            pair.complete("head", "The sky is", max_tokens=10, stream=True).body
        )
        if event != "[DONE]"
    ]
    assert events[0]["choices"][0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert sum((event["choices"][0]["token_ids"] for event in events), []) == whole["token_ids"]
    assert "".join(event["choices"][0]["text"] for event in events) == whole["text"]
    by_ids = pair.complete("head", whole["prompt_token_ids"], max_tokens=10).json()["choices"][0]
    assert by_ids["token_ids"] == whole["token_ids"]


def test_caps_and_finish_reason(pair):
    for fields in (
        {"max_tokens": 3},
        {"max_completion_tokens": 3},
        {"max_completion_tokens": 3, "max_tokens": 9},
    ):
        answer = pair.chat("head", "Hi", **fields).json()
        assert answer["usage"]["completion_tokens"] == 3
        assert answer["choices"][0]["finish_reason"] == "length"
    for bad in (0, -1, 1.5, "3"):
        assert pair.chat("head", "Hi", max_tokens=bad).status == 400


def test_the_context_bounds_prompt_and_answer(pair):
    too_long = pair.complete("head", [5] * 256, max_tokens=1)
    assert too_long.status == 400
    assert too_long.json()["error"]["code"] == "context_length_exceeded"
    assert "256" in too_long.json()["error"]["message"]
    cut = pair.complete("head", [5] * 250, max_tokens=100).json()
    assert cut["usage"]["completion_tokens"] <= 6


def test_stop_strings_are_cut_out(pair):
    text = pair.complete("head", "The sky is", max_tokens=12).json()["choices"][0]["text"]
    stop = text[4:7]
    for stream in (False, True):
        answer = pair.complete("head", "The sky is", max_tokens=12, stop=[stop], stream=stream)
        if stream:
            events = [json.loads(event) for event in sse_events(answer.body) if event != "[DONE]"]
            got = "".join(event["choices"][0]["text"] for event in events)
            reason = events[-1]["choices"][0]["finish_reason"]
        else:
            choice = answer.json()["choices"][0]
            got, reason = choice["text"], choice["finish_reason"]
        assert got == text[: text.index(stop)]
        assert reason == "stop"


def test_the_same_seed_gives_the_same_text(pair):
    def ids(seed):
        return pair.complete(
            "head", "The sky is", max_tokens=12, temperature=1.5, seed=seed
        ).json()["choices"][0]["token_ids"]

    assert ids(7) == ids(7)
    assert len({tuple(ids(seed)) for seed in range(6)}) > 3
    greedy = pair.complete("head", "The sky is", max_tokens=12).json()["choices"][0]["token_ids"]
    assert (
        pair.complete("head", "The sky is", max_tokens=12, temperature=1, top_p=0).json()[
            "choices"
        ][0]["token_ids"]
        == greedy
    )


def test_every_endpoint_of_every_node(pair):
    for name in ("head", "tail"):
        status = call(pair.url(name) + "/status").json()
        assert status["protocol"] == 1 and status["state"] == "ready"
        assert status["shard"]["layers"] == pair.topology["nodes"][name]["layers"]
        assert status["sessions"] == []
        assert call(pair.url(name) + "/health").status == 200
        assert b"meshnet_hop_seconds" in call(pair.url(name) + "/metrics").body
        assert call(pair.url(name) + "/sessions/none", method="DELETE").status == 200
    assert call(pair.url("tail") + "/v1/models").status == 404
    assert call(pair.url("head") + "/v1/chat/completions").status == 405
    fingerprints = {
        call(pair.url(name) + "/status").json()["model_fingerprint"] for name in ("head", "tail")
    }
    assert len(fingerprints) == 1


def test_server_timing_names_every_hop(pair):
    timing = pair.complete("head", "Hi", max_tokens=2).headers["Server-Timing"]
    for part, node in (
        ("queue", "head"),
        ("compute", "head"),
        ("wire", "tail"),
        ("compute", "tail"),
    ):
        assert f'{part};desc="{node}";dur=' in timing


def test_no_choices_is_refused_before_any_stream(pair):
    body = {"prompt": "Hi", "stream": True, "n": 0}
    answer = call(pair.url("head") + "/v1/completions", body)
    assert answer.status == 400 and answer.json()["error"]["param"] == "n"
    assert answer.headers.get_content_type() == "application/json"
