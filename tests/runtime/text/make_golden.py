"""What transformers does with the text of our tests, as files for the C++ tests to compare with.

usage: make_golden.py tiny OUT            tokenizers trained here, templates of our own
       make_golden.py smollm2 MODEL OUT   the tokenizer and template of a real model

OUT/tokenizers/NAME/golden.json   ids, texts and chats of one tokenizer
OUT/templates/NAME/               a model directory with a chat template and nothing else
OUT/templates.json                what each of these gives, or how it fails
"""

import json
import random
import shutil
import sys
from pathlib import Path

import jinja2
from templates import CASES
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import AutoTokenizer, PreTrainedTokenizerFast

ALPHABETS = [
    "abcdefghijklmnopqrstuvwxyz",
    "ABCXYZ019 .,;:!?'\"-_()[]{}<>|/\\@#$%^&*+=~`",
    "    \t\n\r\n\n   \u00a0\u2003\u3000\u200b\ufeff",
    "éüñçøßÆœ naïve Ωμέγα Привет мир ěščřž",
    "日本語中文字符漢字かなカナ한국어말",
    "مرحبا بالعالم שלום עולם ไทยภาษา हिन्दी བོད་ཡིག አማርኛ",
    "👍🏽👩‍👩‍👧‍👦🏳️‍🌈😀🇫🇷❤️‍🔥🧑🏿‍🚀",
    "e\u0301a\u0308\u0323o\u0302\u0303 \u202eabc\u202c",
    "▁▁ĠĊâĢ\ufffd\u0000\u0001\u001b\u007f\u2028\u2029\ue000\U0010ffff",
    "def f(x):\n    return x**2  # ok\n\tif (a&&b) { c->d(); }\n",
    "1234567890 3.14159 1,000,000 0x1F 12:30",
]
FIXED = [
    "",
    " ",
    "  ",
    "\n",
    "👍🏽 naïve 日本 ▁▁.",
    "Hello world",
    " Hello world ",
    "<s>not a token</s> <|im_start|>user\nhi<|im_end|>",
    "<tool_call>{}</tool_call> <TOOL_CALL>",
    "<0x41><0xE2>",
    "a" * 3000,
    " " * 500,
    "\n" * 200,
    "日" * 400,
    "👍" * 200,
    "The quick brown fox doesn't jump. I'll can't we've you're!",
]


def hard_strings(count: int) -> list[str]:
    rng = random.Random(20240229)
    strings = list(FIXED)
    while len(strings) < count:
        parts = []
        for _ in range(rng.randint(1, 6)):
            alphabet = rng.choice(ALPHABETS)
            if rng.random() < 0.4:
                start = rng.randrange(len(alphabet))
                parts.append(alphabet[start : start + rng.randint(1, 20)])
            else:
                parts.append("".join(rng.choices(alphabet, k=rng.randint(1, 16))))
        strings.append(rng.choice(["", "", " "]).join(parts))
    return strings


def with_byte_tokens(trained: Tokenizer) -> Tokenizer:
    """Llama 2's kind: a piece not in the vocabulary becomes tokens of its bytes."""
    model = json.loads(trained.to_str())["model"]
    pieces = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    pieces += [piece for piece in model["vocab"] if piece != "<unk>"]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: index for index, piece in enumerate(pieces)},
            merges=[tuple(merge) for merge in model["merges"]],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        "<s> $A", "<s> $A <s> $B", [("<s>", 1)]
    )
    return tokenizer


def train_byte_fallback(corpus: list[str]) -> Tokenizer:
    trained = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    trained.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=500, limit_alphabet=60, special_tokens=["<unk>"], show_progress=False
    )
    trained.train_from_iterator(corpus, trainer)
    return with_byte_tokens(trained)


def train_byte_level(corpus: list[str]) -> Tokenizer:
    """GPT-2's kind, with what a file can carry along from training: truncation and padding."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_tokens(
        [AddedToken("<tool_call>", normalized=False), AddedToken("</tool_call>", normalized=False)]
    )
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8)
    return tokenizer


def train_metaspace(corpus: list[str]) -> Tokenizer:
    """T5's kind: pieces of likelihood, words marked by ▁, the rest unknown."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=400, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHATS = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " 日本 👍🏽\n"}],
    [
        {"role": "user", "content": "1"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "naïve ▁▁. <tool_call>"},
    ],
]


def write_tokenizer_golden(tokenizer, model_dir: Path, out: Path) -> None:
    rng = random.Random(7)
    texts = hard_strings(2000)
    size = len(tokenizer)
    runs = []
    for _ in range(500):
        # Some runs keep to a small range of ids, where byte tokens are neighbours.
        low, high = rng.choice([(0, size + 20), (0, size + 20), (0, min(size, 300))])
        runs.append([rng.randrange(low, high) for _ in range(rng.randint(1, 60))])
    chats = []
    for messages in CHATS:
        ids = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False
        )
        chats.append({"messages": json.dumps(messages, ensure_ascii=False), "ids": ids})
    plain = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    golden = {
        "model_dir": str(model_dir),
        "texts": texts,
        "ids": plain,
        "ids_with_special": [tokenizer.encode(text) for text in texts],
        "decoded": [tokenizer.decode(ids, skip_special_tokens=True) for ids in plain],
        "runs": runs,
        "runs_decoded": [tokenizer.decode(run, skip_special_tokens=True) for run in runs],
        "chats": chats,
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "golden.json").write_text(json.dumps(golden), encoding="utf-8")


def write_tiny_tokenizers(out: Path) -> None:
    corpus = hard_strings(600)
    trained = {
        "byte_fallback": (
            train_byte_fallback(corpus),
            {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
        ),
        "byte_level": (
            train_byte_level(corpus),
            {"eos_token": "<|im_end|>", "bos_token": "<|endoftext|>"},
        ),
        "metaspace": (
            train_metaspace(corpus),
            {"eos_token": "</s>", "unk_token": "<unk>", "bos_token": "</s>"},
        ),
    }
    for name, (backend, special_tokens) in trained.items():
        folder = out / name
        saved = PreTrainedTokenizerFast(
            tokenizer_object=backend, chat_template=CHAT_TEMPLATE, **special_tokens
        )
        saved.save_pretrained(folder)
        backend.save(str(folder / "tokenizer.json"))  # as trained: truncation and padding too
        write_tokenizer_golden(AutoTokenizer.from_pretrained(folder), folder, folder)


def outcome(tokenizer, case: dict) -> dict:
    try:
        prompt = tokenizer.apply_chat_template(
            case["messages"],
            tools=case["tools"],
            tokenize=False,
            **{"add_generation_prompt": True, **case["kwargs"]},
        )
        return {"prompt": prompt}
    except jinja2.exceptions.TemplateError as error:
        if type(error) is jinja2.exceptions.TemplateError:  # what raise_exception raises
            return {"raised": str(error)}
        return {"failed": str(error)}
    except TypeError as error:
        return {"failed": str(error)}


def write_templates(out: Path) -> None:
    base = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "<unk>": 2}, unk_token="<unk>"))
    folders = out / "templates"
    shutil.rmtree(folders, ignore_errors=True)
    results = []
    for case in CASES:
        folder = folders / case["name"]
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=base,
            chat_template=case["template"],
            bos_token="<s>",
            eos_token=AddedToken("</s>", lstrip=True),
            unk_token="<unk>",
        )
        tokenizer.save_pretrained(folder, save_jinja_files=case["as_jinja_file"])
        loaded = AutoTokenizer.from_pretrained(folder)
        result = {
            "name": case["name"],
            "messages": json.dumps(case["messages"], ensure_ascii=False),
            "tools": "" if case["tools"] is None else json.dumps(case["tools"], ensure_ascii=False),
            "kwargs": json.dumps(case["kwargs"], ensure_ascii=False) if case["kwargs"] else "",
        }
        results.append(result | outcome(loaded, case))
    (out / "templates.json").write_text(json.dumps(results), encoding="utf-8")


def main() -> None:
    kind, out = sys.argv[1], Path(sys.argv[-1])
    if kind == "tiny":
        write_tiny_tokenizers(out / "tokenizers")
        write_templates(out)
        return
    model_dir = Path(sys.argv[2])
    if not (model_dir / "tokenizer.json").exists():
        sys.exit(f"{model_dir} holds no model: run scripts/prepare-model {kind}")
    write_tokenizer_golden(
        AutoTokenizer.from_pretrained(model_dir), model_dir, out / "tokenizers" / kind
    )


if __name__ == "__main__":
    main()
