"""nets.py - the networks of test_networks.py at a reduced size, and the data they train on.

Both sides use these definitions: make_networks.py (PyTorch) and make_keras.py (TensorFlow) export the networks and record the
losses, test_networks.py writes the same samples as TFRecord and trains with trainerd.
"""
import numpy as np

SAMPLES, BATCH, STEPS = 64, 16, 50

# name: (features {name: (kind, shape, below)}, labels (shape, classes), optimizer); a feature feeds the input of its name
NETWORKS = {
    "lenet": ({"x": ("float", (1, 28, 28), 0)}, ((), 10), "sgd"),
    "resnet18": ({"x": ("float", (3, 32, 32), 0)}, ((), 10), "gentle"),
    "resnet50": ({"x": ("float", (3, 48, 48), 0)}, ((), 10), "gentle"),
    "mobilenet_v2": ({"x": ("float", (3, 32, 32), 0)}, ((), 10), "gentle"),
    "vgg": ({"x": ("float", (3, 16, 16), 0)}, ((), 10), "sgd"),
    "unet": ({"x": ("float", (3, 16, 16), 0)}, ((16, 16), 3), "sgd"),
    "fpn": ({"x": ("float", (3, 16, 16), 0)}, ((16, 16), 3), "sgd"),
    "vit": ({"x": ("float", (3, 16, 16), 0)}, ((), 10), "adam"),
    "bert": ({"x": ("int", (12,), 50)}, ((), 4), "adam"),
    "gpt2": ({"x": ("int", (16,), 40)}, ((16,), 40), "adam"),
    "decoder": ({"x": ("int", (72,), 40)}, ((72,), 40), "adam"),
    "lstm": ({"x": ("int", (12,), 30)}, ((12,), 30), "adam"),
    "keras_cnn": ({"x": ("float", (15, 15, 3), 0)}, ((), 10), "sgd"),
    "keras_mixer": ({"x": ("float", (8, 8, 3), 0)}, ((), 10), "sgd"),
    "keras_lstm": ({"x": ("int", (12,), 30)}, ((12,), 30), "brisk"),
    "dlrm": ({"dense": ("float", (5,), 0), "sparse": ("int", (4,), 20)}, ((), 2), "sgd"),
}
OPTIMIZERS = {
    "sgd": {"type": "momentum", "learning_rate": 0.005, "momentum": 0.9},
    "gentle": {"type": "momentum", "learning_rate": 0.0002, "momentum": 0.9},  # many norms over few values: chaos
    "brisk": {"type": "momentum", "learning_rate": 0.1, "momentum": 0.9},
    "adam": {"type": "adam", "learning_rate": 0.0005},
}


def samples(name):
    """[(features, label)] with NumPy arrays: float32, normally distributed; int64 below a limit."""
    features, (label_shape, classes), _ = NETWORKS[name]
    out = []
    for i in range(SAMPLES):
        random = np.random.RandomState(1000 + i)  # the legacy generator: its stream is frozen
        one = {k: (random.randint(0, below, shape) if kind == "int" else random.standard_normal(shape).astype(np.float32))
               for k, (kind, shape, below) in sorted(features.items())}
        out.append((one, np.asarray(random.randint(0, classes, label_shape))))
    return out
