"""torch_language.py - language models from the classes of transformers: the networks `transformers_*` of torch_nets.py.
The weights are random; nothing is downloaded."""
import os

os.environ["HF_HUB_OFFLINE"] = "1"

import torch  # noqa: E402
import transformers as tf  # noqa: E402


def llama(keys):
    return tf.LlamaForCausalLM(tf.LlamaConfig(
        vocab_size=keys["vocabulary"], hidden_size=keys["width"], intermediate_size=keys["hidden"],
        num_hidden_layers=keys["layers"], num_attention_heads=keys["heads"], num_key_value_heads=keys["kv_heads"],
        max_position_embeddings=keys["sequence"], use_cache=False))


def gpt2(keys):
    return tf.GPT2LMHeadModel(tf.GPT2Config(
        vocab_size=keys["vocabulary"], n_embd=keys.get("width", 768), n_layer=keys.get("layers", 12),
        n_head=keys.get("heads", 12), n_positions=keys["context"], use_cache=False, resid_pdrop=0, embd_pdrop=0,
        attn_pdrop=0))


class Logits(torch.nn.Module):
    """Returns one tensor instead of the result object of transformers."""

    def __init__(self, model):
        super().__init__()
        self.m = model

    def forward(self, ids):
        return self.m(input_ids=ids).logits


def make(name, keys):
    return Logits({"transformers_llama": llama, "transformers_gpt2": gpt2}[name](keys))


def export(name, keys, path):
    """Exports a model like `trainerctl recipe huggingface`."""
    torch.manual_seed(1)
    ids = torch.zeros(2, keys["sequence"], dtype=torch.int64)
    torch.onnx.export(make(name, keys).train(), (ids,), path, dynamo=True, optimize=False, input_names=["ids"],
                      output_names=["logits"], dynamic_shapes=({0: torch.export.Dim("batch")},), verbose=False)
