"""bench_racks.py - the all-reduce between two racks of two hosts whose uplinks have a quarter of the bandwidth of a cable,
beside the time that its bytes take at least, Open MPI and Gloo. Their ranks are in the order of the racks, which is their best
case.

The hosts are network namespaces (test/e2e/racks_net.py) with token buckets. As a program of its own this file enters them:

    bench_racks.py trainerd|mpi|gloo    prints seconds
"""
import json
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(1, os.path.join(os.path.dirname(HERE), "e2e"))
import kit  # noqa: E402
import peers  # noqa: E402

CABLE, UPLINK = "800mbit", "200mbit"
UPLINK_BYTES = 200e6 / 8  # a second
WIDTH = 1 << 15  # neurons; the gradient has as many bytes:
GRADIENT = 4 * (64 + 16) * WIDTH
STEPS, WARM = 20, 4
ROUNDS, AIM, PEER_AIM = 3, 1.15, 1.5
PLACES = [(0, 0), (0, 1), (1, 0), (1, 1)]  # rack, host
SECONDS = 300


def shape():
    def limit(space, device, rate):
        subprocess.run(["tc", "-n", space, "qdisc", "add", "dev", device, "root", "tbf", "rate", rate, "burst", "256kb", "latency", "100ms"],
                       check=True)

    for rack, host in PLACES:
        limit("host%d%d" % (rack, host), "cable", CABLE)
        limit("rack%d" % rack, "port%d" % host, CABLE)
    for rack in range(2):
        limit("rack%d" % rack, "uplink", UPLINK)
        limit("zone0", "rack%d" % rack, UPLINK)


def of_trainerd():
    """The whole step."""
    racks_net.SHAPES.update(w1=(64, WIDTH), w2=(WIDTH, 16))
    tasks = racks_net.start(racks_net.job_of(len(PLACES), steps=STEPS), PLACES)
    kit.expect_codes(tasks, [0] * len(tasks), SECONDS)
    records = [r for r in tasks[0].events("step") if r["step"] > WARM]
    return statistics.median(4 * len(PLACES) / r["samples_per_second"] for r in records)


def in_host(place):
    """The start of a command line; the host has a name of its own, by which Open MPI tells hosts apart."""
    name = "host%d%d" % place
    return ["ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', name]


def of_mpi():
    """The faster of the default algorithms and of those for two levels (coll/han)."""
    mpi = peers.OpenMPI(kit.BUILD)
    mpi.compile()
    agent = os.path.join(kit.workdir(), "agent")
    with open(agent, "w") as f:  # arguments: the address, then the command
        f.write("#!/bin/sh\ncase $1 in\n")
        for place in PLACES:
            f.write("%s) name=host%d%d ;;\n" % (racks_net.address(*place), *place))
        f.write('esac\nshift\nexec ip netns exec $name unshare --uts sh -c "hostname $name && $*"\n')
    os.chmod(agent, 0o755)
    command = ["mpirun", "--allow-run-as-root", "-n", str(len(PLACES)), "--host", ",".join(racks_net.address(*p) for p in PLACES),
               "--mca", "plm_rsh_agent", agent, "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "cable",
               "--mca", "oob_tcp_if_include", "cable"]
    found = []
    for more in ([], ["--mca", "coll_han_priority", "100"]):
        out = peers.run_checked(in_host(PLACES[0]) + command + more + [mpi.program, str(GRADIENT)], SECONDS)
        found.append(float(out.split()[1]))
    return min(found)


def of_gloo():
    env = dict(os.environ, MASTER_ADDR=racks_net.address(*PLACES[0]), MASTER_PORT="7100", OMP_NUM_THREADS="1",
               GLOO_SOCKET_IFNAME="cable", WORLD_SIZE=str(len(PLACES)))
    ranks = [peers.Process("torch_peer %d" % i, in_host(place) + [peers.PYTHON, peers.TORCH_PEER, "serve"], dict(env, RANK=str(i)))
             for i, place in enumerate(PLACES)]
    try:
        for p in ranks:
            p.line(peers.START_SECONDS)
        for p in ranks:
            p.ask("reduce %d" % GRADIENT)
        answers = [json.loads(p.line(SECONDS)) for p in ranks]
    finally:
        for p in ranks:
            p.close()
    return statistics.median(max(of_ranks) for of_ranks in zip(*answers))


SIDES = {"trainerd": of_trainerd, "mpi": of_mpi, "gloo": of_gloo}


def racks(table, _folder):
    from table import Side

    def side(name):
        return Side(name, lambda: {None: float(peers.run_checked([sys.executable, os.path.abspath(__file__), name], 2 * SECONDS))})

    us, mpi, gloo = (side(name) for name in SIDES)
    table.interleave(ROUNDS, us, mpi, gloo)

    def bound():
        least = GRADIENT / UPLINK_BYTES  # each rack sends 2 (1 - 1/2) gradients
        a = us.median()
        return "%.0f ms" % (1e3 * a), "bytes / rate %.0f ms" % (1e3 * least), "%.2f x" % (a / least), a <= AIM * least

    table.row("step, 2 x 2 hosts, %.1f MB, uplinks %s" % (GRADIENT / 1e6, UPLINK), "<= %g x" % AIM, bound)
    table.faster("the same step beside MPI_Allreduce", us, mpi, at_least=PEER_AIM)
    table.faster("the same step beside Gloo", us, gloo, at_least=PEER_AIM)


if __name__ == "__main__":
    import racks_net

    kit.enter_namespaces()
    try:
        kit.need_namespaces("tc", "qdisc", "show")
        racks_net.cables()
        shape()
        print(SIDES[sys.argv[1]]())
    except (kit.Skip, peers.Unavailable) as lacking:
        sys.exit(str(lacking))
