"""Requests that no honest client sends: each gets a 4xx with a JSON error, and both nodes go on as before."""

import json
import socket
import struct
from concurrent.futures import ThreadPoolExecutor

import pytest
from cluster import call

HIDDEN = 64
ROW = struct.pack(f"<{HIDDEN}f", *[0.5] * HIDDEN)
SHAPE = {"X-Meshnet-Dtype": "float32", "X-Meshnet-Shape": f"1,1,{HIDDEN}"}
WARM = b'{"sampling": {"temperature": "warm"}}'
PREFILL = {**SHAPE, "X-Meshnet-Session": "s", "X-Meshnet-Cache": "prefill"}

# name, headers, body, words of the answer
FORWARD = [
    ("empty body", {}, b"", "body"),
    ("a byte too few", SHAPE, ROW[:-1], "255"),
    ("a byte too many", SHAPE, ROW + b"x", "257"),
    ("no shape and a remainder", {}, b"abc", "128"),
    ("unknown dtype", {**SHAPE, "X-Meshnet-Dtype": "int8"}, ROW, "X-Meshnet-Dtype"),
    ("big-endian dtype", {**SHAPE, "X-Meshnet-Dtype": ">f4"}, ROW, "X-Meshnet-Dtype"),
    ("other hidden size", {**SHAPE, "X-Meshnet-Shape": "1,1,32"}, ROW[:128], "X-Meshnet-Shape"),
    ("no tokens", {**SHAPE, "X-Meshnet-Shape": f"1,0,{HIDDEN}"}, b"", "X-Meshnet-Shape"),
    ("negative tokens", {**SHAPE, "X-Meshnet-Shape": f"1,-1,{HIDDEN}"}, ROW, "X-Meshnet-Shape"),
    ("batch of two", {**SHAPE, "X-Meshnet-Shape": f"2,1,{HIDDEN}"}, ROW * 2, "X-Meshnet-Shape"),
    ("two numbers", {**SHAPE, "X-Meshnet-Shape": f"1,{HIDDEN}"}, ROW, "X-Meshnet-Shape"),
    (
        "huge shape",
        {**SHAPE, "X-Meshnet-Shape": f"1,9223372036854775807,{HIDDEN}"},
        ROW,
        "X-Meshnet-Shape",
    ),
    (
        "overflowing shape",
        {**SHAPE, "X-Meshnet-Shape": f"1,99999999999999999999,{HIDDEN}"},
        ROW,
        "X-Meshnet-Shape",
    ),
    ("shape with words", {**SHAPE, "X-Meshnet-Shape": f"1,one,{HIDDEN}"}, ROW, "X-Meshnet-Shape"),
    ("unknown mode", {**PREFILL, "X-Meshnet-Cache": "refill"}, ROW, "X-Meshnet-Cache"),
    ("mode in capitals", {**PREFILL, "X-Meshnet-Cache": "PREFILL"}, ROW, "X-Meshnet-Cache"),
    ("decode without past", {**PREFILL, "X-Meshnet-Cache": "decode"}, ROW, "X-Meshnet-Past-Len"),
    ("negative past", {**PREFILL, "X-Meshnet-Past-Len": "-1"}, ROW, "X-Meshnet-Past-Len"),
    ("past in hex", {**PREFILL, "X-Meshnet-Past-Len": "0x10"}, ROW, "X-Meshnet-Past-Len"),
    ("past with a tail", {**PREFILL, "X-Meshnet-Past-Len": "1 2"}, ROW, "X-Meshnet-Past-Len"),
    ("stateless with a past", {**SHAPE, "X-Meshnet-Past-Len": "4"}, ROW, "X-Meshnet-Past-Len"),
    ("prefill without session", {**SHAPE, "X-Meshnet-Cache": "prefill"}, ROW, "X-Meshnet-Session"),
    ("endless session id", {**PREFILL, "X-Meshnet-Session": "s" * 1000}, ROW, "X-Meshnet-Session"),
    (
        "start layer of another shard",
        {**PREFILL, "X-Meshnet-Start-Layer": "0"},
        ROW,
        "X-Meshnet-Start-Layer",
    ),
    (
        "start layer past the model",
        {**PREFILL, "X-Meshnet-Start-Layer": "99"},
        ROW,
        "X-Meshnet-Start-Layer",
    ),
    ("epoch zero", {**PREFILL, "X-Meshnet-Epoch": "0"}, ROW, "X-Meshnet-Epoch"),
    (
        "route of a stranger",
        {**PREFILL, "X-Meshnet-Route": "tail,stranger"},
        ROW,
        "X-Meshnet-Route",
    ),
    (
        "route with a URL",
        {**PREFILL, "X-Meshnet-Route": "http://127.0.0.1:1"},
        ROW,
        "X-Meshnet-Route",
    ),
    ("route for another node", {**PREFILL, "X-Meshnet-Route": "head"}, ROW, "X-Meshnet-Route"),
    ("more of what", {**PREFILL, "X-Meshnet-More": "yes"}, ROW, "X-Meshnet-More"),
    (
        "meta longer than the body",
        {**PREFILL, "X-Meshnet-Meta-Length": "999999"},
        ROW,
        "X-Meshnet-Meta-Length",
    ),
    (
        "meta that is no JSON",
        {**PREFILL, "X-Meshnet-Meta-Length": "3"},
        b"abc" + ROW,
        "X-Meshnet-Meta-Length",
    ),
    (
        "meta with a warm temperature",
        {**PREFILL, "X-Meshnet-Meta-Length": str(len(WARM))},
        WARM + ROW,
        "meta.sampling.temperature",
    ),
    ("other model", {**PREFILL, "X-Meshnet-Model": "0000000000000000"}, ROW, "X-Meshnet-Model"),
    ("beyond the context", {**SHAPE, "X-Meshnet-Shape": f"1,300,{HIDDEN}"}, ROW * 300, "256"),
]

MESSAGE = {"role": "user", "content": "Hi"}
API = [
    ("a string", b'"hi"'),
    ("a list", b"[]"),
    ("null", b"null"),
    ("a number", b"3"),
    ("an open brace", b"{"),
    ("nothing", b""),
    ("bad UTF-8", b'{"messages":[{"role":"user","content":"\xff\xfe"}]}'),
    ("deep nesting", b"[" * 100_000),
    ("deep nesting in a field", b'{"messages":' + b"[" * 100_000),
    ("no messages", {}),
    ("empty messages", {"messages": []}),
    ("messages as text", {"messages": "x"}),
    ("a message as text", {"messages": ["x"]}),
    ("role as number", {"messages": [{"role": 5, "content": "x"}]}),
    ("no role", {"messages": [{"content": "x"}]}),
    ("content as number", {"messages": [{"role": "user", "content": 5}]}),
    (
        "an image",
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
            ]
        },
    ),
    ("an unknown part", {"messages": [{"role": "user", "content": [{"text": "x"}]}]}),
    ("temperature below zero", {"messages": [MESSAGE], "temperature": -1}),
    ("temperature above two", {"messages": [MESSAGE], "temperature": 2.5}),
    ("temperature as text", {"messages": [MESSAGE], "temperature": "hot"}),
    ("top_p above one", {"messages": [MESSAGE], "top_p": 1.5}),
    ("top_k of minus two", {"messages": [MESSAGE], "top_k": -2}),
    ("NaN", b'{"messages":[{"role":"user","content":"x"}],"temperature":NaN}'),
    ("infinite", b'{"messages":[{"role":"user","content":"x"}],"temperature":1e999}'),
    ("no tokens wanted", {"messages": [MESSAGE], "max_tokens": 0}),
    ("negative tokens", {"messages": [MESSAGE], "max_completion_tokens": -5}),
    ("n of zero", {"messages": [MESSAGE], "n": 0}),
    ("stream as text", {"messages": [MESSAGE], "stream": "yes"}),
    ("stop as number", {"messages": [MESSAGE], "stop": 3}),
    ("an empty stop", {"messages": [MESSAGE], "stop": [""]}),
    ("seed as text", {"messages": [MESSAGE], "seed": "x"}),
    ("tools as text", {"messages": [MESSAGE], "tools": "x"}),
    ("another model", {"messages": [MESSAGE], "model": "gpt-9"}),
]

COMPLETIONS = [
    ("no prompt", {}),
    ("prompt as number", {"prompt": 3}),
    ("an id below zero", {"prompt": [-1]}),
    ("an id past the vocabulary", {"prompt": [49152]}),
    ("a huge id", {"prompt": [2**70]}),
    ("an empty list", {"prompt": []}),
    ("mixed prompt", {"prompt": [1, "x"]}),
]


@pytest.fixture(scope="module")
def expected(pair):
    return right_answer(pair)


def right_answer(pair):
    answer = pair.complete("head", "Hello there", max_tokens=4)
    assert answer.status == 200, answer.body
    return answer.json()["choices"][0]["token_ids"]


@pytest.mark.parametrize("name, headers, body, words", FORWARD, ids=[case[0] for case in FORWARD])
def test_malformed_forward(pair, expected, name, headers, body, words):
    answer = call(pair.url("tail") + "/forward", body, headers, method="POST")
    assert 400 <= answer.status < 500, answer.body
    error = answer.json()
    assert error["error"] and error["node"] == "tail" and error["layers"] == "2-3"
    assert words in error["message"], error
    assert right_answer(pair) == expected


@pytest.mark.parametrize("name, body", API, ids=[case[0] for case in API])
def test_malformed_chat(pair, expected, name, body):
    check_refusal(pair, expected, "/v1/chat/completions", body)


@pytest.mark.parametrize("name, body", COMPLETIONS, ids=[case[0] for case in COMPLETIONS])
def test_malformed_completion(pair, expected, name, body):
    check_refusal(pair, expected, "/v1/completions", body)


def check_refusal(pair, expected, path, body):
    answer = call(
        pair.url("head") + path, body, {"Content-Type": "application/json"}, method="POST"
    )
    assert 400 <= answer.status < 500, answer.body
    error = answer.json()["error"]
    assert error["message"] and error["type"] and error["code"]
    assert right_answer(pair) == expected


def test_a_long_flat_body_does_not_hold_up_the_node(pair, expected):
    body = b'{"prompt": 5, "unknown": [' + b"{}," * 1_000_000 + b"{}]}"
    with ThreadPoolExecutor(1) as pool:
        refused = pool.submit(
            call, pair.url("head") + "/v1/completions", body, {}, method="POST", timeout=60
        )
        while not refused.done():
            assert call(pair.url("head") + "/health", timeout=5).status == 200
        assert refused.result().status == 400
    assert right_answer(pair) == expected


def test_a_body_over_the_limit(pair, expected):
    answer = call(pair.url("head") + "/v1/chat/completions", b"x" * ((64 << 20) + 1), method="POST")
    assert answer.status == 413 and "error" in answer.json()
    assert right_answer(pair) == expected


def test_chat_body_of_two_megabytes_is_read(pair):
    answer = pair.chat("head", "word " * 400_000)
    assert answer.status == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded", (
        "read whole, and refused for its length alone"
    )


@pytest.mark.parametrize(
    "raw",
    [
        b"GARBAGE\r\n\r\n",
        b"POST /forward HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00" + bytes(64),
    ],
    ids=["no HTTP", "negative length", "other version", "TLS"],
)
def test_broken_http(pair, expected, raw):
    host, port = pair.url("tail").removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(raw)
        reply = b""
        while part := connection.recv(4096):
            reply += part
    assert reply.startswith(b"HTTP/1.1 400"), reply
    assert json.loads(reply.split(b"\r\n\r\n", 1)[1])["error"]
    assert right_answer(pair) == expected
