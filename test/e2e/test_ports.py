#!/usr/bin/env python3
"""test_ports.py - tests the data port of the job file."""
import os
import re
import socket
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from kit import digits_job, expect_codes, free_ports, main, start, test, workdir


def free_range(n):
    """Returns the first and the last of n adjacent free ports. Only the first one stays reserved until the test ends."""
    while True:
        first = free_ports(1)[0]
        held = []
        try:
            for port in range(first + 1, first + n):
                s = socket.socket()
                held.append(s)
                s.bind(("127.0.0.1", port))
        except OSError:
            continue
        finally:
            for s in held:
                s.close()
        return first, first + n - 1


@test
def data_ports_two_tasks_of_a_host_share_a_range():
    first, last = free_range(3)
    job = digits_job(workdir(), train={"epochs": 1, "lanes": 2}, communication={"data_port": "%d-%d" % (first, last)})
    expect_codes(start(job, 2), [0, 0])


@test
def data_ports_leave_out_the_control_ports_of_the_tasks_of_the_host():
    first, last = free_range(4)
    job = digits_job(workdir(), train={"epochs": 1, "lanes": 2}, communication={"data_port": [first, last]})
    expect_codes(start(job, 2, ports=[first, first + 1]), [0, 0])


@test
def data_ports_exhausted_range_is_named():
    first, last = free_range(2)
    job = digits_job(workdir(), train={"epochs": 1, "lanes": 3, "global_batch_size": 66},
                     communication={"data_port": [first, last]})
    tasks = start(job, 3)
    said = []
    tasks[0].until(lambda _: any(t.p.poll() is not None for t in tasks))
    ended = [t for t in tasks if t.p.poll() is not None]
    for t in ended:
        t.wait()
        said.append(t.final_message())
    assert len(ended) == 1 and re.search(r"ports %d to %d \(communication.data_port\)" % (first, last), said[0]), said


if __name__ == "__main__":
    main()
