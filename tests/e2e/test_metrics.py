"""What /metrics counts of answers that end badly."""

import json
import re

from cluster import call, sse_events
from proxy import behind_proxy
from tiny import PAIR

NEXT_EPOCH = {  # after it the tail refuses the steps of the old one
    "X-Meshnet-Cache": "prefill",
    "X-Meshnet-Past-Len": "0",
    "X-Meshnet-Epoch": "9",
}


def requests_by_status(cluster, endpoint):
    text = call(cluster.url("head") + "/metrics").body.decode()
    pattern = rf'meshnet_requests_total{{endpoint="{endpoint}",status="(\d+)"}} (\S+)'
    return {int(status): float(count) for status, count in re.findall(pattern, text)}


def test_a_stream_is_counted_under_the_status_of_its_end(tiny, tmp_path):
    with behind_proxy(tiny, tmp_path, "tail", PAIR) as (cluster, proxy):
        body = {"prompt": "Hi", "stream": True, "max_tokens": 20, "temperature": 0}
        url = cluster.url("head") + "/v1/completions"
        whole = call(url, body)
        assert whole.status == 200 and whole.body.endswith(b"data: [DONE]\n\n")
        assert requests_by_status(cluster, "/v1/completions") == {200: 1}

        proxy.forget()
        proxy.before_decode[5] = lambda headers, body: proxy.send(
            "POST", "/forward", body, {**headers, **NEXT_EPOCH}
        )
        broken = call(url, body)
        assert broken.status == 200, "it had begun"
        last = list(sse_events(broken.body))[-1]
        assert "tail" in json.loads(last)["error"]["message"]
        assert requests_by_status(cluster, "/v1/completions") == {200: 1, 502: 1}
