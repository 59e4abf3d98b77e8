"""A node takes its own slice and little more."""

import pathlib

from cluster import Cluster, call

MB = 1_000_000


def peak_resident(pid) -> int:
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no VmHWM")


def test_peak_memory_is_the_slice_plus_200_mb(smollm2, tiny, tmp_path):
    (tmp_path / "tiny").mkdir()
    # The same binary with (nearly) no model: one layer of a tiny one, 12 KiB of weights.
    with Cluster(tmp_path / "tiny", tiny, {"head": "0", "middle": "1", "tail": "2-3"}) as cluster:
        cluster.start("middle").wait_ready("middle")
        bare = peak_resident(cluster.pid("middle"))

    with Cluster(tmp_path, smollm2, {"head": "0-14", "tail": "15-29"}) as cluster:
        cluster.start().wait_ready()
        weights = call(cluster.url("tail") + "/status").json()["shard"]["weight_bytes"]
        answer = cluster.complete("head", "The capital of France is", max_tokens=3)
        assert answer.status == 200
        peak = peak_resident(cluster.pid("tail"))

    assert 100 * MB < weights < 200 * MB
    assert peak <= bare + weights + 200 * MB, (
        f"{peak / MB:.0f} MB, {bare / MB:.0f} MB without a model, {weights / MB:.0f} MB of weights"
    )
