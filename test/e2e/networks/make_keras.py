#!/usr/bin/env python3
"""Writes keras_<name>.onnx and their part of losses.json: networks of nets.py made with Keras, exported by tf2onnx, and the
losses that TensorFlow computes.

Needs TensorFlow and tf2onnx (2.21 and 1.17: pip install tensorflow-cpu tf2onnx); its output is committed. tf2onnx changes a
network that will be trained: every variable becomes a constant with its current value, and a bias of zeros or a scale
of ones is removed, so all variables are initialized with random numbers here. Other constants become initializers too; the form
of the graph distinguishes them from parameters. Batch normalization with training=True becomes arithmetic on the batch. The bias
of an LSTM would be exported as two biases that are both trained, so it is omitted.
"""
import json
import os

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="", TF_ENABLE_ONEDNN_OPTS="0")

import keras
import numpy as np
import onnx
import tensorflow as tf
import tf2onnx
from keras import layers as L

from nets import BATCH, NETWORKS, OPTIMIZERS, SAMPLES, STEPS, samples

HERE = os.path.dirname(os.path.abspath(__file__))


def some(mean=0.0):
    return keras.initializers.RandomNormal(mean, 0.1)


def norm():
    return L.BatchNormalization(gamma_initializer=some(1.0), beta_initializer=some())


def cnn():
    x = keras.Input((15, 15, 3))
    h = L.Conv2D(8, 3, strides=2, padding="same", bias_initializer=some())(x)
    h = L.ReLU(max_value=6.0)(norm()(h))
    h = L.ReLU()(norm()(L.Conv2D(12, 4, padding="same", use_bias=False)(h)))
    h = L.MaxPooling2D(3, 2, padding="same")(h)
    a = L.DepthwiseConv2D(3, padding="same", bias_initializer=some())(h)
    a = L.AveragePooling2D(3, 2, padding="same")(L.UpSampling2D(2, interpolation="bilinear")(a))
    h = L.Activation("swish")(L.Add()([h, a]))
    h = L.LeakyReLU()(L.Conv2DTranspose(6, 3, strides=2, padding="same", bias_initializer=some())(h))
    h = L.Concatenate()([L.GlobalAveragePooling2D()(h), L.Flatten()(L.MaxPooling2D(4)(h))])
    return keras.Model(x, L.Dense(10, bias_initializer=some())(h))


def mixer():
    x = keras.Input((8, 8, 3))
    h = L.SeparableConv2D(8, 3, padding="same", bias_initializer=some())(L.ZeroPadding2D(((0, 1), (2, 1)))(x))
    h = keras.ops.gelu(L.LayerNormalization(gamma_initializer=some(1.0), beta_initializer=some())(h), approximate=True)
    h = h + L.Conv1D(8, 3, padding="same", activation="tanh", bias_initializer=some())(L.Reshape((-1, 8))(h[:, :8, :8]))[:, None, :11]
    return keras.Model(x, L.Dense(10, bias_initializer=some())(L.Flatten()(L.AveragePooling2D(2)(h))))


def lstm():
    x = keras.Input((12,), dtype="int64")
    h = L.LSTM(16, return_sequences=True, use_bias=False)(L.Embedding(30, 12)(x))
    return keras.Model(x, L.Permute((2, 1))(L.Dense(30, bias_initializer=some())(h)))


MAKE = {"keras_cnn": (cnn, True), "keras_mixer": (mixer, False), "keras_lstm": (lstm, True)}


def name_numbers(graph):
    """Constants of one number get names that nets.py can freeze: those of tf2onnx differ from run to run."""
    alone = {t.name for t in graph.initializer if t.data_type == onnx.TensorProto.FLOAT and int(np.prod(t.dims)) == 1}
    new = {old: "number/%d" % k for k, old in enumerate(sorted(alone))}
    for t in graph.initializer:
        t.name = new.get(t.name, t.name)
    for node in graph.node:
        node.input[:] = [new.get(k, k) for k in node.input]


def export(name, net, training):
    kind, shape, _ = NETWORKS[name][0]["x"]
    spec = [tf.TensorSpec((None, *shape), tf.int64 if kind == "int" else tf.float32, name="x")]
    call = tf.function(lambda x: {"logits": net(x, training=training)}, input_signature=spec)
    model, _ = tf2onnx.convert.from_function(call, input_signature=spec, opset=17)
    name_numbers(model.graph)
    onnx.save(model, os.path.join(HERE, name + ".onnx"))


def train(name, net, training):
    o = OPTIMIZERS[NETWORKS[name][2]]
    assert o["type"] == "momentum"
    optimizer = keras.optimizers.SGD(o["learning_rate"], o["momentum"])
    data = samples(name)
    x, labels = np.stack([s["x"] for s, _ in data]), np.stack([label for _, label in data])
    weights = net.trainable_variables
    losses = []
    for k in range(STEPS):
        at = slice(k * BATCH % SAMPLES, k * BATCH % SAMPLES + BATCH)
        with tf.GradientTape() as tape:
            logits = net(x[at], training=training)
            if labels.ndim > 1:
                logits = tf.transpose(logits, (0, 2, 1))
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels[at], logits))
        optimizer.apply(tape.gradient(loss, weights), weights)
        losses.append(float(loss))
    return losses


def main():
    path = os.path.join(HERE, "losses.json")
    with open(path) as f:
        losses = json.load(f)
    for name, (make, training) in MAKE.items():
        keras.utils.set_random_seed(7)
        net = make()
        export(name, net, training)
        losses[name] = train(name, net, training)
        print(name, losses[name][0], losses[name][-1])
    with open(path, "w") as f:
        json.dump(losses, f, indent=0)
        f.write("\n")


main()
