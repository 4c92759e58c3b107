#!/usr/bin/env python3
"""Prints exif_cases.h: what PIL.ImageOps.exif_transpose makes of images with Exif data.

    build/venv/bin/python3 test/data/make_exif.py >test/data/exif_cases.h

Each case is a JPEG segment or a PNG chunk that is inserted into one of two images, and the orientation that Pillow finds in it:
the number whose pixels equal those that it returns. The Exif data are written here, byte by byte.
"""
import io
import struct
import sys
import zlib

import PIL
from PIL import Image, ImageOps

W, H = 5, 3
ORIENTATION, SHORT, LONG, ASCII = 0x0112, 3, 4, 2


def picture():
    image = Image.new("RGB", (W, H))
    image.putdata([(40 * x, 60 * y, 255 - 30 * x - 40 * y) for y in range(H) for x in range(W)])
    return image


def encode(form, **options):
    out = io.BytesIO()
    picture().save(out, form, **options)
    return out.getvalue()


def tiff(entries, order="<", more=b"", at=8, head=None):
    """A TIFF structure of one directory at offset `at`, with `more` after it."""
    out = head or (b"II" if order == "<" else b"MM") + struct.pack(order + "HI", 42, at)
    out = out.ljust(at, b"\0") + struct.pack(order + "H", len(entries))
    for tag, kind, count, value in entries:
        value = struct.pack(order + ("HH" if kind == SHORT else "I"), *((value, 0) if kind == SHORT else (value,)))
        out += struct.pack(order + "HHI", tag, kind, count) + value
    return out + struct.pack(order + "I", 0) + more


def segment(content, marker=0xe1):
    return struct.pack(">BBH", 0xff, marker, len(content) + 2) + content


def chunk(content, kind=b"eXIf"):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def exif(content):
    return segment(b"Exif\0\0" + content)


def one(value, order="<", kind=SHORT):
    return tiff([(ORIENTATION, kind, 1, value)], order)


JPEG, PNG = encode("JPEG", quality=100, subsampling=0, optimize=True), encode("PNG")
# Where a part is inserted: after the first bytes of each, or before the last chunk of PNG.
PLACES = {"JPEG": (JPEG, 2), "PNG": (PNG, 33), "PNG_END": (PNG, len(PNG) - 12)}

make = tiff([(0x010f, ASCII, 4, 0x41424300), (ORIENTATION, SHORT, 1, 6), (0x0128, SHORT, 1, 2)])
xmp = segment(b"http://ns.adobe.com/xap/1.0/\0<x:xmpmeta/>")
cases = [("JPEG", f"{kind}, {v}", exif(one(v, order))) for order, kind in (("<", "little-endian"), (">", "big-endian")) for v in range(1, 9)]
cases += [
    ("JPEG", "no segment", b""),
    ("JPEG", "other entries", exif(make)),
    ("JPEG", "no entry of the orientation", exif(tiff([(0x0128, SHORT, 1, 2)]))),
    ("JPEG", "no entries", exif(tiff([]))),
    ("JPEG", "0", exif(one(0))),
    ("JPEG", "9", exif(one(9))),
    ("JPEG", "65535", exif(one(65535))),
    ("JPEG", "LONG", exif(one(8, "<", LONG))),
    ("JPEG", "LONG, big-endian", exif(one(5, ">", LONG))),
    ("JPEG", "LONG above SHORT", exif(one(65536 + 6, "<", LONG))),
    ("JPEG", "directory at 20", exif(tiff([(ORIENTATION, SHORT, 1, 3)], at=20))),
    ("JPEG", "after a comment", segment(b"hello", 0xfe) + exif(one(7))),
    ("JPEG", "after XMP", xmp + exif(one(2))),
    ("JPEG", "before XMP", exif(one(4)) + xmp),
    ("JPEG", "after fill bytes", b"\xff\xff\xff" + exif(one(6))),
    ("JPEG", "in APP2", segment(b"Exif\0\0" + one(6), 0xe2)),
    ("PNG", "no chunk", b""),
    ("PNG", "other entries", chunk(make)),
    ("PNG_END", "after the image", chunk(one(5))),
    ("PNG_END", "after a text", chunk(b"Title\0turned", b"tEXt") + chunk(one(7, ">"))),
] + [("PNG", f"{v}", chunk(one(v, "<>"[v % 2]))) for v in range(1, 9)]


def turned(form, part):
    data, at = PLACES[form]
    with Image.open(io.BytesIO(data[:at] + part + data[at:])) as image:
        image = ImageOps.exif_transpose(image)
        return image.size, image.convert("RGB").tobytes()


def print_bytes(name, data):
    print(f"static const uint8_t {name}[] = {{")
    for i in range(0, len(data), 20):
        print("    " + ", ".join(f"0x{b:02x}" for b in data[i:i + 20]) + ",")
    print("};")


def main():
    upright = {"JPEG": [turned("JPEG", exif(one(v))) for v in range(1, 9)], "PNG": [turned("PNG", chunk(one(v))) for v in range(1, 9)]}
    print(f"/* exif_cases.h - printed by test/data/make_exif.py with Pillow {PIL.__version__}. */")
    print(f"enum {{ EXIF_W = {W}, EXIF_H = {H} }}; /* of the stored image */")
    print("enum exif_place { EXIF_JPEG, EXIF_PNG, EXIF_PNG_END }; /* the file, and where the part is inserted */\n")
    print_bytes("exif_jpeg", JPEG)
    print_bytes("exif_png", PNG)
    for form in ("JPEG", "PNG"):
        print(f"\n/* RGB of the upright image, for the orientations 1 to 8 of the {form} file. */")
        print(f"static const uint8_t exif_{form.lower()}_pixels[8][EXIF_W * EXIF_H * 3] = {{")
        for _, pixels in upright[form]:
            print("    { " + ", ".join(str(b) for b in pixels) + " },")
        print("};")
    print("\nstatic const struct {\n    const char *name;\n    enum exif_place place;\n    uint32_t orientation;\n    const char *part;\n    size_t n;\n} exif_cases[] = {")
    for form, name, part in cases:
        orientation = upright[form.split("_")[0]].index(turned(form, part)) + 1
        text = "".join(f"\\{b:03o}" for b in part)
        print(f'    {{ "{name}", EXIF_{form}, {orientation}, "{text}", {len(part)} }},')
    print("};")


sys.exit(main())
