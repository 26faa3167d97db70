"""A byte-level tokenizer with chosen special tokens and template, small enough to write at each test."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}<|im_start|>system\nDefault.<|im_end|>\n"
    "{% endif %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = [("Ċ", "Ċ"), ("h", "i"), ("Ġ", "Ġ"), ("s", "e"), ("se", "r"), ("u", "ser"), ("|", ">")]


def write_tokenizer(
    directory: Path, template: str = CHATML, specials=SPECIALS, plain=(), rstrip: str = ""
) -> PreTrainedTokenizerFast:
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(a + b for a, b in MERGES)]
    tokenizer = Tokenizer(models.BPE(vocab={letter: n for n, letter in enumerate(letters)}, merges=MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(s, special=True, rstrip=s == rstrip) for s in specials])
    tokenizer.add_tokens([AddedToken(p, special=False) for p in plain])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=specials[-1], pad_token=specials[0])
    fast.chat_template = template
    directory.mkdir(parents=True, exist_ok=True)
    fast.save_pretrained(directory)
    (directory / "config.json").write_text(
        json.dumps({"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 512, "eos_token_id": 258})
    )
    return fast
