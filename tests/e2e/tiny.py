"""What tests ask of the tiny model."""

PROMPT = [5, 17, 300, 2000, 41, 7]
LONG = [(i * 37) % 4000 + 3 for i in range(200)]
TOKENS = 48
HIDDEN = 64
PAIR = {"head": "0-1", "tail": "2-3"}
TRIO = {"head": "0", "middle": "1-2", "tail": "3"}


def complete(cluster, prompt=PROMPT, name="head", tokens=TOKENS, **fields):
    return cluster.complete(name, prompt, max_tokens=tokens, **fields)
