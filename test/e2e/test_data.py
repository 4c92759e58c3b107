#!/usr/bin/python3
"""The same samples in every file format produce the same losses; tests the commands convert and data."""
# san: yes
import csv
import glob
import gzip
import json
import os
import re
import signal
import struct
import subprocess
import sys
import urllib.request
import zlib

import numpy as np

from kit import GUARD, ROOT, TRAINERCTL, Task, digits_job, expect_codes, free_ports, main, start, test, tf_config, workdir
from segment_net import segment_net

sys.path.insert(0, os.path.join(ROOT, "test", "data"))
import tfrecord  # noqa: E402 (independent of the reader and writer of the project)

DIGITS = sorted(glob.glob(os.path.join(ROOT, "config/digits/digits-train-*.tfrecord")))


def records(path):
    with open(path, "rb") as f:
        return [tfrecord.parse(data) for data in tfrecord.frames(f.read())]


def samples():
    """Returns [file][sample] -> (pixels, label)."""
    return [[(r["image"][1][0], r["label"][1][0]) for r in records(path)] for path in DIGITS]


ALONE = {"model": {"metrics": None}, "checkpoint": None}  # neither evaluation nor checkpoints to resume from


def losses(folder, data, **train):
    job = digits_job(folder, data=data, **ALONE, **{"train": {"epochs": None, "steps": 30, "lanes": 2, "eval_every_epochs": 0,
                                                     "log_every_steps": 1, **train}})
    task = Task(job, args=("--devices", "cpu:1"))
    expect_codes([task], [0])
    out = [task.steps()[k]["loss"] for k in range(1, 31)]
    assert len(out) == 30 and out[29] < out[0], out
    return out


def ctl(*args, code=0):
    out = subprocess.run([TRAINERCTL, *args], capture_output=True, text=True, timeout=GUARD)
    assert out.returncode == code, (args, out.returncode, out.stdout, out.stderr)
    return out


IMAGE = {"dtype": "uint8", "shape": [1, 8, 8], "scale": 0.0625}
LABEL = {"dtype": "int64", "shape": []}


@test
def losses_same_samples_in_any_format_are_equal():
    folder = workdir()
    base = {"eval": None, "cache": "none", "features": {"image": IMAGE, "label": LABEL}}
    expected = losses(folder, dict(base, train=os.path.join(ROOT, "config/digits/digits-train-*.tfrecord")))
    for i, part in enumerate(samples()):
        with open(os.path.join(folder, f"{i}.csv"), "w", newline="") as f:
            out = csv.writer(f)
            out.writerow(["label"] + [f"p{k}" for k in range(64)])
            out.writerows([label, *pixels] for pixels, label in part)
        np.save(os.path.join(folder, f"image-{i}.npy"),
                np.array([list(p) for p, _ in part], np.uint8).reshape(-1, 1, 8, 8))
        np.save(os.path.join(folder, f"label-{i}.npy"), np.array([x for _, x in part], np.int64))
        with open(DIGITS[i], "rb") as f, gzip.open(os.path.join(folder, f"{i}.tfrecord.gz"), "wb") as g:
            g.write(f.read())
    column = dict(IMAGE, column="p0")
    ways = {
        "csv": dict(base, format="csv", train=folder + "/*.csv", features={"image": column, "label": LABEL}),
        "npy": dict(base, format="npy", train=folder + "/{feature}-*.npy"),
        "gzip in memory": dict(base, train=folder + "/*.gz", cache="memory"),
        "gzip on disk": dict(base, train=folder + "/*.gz", cache="disk", cache_directory=folder + "/cache"),
        "a mixture of one": dict(base, train=None, mixture=[{"files": DIGITS[0].replace("-0.", "-*."), "weight": 3}]),
    }
    for name, data in ways.items():
        found = losses(folder, data)
        assert found == expected, (name, [k for k in range(30) if found[k] != expected[k]])
    assert len(os.listdir(folder + "/cache")) == len(DIGITS)


@test
def invalid_record_ends_the_run_or_is_skipped_as_configured():
    folder = workdir()
    for path in DIGITS:
        with open(path, "rb") as f:
            data = bytearray(f.read())
        data[5000] ^= 1
        with open(os.path.join(folder, os.path.basename(path)), "wb") as f:
            f.write(data)
    base = {"eval": None, "train": folder + "/*.tfrecord", "features": {"image": IMAGE, "label": LABEL}}
    job = digits_job(folder, data=base, **ALONE, **{"train": {"epochs": 1, "lanes": 2, "eval_every_epochs": 0}})
    task = Task(job, args=("--devices", "cpu:1"))
    code = task.wait()
    assert code != 0 and any("checksum of the record" in line and ".tfrecord" in line for line in task.lines), task.lines
    job = digits_job(folder, data=dict(base, on_bad_record="skip"), **ALONE, **{"train": {"epochs": 1, "lanes": 2, "eval_every_epochs": 0}})
    task = Task(job, args=("--devices", "cpu:1"))
    expect_codes([task], [0])
    assert any("bad record skipped" in line for line in task.lines), task.lines


@test
def skipped_records_are_counted_in_status_and_metrics():
    folder = workdir()
    with open(DIGITS[0], "rb") as f:
        data = bytearray(f.read())
    data[5000] ^= 1
    with open(os.path.join(folder, "bad.tfrecord"), "wb") as f:
        f.write(data)
    job = digits_job(folder, data={"eval": None, "train": folder + "/bad.tfrecord", "on_bad_record": "skip", "cache": "none",
                                   "features": {"image": IMAGE, "label": LABEL}},
                     **ALONE, **{"train": {"epochs": 10000, "lanes": 1, "eval_every_epochs": 0}})
    ports = free_ports(2)
    [task] = start(job, 1, args=("--metrics", "127.0.0.1:%d" % ports[1]), ports=ports[:1])
    task.until_step(100)

    def get(path):
        with urllib.request.urlopen("http://127.0.0.1:%d%s" % (ports[1], path), timeout=GUARD) as r:
            return r.read().decode()

    counted = float(re.search(r"^trainerd_skipped_records_total ([0-9.e+]+)$", get("/metrics"), re.M).group(1))
    asked = json.loads(get("/status"))["skipped_records"]
    told = json.loads(ctl("status", "--json", "127.0.0.1:%d" % ports[0]).stdout)["skipped_records"]
    assert 1 <= counted <= asked and told >= 1, (counted, asked, told)
    assert " bad records skipped\n" in ctl("status", "127.0.0.1:%d" % ports[0]).stdout
    task.signal(signal.SIGTERM)
    expect_codes([task], [143])


def png(pixels):
    """Encodes an image of [h][w][3] (RGB) or [h][w][1] (grey) as PNG."""
    h, w = len(pixels), len(pixels[0])
    raw = b"".join(b"\0" + bytes(v for p in row for v in p) for row in pixels)

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, 8, 2 if len(pixels[0][0]) == 3 else 0, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b""))


@test
def convert_output_is_read_by_an_independent_reader():
    folder = workdir()
    with open(folder + "/t.csv", "w") as f:
        f.write('a,b,"y"\n1,0.5,7\n2,-3,8\n3,1e3,-9\n')
    out = ctl("convert", "--out", folder + "/out/t", "--label", "y", "--shards", "2", folder + "/t.csv").stdout
    assert "3 samples in 2 files" in out and '"x": { "dtype": "float32", "shape": [2] }' in out, out
    first = records(folder + "/out/t-00000-of-00002.tfrecord")
    second = records(folder + "/out/t-00001-of-00002.tfrecord")
    assert first == [{"x": ("float", [1.0, 0.5]), "y": ("int64", [7])},
                     {"x": ("float", [3.0, 1000.0]), "y": ("int64", [-9])}], first
    assert second == [{"x": ("float", [2.0, -3.0]), "y": ("int64", [8])}], second

    np.save(folder + "/u.npy", np.arange(12, dtype=np.uint8).reshape(3, 2, 2))
    np.save(folder + "/d.npy", np.array([0.1, 0.2, 0.3]))
    np.save(folder + "/i.npy", np.array([[-1, 2], [3, -4], [5, 6]], np.int16))
    out = ctl("convert", "--out", folder + "/n", *(f"{x}={folder}/{x}.npy" for x in "udi")).stdout
    found = records(folder + "/n-00000-of-00001.tfrecord")
    assert found[1] == {"u": ("bytes", [bytes([4, 5, 6, 7])]), "d": ("float", [struct.unpack("f", struct.pack("f", .2))[0]]),
                        "i": ("int64", [3, -4])}, found
    assert '"u": { "dtype": "uint8", "shape": [2, 2] }' in out, out
    np.save(folder + "/u.npy", np.array([7, 2**63], np.uint64))
    out = ctl("convert", "--out", folder + "/n", f"u={folder}/u.npy", code=2)
    assert "u.npy': item 1 has 9223372036854775808 (uint64), which no int64 equals" in out.stderr, out.stderr

    for label, name in enumerate(("cat", "dog")):
        os.makedirs(f"{folder}/pictures/{name}")
        for k in range(3):
            with open(f"{folder}/pictures/{name}/{k}.png", "wb") as f:
                f.write(png([[(50 * k, 100 * label, 9)] * 5] * 4))
    out = ctl("convert", "--out", folder + "/p", folder + "/pictures").stdout
    assert "class 0: cat\nclass 1: dog\n6 samples" in out, out
    found = records(folder + "/p-00000-of-00001.tfrecord")
    assert sorted(r["label"][1][0] for r in found) == [0, 0, 0, 1, 1, 1]
    assert [r["label"][1][0] for r in found] != [0, 0, 0, 1, 1, 1]  # the order is drawn from the seed
    assert all(r["image"][1][0].startswith(b"\x89PNG") for r in found)


@test
def convert_with_a_class_list_gives_a_folder_without_one_class_the_same_labels():
    folder = workdir()
    for part, classes in (("train", ("bee", "cat", "dog")), ("eval", ("cat", "dog")), ("other", ("cat", "eel"))):
        for name in classes:
            os.makedirs(f"{folder}/{part}/{name}")
            with open(f"{folder}/{part}/{name}/0.png", "wb") as f:
                f.write(png([[(len(name), 1, 2)] * 5] * 4))
        for name in ("Thumbs.db", ".DS_Store", "cat/desktop.ini"):
            open(f"{folder}/{part}/{name}", "w").close()
    out = ctl("convert", "--out", folder + "/t", folder + "/train").stdout
    with open(folder + "/t.classes.txt") as f:
        assert f.read() == "bee\ncat\ndog\n"
    assert f"--classes {folder}/t.classes.txt" in out and '"shape": [3, 224, 224], "encoded": true }' in out, out
    out = ctl("convert", "--out", folder + "/e", "--classes", folder + "/t.classes.txt", folder + "/eval").stdout
    assert "class 0: bee\nclass 1: cat\nclass 2: dog\n2 samples" in out, out
    assert sorted(r["label"][1][0] for r in records(folder + "/e-00000-of-00001.tfrecord")) == [1, 2]
    assert not os.path.exists(folder + "/e.classes.txt")
    os.makedirs(folder + "/f-00000-of-00001.tfrecord/used")  # the file of the samples cannot be renamed to it
    out = ctl("convert", "--out", folder + "/f", folder + "/train", code=1)
    assert "f-00000-of-00001.tfrecord" in out.stderr and not os.path.exists(folder + "/f.classes.txt"), out.stderr
    os.makedirs(folder + "/g.classes.txt/used")
    out = ctl("convert", "--out", folder + "/g", folder + "/train", code=1)
    assert "the list of their classes is not" in out.stderr and len(records(folder + "/g-00000-of-00001.tfrecord")) == 3, out.stderr
    for text, part, message in (("bee\ncat\ndog\n", "other", "class 'eel' is not in"), ("cat\n\ndog\n", "eval", "line 2: expected the name of a class, which is that of its folder; found an empty line"),
                                ("cat\r\ndog\r\ncat", "eval", "line 3: class 'cat' is also in line 1"), ("", "eval", "expected a class")):
        with open(folder + "/list", "w", newline="") as f:
            f.write(text)
        out = ctl("convert", "--out", folder + "/x", "--classes", folder + "/list", f"{folder}/{part}", code=2)
        assert message in out.stderr, (message, out.stderr)


@test
def convert_describes_grey_and_turned_images():
    folder = workdir()
    os.makedirs(folder + "/grey/all")
    os.makedirs(folder + "/turned/all")
    grey = png([[(7,)] * 5] * 4)
    tiff = b"II*\0\x08\0\0\0\x01\0" + struct.pack("<HHIHHI", 0x0112, 3, 1, 6, 0, 0)
    exif = struct.pack(">I", len(tiff)) + b"eXIf" + tiff + struct.pack(">I", zlib.crc32(b"eXIf" + tiff))
    for name, data in (("grey/all/0.png", grey), ("turned/all/0.png", grey), ("turned/all/1.png", grey[:33] + exif + grey[33:])):
        with open(f"{folder}/{name}", "wb") as f:
            f.write(data)
    out = ctl("convert", "--out", folder + "/g", folder + "/grey").stdout
    assert '"shape": [1, 224, 224], "encoded": true }' in out, out
    out = ctl("convert", "--out", folder + "/t", folder + "/turned").stdout
    assert "1 of 2 images are stored in another orientation" in out and '"encoded": true, "orientation": "exif" }' in out, out


@test
def convert_several_files_are_joined_in_order_and_patterns_by_name():
    folder = workdir()
    for name, text in (("b", "y,x\n3,4\n"), ("a", "\ufeffy,x\n\n1,2\n2,3\n"), ("c", "y,x\n5,5.5\n"), ("empty", "y,x\n")):
        with open(f"{folder}/{name}.csv", "w") as f:
            f.write(text)

    def rows(*inputs, shards=1):
        ctl("convert", "--out", folder + "/t", "--shards", str(shards), *inputs)
        found = [records(f"{folder}/t-{k:05}-of-{shards:05}.tfrecord") for k in range(shards)]
        return [[(r["y"][1][0], r["x"][1][0]) for r in part] for part in found]

    # A single value that is not an integer makes the column of all files float.
    assert rows(folder + "/*.csv") == [[(1, 2.0), (2, 3.0), (3, 4.0), (5, 5.5)]]
    assert rows(folder + "/c.csv", folder + "/[ab].csv", shards=2) == [[(5, 5.5), (2, 3.0)], [(1, 2.0), (3, 4.0)]]
    assert rows(folder + "/b.csv", folder + "/a.csv") == [[(3, 4), (1, 2), (2, 3)]]
    for i, n in enumerate((2, 3)):
        np.save(f"{folder}/x-{i}.npy", np.full((n, 2), 10.0 * i, np.float32) + np.arange(2))
        np.save(f"{folder}/y-{i}.npy", np.arange(n) + 10 * i)
    for inputs in ([f"x={folder}/x-?.npy", f"y={folder}/y-?.npy"],
                   [f"x={folder}/x-0.npy", f"y={folder}/y-0.npy", f"x={folder}/x-1.npy", f"y={folder}/y-1.npy"]):
        out = ctl("convert", "--out", folder + "/n", *inputs).stdout
        assert out.count('"x": ') == 1 and "5 samples in 1 file" in out, out
        found = [(r["x"][1], r["y"][1]) for r in records(folder + "/n-00000-of-00001.tfrecord")]
        assert found == [([10.0 * i, 10.0 * i + 1], [10 * i + k]) for i, n in enumerate((2, 3)) for k in range(n)], found


@test
def convert_invalid_input_is_refused_with_its_place_and_leaves_no_file():
    folder = workdir()
    with open(folder + "/bad.csv", "w") as f:
        f.write("a,b\n1,2\n3\n")
    with open(folder + "/word.csv", "w") as f:
        f.write("a,b\n1,two\n")
    for name, text in (("good", "a,b\n1,2\n"), ("other", "a,c\n1,2\n")):
        with open(f"{folder}/{name}.csv", "w") as f:
            f.write(text)
    os.makedirs(folder + "/pictures/cat")
    with open(folder + "/pictures/cat/a.png", "w") as f:
        f.write("no image")
    np.save(folder + "/a.npy", np.zeros((3, 2), np.float32))
    np.save(folder + "/b.npy", np.zeros((4,), np.float32))
    for args, text in ((["bad.csv"], "line 3: 1 fields, expected 2"), (["word.csv"], "column 'b' is 'two'"),
                       (["pictures"], "a.png': 8 bytes that are neither"), (["nothing.csv"], "nothing.csv"),
                       (["nothing-*.csv"], "no such file"), (["good.csv", "other.csv"], "other.csv': line 1: column 1 is 'c'"),
                       (["good.csv", "pictures"], "expected one kind of input"),
                       (["x=a.npy", "y=b.npy", "x=a.npy"], "2 files of 'x' and 1 of 'y'"),
                       (["x=a.npy", "x=b.npy"], "expected float32 [2] as in the first file of 'x'"),
                       (["a.npy"], "expected NAME=FILE.npy"), (["x=a.npy", "y=b.npy"], "expected equal numbers")):
        inputs = [a if "=" not in a else a.replace("=", f"={folder}/") for a in args]
        inputs = [a if "=" in a else f"{folder}/{a}" for a in inputs]
        out = ctl("convert", "--out", folder + "/out/x", *inputs, code=2)
        assert text in out.stderr, (text, out.stderr)
        assert os.listdir(folder + "/out") == [], os.listdir(folder + "/out")


@test
def packed_sequences_train_like_separate_sequences():
    folder, length, vocabulary = workdir(), 16, 20
    rng = np.random.default_rng(5)
    with open(folder + "/text.tfrecord", "wb") as f:
        for _ in range(48):
            words = [int(x) for x in rng.integers(0, vocabulary, rng.integers(1, length + 1))]
            f.write(tfrecord.frame(tfrecord.example({"tokens": ("int64", words), "labels": ("int64", words[1:] + [3])})))
    segment_net(folder + "/net.onnx", vocabulary, length)

    def job(batch, lanes, pack):
        pad = {} if pack else {"pad": True}
        with open(folder + "/job.json", "w") as f:
            json.dump({
                "model": {"onnx": "net.onnx", "inputs": {"tokens": "ids", "segment": "segment", "position": "position"},
                          "loss": {"type": "softmax_cross_entropy", "logits": "logits", "labels": "labels", "ignore_index": -100},
                          "frozen": ["zero", "far"]},
                "data": {"train": "text.tfrecord", "pack": "tokens" if pack else None, "shuffle": True, "features": {
                    "tokens": {"dtype": "int64", "shape": [length], **pad},
                    "labels": {"dtype": "int64", "shape": [length], "pad_value": -100, **pad},
                    "segment": {"dtype": "int64", "shape": [length], "segment_of": "tokens"},
                    "position": {"dtype": "int64", "shape": [length], "position_of": "tokens"}}},
                "train": {"steps": 5, "global_batch_size": batch, "lanes": lanes, "log_every_steps": 1},
                "optimizer": {"type": "sgd", "learning_rate": 0.5}}, f)
        return folder + "/job.json"

    def run(batch, lanes, pack):
        task = Task(job(batch, lanes, pack), args=("--devices", "cpu:1"))
        expect_codes([task], [0])
        return [task.steps()[k]["loss"] for k in range(1, 6)]

    said = ctl("data", "--devices", "cpu:1", job(1, 1, True)).stdout
    packs = int(re.search(r"^training: (\d+) samples, [\d.]+ % full, packed from 48 records in 1 file$", said, re.M).group(1))
    assert 24 <= packs < 40 and f"an epoch is {packs} steps of 1 samples" in said, said
    # A step contains all samples, so the sum of the losses is over the same tokens.
    packed, alone = run(packs, 1, True), run(48, 2, False)
    assert packed[4] < packed[0] and np.allclose(packed, alone, rtol=2e-5), (packed, alone)


@test
def data_command_prints_samples_and_their_tasks():
    folder = workdir()
    job = digits_job(folder)
    out = ctl("data", "--devices", "cpu:2", job).stdout
    total = sum(len(part) for part in samples())
    assert f"training: {total} samples in {len(DIGITS)} files" in out, out
    assert re.search(r"an epoch is \d+ steps of 64 samples; \d+ are left out of each", out), out
    pixels, label = samples()[0][0]
    assert f"label            int64 [] as int64: {label}\n" in out, out
    shown = "".join(" %.6g" % (x * 0.0625) for x in pixels[:8])
    assert f"uint8 [1, 8, 8] as float32:{shown} ..." in out, (shown, out)
    cluster = {"cluster": {"worker": ["127.0.0.1:1111", "127.0.0.1:2222"]}, "task": {"type": "worker", "index": 0}}
    with open(folder + "/cluster.json", "w") as f:
        json.dump(cluster, f)
    out = ctl("data", "--devices", "cpu:1", "--cluster", folder + "/cluster.json", job).stdout
    assert "worker 0     lanes 0 to 1: samples 0 to 31\n  worker 1     lanes 2 to 3: samples 32 to 63" in out, out
    out = ctl("data", "--sample", "99999", job, code=2)
    assert "expected a number from 0 to" in out.stderr, out.stderr


@test
def records_of_a_large_array_that_differ_on_one_host_are_found_while_steps_read_them():
    """40 MiB, more than is compared as a whole at the start: one number of every fifth record differs."""
    ports, tasks = free_ports(2), []
    for i in range(2):
        folder = workdir()
        x = np.lib.format.open_memmap(os.path.join(folder, "train-x.npy"), "w+", "f4", (640, 1 << 14))  # a sparse file
        if i == 1:
            x[3:-1:5, 9000] = 1
        x.flush()
        np.save(os.path.join(folder, "train-label.npy"), np.zeros(640, "i8"))
        subprocess.run([TRAINERCTL, "model", "mlp", "--set", "inputs=%d" % (1 << 14), "--set", "hidden=1", "--set", "layers=1",
                        "-o", os.path.join(folder, "mlp.onnx")], check=True, stdout=subprocess.DEVNULL)
        job = {"model": {"onnx": "mlp.onnx", "inputs": {"x": "x"}, "loss": {"type": "softmax_cross_entropy", "logits": "logits", "labels": "label"}},
               "data": {"format": "npy", "train": "train-{feature}.npy", "features": {"x": {"dtype": "float32", "shape": [1 << 14]}, "label": LABEL}},
               "train": {"epochs": 100, "global_batch_size": 64, "lanes": 2}, "optimizer": {"type": "sgd", "learning_rate": 0.1}}
        with open(os.path.join(folder, "job.json"), "w") as f:
            json.dump(job, f)
        tasks.append(Task(os.path.join(folder, "job.json"), tf_config(ports, i), ("--devices", "cpu:1"), name="worker %d" % i))
    assert tasks[1].wait() == 2, tasks[1].log()
    text = tasks[1].final_message()
    found = re.search(r"the training data of this task differs from that of worker 0 in record (\d+) of '.*/train-label.npy' or of the arrays of .*give every task", text)
    assert found and int(found[1]) % 5 == 3, text
    tasks[0].until(lambda t: "worker 1" in t.log() and "the arrays of the other features" in t.log())
    tasks[0].kill()


if __name__ == "__main__":
    main()
