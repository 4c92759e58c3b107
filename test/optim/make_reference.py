#!/usr/bin/env python3
"""Prints reference.h: what PyTorch's optimizers and schedulers compute (and, for lars, lamb and
lion, the formulas of the papers in float64), for the tests to compare.

    /usr/bin/python3 test/optim/make_reference.py >test/optim/reference.h

Weights and gradients come from one linear congruential generator, so the C test makes the same
ones: x = 1664525 x + 1013904223 mod 2^32, value = (x >> 8) / 2^24 - 0.5. First the weights, then
the gradients of step 1, of step 2, and so on.
"""
import sys

import numpy as np
import torch

N = 23  # weights
STEPS = 100
SHOWN = (1, 2, 10, 100)

torch.set_num_threads(1)

# The first FIRST weights are one parameter, the others a second one, with a factor of the learning
# rate and a weight decay of its own.
FIRST = 10


def row(what, optimizer, seed, rate, momentum=0, beta1=0, beta2=0, epsilon=0, decay=0, clip=0,
        clip_value=0, nesterov=False, centered=False, trust=0, factor=1, decay2=None):
    return dict(what=what, optimizer=optimizer, seed=seed, rate=rate, momentum=momentum,
                beta1=beta1, beta2=beta2, epsilon=epsilon, decay=decay, clip=clip,
                clip_value=clip_value, nesterov=nesterov, centered=centered, trust=trust,
                factor=factor, decay2=decay if decay2 is None else decay2)


SETS = [
    row("sgd", "sgd", 1, 0.1),
    row("sgd with decay", "sgd", 2, 0.05, decay=0.01),
    row("sgd in groups", "sgd", 21, 0.05, decay=0.01, factor=0.1, decay2=0),
    row("momentum", "momentum", 3, 0.01, 0.9),
    row("momentum with decay", "momentum", 4, 0.02, 0.5, decay=0.1),
    row("momentum clipped", "momentum", 5, 0.05, 0.9, decay=0.01, clip=0.25),
    row("momentum clipped by value", "momentum", 22, 0.05, 0.9, clip_value=0.2),
    row("momentum clipped both ways", "momentum", 23, 0.05, 0.9, clip=0.6, clip_value=0.3),
    row("nesterov", "momentum", 24, 0.02, 0.9, nesterov=True),
    row("nesterov with decay", "momentum", 25, 0.02, 0.7, decay=0.1, nesterov=True, clip=0.5),
    row("adagrad", "adagrad", 26, 0.05, epsilon=1e-10),
    row("adagrad with decay", "adagrad", 27, 0.1, epsilon=1e-3, decay=0.1, factor=2),
    row("rmsprop", "rmsprop", 28, 0.01, beta2=0.99, epsilon=1e-8),
    row("rmsprop with decay", "rmsprop", 29, 0.02, beta2=0.9, epsilon=1e-3, decay=0.05),
    row("rmsprop with momentum", "rmsprop", 30, 0.005, 0.8, beta2=0.95, epsilon=1e-8),
    row("rmsprop centered", "rmsprop", 31, 0.01, beta2=0.9, epsilon=1e-4, centered=True),
    row("rmsprop with all", "rmsprop", 32, 0.002, 0.9, beta2=0.9, epsilon=1e-2, decay=0.1,
        centered=True, clip=0.7),
    row("adam", "adam", 6, 0.001, 0, 0.9, 0.999, 1e-8),
    row("adam with decay", "adam", 7, 0.05, 0, 0.8, 0.95, 1e-3, 0.1),
    row("adamw", "adamw", 8, 0.001, 0, 0.9, 0.999, 1e-8, 0.01),
    row("adamw with much of all", "adamw", 9, 0.05, 0, 0.7, 0.9, 1e-2, 0.3),
    row("adamw clipped", "adamw", 10, 0.01, 0, 0.9, 0.99, 1e-8, 0.1, 0.5),
    row("adamw in groups", "adamw", 33, 0.01, 0, 0.9, 0.99, 1e-8, 0.1, factor=0.25, decay2=0),
    row("adamax", "adamax", 34, 0.01, 0, 0.9, 0.999, 1e-8),
    row("adamax with decay", "adamax", 35, 0.02, 0, 0.8, 0.9, 1e-3, 0.1),
    row("lion", "lion", 36, 0.001, 0, 0.9, 0.99),
    row("lion with decay", "lion", 37, 0.003, 0, 0.8, 0.9, decay=0.1, clip=0.5, decay2=0),
    row("lars", "lars", 38, 1.0, 0.9, trust=0.02),
    row("lars with decay", "lars", 39, 0.5, 0.8, trust=0.05, decay=0.01, clip=0.5, decay2=0.1),
    row("lamb", "lamb", 40, 0.01, 0, 0.9, 0.999, 1e-6),
    row("lamb with decay", "lamb", 41, 0.02, 0, 0.8, 0.9, 1e-3, 0.1, factor=0.5, decay2=0),
]
NUMBERS = ("rate", "momentum", "beta1", "beta2", "epsilon", "decay", "clip", "clip_value", "trust",
           "factor", "decay2")


class Generator:
    def __init__(self, seed):
        self.x = seed

    def floats(self, n):
        out = []
        for _ in range(n):
            self.x = (1664525 * self.x + 1013904223) % (1 << 32)
            out.append((self.x >> 8) / (1 << 24) - 0.5)
        return out


def make(r, parameters):
    groups = [{"params": [parameters[0]]},
              {"params": [parameters[1]], "lr": r["rate"] * r["factor"],
               "weight_decay": r["decay2"]}]
    kind, common = r["optimizer"], {"lr": r["rate"], "weight_decay": r["decay"]}
    betas = (r["beta1"], r["beta2"])
    if kind in ("sgd", "momentum"):
        return torch.optim.SGD(groups, momentum=r["momentum"], nesterov=r["nesterov"], **common)
    if kind == "adagrad":
        return torch.optim.Adagrad(groups, eps=r["epsilon"], **common)
    if kind == "rmsprop":
        return torch.optim.RMSprop(groups, alpha=r["beta2"], eps=r["epsilon"],
                                   momentum=r["momentum"], centered=r["centered"], **common)
    cls = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "adamax": torch.optim.Adamax}
    return cls[kind](groups, betas=betas, eps=r["epsilon"], **common)


class Papers:
    """Those that PyTorch does not have, in float64, as their papers write them."""

    def __init__(self, r, parameters):
        self.r, self.parameters, self.step_number = r, parameters, 0
        self.w = [p.detach().numpy().astype(np.float64) for p in parameters]
        self.m = [np.zeros_like(w) for w in self.w]
        self.v = [np.zeros_like(w) for w in self.w]

    def step(self):
        r, self.step_number = self.r, self.step_number + 1
        for i, p in enumerate(self.parameters):
            g, w = p.grad.numpy().astype(np.float64), self.w[i]
            rate = r["rate"] * (r["factor"] if i else 1)
            decay = r["decay2"] if i else r["decay"]
            getattr(self, r["optimizer"])(i, w, g, rate, decay)
            p.data = torch.tensor(w, dtype=torch.float32)

    def lion(self, i, w, g, rate, decay):
        """Chen et al. 2023, algorithm 2."""
        b1, b2 = self.r["beta1"], self.r["beta2"]
        update = np.sign(b1 * self.m[i] + (1 - b1) * g)
        self.m[i] = b2 * self.m[i] + (1 - b2) * g
        w -= rate * (update + decay * w)

    def lars(self, i, w, g, rate, decay):
        """You, Gitman, Ginsburg 2017, algorithm 1."""
        norm = np.linalg.norm
        local = self.r["trust"] * norm(w) / (norm(g) + decay * norm(w))
        self.v[i] = self.r["momentum"] * self.v[i] + rate * local * (g + decay * w)
        w -= self.v[i]

    def lamb(self, i, w, g, rate, decay):
        """You et al. 2020, algorithm 2, phi the identity."""
        b1, b2, t = self.r["beta1"], self.r["beta2"], self.step_number
        self.m[i] = b1 * self.m[i] + (1 - b1) * g
        self.v[i] = b2 * self.v[i] + (1 - b2) * g * g
        ratio = (self.m[i] / (1 - b1 ** t)) / (np.sqrt(self.v[i] / (1 - b2 ** t)) +
                                               self.r["epsilon"])
        update = ratio + decay * w
        w -= rate * np.linalg.norm(w) / np.linalg.norm(update) * update


def run(r):
    random = Generator(r["seed"])
    start = random.floats(N)
    parameters = [torch.nn.Parameter(torch.tensor(part, dtype=torch.float32))
                  for part in (start[:FIRST], start[FIRST:])]
    paper = r["optimizer"] in ("lars", "lamb", "lion")
    optimizer = Papers(r, parameters) if paper else make(r, parameters)
    shown = []
    for step in range(1, STEPS + 1):
        g = random.floats(N)
        for p, part in zip(parameters, (g[:FIRST], g[FIRST:])):
            p.grad = torch.tensor(part, dtype=torch.float32)
        if r["clip_value"] > 0:
            torch.nn.utils.clip_grad_value_(parameters, r["clip_value"])
        if r["clip"] > 0:
            torch.nn.utils.clip_grad_norm_(parameters, r["clip"])
        optimizer.step()
        if step in SHOWN:
            shown.append([x for p in parameters for x in p.detach().tolist()])
    return shown


def print_row(values, form):
    text = ", ".join(form % v for v in values)
    line = "            "
    for word in text.split(" "):
        if len(line) + len(word) > 98:
            print(line.rstrip())
            line = "            "
        line += word + " "
    print(line.rstrip())


def print_optimizers():
    print("enum { REFERENCE_N = %d, REFERENCE_FIRST = %d, REFERENCE_STEPS = %d, "
          "REFERENCE_SHOWN = %d };" % (N, FIRST, STEPS, len(SHOWN)))
    print("static const uint64_t reference_shown[REFERENCE_SHOWN] = { %s };\n" %
          ", ".join(map(str, SHOWN)))
    print("static const struct reference {\n    const char *what, *optimizer;\n    uint32_t seed;")
    print("    bool nesterov, centered;\n    double %s;" % ", ".join(NUMBERS))
    print("    float weights[REFERENCE_SHOWN][REFERENCE_N]; /* after the shown steps */")
    print("} references[] = {")
    for r in SETS:
        print('    { "%s", "%s", %d, %d, %d,\n      %s,\n      {' %
              (r["what"], r["optimizer"], r["seed"], r["nesterov"], r["centered"],
               ", ".join("%r" % r[k] for k in NUMBERS)))
        for values in run(r):
            print("          {")
            print_row(values, "%.9gf")
            print("          },")
        print("      } },")
    print("};\n")


# ---- schedules: the C struct's fields ----
RATE = 0.3


def schedule(kind, warmup=0, total=40, **more):
    return dict(kind=kind, warmup_steps=warmup, total_steps=total, **more)


SCHEDULES = [
    schedule("CONSTANT"),
    schedule("CONSTANT", 8),
    schedule("STEP", step_size=7, gamma=0.5),
    schedule("STEP", 5, step_size=10, gamma=0.1),
    schedule("COSINE", final_fraction=0),
    schedule("COSINE", 1, final_fraction=0.1),
    schedule("COSINE", 10, final_fraction=0),
    schedule("COSINE", 10, 33, final_fraction=0.25),
    schedule("EXPONENTIAL", step_size=1, gamma=0.9),
    schedule("EXPONENTIAL", 5, step_size=1, gamma=0.97),
    schedule("EXPONENTIAL", 3, step_size=7, gamma=0.3),
    schedule("POLYNOMIAL", final_fraction=0, power=1.0),
    schedule("POLYNOMIAL", 6, 31, final_fraction=0, power=2.0),
    schedule("POLYNOMIAL", 4, final_fraction=0, power=0.9),
    schedule("POLYNOMIAL", final_fraction=0.1, power=2.5),
    schedule("ONE_CYCLE", initial_fraction=0.04, final_fraction=4e-6, rise=0.3),
    schedule("ONE_CYCLE", 0, 33, initial_fraction=0.1, final_fraction=0.001, rise=0.45),
    schedule("INVERSE_SQUARE_ROOT"),
    schedule("INVERSE_SQUARE_ROOT", 9),
]


def behind_warmup(s, optimizer):
    """PyTorch's scheduler behind the warm-up, and whether it begins at its last step (or behind)."""
    lr, kind, warmup = torch.optim.lr_scheduler, s["kind"], s["warmup_steps"]
    length = s["total_steps"] - max(warmup, 1)
    if kind == "CONSTANT":
        return lr.ConstantLR(optimizer, 1.0, 0), warmup
    if kind == "STEP":
        return lr.StepLR(optimizer, s["step_size"], s["gamma"]), warmup
    if kind == "EXPONENTIAL":
        return lr.ExponentialLR(optimizer, s["gamma"] ** (1 / s["step_size"])), warmup
    if kind == "COSINE":
        return lr.CosineAnnealingLR(optimizer, length, RATE * s["final_fraction"]), warmup - 1
    if kind == "POLYNOMIAL" and s["final_fraction"] == 0:
        return lr.PolynomialLR(optimizer, length, s["power"]), warmup - 1
    if kind == "POLYNOMIAL":
        f = s["final_fraction"]
        return lr.LambdaLR(optimizer, lambda e: f + (1 - f) * (1 - e / length) ** s["power"]), \
            warmup - 1
    if kind == "ONE_CYCLE":
        return lr.OneCycleLR(optimizer, RATE, s["total_steps"], pct_start=s["rise"],
                             cycle_momentum=False, div_factor=1 / s["initial_fraction"],
                             final_div_factor=s["initial_fraction"] / s["final_fraction"]), 0
    first = max(warmup, 1)
    return lr.LambdaLR(optimizer, lambda e: (first / (first + e)) ** 0.5), warmup - 1


def rates(s):
    """The rate of steps 1 .. total, composed of PyTorch's schedulers. A scheduler that was stepped
    e times gives the rate of its epoch e; step t of ours is epoch t - 1."""
    w = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([w], lr=RATE)
    warmup = s["warmup_steps"]
    parts, starts = [], []
    if warmup > 1:
        # Epoch e of LinearLR: rate * (f + (1 - f) e / n). With f = 1 / warmup and n = warmup - 1 it
        # is rate * (e + 1) / warmup.
        parts.append(torch.optim.lr_scheduler.LinearLR(optimizer, 1 / warmup, 1.0, warmup - 1))
    part, start = behind_warmup(s, optimizer)
    parts.append(part)
    starts.append(start)
    combined = parts[0] if len(parts) == 1 else \
        torch.optim.lr_scheduler.SequentialLR(optimizer, parts, starts)
    out = []
    for t in range(s["total_steps"]):
        out.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if t + 1 < s["total_steps"]:
            combined.step()
    return out


def print_schedules():
    print("enum { REFERENCE_RATES = 40 };")
    print("static const struct reference_schedule {\n    struct optim_schedule schedule;")
    print("    double rates[REFERENCE_RATES]; /* of step 1, 2, ... total_steps */")
    print("} reference_schedules[] = {")
    for s in SCHEDULES:
        fields = [".%s = %r" % (k, v) for k, v in s.items() if k != "kind"]
        print("    { { .type = OPTIM_%s, .learning_rate = %r,\n        %s },\n      {"
              % (s["kind"], RATE, ", ".join(fields)))
        print_row(rates(s), "%.17g")
        print("      } },")
    print("};\n")


# ---- the momentum of one_cycle ----
def print_cycles():
    print("static const struct reference_cycle {\n    struct optim_schedule schedule;")
    print("    double own; /* the optimizer's */")
    print("    double values[REFERENCE_RATES]; /* of step 1, 2, ... total_steps */")
    print("} reference_cycles[] = {")
    for total, rise, base, own, of in ((40, 0.3, 0.85, 0.95, "MOMENTUM"), (33, 0.45, 0.1, 0.9, "BETA1"), (7, 0.1, 0.5, 0.5, "BETA1")):
        w = torch.nn.Parameter(torch.zeros(1))
        adam = of == "BETA1"
        optimizer = torch.optim.Adam([w], betas=(own, 0.99)) if adam else torch.optim.SGD([w], lr=RATE, momentum=own)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total, pct_start=rise, base_momentum=base,
                                                        max_momentum=own)
        values = []
        for t in range(total):
            group = optimizer.param_groups[0]
            values.append(group["betas"][0] if adam else group["momentum"])
            optimizer.step()
            if t + 1 < total:
                scheduler.step()
        print("    { { .type = OPTIM_ONE_CYCLE, .learning_rate = %r, .total_steps = %d, .rise = %r,\n"
              "        .cycles = OPTIM_CYCLES_%s, .base_momentum = %r },\n      %r,\n      {" % (RATE, total, rise, of, base, own))
        print_row(values, "%.17g")
        print("      } },")
    print("};\n")


# ---- plateau: losses of evaluations, and the rate behind each ----
LOSSES = [5.0, 4.0, 4.0, 3.9999, 3.9, 3.95, 3.91, 3.8999, 3.92, float("nan"), 3.9, 3.5, 3.6, 3.5,
          3.4999, 3.7, 3.6, 3.5, 3.4, 3.3, 3.31, 3.32, 3.33, 3.34, 3.35, 3.36, 3.37, 3.38, 3.3, 3.3]


def print_plateau():
    print("static const struct reference_plateau {\n    double gamma, threshold, final_fraction;\n"
          "    uint32_t patience;\n    double rates[%d];\n} reference_plateaus[] = {" % len(LOSSES))
    for gamma, threshold, final, patience in ((0.5, 1e-4, 0, 2), (0.1, 0.01, 0.005, 0),
                                              (0.3, 0, 0, 1)):
        w = torch.nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([w], lr=RATE)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, factor=gamma, patience=patience, threshold=threshold, min_lr=RATE * final,
            eps=0)
        out = []
        for loss in LOSSES:
            scheduler.step(loss)
            out.append(optimizer.param_groups[0]["lr"])
        print("    { %r, %r, %r, %d,\n      {" % (gamma, threshold, final, patience))
        print_row(out, "%.17g")
        print("      } },")
    print("};")
    print("static const double reference_losses[] = {")
    print_row(["NAN" if x != x else "%r" % x for x in LOSSES], "%s")
    print("};")


def main():
    print("/* reference.h - printed by test/optim/make_reference.py with PyTorch %s. */" %
          torch.__version__)
    print("#include <math.h>\n#include <stdbool.h>\n#include <stdint.h>\n\n#include \"optim/optim.h\"\n")
    print_optimizers()
    print_schedules()
    print_cycles()
    print_plateau()


if __name__ == "__main__":
    sys.exit(main())
