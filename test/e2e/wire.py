"""wire.py - a slow cable: forwards Ethernet frames between two interfaces of this namespace, with a delay and a rate.

The kernel of a test machine may have no netem, so a thread forwards the frames.
"""
import collections
import ctypes
import fcntl
import select
import socket
import struct
import sys
import threading
import time

ETH_P_ALL, PACKET_OUTGOING = 3, 4
SOL_PACKET, PACKET_ADD_MEMBERSHIP, PACKET_MR_PROMISC = 263, 1, 1
SIOCETHTOOL, ETHTOOL_STXCSUM = 0x8946, 0x17
FRAME_BYTES = 65536
BACKLOG = 0.05  # seconds of frames at the rate; later frames are dropped


def compute_checksums(interface):
    """Makes the sender of the current network namespace compute checksums: a forwarded frame needs them."""
    value = ctypes.create_string_buffer(struct.pack("II", ETHTOOL_STXCSUM, 0))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        fcntl.ioctl(s, SIOCETHTOOL, struct.pack("16sP", interface.encode(), ctypes.addressof(value)))


def listen(interface):
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    s.bind((interface, ETH_P_ALL))
    s.setsockopt(SOL_PACKET, PACKET_ADD_MEMBERSHIP, struct.pack("IHH8s", socket.if_nametoindex(interface), PACKET_MR_PROMISC, 0, b""))
    return s


class Wire:
    """`with Wire(a, b, delay, rate):` forwards in both directions; delay in seconds, rate in bytes/s (None: unlimited)."""

    def __init__(self, a, b, delay=0.0, rate=None):
        self.ends = (listen(a), listen(b))
        self.delay, self.rate = delay, rate
        self.waiting = (collections.deque(), collections.deque())  # (due, frame) by the end that sends
        self.free = [0.0, 0.0]  # when the end has sent its last frame
        self.stop = False
        self.thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop = True
        self.thread.join()
        for s in self.ends:
            s.close()

    def _accept(self, end):
        frame, address = self.ends[end].recvfrom(FRAME_BYTES, socket.MSG_DONTWAIT)
        if address[2] == PACKET_OUTGOING:
            return
        now, other = time.monotonic(), 1 - end
        if self.rate is not None:
            if self.free[other] > now + BACKLOG:
                return
            self.free[other] = max(now, self.free[other]) + len(frame) / self.rate
        self.waiting[other].append((max(now, self.free[other]) + self.delay, frame))

    def _run(self):
        while not self.stop:
            due = min((w[0][0] for w in self.waiting if w), default=time.monotonic() + 0.05)
            readable, _, _ = select.select(self.ends, [], [], max(0.0, min(0.05, due - time.monotonic())))
            for s in readable:
                try:
                    self._accept(self.ends.index(s))
                except OSError:
                    pass  # no frame any more, or the interface is down
            for end, w in enumerate(self.waiting):
                while w and w[0][0] <= time.monotonic():
                    try:
                        self.ends[end].send(w.popleft()[1])
                    except OSError:
                        pass  # the queue of the interface is full: the frame is lost


if __name__ == "__main__":
    compute_checksums(sys.argv[1])
