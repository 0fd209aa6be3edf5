"""Makes a Llama of 1.5 MB and two LoRA adapters, all of random numbers, always the same.

What it says is noise, with broken UTF-8 now and then; everything around it is as with a real model:
tokens, chat template, adapters that change the answer, a KV cache that fills.

    mkmodel.py FOLDER    makes base/, sql-lora/ and chat-lora/ there
"""

import json
import pathlib
import random
import sys

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

TOKENS = 1024
CONTEXT = 2048
LAYERS = 2
WIDTH = 64
HEADS = 2
HEAD_WIDTH = 32
INNER = 128
RANK = 8
SPECIAL = ["<|pad|>", "<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]

TEMPLATE = """\
{{- '<|begin|>' -}}
{%- for message in messages -%}
{{- '<|' + message['role'] + '|>' -}}
{%- if message['content'] is string -%}{{- message['content'] -}}
{%- else -%}{%- for part in message['content'] -%}{{- part['text'] -}}{%- endfor -%}
{%- endif -%}
{{- '<|end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}
"""


def main(folder: pathlib.Path) -> None:
    base = folder / "base"
    base.mkdir(parents=True, exist_ok=True)
    tokens = tokenizer(base)
    model(base, tokens)
    for seed, name in enumerate(["sql-lora", "chat-lora"], start=100):
        adapter(folder / name, seed)


def tokenizer(base: pathlib.Path) -> int:
    """A byte-level BPE, trained on words put together from syllables. Returns its size."""
    rng = random.Random(1)
    syllables = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(1500)]
    lines = [" ".join(rng.choices(words, k=30)).capitalize() + "." for _ in range(1000)]
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        lines,
        trainers.BpeTrainer(
            vocab_size=TOKENS,
            special_tokens=SPECIAL,
            initial_alphabet=alphabet,
            show_progress=False,
        ),
    )
    made.save(str(base / "tokenizer.json"))
    write(
        base / "tokenizer_config.json",
        tokenizer_class="PreTrainedTokenizerFast",
        pad_token=SPECIAL[0],
        bos_token=SPECIAL[1],
        eos_token=SPECIAL[2],
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
        chat_template=TEMPLATE,
    )
    return made.get_vocab_size()


def model(base: pathlib.Path, tokens: int) -> None:
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    write(base / "generation_config.json", **ids)
    write(
        base / "config.json",
        architectures=["LlamaForCausalLM"],
        model_type="llama",
        vocab_size=tokens,
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=1,
        head_dim=HEAD_WIDTH,
        hidden_act="silu",
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        tie_word_embeddings=False,
        attention_bias=False,
        mlp_bias=False,
        torch_dtype="float32",
        **ids,
    )
    draw = Draw(seed=1)
    weights = {
        "model.embed_tokens.weight": draw(tokens, WIDTH, spread=1.0),
        "model.norm.weight": torch.ones(WIDTH),
        "lm_head.weight": draw(tokens, WIDTH),
    }
    shapes = {
        "self_attn.q_proj": (HEADS * HEAD_WIDTH, WIDTH),
        "self_attn.k_proj": (HEAD_WIDTH, WIDTH),
        "self_attn.v_proj": (HEAD_WIDTH, WIDTH),
        "self_attn.o_proj": (WIDTH, HEADS * HEAD_WIDTH),
        "mlp.gate_proj": (INNER, WIDTH),
        "mlp.up_proj": (INNER, WIDTH),
        "mlp.down_proj": (WIDTH, INNER),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for name, shape in shapes.items():
            weights[f"{at}{name}.weight"] = draw(*shape)
        for name in ["input_layernorm", "post_attention_layernorm"]:
            weights[f"{at}{name}.weight"] = torch.ones(WIDTH)
    save_file(weights, base / "model.safetensors", metadata={"format": "pt"})


def adapter(folder: pathlib.Path, seed: int) -> None:
    """In the layout of PEFT, on the query and value projections."""
    folder.mkdir(exist_ok=True)
    draw = Draw(seed)
    weights = {}
    for layer in range(LAYERS):
        for name, rows in [("q_proj", HEADS * HEAD_WIDTH), ("v_proj", HEAD_WIDTH)]:
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}."
            weights[f"{at}lora_A.weight"] = draw(RANK, WIDTH)
            weights[f"{at}lora_B.weight"] = draw(rows, RANK)
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    write(
        folder / "adapter_config.json",
        peft_type="LORA",
        task_type="CAUSAL_LM",
        base_model_name_or_path="base",
        r=RANK,
        lora_alpha=2 * RANK,
        lora_dropout=0.0,
        bias="none",
        target_modules=["q_proj", "v_proj"],
        fan_in_fan_out=False,
        inference_mode=True,
    )


class Draw:
    """Random tensors, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int, spread: float = 0.2) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator) * spread


def write(file: pathlib.Path, **content) -> None:
    file.write_text(json.dumps(content, indent=1) + "\n")


main(pathlib.Path(sys.argv[1]))
