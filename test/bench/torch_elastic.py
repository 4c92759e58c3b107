"""torch_elastic.py - one worker of an elastic PyTorch job, started by torchrun: DistributedDataParallel over Gloo, with
a periodic snapshot of the state that is loaded after a restart. The times of events are written to files.

    torchrun ... torch_elastic.py MODEL LOGITS BATCH FOLDER SNAPSHOT_STEPS

FOLDER/rank-R.txt: "start TIME PID RESTARTS" when the process begins, "step K TIME" when rank 0 has completed step K;
times in seconds since 1970. FOLDER/snapshot.pt: model, optimizer, step. The batches are in memory.
"""
import datetime
import os
import sys
import time

BEGIN = time.time()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

CLASSES, BATCHES = 10, 16


def main():
    from onnx_torch import Network

    path, logits, batch, folder, every = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
    rank, snapshot = int(os.environ["RANK"]), os.path.join(folder, "snapshot.pt")
    log = open(os.path.join(folder, "rank-%d.txt" % rank), "a", buffering=1)
    log.write("start %.6f %d %s\n" % (BEGIN, os.getpid(), os.environ["TORCHELASTIC_RESTART_COUNT"]))
    torch.set_num_threads(1)
    torch.manual_seed(1)
    # A restart may hang in Gloo's connections; with this limit it fails and is repeated, with the default after 30 minutes.
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=10))
    net, at = Network(path, logits), 0
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    if os.path.exists(snapshot):
        state = torch.load(snapshot)
        net.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        at = state["step"]
    model = torch.nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
    data = [(torch.rand([batch] + net.sample), torch.randint(0, CLASSES, (batch,))) for _ in range(BATCHES)]
    loss = torch.nn.CrossEntropyLoss()
    while True:
        x, y = data[at % BATCHES]
        optimizer.zero_grad(set_to_none=True)
        loss(model(x), y).backward()
        optimizer.step()
        at += 1
        if rank == 0:
            log.write("step %d %.6f\n" % (at, time.time()))
            if at % every == 0:
                torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": at}, snapshot + ".new")
                os.replace(snapshot + ".new", snapshot)


main()
