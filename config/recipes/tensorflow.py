# TensorFlow: tested with tensorflow 2.21.0, keras 3.15.1, tf2onnx 1.17.0. Save as export.py, change the line "yours".
# The weights are inputs of the graph first and then its initializers, so they keep their paths as names.
import json, keras, onnx, tensorflow as tf, tf2onnx

net = keras.models.load_model("net.keras")  # yours
n, weights = len(net.trainable_variables), [*net.trainable_variables, *net.non_trainable_variables]
spec = [tf.TensorSpec(net.inputs[0].shape, net.inputs[0].dtype, "x")] + [tf.TensorSpec(w.shape, w.dtype) for w in weights]
call = tf.function(lambda x, *w: {"logits": net.stateless_call(w[:n], w[n:], x)[0]})
model, _ = tf2onnx.convert.from_function(call, spec, opset=18)
names = {value.name: w.path for value, w in zip(list(model.graph.input)[1:], weights)}
for node in model.graph.node:
    node.input[:] = [names.get(name, name) for name in node.input]
model.graph.initializer.extend(onnx.numpy_helper.from_array(w.numpy(), w.path) for w in weights)
del model.graph.input[1:]
onnx.save(model, "net.onnx"); print('for "model" in the job: "trainable":', json.dumps([w.path for w in weights[:n]]))
