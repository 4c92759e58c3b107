#!/usr/bin/env python3
"""Prints non_max_suppression_data.h: the boxes that torchvision's nms keeps, the expected values of
test_non_max_suppression.c.

    python3 test/op/make_non_max_suppression.py >test/op/non_max_suppression_data.h          (PyTorch 2.15, torchvision 0.29)

Boxes (x1 y1 x2 y2) and scores come from the linear congruential generator of make_resize.py, with the seeds 1 and 2.
"""
import numpy as np
import torch
import torchvision

BOXES, CLASSES = 40, 2


def random(shape, seed):
    out = np.empty(int(np.prod(shape)), np.float32)
    for i in range(out.size):
        seed = (1664525 * seed + 1013904223) % 2**32
        out[i] = (seed >> 8) / 2**24 - 0.5
    return out.reshape(shape)


def main():
    boxes, scores = random((BOXES, 4), 1), random((CLASSES, BOXES), 2)
    low, size = boxes[:, :2], np.float32(0.5) + np.abs(boxes[:, 2:])
    boxes = torch.tensor(np.concatenate([low, low + size], 1))
    print("/* non_max_suppression_data.h - printed by test/op/make_non_max_suppression.py with PyTorch\n * %s, torchvision %s. */"
          % (torch.__version__, torchvision.__version__))
    print("static const struct nms_case {\n    float iou;\n    size_t n;\n    const int64_t *kept; /* [n, 3] */\n} nms_cases[] = {")
    for iou in (0.2, 0.4, 0.6):
        kept = [(0, c, int(i)) for c in range(CLASSES)
                for i in torchvision.ops.nms(boxes, torch.tensor(scores[c]), iou)]
        text = ",\n        ".join(", ".join("%d, %d, %d" % k for k in kept[i:i + 8]) for i in range(0, len(kept), 8))
        print("    { %.9gf, %d, (const int64_t[]){\n        %s } }," % (iou, len(kept), text))
    print("};")


if __name__ == "__main__":
    main()
