import json
import shutil

import pytest
import torch
from tiny import PROMPT, TOKENS


@pytest.fixture(scope="session")
def roomy(tiny, tmp_path_factory):
    """The tiny model with room for prompts that take a while."""
    directory = tmp_path_factory.mktemp("roomy") / "model"
    shutil.copytree(tiny, directory)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 16384}))
    return directory


@pytest.fixture(scope="session")
def reference(tiny):
    """The greedy ids of transformers in float32."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)

    def generate(prompt, tokens=TOKENS):
        out = model.generate(
            torch.tensor([prompt]), do_sample=False, max_new_tokens=tokens, eos_token_id=None
        )
        return out[0, len(prompt) :].tolist()

    return generate


@pytest.fixture(scope="session")
def expected(reference):
    ids = reference(PROMPT)
    assert 2 not in ids, "the eos token would end the answer early"
    return ids
