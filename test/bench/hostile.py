"""hostile.py - opens many connections to the ports of a task and keeps them busy until it is killed.

    hostile.py COUNT PORT...

A third of the connections sends the beginning of a TLS handshake and waits, a third a byte of it every 100 ms, and a third
bytes of no protocol. A connection that the task closes is replaced, at most COUNT a second. One line is printed when COUNT
connections have been opened.
"""
import os
import random
import selectors
import socket
import struct
import sys
import time

TURN = 0.02  # seconds
HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256))  # the client hello announces 508 bytes


class Connection:
    """One connection and what it still sends."""

    def __init__(self, kind, port):
        self.kind, self.sent, self.next = kind, 0, time.monotonic()
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.socket.connect_ex(("127.0.0.1", port))

    def send(self, now):
        """Raises OSError if the task has closed the connection."""
        if now < self.next:
            return
        try:
            if self.kind == 0 and self.sent == 0:
                self.sent = self.socket.send(HELLO)
            elif self.kind == 1:
                self.sent += self.socket.send(HELLO[self.sent % len(HELLO):][:1])
                self.next = now + 0.1
            elif self.kind == 2:
                self.socket.send(random.randbytes(random.randrange(1, 1024)))
                self.next = now + 0.1
        except BlockingIOError:
            pass


def main():
    count, ports = int(sys.argv[1]), [int(p) for p in sys.argv[2:]]
    open_ones, opened, allowed, said = [], 0, 0.0, False
    with selectors.DefaultSelector() as s:
        while True:
            now = time.monotonic()
            allowed = min(count, allowed + count * TURN)
            while len(open_ones) < count and allowed >= 1:
                c = Connection(opened % 3, ports[opened % len(ports)])
                s.register(c.socket, selectors.EVENT_READ)
                c.key = c.socket.fileno()
                open_ones.append(c)
                opened, allowed = opened + 1, allowed - 1
            closed = set()
            for key, _ in s.select(0):
                try:
                    if not key.fileobj.recv(65536):
                        closed.add(key.fd)
                except BlockingIOError:
                    pass
                except OSError:
                    closed.add(key.fd)
            kept = []
            for c in open_ones:
                try:
                    if c.key in closed:
                        raise OSError("closed by the task")
                    c.send(now)
                    kept.append(c)
                except OSError:
                    s.unregister(c.socket)
                    c.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # no TIME_WAIT
                    c.socket.close()
            open_ones = kept
            if opened >= count and not said:
                said = os.write(1, b"opened\n") > 0
            time.sleep(TURN)


main()
