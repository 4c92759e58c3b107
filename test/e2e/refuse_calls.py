#!/usr/bin/python3
"""refuse_calls.py CALL=ERRNO... -- COMMAND...: runs a command whose system calls fail, for example link=EPERM as on a file system
without hard links, or mkdir=EACCES as in a folder of another user; its children inherit that. It needs no privileges."""
import ctypes
import errno
import os
import platform
import struct
import sys

# The calls of the C library's function; older architectures have two for each.
NUMBERS = {"x86_64": {"link": (86, 265), "mkdir": (83, 258), "rename": (82, 264)},
           "aarch64": {"link": (37,), "mkdir": (34,), "rename": (38,)}}
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ALLOW, ERRNO = 38, 22, 2, 0x7fff0000, 0x00050000
LOAD_NUMBER, JUMP_EQUAL, RETURN = 0x20, 0x15, 0x06


class Program(ctypes.Structure):
    _fields_ = [("n", ctypes.c_ushort), ("code", ctypes.c_char_p)]


def main():
    end = sys.argv.index("--")
    code = [(LOAD_NUMBER, 0, 0, 0)]
    for word in sys.argv[1:end]:
        call, name = word.split("=")
        for number in NUMBERS[platform.machine()][call]:
            code += [(JUMP_EQUAL, 0, 1, number), (RETURN, 0, 0, ERRNO | getattr(errno, name))]
    code.append((RETURN, 0, 0, ALLOW))
    program = Program(len(code), b"".join(struct.pack("HBBI", *c) for c in code))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program)) == 0, os.strerror(ctypes.get_errno())
    os.execvp(sys.argv[end + 1], sys.argv[end + 1:])


main()
