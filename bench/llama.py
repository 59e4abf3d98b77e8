"""llama.cpp through llama-cpp-python, with the same bfloat16 weights written as GGUF."""

import ctypes
import tempfile
import time
from pathlib import Path

import common
import gguf
import llama_cpp
import torch
from safetensors.torch import load_file

ARCHITECTURES = {"llama": gguf.MODEL_ARCH.LLAMA, "qwen2": gguf.MODEL_ARCH.QWEN2}


def split_halves(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """llama.cpp rotates neighbouring rows where Llama's checkpoints rotate halves of a head."""
    rows = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return rows.swapaxes(1, 2).reshape(weight.shape)


def write_gguf(model: Path, file: Path) -> None:
    """Without a tokenizer: ids go in and come out."""
    config = common.read_config(model)
    architecture = config["model_type"]
    arch = ARCHITECTURES[architecture]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads

    writer = gguf.GGUFWriter(file, architecture)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_rope_dimension_count(head_dim)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_tokenizer_model("no_vocab")

    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    for name, weight in load_file(model / "model.safetensors").items():
        if architecture == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            weight = split_halves(weight, heads if "q_proj" in name else kv_heads)
        new_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if weight.dim() == 1:
            writer.add_tensor(new_name, weight.float().numpy())
        else:
            raw = weight.contiguous().view(torch.uint8).numpy()
            writer.add_tensor(new_name, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@llama_cpp.llama_log_callback
def silent(_level, _text, _data):
    pass


class LlamaCpp:
    name = "llama.cpp"

    def __init__(self, model: Path, _cut, threads: int, stack):
        llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        file = Path(directory) / "model.gguf"
        write_gguf(model, file)
        self.model = llama_cpp.llama_model_load_from_file(
            str(file).encode(), llama_cpp.llama_model_default_params()
        )
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = 1024, 512, 512
        params.n_threads = params.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        assert self.context, "llama.cpp did not take the model"
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(
            llama_cpp.llama_model_get_vocab(self.model)
        )
        stack.callback(llama_cpp.llama_model_free, self.model)
        stack.callback(llama_cpp.llama_free, self.context)

    def times(self, prompt_ids: list[int], tokens: int) -> list[float]:
        started = time.perf_counter()
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        ids, times = prompt_ids, []
        for _ in range(tokens):
            array = (llama_cpp.llama_token * len(ids))(*ids)
            batch = llama_cpp.llama_batch_get_one(array, len(ids))
            assert llama_cpp.llama_decode(self.context, batch) == 0
            logits = llama_cpp.llama_get_logits_ith(self.context, -1)
            row = (ctypes.c_float * self.vocab_size).from_address(ctypes.addressof(logits.contents))
            ids = [int(torch.frombuffer(row, dtype=torch.float32).argmax())]
            times.append(time.perf_counter() - started)
        return times
