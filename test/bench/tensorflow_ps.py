"""tensorflow_ps.py WORKERS ROWS WIDTH IDS DENSE - pulls and pushes rows of an embedding table, or DENSE floats in 8 dense
variables, through TensorFlow's ParameterServerStrategy: one ps, WORKERS workers, this process as the coordinator.

A step of a worker looks up IDS random rows, and subtracts as many gradients from them (scatter_sub: SGD); or it reads the
dense variables and subtracts as many gradients. Reads lines from its standard input: "rows" or "dense", and the number of
steps of each worker; answers each with the seconds that all of them took.
"""
import json
import multiprocessing
import os
import socket
import sys

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1", GRPC_FAIL_FAST="use_caller")


def free_ports(n):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def serve(cluster, job, index):
    import tensorflow as tf
    tf.distribute.Server(tf.train.ClusterSpec(cluster), job_name=job, task_index=index, protocol="grpc").join()


def main():
    workers, rows, width, ids, floats = map(int, sys.argv[1:6])
    at = ["127.0.0.1:%d" % p for p in free_ports(1 + workers)]
    cluster = {"ps": at[:1], "worker": at[1:]}
    start = multiprocessing.get_context("spawn").Process
    for job, index in [("ps", 0)] + [("worker", i) for i in range(workers)]:
        start(target=serve, args=(cluster, job, index), daemon=True).start()  # ended when this process ends

    import time

    import tensorflow as tf
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec(cluster), rpc_layer="grpc")
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        table = tf.Variable(tf.zeros([rows, width]))
        dense = [tf.Variable(tf.zeros([floats // 8])) for _ in range(8)]

    @tf.function
    def step():
        wanted = tf.random.uniform([ids], 0, rows, tf.int64)
        gradients = tf.nn.embedding_lookup(table, wanted) * 1e-3 + 1e-6
        table.scatter_sub(tf.IndexedSlices(gradients, wanted))

    @tf.function
    def step_dense():
        for x in dense:
            x.assign_sub(tf.identity(x.read_value()) * 1e-3)  # read to the worker, and a gradient from there

    kinds = {"rows": step, "dense": step_dense}

    def run(kind, steps):
        begin = time.monotonic()
        for _ in range(steps * workers):
            coordinator.schedule(kinds[kind])
        coordinator.join()
        return time.monotonic() - begin

    for kind in kinds:
        run(kind, 2)  # traces the function
    print("ready", flush=True)
    for line in sys.stdin:
        kind, steps = line.split()
        print(json.dumps(run(kind, int(steps))), flush=True)


if __name__ == "__main__":
    try:
        main()
    finally:
        for child in multiprocessing.active_children():
            child.kill()
        sys.stdout.flush()
        os._exit(0)  # the threads of the coordinator do not end
