"""torch_hooks.py - one process of DistributedDataParallel with Gloo that compresses gradients by one of PyTorch's communication
hooks. Rank, world size and master address are the environment variables of torchrun.

    torch_hooks.py HOOK SPEC WARM STEPS    HOOK: none, bf16, powersgd; SPEC: see JobTrainer (torch_nets.py)

powersgd has PyTorch's default rank 1, error feedback and warm start. By default its first 1000 steps send float32, here the
first POWER_SGD_START, the fewest that PyTorch accepts; WARM must not be below. Its gradients are in one bucket: with Gloo the
hooks of two buckets start their all-reduces in another order on each process, and the processes abort with "Received data
size doesn't match expected size".

Prints {"step": [seconds of each step after the first WARM]}."""
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from torch_nets import JobTrainer


POWER_SGD_START = 2
ONE_BUCKET_MB = 1 << 10


def add_hook(model, hook):
    if hook == "bf16":
        model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    elif hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=POWER_SGD_START)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif hook != "none":
        sys.exit("%s: expected none, bf16 or powersgd" % hook)


def main():
    hook, spec, warm, steps = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    trainer = JobTrainer(spec)
    trainer.net = torch.nn.parallel.DistributedDataParallel(trainer.net, gradient_as_bucket_view=True,
                                                            bucket_cap_mb=ONE_BUCKET_MB if hook == "powersgd" else None)
    add_hook(trainer.net, hook)
    seconds = []
    for _ in range(warm + steps):
        start = time.perf_counter()
        trainer.begin_step().item()
        seconds.append(time.perf_counter() - start)
    dist.barrier()
    if dist.get_rank() == 0:
        print(json.dumps({"step": seconds[warm:]}))
    dist.destroy_process_group()


main()
