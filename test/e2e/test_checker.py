#!/usr/bin/env python3
"""Compares the import with onnx.checker: runs test/fuzz/check_models.py on mutations of the models of test/graph/data."""
# san: yes
# needs: test/fuzz/fuzz_models
import os
import subprocess
import sys

from kit import BUILD, GUARD, ROOT, main, test


@test
def import_mutated_model_that_is_accepted_is_valid():
    script = os.path.join(ROOT, "test", "fuzz", "check_models.py")
    p = subprocess.run([sys.executable, script, os.path.join(BUILD, "test", "fuzz", "fuzz_models"), "20000", "1"], cwd=ROOT,
                       capture_output=True, text=True, timeout=10 * GUARD)
    assert p.returncode == 0, p.stdout + p.stderr


if __name__ == "__main__":
    main()
