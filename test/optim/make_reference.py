#!/usr/bin/env python3
"""Prints reference.h: what PyTorch's optimizers and schedulers compute, for the tests to compare.

    /usr/bin/python3 test/optim/make_reference.py >test/optim/reference.h

Weights and gradients come from one linear congruential generator, so the C test makes the same
ones: x = 1664525 x + 1013904223 mod 2^32, value = (x >> 8) / 2^24 - 0.5. First the weights, then
the gradients of step 1, of step 2, and so on.
"""
import sys

import torch

N = 23  # weights
STEPS = 100
SHOWN = (1, 2, 10, 100)

torch.set_num_threads(1)

# name, optimizer, seed, learning rate, momentum, beta1, beta2, epsilon, weight decay, clip norm
SETS = [
    ("sgd", "sgd", 1, 0.1, 0, 0, 0, 0, 0, 0),
    ("sgd with decay", "sgd", 2, 0.05, 0, 0, 0, 0, 0.01, 0),
    ("momentum", "momentum", 3, 0.01, 0.9, 0, 0, 0, 0, 0),
    ("momentum with decay", "momentum", 4, 0.02, 0.5, 0, 0, 0, 0.1, 0),
    ("momentum clipped", "momentum", 5, 0.05, 0.9, 0, 0, 0, 0.01, 0.25),
    ("adam", "adam", 6, 0.001, 0, 0.9, 0.999, 1e-8, 0, 0),
    ("adam with decay", "adam", 7, 0.05, 0, 0.8, 0.95, 1e-3, 0.1, 0),
    ("adamw", "adamw", 8, 0.001, 0, 0.9, 0.999, 1e-8, 0.01, 0),
    ("adamw with much of all", "adamw", 9, 0.05, 0, 0.7, 0.9, 1e-2, 0.3, 0),
    ("adamw clipped", "adamw", 10, 0.01, 0, 0.9, 0.99, 1e-8, 0.1, 0.5),
]


class Generator:
    def __init__(self, seed):
        self.x = seed

    def floats(self, n):
        out = []
        for _ in range(n):
            self.x = (1664525 * self.x + 1013904223) % (1 << 32)
            out.append((self.x >> 8) / (1 << 24) - 0.5)
        return out


def make(kind, w, lr, momentum, beta1, beta2, eps, decay):
    if kind in ("sgd", "momentum"):
        return torch.optim.SGD([w], lr=lr, momentum=momentum, weight_decay=decay)
    cls = torch.optim.Adam if kind == "adam" else torch.optim.AdamW
    return cls([w], lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=decay)


def run(kind, seed, lr, momentum, beta1, beta2, eps, decay, clip):
    random = Generator(seed)
    w = torch.nn.Parameter(torch.tensor(random.floats(N), dtype=torch.float32))
    optimizer = make(kind, w, lr, momentum, beta1, beta2, eps, decay)
    shown = []
    for step in range(1, STEPS + 1):
        w.grad = torch.tensor(random.floats(N), dtype=torch.float32)
        if clip > 0:
            torch.nn.utils.clip_grad_norm_([w], clip)
        optimizer.step()
        if step in SHOWN:
            shown.append(w.detach().tolist())
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
    print("enum { REFERENCE_N = %d, REFERENCE_STEPS = %d, REFERENCE_SHOWN = %d };" %
          (N, STEPS, len(SHOWN)))
    print("static const uint64_t reference_shown[REFERENCE_SHOWN] = { %s };\n" %
          ", ".join(map(str, SHOWN)))
    print("static const struct reference {\n    const char *what, *optimizer;\n    uint32_t seed;")
    print("    double learning_rate, momentum, beta1, beta2, epsilon, weight_decay, clip;")
    print("    float weights[REFERENCE_SHOWN][REFERENCE_N]; /* after the shown steps */")
    print("} references[] = {")
    for what, kind, seed, *hyper in SETS:
        print('    { "%s", "%s", %d, %s,\n      {' % (what, kind, seed,
                                                     ", ".join("%r" % h for h in hyper)))
        for row in run(kind, seed, *hyper):
            print("          {")
            print_row(row, "%.9gf")
            print("          },")
        print("      } },")
    print("};\n")


# ---- schedules: type, rate, warm-up, total, step size, gamma, final fraction ----
RATE = 0.3
SCHEDULES = [
    ("OPTIM_CONSTANT", 0, 40, 0, 0, 0),
    ("OPTIM_CONSTANT", 8, 40, 0, 0, 0),
    ("OPTIM_STEP", 0, 40, 7, 0.5, 0),
    ("OPTIM_STEP", 5, 40, 10, 0.1, 0),
    ("OPTIM_COSINE", 0, 40, 0, 0, 0),
    ("OPTIM_COSINE", 1, 40, 0, 0, 0.1),
    ("OPTIM_COSINE", 10, 40, 0, 0, 0),
    ("OPTIM_COSINE", 10, 33, 0, 0, 0.25),
]


def rates(kind, warmup, total, step_size, gamma, final):
    """The rate of steps 1 .. total, composed of PyTorch's schedulers. A scheduler that was stepped
    e times gives the rate of its epoch e; step t of ours is epoch t - 1."""
    w = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([w], lr=RATE)
    s = torch.optim.lr_scheduler
    parts, starts = [], []
    if warmup > 1:
        # Epoch e of LinearLR: rate * (f + (1 - f) e / n). With f = 1 / warmup and n = warmup - 1 it
        # is rate * (e + 1) / warmup.
        parts.append(s.LinearLR(optimizer, 1 / warmup, 1.0, warmup - 1))
        starts.append(warmup - 1 if kind == "OPTIM_COSINE" else warmup)
    if kind == "OPTIM_CONSTANT":
        parts.append(s.ConstantLR(optimizer, 1.0, 0))
    elif kind == "OPTIM_STEP":
        parts.append(s.StepLR(optimizer, step_size, gamma))
    else:
        # From the last step of the warm-up (or step 1) to the last of all.
        parts.append(s.CosineAnnealingLR(optimizer, total - max(warmup, 1), RATE * final))
    if len(parts) == 1:
        schedule = parts[0]
    else:
        schedule = s.SequentialLR(optimizer, parts, starts)
    out = []
    for _ in range(total):
        out.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return out


def print_schedules():
    print("enum { REFERENCE_RATES = 40 };")
    print("static const struct reference_schedule {\n    struct optim_schedule schedule;")
    print("    double rates[REFERENCE_RATES]; /* of step 1, 2, ... total_steps */")
    print("} reference_schedules[] = {")
    for kind, warmup, total, step_size, gamma, final in SCHEDULES:
        print("    { { .type = %s, .learning_rate = %r, .warmup_steps = %d, .total_steps = %d,"
              % (kind, RATE, warmup, total))
        print("        .step_size = %d, .gamma = %r, .final_fraction = %r },\n      {"
              % (step_size, gamma, final))
        print_row(rates(kind, warmup, total, step_size, gamma, final), "%.17g")
        print("      } },")
    print("};")


def main():
    print("/* reference.h - printed by test/optim/make_reference.py with PyTorch %s. */" %
          torch.__version__)
    print("#include <stdint.h>\n\n#include \"optim/optim.h\"\n")
    print_optimizers()
    print_schedules()


if __name__ == "__main__":
    sys.exit(main())
