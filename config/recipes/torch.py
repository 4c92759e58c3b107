# PyTorch: tested with torch 2.15.0, onnx 1.23.2, onnxscript 0.7.2, torchvision 0.29.2, timm 1.0.31. Save as export.py.
# Lines that end in "yours" are the ones to change. A network with BatchNorm layers needs "batch_norm": "train" in the
# job's "model"; forward() must return the scores, not the loss.
import json, torch
import torchvision  # yours

net = torchvision.models.resnet18(num_classes=10)  # yours
inputs = {"x": torch.rand(2, 3, 224, 224)}  # names for the arguments of forward(), a batch of two: yours
outputs = ["logits"]  # yours
torch.onnx.export(
    net.train(), tuple(inputs.values()), "net.onnx", input_names=list(inputs), output_names=outputs,
    dynamic_shapes=tuple({0: "batch"} for _ in inputs), dynamo=True, optimize=False, external_data=False)
last = {t: name for name, t in net.state_dict(keep_vars=True).items()}  # the name in the file, if there are several
print('"frozen":', json.dumps([name for name, p in net.named_parameters() if not p.requires_grad]))  # lines for "model"
print('"tied":', json.dumps({name: last[t] for name, t in net.state_dict(keep_vars=True).items() if name != last[t]}))
