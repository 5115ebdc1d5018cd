# SPDX-License-Identifier: Apache-2.0
"""The three models as transformers' LlamaForCausalLM: by shape with random weights, or with a GGUF file's; and back: a
file of bf16 for those who read nothing else.

GGUF keeps the rows of Wq and Wk so that a rotation's pairs are neighbours (2i, 2i + 1); transformers wants the halves
(i, i + D/2).
"""

from dataclasses import dataclass

import torch
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache
from transformers.initialization import no_init_weights

from . import gguf

EPS = 1e-5


@dataclass(frozen=True)
class Shape:
    """As in tools/bench_model_random.c."""

    name: str
    layers: int
    width: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool
    rope_base: float

    def config(self):
        return LlamaConfig(
            num_hidden_layers=self.layers,
            hidden_size=self.width,
            intermediate_size=self.hidden,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim,
            vocab_size=self.vocabulary,
            tie_word_embeddings=self.tied,
            rope_parameters={"rope_type": "default", "rope_theta": self.rope_base},
            rms_norm_eps=EPS,
            max_position_embeddings=8192,
            attn_implementation="sdpa",
        )

    def matrix_weights(self):
        """That a token's step reads: every product's, the last one's being the embedding's where that is tied."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        layer = self.width * (q + 2 * kv) + q * self.width + 3 * self.width * self.hidden
        return self.layers * layer + self.vocabulary * self.width

    def step_bytes(self, keys, width=2):
        """Least bytes of a step with that many keys in the cache: every weight and the keys and values, once."""
        return width * (self.matrix_weights() + 2 * self.layers * self.kv_heads * self.head_dim * keys)


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("smollm2-135m", 30, 576, 1536, 9, 3, 64, 49152, True, 100000.0),
        Shape("tinyllama-1.1b", 22, 2048, 5632, 32, 4, 64, 32000, False, 10000.0),
        Shape("llama-3.2-1b", 16, 2048, 8192, 32, 8, 64, 128256, True, 500000.0),
    )
}


def random_model(shape, device, dtype):
    torch.manual_seed(0)
    with torch.device(device):
        model = LlamaForCausalLM._from_config(shape.config(), dtype=dtype)
    return model.eval().requires_grad_(False)


def new_cache(model, length):
    """A static cache with its memory, as a graph needs it."""
    config, weight = model.config, model.lm_head.weight
    cache = StaticCache(config=config, max_cache_len=length)
    cache.early_initialization(1, config.num_key_value_heads, config.head_dim, weight.dtype, weight.device)
    return cache


# -------------------------------------------------------------------------------------------------------- from a file

LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def file_name(name):
    """The name in a GGUF file of a parameter of LlamaForCausalLM."""
    if name.startswith("model.layers."):
        number, _, rest = name.removeprefix("model.layers.").partition(".")
        return f"blk.{number}.{LAYER[rest.removesuffix('.weight')]}.weight"
    return {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }[name]


def heads_of(name, shape):
    """Heads of a matrix whose rows are rotated, else 0."""
    return shape.heads if "q_proj" in name else shape.kv_heads if "k_proj" in name else 0


def to_halves(matrix, heads):
    """Rows of pairs (2i, 2i + 1) to rows of halves (i, i + D/2), head by head."""
    return matrix.reshape(heads, -1, 2, matrix.shape[-1]).transpose(1, 2).reshape(matrix.shape)


def to_pairs(matrix, heads):
    return matrix.reshape(heads, 2, -1, matrix.shape[-1]).transpose(1, 2).reshape(matrix.shape)


def file_shape(file, name):
    """The shape that a file says it has."""
    keys = file.keys
    width, heads = keys["llama.embedding_length"], keys["llama.attention.head_count"]
    return Shape(
        name,
        keys["llama.block_count"],
        width,
        keys["llama.feed_forward_length"],
        heads,
        keys.get("llama.attention.head_count_kv", heads),
        keys.get("llama.attention.key_length", width // heads),
        file.tensors["token_embd.weight"].shape[0],
        "output.weight" not in file.tensors,
        keys.get("llama.rope.freq_base", 10000.0),
    )


def model_of_file(path, device, dtype, name="file"):
    """(shape, model) with the file's weights: blocks to fp32, then rounded to dtype once."""
    file = gguf.Reader(path)
    shape = file_shape(file, name)
    with torch.device(device), no_init_weights():
        model = LlamaForCausalLM._from_config(shape.config(), dtype=dtype)
    model.tie_weights()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():  # a tied lm_head is named once
            values = file.tensors[file_name(parameter_name)].values(device)
            heads = heads_of(parameter_name, shape)
            parameter.copy_(to_halves(values, heads) if heads else values)
    return shape, model.eval().requires_grad_(False)


def write_file(path, shape, model):
    """The model's weights as a GGUF file of bf16 (vectors fp32) without a vocabulary."""
    tensors = {}
    for name, parameter in model.named_parameters():
        heads = heads_of(name, shape)
        values = to_pairs(parameter, heads) if heads else parameter
        kind, dtype = (gguf.BF16, torch.bfloat16) if values.dim() == 2 else (gguf.F32, torch.float32)
        data = values.to(dtype).contiguous().view(torch.uint8).cpu().numpy().tobytes()
        tensors[file_name(name)] = (tuple(values.shape), kind, data)
    keys = {
        "general.architecture": "llama",
        "general.name": shape.name,
        "llama.block_count": shape.layers,
        "llama.embedding_length": shape.width,
        "llama.feed_forward_length": shape.hidden,
        "llama.attention.head_count": shape.heads,
        "llama.attention.head_count_kv": shape.kv_heads,
        "llama.attention.key_length": shape.head_dim,
        "llama.attention.value_length": shape.head_dim,
        "llama.attention.layer_norm_rms_epsilon": EPS,
        "llama.context_length": 8192,
        "llama.rope.dimension_count": shape.head_dim,
        "llama.rope.freq_base": shape.rope_base,
        "llama.vocab_size": shape.vocabulary,
        "tokenizer.ggml.model": "no_vocab",
    }
    gguf.write(path, keys, tensors)
