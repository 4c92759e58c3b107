"""libraries.py - finds the libraries of CUDA on this machine: on the loader's path, in toolkits, and in Python packages.

The programs of trainerd open these libraries by name only. add_to_library_path() adds the folders of the libraries that
the loader does not find to LD_LIBRARY_PATH, for the programs that are started afterwards. A library that the loader finds
is not replaced by another copy."""
import glob
import os
import shutil
import site
import subprocess
import sys

DRIVER = ("libcuda.so.1",)
WANTED = ("libcublasLt.so.13", "libcudnn.so.9", "libnccl.so.2")
OPTIONAL = ("libnvidia-ml.so.1", "libnvrtc.so.13")  # sensors of the GPU; run-time compiler of cuDNN

TOOLKITS = ("/usr/local/cuda*/lib64", "/usr/local/cuda*/lib", "/usr/local/cuda*/targets/x86_64-linux/lib",
            "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/wsl/lib")


def package_folders():
    """Returns the package folders of this Python and of the program python3 on the PATH."""
    out = [p for p in sys.path if p.endswith(("site-packages", "dist-packages"))] + site.getsitepackages()
    other = shutil.which("python3")
    if other is not None and os.path.realpath(other) != os.path.realpath(sys.executable):
        p = subprocess.run([other, "-c", "import sys; print('\\n'.join(sys.path))"], capture_output=True, text=True,
                           stdin=subprocess.DEVNULL, timeout=60)
        out += [line for line in p.stdout.split("\n") if line.endswith(("site-packages", "dist-packages"))]
    return list(dict.fromkeys(out))


def loader_finds(name):
    """Tells whether the loader finds the library. Uses a child process, because a loaded library stays loaded."""
    code = "import ctypes, sys\ntry: ctypes.CDLL(sys.argv[1])\nexcept OSError: sys.exit(1)"
    return subprocess.run([sys.executable, "-c", code, name], stdin=subprocess.DEVNULL, capture_output=True,
                          timeout=60).returncode == 0


def find(name):
    """Returns the folder of a library; "": the loader finds it; None: not found."""
    if loader_finds(name):
        return ""
    folders = [f for pattern in TOOLKITS for f in sorted(glob.glob(pattern), reverse=True)]
    folders += [f for packages in package_folders() for f in sorted(glob.glob(os.path.join(packages, "nvidia", "*", "lib")))]
    for folder in folders:
        if os.path.exists(os.path.join(folder, name)):
            return folder
    return None


def add_to_library_path():
    """Adds the folders to LD_LIBRARY_PATH. Returns {library: result of find()}."""
    where = {name: find(name) for name in DRIVER + WANTED + OPTIONAL}
    more = list(dict.fromkeys(f for f in where.values() if f))
    old = os.environ.get("LD_LIBRARY_PATH", "")
    if more:
        os.environ["LD_LIBRARY_PATH"] = ":".join(more + ([old] if old else []))
    return where


def text(where):
    return ", ".join("%s %s" % (name, "on the loader's path" if folder == "" else folder if folder else "NOT FOUND")
                     for name, folder in where.items())
