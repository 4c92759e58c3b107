#!/usr/bin/env python3
"""make_current.py - the language models of test_fuse_networks.c: transformers' own classes, small and with random
weights, as PyTorch's exporter writes them, and what PyTorch computes for them.

    python3 test/graph/make_current.py        needs torch, transformers, onnx; the files are committed

Written by torch 2.15.0, transformers 5.23.0, onnx 1.23.2. NAME.onnx: exported with optimize=False (recipe) or, for
NAME_default, as is; descriptions and metadata are removed, which halves the size. NAME.txt: the sum of all logits for
the tokens of tokens(), and for the gradient of each parameter its norm and its product with weights()."""
import os
import sys
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
warnings.filterwarnings("ignore")

import numpy as np  # noqa: E402
import onnx  # noqa: E402
import torch  # noqa: E402
import transformers as tf  # noqa: E402

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "current")
BATCH, LENGTH, WORDS = 2, 64, 32
DECODER = dict(vocab_size=WORDS, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
               num_key_value_heads=2, max_position_embeddings=LENGTH, use_cache=False)


def networks():
    few = {k: v for k, v in DECODER.items() if k not in ("num_key_value_heads", "use_cache")}
    return {
        "llama": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**DECODER)),
        "mistral": lambda: tf.MistralForCausalLM(tf.MistralConfig(sliding_window=20, **DECODER)),
        "qwen3": lambda: tf.Qwen3ForCausalLM(tf.Qwen3Config(head_dim=4, **DECODER)),
        "gemma2": lambda: tf.Gemma2ForCausalLM(tf.Gemma2Config(
            head_dim=4, sliding_window=20, attn_implementation="eager", pad_token_id=None, **DECODER)),
        "gpt2": lambda: tf.GPT2LMHeadModel(tf.GPT2Config(
            vocab_size=WORDS, n_embd=16, n_layer=2, n_head=4, n_positions=LENGTH, use_cache=False, resid_pdrop=0,
            embd_pdrop=0, attn_pdrop=0)),
        "bert_padded": lambda: tf.BertForMaskedLM(tf.BertConfig(
            hidden_dropout_prob=0, attention_probs_dropout_prob=0, pad_token_id=None, **few)),
    }


class Logits(torch.nn.Module):
    """Replaces the result object of transformers by one tensor."""

    def __init__(self, model):
        super().__init__()
        self.m = model

    def forward(self, ids, mask=None):
        return self.m(input_ids=ids, attention_mask=mask).logits


def tokens():
    at = np.arange(LENGTH)
    return torch.from_numpy(np.stack([(7 * b + 3 * at + at * at // 5) % WORDS for b in range(BATCH)]))


def mask():
    """The last tokens of each sample are padding: 3 of the first, 10 of the second."""
    return torch.from_numpy((np.arange(LENGTH)[None] < LENGTH - 3 - 7 * np.arange(BATCH)[:, None]).astype(np.int64))


def weights(n):
    return torch.from_numpy((np.arange(n) * 37 % 61 - 30) / 16)


def clear(graph):
    """Removes descriptions and metadata, which do not affect the computation."""
    for part in (graph, *graph.node, *graph.value_info, *graph.initializer, *graph.input, *graph.output):
        part.doc_string = ""
        if hasattr(part, "metadata_props"):
            del part.metadata_props[:]
    del graph.value_info[:]


def export(module, inputs, path, optimize):
    batch = torch.export.Dim("batch")
    names = ["ids", "mask"][:len(inputs)]
    program = torch.onnx.export(module, inputs, None, dynamo=True, optimize=optimize, input_names=names,
                                output_names=["logits"], dynamic_shapes=tuple({0: batch} for _ in inputs), verbose=False)
    program.save(path)
    model = onnx.load(path)
    clear(model.graph)
    for function in model.functions:
        function.doc_string = ""
        del function.metadata_props[:]
    del model.metadata_props[:]
    for data in (path + ".data",):
        if os.path.exists(data):
            os.remove(data)
    onnx.save(model, path)


def reference(module, inputs, path):
    loss = module(*inputs).double().sum()
    loss.backward()
    with open(path, "w") as f:
        print("loss %.9g" % loss.item(), file=f)
        for name, p in module.named_parameters(remove_duplicate=False):
            g = p.grad.flatten().double()
            print("%s %.9g %.9g" % (name, g.norm().item(), (g * weights(len(g))).sum().item()), file=f)


def main():
    os.makedirs(FOLDER, exist_ok=True)
    for name, make in networks().items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        torch.manual_seed(1)
        module = Logits(make()).train()
        with torch.no_grad():
            for p in module.parameters():
                if p.dim() == 1:  # norms and biases: no value may be 0 or 1
                    p.add_(0.1 * torch.rand_like(p))
        inputs = (tokens(), mask()) if name.endswith("padded") else (tokens(),)
        export(module, inputs, os.path.join(FOLDER, name + ".onnx"), False)
        if name in ("llama", "gpt2"):
            export(module, inputs, os.path.join(FOLDER, name + "_default.onnx"), True)
        reference(module, inputs, os.path.join(FOLDER, name + ".txt"))
        print(name)


main()
