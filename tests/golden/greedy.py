"""Greedy decoding of whole models: what transformers makes of a prompt, and what nodes make of it."""

from dataclasses import dataclass

import torch
from cluster import Cluster

TOKENS = 64


@dataclass
class Reference:
    """What transformers makes of a prompt."""

    num_layers: int
    prompt_ids: list[int]
    greedy_ids: list[int]  # up to the eos id, which is included
    margins: list[float]  # of each step, between the two best logits


def load_reference(model_dir):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()


def reference(model, prompt_ids: list[int]) -> Reference:
    out = model.generate(
        torch.tensor([prompt_ids]),
        do_sample=False,
        repetition_penalty=1.0,
        max_new_tokens=TOKENS,
        output_logits=True,
        return_dict_in_generate=True,
    )
    best_two = [step[0].topk(2).values for step in out.logits]
    return Reference(
        model.config.num_hidden_layers,
        prompt_ids,
        out.sequences[0, len(prompt_ids) :].tolist(),
        [float(best - second) for best, second in best_two],
    )


def generate(model_dir, directory, cut, golden):
    """Our greedy ids: of one node, or of two where the second starts at layer `cut`."""
    last = golden.num_layers - 1
    nodes = {"head": f"0-{cut - 1}", "tail": f"{cut}-{last}"} if cut else {"head": f"0-{last}"}
    with Cluster(directory, model_dir, nodes, dtype="float32") as cluster:
        cluster.start().wait_ready()
        answer = cluster.complete("head", golden.prompt_ids, max_tokens=TOKENS, timeout=1200)
        assert answer.status == 200, answer.body
        for name in nodes:
            assert "missed" not in cluster.log(name)
        return answer.json()["choices"][0]["token_ids"]
