"""torch_peer.py - one PyTorch process of a comparison. Rank, world size and master address are the environment
variables of torchrun. Processes communicate with Gloo; the network is that of an ONNX file or one of torch_nets.py; the
number of threads is OMP_NUM_THREADS.

    torch_peer.py serve [MODEL LOGITS BATCH]    "ready", then an answer (a JSON list of seconds) per line read:
    torch_peer.py serve SPEC                      steps BLOCKS N    of one step, per block of N steps
                                                  reduce BYTES      of one all-reduce, per call
                                                  losses N          of N steps, not seconds
    torch_peer.py first MODEL LOGITS BATCH      prints "first" after one step, then exits

The batches are in memory, so this side has no cost for reading data.
"""
import json
import os
import sys
import time

import torch
import torch.distributed as dist

WORLD = int(os.environ.get("WORLD_SIZE", "1"))
CLASSES, BATCHES = 10, 16
MEASURE_SECONDS, WARM_CALLS, MIN_CALLS, MAX_CALLS = 0.2, 10, 15, 2000


class Trainer:
    """SGD with momentum in plain PyTorch, with the fastest settings."""

    def __init__(self, path, logits, batch):
        from onnx_torch import Network

        torch.manual_seed(1)
        net = Network(path, logits)
        self.batches = [(torch.rand([batch] + net.sample), torch.randint(0, CLASSES, (batch,)))
                        for _ in range(BATCHES)]
        self.forward = net
        if WORLD > 1:
            self.forward = torch.nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
        self.loss = torch.nn.CrossEntropyLoss()
        self.at = 0

    def step(self):
        x, y = self.batches[self.at % BATCHES]
        self.at += 1
        self.optimizer.zero_grad(set_to_none=True)
        self.loss(self.forward(x), y).backward()
        self.optimizer.step()

    def steps(self, n):
        for _ in range(n):
            self.step()


def seconds_per_step(trainer, blocks, n):
    out = []
    for _ in range(blocks):
        start = time.perf_counter()
        trainer.steps(n)
        out.append((time.perf_counter() - start) / n)
    return out


def reduce_calls(x, n):
    """Timed like bench_allreduce: a barrier, then one call."""
    out = []
    for _ in range(n):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(x)
        out.append(time.perf_counter() - start)
    return out


def seconds_per_reduce(n_bytes):
    x = torch.empty(n_bytes // 4).fill_(0)  # stays zero in repeated sums
    reduce_calls(x, WARM_CALLS)
    start = time.perf_counter()
    reduce_calls(x, WARM_CALLS)
    each = (time.perf_counter() - start) / WARM_CALLS
    calls = torch.tensor([min(MAX_CALLS, max(MIN_CALLS, MEASURE_SECONDS / each))])
    dist.broadcast(calls, 0)
    return reduce_calls(x, int(calls.item()))


def say(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def serve(trainer):
    answers = {"steps": lambda blocks, n: seconds_per_step(trainer, blocks, n), "reduce": seconds_per_reduce,
               "losses": lambda n: [trainer.step() for _ in range(n)]}
    say("ready")
    for line in sys.stdin:
        what, *numbers = line.split()
        say(json.dumps(answers[what](*[int(n) for n in numbers])))


def make_trainer(model):
    if len(model) != 1:
        return Trainer(model[0], model[1], int(model[2])) if model else None
    from torch_nets import JobTrainer

    return JobTrainer(model[0])


def refuse_reference_blas():
    """Debian's PyTorch uses the installed BLAS. The reference BLAS is many times slower than any other and therefore not
    a fair peer."""
    with open("/proc/self/maps") as f:
        if any("/blas/libblas.so" in line for line in f):
            sys.exit("PyTorch would use the reference BLAS, which is not a fair peer: install libopenblas0-openmp")


def main():
    mode, model = sys.argv[1], sys.argv[2:]
    refuse_reference_blas()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if WORLD > 1:
        dist.init_process_group("gloo")
    trainer = make_trainer(model)
    if mode == "first":
        trainer.step()
        if int(os.environ.get("RANK", "0")) == 0:
            say("first")
    else:
        serve(trainer)
    if WORLD > 1:
        dist.destroy_process_group()


main()
