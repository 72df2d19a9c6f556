# SPDX-License-Identifier: Apache-2.0
"""Makes a model that a server can load, with random weights from a seed.

    model.py FOLDER mha|mla|wide SEED     runs with the Python of tests/sglang, which has torch

The weights are large enough that attention is sharp: another K or V of one token changes the
answer. They are stored as bfloat16, as those of a served model are.
"""

import json
import os
import sys

import torch
from safetensors.torch import save_file

HIDDEN, LAYERS, HEADS, INTERMEDIATE, VOCABULARY = 512, 4, 8, 1024, 1024
# "wide", for perf/served.py, has a long prefill. Attention over 1,500 tokens is 3% of its
# multiplications, as in Llama 3 70B.
WIDE_INTERMEDIATE, WIDE_HEADS = 8192, 2
COMMON = {"hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE, "num_hidden_layers": LAYERS,
          "num_attention_heads": HEADS, "vocab_size": VOCABULARY, "max_position_embeddings": 8192,
          "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
          "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 1,
          "eos_token_id": 2}
HEAD = HIDDEN // HEADS
KV_HEADS = 2
LATENT, ROPE, NOPE = 128, 32, 64  # of MLA: bytes of a token come from the first two
CONFIG = {
    "mha": {"architectures": ["LlamaForCausalLM"], "model_type": "llama",
            "num_key_value_heads": KV_HEADS},
    "mla": {"architectures": ["MiniCPM3ForCausalLM"], "model_type": "minicpm3",
            "num_key_value_heads": HEADS, "q_lora_rank": None, "kv_lora_rank": LATENT,
            "qk_rope_head_dim": ROPE, "qk_nope_head_dim": NOPE, "v_head_dim": NOPE,
            "scale_emb": 1, "scale_depth": LAYERS ** 0.5, "dim_model_base": HIDDEN},
}
CONFIG["wide"] = {**CONFIG["mha"], "intermediate_size": WIDE_INTERMEDIATE,
                  "num_attention_heads": WIDE_HEADS, "head_dim": HEAD}


def attention(kind):
    """Yields name, rows and columns of the matrices of a layer's attention."""
    if kind != "mla":
        heads = CONFIG[kind].get("num_attention_heads", HEADS)
        yield "q_proj", heads * HEAD, HIDDEN
        yield "k_proj", KV_HEADS * HEAD, HIDDEN
        yield "v_proj", KV_HEADS * HEAD, HIDDEN
        yield "o_proj", HIDDEN, heads * HEAD
    else:
        yield "q_proj", HEADS * (NOPE + ROPE), HIDDEN
        yield "kv_a_proj_with_mqa", LATENT + ROPE, HIDDEN
        yield "kv_b_proj", HEADS * 2 * NOPE, LATENT
        yield "o_proj", HIDDEN, HEADS * NOPE


def weights(kind, seed):
    """The model's tensors by name."""
    generator = torch.Generator().manual_seed(seed)
    made = {}

    def matrix(name, rows, columns, scale):
        values = torch.randn(rows, columns, generator=generator) * scale
        made[name + ".weight"] = values.to(torch.bfloat16)

    def norm(name, size):
        made[name + ".weight"] = torch.ones(size, dtype=torch.bfloat16)

    matrix("model.embed_tokens", VOCABULARY, HIDDEN, 1)
    matrix("lm_head", VOCABULARY, HIDDEN, 2 * HIDDEN ** -0.5)
    norm("model.norm", HIDDEN)
    intermediate = CONFIG[kind].get("intermediate_size", INTERMEDIATE)
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for name, rows, columns in attention(kind):
            matrix(prefix + "self_attn." + name, rows, columns, 1.5 * columns ** -0.5)
        if kind == "mla":
            norm(prefix + "self_attn.kv_a_layernorm", LATENT)
        for name, rows, columns in (("gate_proj", intermediate, HIDDEN),
                                    ("up_proj", intermediate, HIDDEN),
                                    ("down_proj", HIDDEN, intermediate)):
            matrix(prefix + "mlp." + name, rows, columns, columns ** -0.5)
        norm(prefix + "input_layernorm", HIDDEN)
        norm(prefix + "post_attention_layernorm", HIDDEN)
    return made


def make(folder, kind, seed):
    os.makedirs(folder)
    with open(os.path.join(folder, "config.json"), "w", encoding="ascii") as file:
        json.dump({**COMMON, **CONFIG[kind]}, file)
    save_file(weights(kind, seed), os.path.join(folder, "model.safetensors"),
              metadata={"format": "pt"})


if __name__ == "__main__":
    make(sys.argv[1], sys.argv[2], int(sys.argv[3]))
