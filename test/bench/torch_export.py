"""torch_export.py - exports a network of torch_nets.py to an ONNX file with PyTorch's exporter.

    torch_export.py NET KEYS FILE    KEYS: a JSON object, as in torch_nets.py

Works with PyTorch 1.13 and 2: uses the exporter that both have, which keeps training ops and the names of parameters.
Networks of transformers require the newer exporter."""
import inspect
import json
import sys
import warnings

import torch

from torch_nets import NETS


def example(name, keys):
    """Returns the inputs of two samples by name."""
    if name == "gpt2":
        return {"ids": torch.zeros(2, keys["sequence"], dtype=torch.int64)}
    size = keys.get("size", 224)
    return {"x": torch.rand(2, 3, size, size)}


def main():
    name, keys, path = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
    warnings.simplefilter("ignore")
    if name.startswith("transformers_"):
        import torch_language

        torch_language.export(name, keys, path)
        return
    torch.manual_seed(1)
    inputs = example(name, keys)
    more = {"dynamo": False} if "dynamo" in inspect.signature(torch.onnx.export).parameters else {}
    torch.onnx.export(NETS[name](keys).train(), tuple(inputs.values()), path, input_names=list(inputs),
                      output_names=["logits"], training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False,
                      dynamic_axes={n: {0: "batch"} for n in [*inputs, "logits"]}, opset_version=17, **more)


main()
