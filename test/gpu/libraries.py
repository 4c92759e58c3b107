"""libraries.py - where the libraries of CUDA are on this machine: what the loader knows, toolkits, and the folders that
Python packages bring them in.

They are found for our programs, which know them by name only: put_on_path() adds the folders of those that the loader
would not find to LD_LIBRARY_PATH of whatever is started later. Nothing is started with another copy of what it
would have found."""
import glob
import os
import shutil
import site
import subprocess
import sys

DRIVER = ("libcuda.so.1",)
WANTED = ("libcublasLt.so.13", "libcudnn.so.9", "libnccl.so.2")
BESIDE = ("libnvidia-ml.so.1", "libnvrtc.so.13")  # sensors; what cuDNN compiles with

TOOLKITS = ("/usr/local/cuda*/lib64", "/usr/local/cuda*/lib", "/usr/local/cuda*/targets/x86_64-linux/lib",
            "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/wsl/lib")


def pythons():
    """Folders of packages: of this Python, and of the one that the name python3 means."""
    out = [p for p in sys.path if p.endswith(("site-packages", "dist-packages"))] + site.getsitepackages()
    other = shutil.which("python3")
    if other is not None and os.path.realpath(other) != os.path.realpath(sys.executable):
        p = subprocess.run([other, "-c", "import sys; print('\\n'.join(sys.path))"], capture_output=True, text=True,
                           stdin=subprocess.DEVNULL, timeout=60)
        out += [line for line in p.stdout.split("\n") if line.endswith(("site-packages", "dist-packages"))]
    return list(dict.fromkeys(out))


def loads(name):
    """By the loader alone, in a process of its own: what is loaded cannot be unloaded."""
    code = "import ctypes, sys\ntry: ctypes.CDLL(sys.argv[1])\nexcept OSError: sys.exit(1)"
    return subprocess.run([sys.executable, "-c", code, name], stdin=subprocess.DEVNULL, capture_output=True,
                          timeout=60).returncode == 0


def find(name):
    """The folder of a library, "" if the loader finds it, None if nobody does."""
    if loads(name):
        return ""
    folders = [f for pattern in TOOLKITS for f in sorted(glob.glob(pattern), reverse=True)]
    folders += [f for packages in pythons() for f in sorted(glob.glob(os.path.join(packages, "nvidia", "*", "lib")))]
    for folder in folders:
        if os.path.exists(os.path.join(folder, name)):
            return folder
    return None


def put_on_path():
    """{library: where}; those that are nowhere have None."""
    where = {name: find(name) for name in DRIVER + WANTED + BESIDE}
    more = list(dict.fromkeys(f for f in where.values() if f))
    old = os.environ.get("LD_LIBRARY_PATH", "")
    if more:
        os.environ["LD_LIBRARY_PATH"] = ":".join(more + ([old] if old else []))
    return where


def text(where):
    return ", ".join("%s %s" % (name, "on the loader's path" if folder == "" else folder if folder else "NOT FOUND")
                     for name, folder in where.items())
