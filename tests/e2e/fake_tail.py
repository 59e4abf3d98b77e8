"""A scripted tail: answers each POST /forward with the next of a list."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NAME = "far-end"  # no word that an error message has for other reasons
LAYERS = "2-3"
HIDDEN = 64
JSON = "application/json"


def answer(status, body, content_type=JSON, **headers):
    """Status, headers and body of one scripted answer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return status, {"Content-Type": content_type, **names}, data


def token(token_id):
    return answer(200, {"text": "x", "token_id": token_id}, X_Meshnet_Protocol="1")


def error(status, code, **fields):
    where = {"node": NAME, "hop_index": 1, "layers": LAYERS}
    return answer(status, {"error": code, "message": f"scripted {code}", **where, **fields})


def miss(reason="unknown_session"):
    return error(409, "cache_miss", reason=reason)


TENSOR = answer(
    200,
    bytes(HIDDEN * 2),
    "application/octet-stream",
    X_Meshnet_Protocol="1",
    X_Meshnet_Dtype="bfloat16",
    X_Meshnet_Shape=f"1,1,{HIDDEN}",
)


class Tail:
    """The scripted node: `status` answers GET /status, `script` one POST /forward after another."""

    def __init__(self, port, ready):
        self.ready = self.status = ready
        self.probe = miss()  # of a session that nobody knows: the answer of a node that keeps state
        self.script, self.received, self.released = [], [], []
        self.server = ThreadingHTTPServer(("127.0.0.1", port), self.handler())
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def handler(tail):  # noqa: N805 (`self` is the request's handler below)
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self):
                self.reply(*tail.status)

            def do_DELETE(self):
                tail.released.append(self.path)
                self.reply(*answer(200, {"released": True}))

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                if headers["x-meshnet-session"].startswith("probe-"):
                    self.reply(*tail.probe)
                    return
                tail.received.append((headers, body))
                over = error(500, "script_is_over")
                self.reply(*(tail.script.pop(0) if tail.script else over))

            def reply(self, status, headers, body):
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        return Handler

    def play(self, *script):
        self.script, self.received = list(script), []

    def modes(self):
        return [headers["x-meshnet-cache"] for headers, _ in self.received]

    def close(self):
        self.server.shutdown()
        self.server.server_close()
