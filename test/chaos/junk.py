"""junk.py HOST:PORT SECONDS - sends invalid input to a gRPC port: random bytes, an HTTP/2 preface
with broken frames, streams that are reset as soon as they are opened, and silent connections.
Limited to 64 connections at a time; ends by itself."""
import random
import socket
import struct
import sys
import time

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MOST = 64
# :method POST, :scheme http, :path /, :authority x, as HPACK literals without indexing
HEADERS = b"\x83\x86\x84\x41\x01x"


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def random_bytes(r):
    return r.randbytes(r.randrange(1, 4096))


def broken_frames(r):
    return PREFACE + frame(4, 0, 0) + b"".join(
        frame(r.randrange(256), r.randrange(256), r.randrange(8), r.randbytes(r.randrange(64))) for _ in range(8))


def resets(_):
    return PREFACE + frame(4, 0, 0) + b"".join(
        frame(1, 4, s, HEADERS) + frame(3, 0, s, struct.pack(">I", 8)) for s in range(1, 400, 2))


def nothing(_):
    return b""


def main():
    host, port = sys.argv[1].rsplit(":", 1)
    until, r, kept = time.time() + float(sys.argv[2]), random.Random(1), []
    while time.time() < until:
        try:
            s = socket.create_connection((host, int(port)), timeout=1)
            s.sendall(r.choice((random_bytes, broken_frames, resets, nothing))(r))
            kept.append(s)
        except OSError:
            pass  # refused or reset: the next one
        if len(kept) > MOST:
            kept.pop(0).close()
        time.sleep(0.005)


if __name__ == "__main__":
    main()
