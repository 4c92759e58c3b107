#!/bin/sh
# The data and the network of the demo are the output of their generators.
set -u
cd "$(dirname "$0")/../.." || exit 1
made=$(mktemp -d) || exit 1
trap 'rm -rf "$made"' EXIT

ok() { # ok STATUS NAME
    [ "$1" -eq 0 ] && echo "ok - $2" || echo "not ok - $2"
}

scripts/make_digits_cnn "$made/net.onnx" >/dev/null && cmp "$made/net.onnx" config/digits/digits_cnn.onnx
ok $? "scripts/make_digits_cnn writes the network again, byte for byte"

# Back to the table they were made from, in its order, and through the maker again.
/usr/bin/python3 - "$made/digits.csv.gz" <<'E'
import gzip, sys
sys.path.insert(0, "test/data")
import tfrecord

def rows(name):
    for record in tfrecord.read("config/digits/digits-%s.tfrecord" % name):
        assert set(record) == {"image", "label"}, record
        (kind, (image,)), (integer, (label,)) = record["image"], record["label"]
        assert (kind, integer) == ("bytes", "int64"), record
        yield list(image) + [label]

train, test = [*rows("train-0"), *rows("train-1")], list(rows("test-0"))
assert (len(train), len(test)) == (1438, 359), (len(train), len(test))
assert {r[-1] for r in test} == set(range(10))
with gzip.open(sys.argv[1], "wt") as f:
    for i in range(1797):
        f.write(",".join(map(str, (test if i % 5 == 4 else train).pop(0))) + "\n")
E
ok $? "an independent reader finds 1438 and 359 digits, all labels among them"

scripts/make_digits "$made/digits.csv.gz" "$made" >/dev/null
status=$?
for name in train-0 train-1 test-0; do
    cmp "$made/digits-$name.tfrecord" "config/digits/digits-$name.tfrecord" || status=1
done
ok $status "scripts/make_digits writes the records again, byte for byte"
