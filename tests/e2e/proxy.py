"""A hop's front door: passes every request on to the real node, and lets a test act just before one of them."""

import contextlib
import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cluster import Cluster, free_port


class Proxy:
    """Listens on `port` for the node that really listens on `target_port`.

    `before_decode[N]`, where set, is called with the headers and body of the N-th decode (from 1),
    before it is passed on. An OSError of it closes the connection, as when the node is gone.
    """

    def __init__(self, port, target_port):
        self.target_port = target_port
        self.before_decode, self.received, self.decodes = {}, [], 0
        self.server = ThreadingHTTPServer(("127.0.0.1", port), self.handler())
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def forget(self):
        self.before_decode, self.received, self.decodes = {}, [], 0

    def send(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.target_port, timeout=60)
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        answer = response.status, dict(response.getheaders()), response.read()
        connection.close()
        return answer

    def modes(self):
        return [headers.get("X-Meshnet-Cache") for headers, _ in self.received]

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def handler(proxy):  # noqa: N805 (`self` is the request's handler below)
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_any(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                headers = dict(self.headers)
                try:
                    self.note(headers, body)
                    status, answered, payload = proxy.send(self.command, self.path, body, headers)
                except OSError:
                    self.close_connection = True
                    return
                self.send_response(status)
                for name, value in answered.items():
                    if name.lower() not in ("connection", "content-length", "server", "date"):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def note(self, headers, body):
                if self.path != "/forward":
                    return
                proxy.received.append((headers, body))
                if headers.get("X-Meshnet-Cache") == "decode":
                    proxy.decodes += 1
                    if action := proxy.before_decode.get(proxy.decodes):
                        action(headers, body)

            do_GET = do_POST = do_DELETE = do_any

            def log_message(self, *_):
                pass

        return Handler


@contextlib.contextmanager
def behind_proxy(model, directory, name, nodes, kind=Proxy, **top):
    """A ready cluster, and the proxy before the node `name`."""
    real = free_port()
    node = nodes[name] if isinstance(nodes[name], dict) else {"layers": nodes[name]}
    behind = {**node, "listen": f"127.0.0.1:{real}"}
    with Cluster(
        directory, model, {**nodes, name: behind}, **{"dtype": "float32", **top}
    ) as cluster:
        cluster.start()
        proxy = kind(int(cluster.url(name).rsplit(":", 1)[1]), real)
        try:
            yield cluster.wait_ready(), proxy
        finally:
            proxy.close()
