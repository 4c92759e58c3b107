# JAX: tested with jax 0.10.2, flax 0.12.8 (nnx), jax2onnx 0.17.1. Save as export.py, change the lines "yours".
# The weights are inputs of the graph first and then its initializers, so they keep their paths as names.
import jax, json, numpy, onnx; from flax import nnx
from jax2onnx import to_onnx
net, x = nnx.Linear(784, 10, rngs=nnx.Rngs(0)), jax.ShapeDtypeStruct(("batch", 784), numpy.float32)  # yours
net = nnx.view(net, deterministic=True, use_running_average=True, raise_if_not_found=False)
graph, weights, rest = nnx.split(net, (nnx.Param, nnx.BatchStat), ...)
leaves, tree = jax.tree_util.tree_flatten_with_path(weights)
name_of = lambda path: jax.tree_util.keystr(path, simple=True, separator=".").removesuffix(".value")
flat = {name_of(path): w for path, w in leaves}
model = to_onnx(lambda x, *w: nnx.merge(graph, jax.tree.unflatten(tree, w), rest)(x), [x, *flat.values()],
                input_names=["x", *flat], output_names=["logits"])
model.graph.initializer.extend(onnx.numpy_helper.from_array(numpy.asarray(w), name) for name, w in flat.items())
del model.graph.input[1:]; onnx.save(model, "net.onnx")
print('"trainable":', json.dumps([name_of(p) for p, w in jax.tree_util.tree_leaves_with_path(nnx.state(net, nnx.Param))]))
