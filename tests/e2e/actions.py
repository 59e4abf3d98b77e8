"""What a test does just before a step is passed on, so that it is a miss."""

import time

import torch
from tiny import HIDDEN


def session_headers(headers, **changes):
    kept = {
        name: value
        for name, value in headers.items()
        if name.startswith("X-Meshnet-") and name not in ("X-Meshnet-Meta-Length",)
    }
    return {**kept, **{"X-Meshnet-" + key.replace("_", "-"): str(v) for key, v in changes.items()}}


def evict_by_another(proxy):
    def action(headers, _):
        body = torch.zeros(1, HIDDEN).numpy().tobytes()
        other = session_headers(
            headers, Session="another", Cache="prefill", Past_Len=0, Shape=f"1,1,{HIDDEN}"
        )
        assert proxy.send("POST", "/forward", body, other)[0] == 200

    return action


def send_twice(proxy):
    def action(headers, body):
        assert proxy.send("POST", "/forward", body, headers)[0] == 200

    return action


def start_elsewhere(proxy):
    def action(headers, _):
        body = torch.zeros(1, HIDDEN).numpy().tobytes()
        other = session_headers(
            headers, Cache="prefill", Past_Len=0, Start_Layer=1, Shape=f"1,1,{HIDDEN}"
        )
        assert proxy.send("POST", "/forward", body, other)[0] == 200

    return action


def outlive_ttl(proxy):
    return lambda *_: time.sleep(1.3)


def restart_tail(cluster):
    def action(*_):
        cluster.kill("tail")
        cluster.start("tail").wait_ready("tail")

    return action
