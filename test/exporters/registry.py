"""registry.py - the list of networks that the generators of this folder export, filled by the modules torch_*.py."""

NETWORKS = {}


class Network:
    """make() returns the module. `inputs` are the arguments of forward() by name, `label` is the feature that the loss
    compares the first output with; `job` contains the keys of "model" that the recipe prints for such a network."""

    def __init__(self, name, make, inputs, label, loss="softmax_cross_entropy", recipe="torch", gentle=False, job=None,
                 pick=None):
        self.name, self.make, self.inputs, self.label, self.loss = name, make, inputs, label, loss
        self.recipe, self.job, self.pick = recipe, job or {}, pick
        self.optimizers = ("gentle_momentum", "gentle_adamw") if gentle else ("momentum", "adamw")


def network(inputs, label, **options):
    """Registers the decorated function, which builds a network, under its own name."""
    def add(make):
        name = options.pop("name", make.__name__)
        NETWORKS[name] = Network(name, make, inputs, label, **options)
        return make
    return add


BATCH_NORM = {"gentle": True, "job": {"batch_norm": "train"}}
