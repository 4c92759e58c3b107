"""keras_networks.py - networks of Keras 3; generate_keras.py saves them once, and each backend exports the same file. No exact GELU: TensorFlow
computes it with an Erfc that tf2onnx copies into the file, and ONNX has no such op."""
import keras
from keras import layers as L

from spec import floats, integers


def mlp():
    x = keras.Input((6,), name="x")
    h = L.Dense(16, activation="tanh")(L.Dense(16, activation="relu")(x))
    return keras.Model(x, L.Dense(5)(h))


def cnn():
    x = keras.Input((12, 12, 3), name="x")
    h = L.LayerNormalization()(L.Conv2D(8, 3, strides=2, padding="same")(x))
    h = h + keras.ops.gelu(L.DepthwiseConv2D(3, padding="same")(h), approximate=True)
    h = L.MaxPooling2D(2)(L.Conv2D(12, 1, activation="swish")(h))
    return keras.Model(x, L.Dense(5)(L.GlobalAveragePooling2D()(h)))


def batch_norm():
    x = keras.Input((12, 12, 3), name="x")
    h = L.ReLU()(L.BatchNormalization()(L.Conv2D(8, 3, padding="same")(x)))
    h = L.ReLU()(L.BatchNormalization()(L.Conv2D(8, 3, use_bias=False)(h)))
    return keras.Model(x, L.Dense(5)(L.GlobalAveragePooling2D()(h)))


def transformer():
    x = keras.Input((8,), name="x", dtype="int32")
    h = L.Embedding(20, 16)(x)
    n = L.LayerNormalization()(h)
    h = h + L.MultiHeadAttention(4, 4)(n, n, use_causal_mask=True)
    h = h + L.Dense(16)(L.Dense(24, activation="silu")(L.LayerNormalization()(h)))
    return keras.Model(x, L.Dense(20)(L.LayerNormalization()(h)))


def lstm():
    x = keras.Input((8,), name="x", dtype="int32")
    return keras.Model(x, L.Dense(20)(L.LSTM(12, return_sequences=True)(L.Embedding(20, 8)(x))))


TOKENS = ({"x": integers(8, below=20)}, integers(8, below=20))
NETWORKS = {  # name: (make, inputs, label, keys of the job's "model")
    "keras_mlp": (mlp, {"x": floats(6)}, integers(below=5), {}),
    "keras_cnn": (cnn, {"x": floats(12, 12, 3)}, integers(below=5), {}),
    "keras_batch_norm": (batch_norm, {"x": floats(12, 12, 3)}, integers(below=5), {"batch_norm": "train"}),
    "keras_transformer": (transformer, *TOKENS, {}),
    "keras_lstm": (lstm, *TOKENS, {}),
}
