# Keras 3: tested with keras 3.15.1, jax 0.10.2, jax2onnx 0.17.1, onnx 1.23.2. Save as export.py, change the line "yours".
# The weights are inputs of the graph first and then its initializers, so they keep their paths as names.
import os; os.environ["KERAS_BACKEND"] = "jax"
import jax, json, keras, numpy, onnx
from jax2onnx import to_onnx

net = keras.models.load_model("net.keras")  # yours
n, weights = len(net.trainable_variables), [*net.trainable_variables, *net.non_trainable_variables]
x = jax.ShapeDtypeStruct(("batch", *net.inputs[0].shape[1:]), numpy.dtype(net.inputs[0].dtype))
model = to_onnx(lambda x, *w: net.stateless_call(w[:n], w[n:], x)[0], [x] + [w.value for w in weights],
                input_names=["x", *[w.path for w in weights]], output_names=["logits"])
model.graph.initializer.extend(onnx.numpy_helper.from_array(numpy.asarray(w), w.path) for w in weights)
del model.graph.input[1:]
onnx.save(model, "net.onnx")
print('for "model" in the job: "trainable":', json.dumps([w.path for w in weights[:n]]))
