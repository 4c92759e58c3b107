"""data.py - the samples and jobs of test_forms.py, which make_forms.py shares."""
import numpy as np

BATCH, STEPS, ROWS = 8, 30, 20

ADAMW = {"type": "adamw", "learning_rate": 0.01, "weight_decay": 0.2, "epsilon": 1e-4}
MOMENTUM = {"type": "momentum", "learning_rate": 0.01, "momentum": 0.9, "weight_decay": 0.01}
JOBS = {
    "train_adamw": {"model": {"batch_norm": "train"}, "optimizer": ADAMW},
    "train_clipped": {"model": {"batch_norm": "train"}, "optimizer": {"type": "sgd", "learning_rate": 0.2}, "clip_norm": 0.05},
    "frozen_momentum": {"model": {"batch_norm": "frozen"}, "optimizer": MOMENTUM},
    "frozen_adamw": {"model": {"batch_norm": "frozen"}, "optimizer": ADAMW},
    "rows_adamw": {"model": {"batch_norm": "train", "frozen_rows": {"words.weight": [0, 7, 8], "fc.weight": [5]}},
                   "optimizer": ADAMW, "clip_norm": 0.1},
    "rows_momentum": {"model": {"batch_norm": "frozen", "frozen_rows": {"words.weight": [3, 19], "tied.weight": [0, 4]}},
                      "optimizer": MOMENTUM, "clip_norm": 0.05},
}


def samples():
    out = []
    for i in range(32):
        random = np.random.RandomState(i)
        x = random.randint(0, ROWS, 5)
        x[random.randint(0, 5, 2)] = 0
        out.append({"x": x.astype(np.int64), "kind": np.int64(random.randint(0, 5)), "label": np.int64(random.randint(0, 5))})
    return out
