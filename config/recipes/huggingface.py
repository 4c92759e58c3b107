# transformers: tested with transformers 5.23.0, torch 2.15.0, onnx 1.23.2, onnxscript 0.7.2. Save as export.py.
# Lines that end in "yours" are the ones to change. The network is exported as it is, not inside a wrapper, so that
# parameters keep the names that from_pretrained() reads; the loss is computed by the job from the logits.
import json, torch
from transformers import AutoModelForCausalLM
net = AutoModelForCausalLM.from_pretrained("gpt2", dtype=torch.float32)  # yours
inputs = {"input_ids": torch.ones(2, 1024, dtype=torch.int64)}  # a batch of two, as long as the texts: yours
for m in net.modules():  # a decoder may have its own copy of the configuration
    if hasattr(getattr(m, "config", None), "use_cache"): m.config.use_cache = False
torch.onnx.export(
    net.train(), (), "net.onnx", kwargs=inputs, input_names=list(inputs), output_names=["logits"],
    dynamic_shapes={name: {0: "batch"} for name in inputs}, dynamo=True, optimize=False, external_data=False)
last = {t: name for name, t in net.state_dict(keep_vars=True).items()}  # the name in the file, if there are several
print('"frozen":', json.dumps([name for name, p in net.named_parameters() if not p.requires_grad]))  # lines for "model"
print('"tied":', json.dumps({name: last[t] for name, t in net.state_dict(keep_vars=True).items() if name != last[t]}))
