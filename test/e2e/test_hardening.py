#!/usr/bin/python3
"""The built programs have the protections that the Makefile requests."""
import os
import platform
import re
import subprocess

from kit import BUILD, TRAINERCTL, TRAINERD, main, test


def readelf(path, *options):
    return subprocess.run(["readelf", "-W", *options, path], check=True, capture_output=True, text=True).stdout


@test
def program_is_position_independent_with_read_only_relocations():
    for path in (TRAINERD, TRAINERCTL):
        assert re.search(r"Type:\s+DYN \(Position-Independent Executable file\)", readelf(path, "-h")), path
        segments, dynamic = readelf(path, "-l"), readelf(path, "-d")
        assert "GNU_RELRO" in segments and re.search(r"FLAGS\).*BIND_NOW", dynamic), (path, dynamic)
        stack = re.search(r"GNU_STACK.*", segments)
        assert stack and " RW " in stack[0] and " RWE " not in stack[0], (path, stack)
        assert "RPATH" not in dynamic and "RUNPATH" not in dynamic and "TEXTREL" not in dynamic, (path, dynamic)


@test
def program_checks_its_stack_and_its_buffers():
    for path in (TRAINERD, TRAINERCTL):
        symbols = readelf(path, "--dyn-syms")
        assert "__stack_chk_fail" in symbols and "__snprintf_chk" in symbols and "__memcpy_chk" in symbols, path
    with open(os.path.join(BUILD, "flags")) as f:
        assert "-fstack-clash-protection" in f.read()  # it leaves no symbol
    if platform.machine() == "x86_64":
        for path in (TRAINERD, TRAINERCTL):
            # The note of the property is absent where the start files of the C library do not have it.
            code = subprocess.run(["objdump", "-d", "--disassemble=main", path], check=True, capture_output=True, text=True).stdout
            assert re.search(r"<main>:\n[^\n]*endbr64", code), code[:500]


main()
