"""A node in Python on transformers, as users had before there was Meshnet: protocol 0.

    reference_node.py --model DIR --layers 15-29 --port 8002

It knows the five fixed headers of POST /forward, ignores every other and sends none. A node that
holds the last layer answers {"text", "token_id"}, greedily; every other answers its raw tensor.
GET /health is 200, GET /counts says for the tests what was asked; all other paths are 404.
"""

import argparse
import collections
import json
import os
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.utils import logging as transformers_logging

MAX_SESSIONS = 64  # nobody tells an old node when a session ends: the least recently used one goes


class Shard:
    """Layers first..last (inclusive, absolute) of a Llama-like model, and a loop over them."""

    def __init__(self, model_dir, first: int, last: int, dtype: torch.dtype):
        transformers_logging.disable_progress_bar()
        model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype).eval()
        self.config, self.dtype, self.first, self.last = model.config, dtype, first, last
        assert 0 <= first <= last < self.config.num_hidden_layers, (first, last)
        self.is_last = last == self.config.num_hidden_layers - 1
        self.embed_tokens = model.model.embed_tokens if first == 0 else None
        self.layers = {index: model.model.layers[index] for index in range(first, last + 1)}
        self.rotary_emb = model.model.rotary_emb
        self.norm = model.model.norm
        self.lm_head = model.lm_head if self.is_last else None
        # What is not held here is freed with `model`.

    def new_cache(self) -> DynamicCache:
        """Layers keep their absolute index in it; those that are not run stay empty."""
        return DynamicCache(config=self.config)

    def embed(self, ids: list[int]) -> torch.Tensor:
        return self.embed_tokens(torch.tensor([ids]))

    def forward(self, hidden, start: int, position: int = 0, cache: DynamicCache | None = None):
        tokens = hidden.shape[1]
        position_ids = torch.arange(position, position + tokens)[None]
        position_embeddings = self.rotary_emb(hidden, position_ids=position_ids)
        mask = None  # which attention reads as causal; right unless several rows follow older ones
        if tokens > 1 and position > 0:
            visible = torch.ones(tokens, position + tokens, dtype=torch.bool).tril(position)
            mask = torch.zeros(visible.shape, dtype=hidden.dtype)
            mask = mask.masked_fill(~visible, torch.finfo(hidden.dtype).min)[None, None]
        for index in range(start, self.last + 1):
            hidden = self.layers[index](
                hidden,
                attention_mask=mask,
                position_ids=position_ids,
                past_key_values=cache,
                use_cache=cache is not None,
                position_embeddings=position_embeddings,
            )
        return hidden

    def greedy(self, hidden) -> int:
        return int(self.lm_head(self.norm(hidden[:, -1])).argmax())


class Refused(Exception):
    def __init__(self, status: int, error: str, message: str, **fields):
        self.status, self.body = status, {"error": error, "message": message, **fields}


def miss(reason: str, message: str) -> Refused:
    return Refused(409, "cache_miss", message, reason=reason)


class Session:
    def __init__(self, cache: DynamicCache, start: int):
        self.cache, self.start, self.tokens = cache, start, 0


class Node:
    """The state of all sessions. Steps run one at a time, on the one thread that computes."""

    def __init__(self, shard: Shard, tokenizer: Tokenizer, stateless_only: bool, delay: float):
        self.shard, self.tokenizer = shard, tokenizer
        self.stateless_only, self.delay = stateless_only, delay
        self.sessions: collections.OrderedDict[str, Session] = collections.OrderedDict()
        self.row_bytes = shard.config.hidden_size * shard.dtype.itemsize
        self.compute = ThreadPoolExecutor(1)
        self.lock = threading.Lock()
        self.counts = {"steps": [], "headers": []}

    def count(self, headers, tokens: int, status: int) -> None:
        """Under the mode that was asked for, even where it is ignored; a head's probe is no step."""
        if headers.get("X-Meshnet-Session", "").startswith("probe-"):
            return
        mode = headers.get("X-Meshnet-Cache", "stateless")
        names = {name for name in headers if name.lower().startswith("x-meshnet-")}
        with self.lock:
            self.counts["steps"].append({"mode": mode, "tokens": tokens, "status": status})
            self.counts["headers"] = sorted(
                {name.lower() for name in names} | set(self.counts["headers"])
            )

    def counts_json(self) -> bytes:
        with self.lock:
            return json.dumps(self.counts).encode()

    def forward(self, headers, body: bytes) -> tuple[str, bytes]:
        shard = self.shard
        if not body or len(body) % self.row_bytes:
            message = f"body: {len(body)} bytes, a row has {self.row_bytes}"
            raise Refused(400, "invalid_request", message)
        hidden = torch.frombuffer(bytearray(body), dtype=shard.dtype)
        hidden = hidden.view(1, -1, shard.config.hidden_size)
        start = self.number(headers, "X-Meshnet-Start-Layer", shard.first)
        past = self.number(headers, "X-Meshnet-Past-Len", 0)
        mode = None if self.stateless_only else headers.get("X-Meshnet-Cache")
        if mode not in (None, "prefill", "decode"):
            raise Refused(400, "invalid_request", f"X-Meshnet-Cache: {mode}")
        if not shard.first <= start <= shard.last:
            if mode == "decode":
                raise miss("start_layer_mismatch", f"layer {start} is not held here")
            raise Refused(400, "invalid_request", f"X-Meshnet-Start-Layer: {start}")
        if mode == "decode" and "X-Meshnet-Past-Len" not in headers:
            raise Refused(400, "invalid_request", "X-Meshnet-Past-Len: decode needs it")
        session_id = headers.get("X-Meshnet-Session", "")
        return self.compute.submit(self.step, hidden, mode, session_id, start, past).result()

    @staticmethod
    def number(headers, name: str, default: int) -> int:
        text = headers.get(name, str(default))
        if not (text.isascii() and text.isdigit()):
            raise Refused(400, "invalid_request", f"{name}: {text}")
        return int(text)

    @torch.inference_mode()
    def step(self, hidden, mode, session_id, start, past) -> tuple[str, bytes]:
        time.sleep(self.delay * hidden.shape[1])
        if mode is None:
            return self.answer(self.shard.forward(hidden, start))
        if mode == "prefill" and past == 0:
            self.sessions.pop(session_id, None)
            session = Session(self.shard.new_cache(), start)
        else:
            session = self.resolve(session_id, start, past)
        # Out of the dictionary until the step has succeeded: no half-advanced state stays.
        self.sessions.pop(session_id, None)
        hidden = self.shard.forward(hidden, start, past, session.cache)
        session.tokens = session.cache.get_seq_length(start)
        self.sessions[session_id] = session
        if len(self.sessions) > MAX_SESSIONS:
            self.sessions.popitem(last=False)
        return self.answer(hidden)

    def resolve(self, session_id: str, start: int, past: int) -> Session:
        session = self.sessions.get(session_id)
        if session is None:
            raise miss("unknown_session", f"session {session_id} is not held")
        if session.tokens != past:
            raise miss("seq_len_mismatch", f"{session.tokens} tokens are held, not {past}")
        if session.start != start:
            raise miss("start_layer_mismatch", f"held from layer {session.start}, not {start}")
        return session

    def answer(self, hidden) -> tuple[str, bytes]:
        if not self.shard.is_last:
            raw = hidden.contiguous().view(torch.uint8).numpy().tobytes()
            return "application/octet-stream", raw
        token_id = self.shard.greedy(hidden)
        token = {"text": self.tokenizer.decode([token_id], skip_special_tokens=False)}
        if not self.stateless_only:
            token["token_id"] = token_id
        return "application/json", json.dumps(token).encode()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keep-alive
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body leave together

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path != "/forward":
            return self.not_found()
        node = self.server.node
        try:
            status, (content_type, answer) = 200, node.forward(self.headers, body)
        except Exception as error:
            if not isinstance(error, Refused):
                traceback.print_exc()
                error = Refused(500, "internal_error", str(error))
            status, content_type = error.status, "application/json"
            answer = json.dumps(error.body).encode()
        node.count(self.headers, len(body) // node.row_bytes, status)
        self.reply(status, answer, content_type)

    def do_GET(self):
        if self.path == "/health":
            self.reply_json(200, {"status": "ok"})
        elif self.path == "/counts":
            self.reply(200, self.server.node.counts_json(), "application/json")
        else:
            self.not_found()

    def do_DELETE(self):
        self.not_found()

    def not_found(self):
        self.reply_json(404, {"error": "not_found"})

    def reply_json(self, status: int, body: dict):
        self.reply(status, json.dumps(body).encode(), "application/json")

    def reply(self, status: int, body: bytes, content_type: str):
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--layers", required=True, help="absolute and inclusive, as 15-29")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument(
        "--stateless-only",
        action="store_true",
        help="an older node still: no X-Meshnet-Cache, no token_id in the answer",
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--delay-ms-per-token", type=float, default=0)
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    first, _, last = arguments.layers.partition("-")
    shard = Shard(arguments.model, int(first), int(last or first), getattr(torch, arguments.dtype))
    tokenizer = Tokenizer.from_file(str(arguments.model / "tokenizer.json"))
    server = ThreadingHTTPServer(("127.0.0.1", arguments.port), Handler)
    server.daemon_threads = True
    server.node = Node(
        shard, tokenizer, arguments.stateless_only, arguments.delay_ms_per_token / 1000
    )
    server.serve_forever()


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
