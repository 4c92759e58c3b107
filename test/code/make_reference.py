#!/usr/bin/env python3
"""Prints reference.h: the codes of two blocks as numpy computes them from the definitions in lib/code/code.h.

    build/venv/bin/python3 test/code/make_reference.py >test/code/reference.h

The numbers come from one linear congruential generator, so the C test makes the same ones:
s = 1664525 s + 1013904223 mod 2^32 with s = 1 at first; a number is ((s >> 8) / 2^24 - 0.5) times a power of two:
in block 0 always 1, in block 1 2^(i mod 40 - 30) for number i.
"""
import struct

import numpy as np

BLOCK = 256
SEED, STEP, PLACE, ELEMENT = 0x0123456789abcdef, 77, 3, 5 * BLOCK
f32 = np.float32


def numbers():
    s, out = 1, []
    for i in range(2 * BLOCK):
        s = (1664525 * s + 1013904223) % 2**32
        out.append(((s >> 8) / 2**24 - 0.5) * (1 if i < BLOCK else 2.0 ** (i % BLOCK % 40 - 30)))
    return np.array(out, f32).reshape(2, BLOCK)


def bfloat16(x, _):
    u = x.view(np.uint32).astype(np.uint64)
    return ((u + 0x7fff + ((u >> 16) & 1)) >> 16).astype("<u2").tobytes()


def float16(x, _):
    exponent = int(np.floor(np.log2(np.abs(x).max()))) - 14
    half = (x.astype(np.float64) * 2.0**-exponent).astype("<f2")
    return struct.pack("<f", 2.0**exponent) + half.tobytes()


def int8(x, _):
    most = np.abs(x).max()
    return struct.pack("<f", most / f32(127)) + np.rint(x * (f32(127) / most)).astype(np.int8).tobytes()


def philox(block):
    """Philox4x32-10 of the key SEED and the counter (block, STEP, PLACE, "code")."""
    key = [SEED & 0xffffffff, SEED >> 32]
    c = [block, STEP, PLACE, 0x636f6465]
    for _ in range(10):
        a, b = 0xd2511f53 * c[0], 0xcd9e8d57 * c[2]
        c = [(b >> 32) ^ c[1] ^ key[0], b & 0xffffffff, (a >> 32) ^ c[3] ^ key[1], a & 0xffffffff]
        key = [(key[0] + 0x9e3779b9) & 0xffffffff, (key[1] + 0xbb67ae85) & 0xffffffff]
    return c


def int4(x, element):
    out = b""
    for at in range(0, BLOCK, 64):
        part = x[at:at + 64]
        most = np.abs(part).max()
        words = [w for i in range(16) for w in philox((element + at) // 4 + i)]
        u = np.array([(w >> 8) / 2**24 for w in words], f32)
        q = np.clip(np.floor(part * (f32(7) / most) + u + f32(8)) - 8, -7, 7).astype(int) & 15
        out += struct.pack("<f", most / f32(7)) + bytes((q[:32] | q[32:] << 4).tolist())
    return out


print("/* reference.h - printed by test/code/make_reference.py with numpy %s. */" % np.__version__)
print("#include <stdint.h>\n\n#include \"code/code.h\"\n")
print("#define REFERENCE_SEED UINT64_C(0x%016x)" % SEED)
print("enum { REFERENCE_STEP = %d, REFERENCE_PLACE = %d, REFERENCE_ELEMENT = %d };" % (STEP, PLACE, ELEMENT))
print("/* The two blocks of each code, one after the other, as hexadecimal digits. */")
print("static const char *const references[CODE_KINDS] = {")
for code in (bfloat16, float16, int8, int4):
    data = b"".join(code(x, ELEMENT + i * BLOCK) for i, x in enumerate(numbers()))
    print("    [CODE_%s] =" % code.__name__.upper())
    lines = [data.hex()[i:i + 100] for i in range(0, 2 * len(data), 100)]
    print("\n".join('        "%s"' % line for line in lines) + ",")
print("};")
