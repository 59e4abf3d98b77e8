"""Our slices and kernels in this process: libmodel_ops.so."""

import os
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = Path(os.environ.get("MESHNET_MODEL_OPS", ROOT / "build/release/libmodel_ops.so"))
torch.ops.load_library(LIBRARY)
ops = torch.ops.meshnet


class Route:
    """A model over one slice after another, each on a device of its own."""

    def __init__(self, model, dtype, devices, cuts=()):
        edges = [0, *cuts, -1]
        self.slices = [
            torch.classes.meshnet.Slice(str(model), first, last, dtype, torch.device(device))
            for first, last, device in zip(edges[:-1], edges[1:], devices, strict=True)
        ]
        self.devices = devices

    def open(self) -> list[int]:
        return [one.open() for one in self.slices]

    def forward(self, ids, session=None):
        """Ids [tokens] of a session, or of a whole prompt without state → hidden states [tokens, hidden]."""
        hidden = self.slices[0].embed(ids)
        for index, (one, device) in enumerate(zip(self.slices, self.devices, strict=True)):
            hidden = one.forward(hidden.to(device), -1 if session is None else session[index])
        return hidden

    def logits(self, ids, session=None):
        """Those of every row, float32 [tokens, vocab]."""
        return self.slices[-1].logits(self.forward(ids, session))

    def next_id(self, ids, session=None):
        """The greedy one, [1], where the last slice is."""
        return self.slices[-1].logits(self.forward(ids, session)[-1:]).argmax(-1)

    def state_bytes(self, session) -> int:
        return sum(
            one.state_bytes(number) for one, number in zip(self.slices, session, strict=True)
        )
