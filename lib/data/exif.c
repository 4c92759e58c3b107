/* exif.c - reads the orientation of an image file (Exif 2.32, CIPA DC-008).
 *
 *   JPEG: ff d8, then segments ff | marker | length, 2 bytes, with itself | content. The segment APP1 (ff e1) whose content
 *         begins with "Exif\0\0" has a TIFF structure after these six bytes.
 *   PNG:  chunks length, 4 bytes | type | content | crc32 of type and content. The chunk eXIf is a TIFF structure.
 *   TIFF: "II" (little-endian) or "MM" (big-endian) | 42, 2 bytes | offset of a directory, 4 bytes
 *   directory: number of entries, 2 bytes | entries of 12 bytes: tag, 2 | type, 2 | count, 4 | value, 4
 *
 * The orientation is the tag 0x0112, one SHORT; some writers use LONG. */
#include <string.h>
#include <zlib.h>

#include "data/image.h"

enum {
    TAG_ORIENTATION = 0x0112,
    TYPE_SHORT = 3,
    TYPE_LONG = 4,
    TIFF_HEAD_BYTES = 8,
    ENTRY_BYTES = 12,
    PNG_HEAD_BYTES = 8,
    PNG_FRAME_BYTES = 12, /* length, type and crc of a chunk */
};

static const char exif_mark[] = "Exif\0"; /* with the NUL that ends the literal: six bytes */

struct reader { /* a TIFF structure */
    const uint8_t *at;
    size_t n;
    bool is_big;
};

static uint32_t big(const uint8_t *at, size_t width)
{
    uint32_t x = 0;

    for (size_t i = 0; i < width; i++)
        x = x << 8 | at[i];
    return x;
}

/* Returns the number of `width` bytes at an offset, which must be in the structure. */
static uint32_t number(const struct reader *r, size_t offset, size_t width)
{
    const uint8_t *at = r->at + offset;
    uint32_t x = 0;

    if (r->is_big)
        return big(at, width);
    for (size_t i = width; i > 0; i--)
        x = x << 8 | at[i - 1];
    return x;
}

/* Returns the orientation of a TIFF structure; 1 if it has no valid one. */
static uint32_t read_tiff(const uint8_t *at, size_t n)
{
    struct reader r = { at, n, n > 0 && at[0] == 'M' };
    uint32_t directory, entries;

    if (n < TIFF_HEAD_BYTES || memcmp(at, r.is_big ? "MM" : "II", 2) != 0 || number(&r, 2, 2) != 42)
        return 1;
    directory = number(&r, 4, 4);
    if (directory < TIFF_HEAD_BYTES || directory > n - 2)
        return 1;
    entries = number(&r, directory, 2);
    for (size_t i = 0, entry = (size_t)directory + 2; i < entries && n - entry >= ENTRY_BYTES;
         i++, entry += ENTRY_BYTES) {
        uint32_t type = number(&r, entry + 2, 2), value;

        if (number(&r, entry, 2) != TAG_ORIENTATION)
            continue;
        if ((type != TYPE_SHORT && type != TYPE_LONG) || number(&r, entry + 4, 4) != 1)
            return 1;
        value = number(&r, entry + 8, type == TYPE_SHORT ? 2 : 4);
        return value >= 1 && value <= 8 ? value : 1;
    }
    return 1;
}

/* Returns the orientation of a JPEG file, from its first Exif segment. */
static uint32_t read_jpeg(const uint8_t *at, size_t n)
{
    size_t i = 2;

    while (n - i >= 4 && at[i] == 0xff) {
        uint8_t marker = at[i + 1];
        size_t length;

        if (marker == 0xff) { /* a fill byte */
            i++;
            continue;
        }
        if (marker == 0x01 || (marker >= 0xd0 && marker <= 0xd7)) { /* without length */
            i += 2;
            continue;
        }
        if (marker == 0xda || marker == 0xd9) /* the scan, or the end: no more metadata */
            break;
        length = big(at + i + 2, 2);
        if (length < 2 || length > n - i - 2)
            break;
        if (marker == 0xe1 && length >= 2 + sizeof(exif_mark) &&
            memcmp(at + i + 4, exif_mark, sizeof(exif_mark)) == 0)
            return read_tiff(at + i + 4 + sizeof(exif_mark), length - 2 - sizeof(exif_mark));
        i += 2 + length;
    }
    return 1;
}

static uint32_t read_png(const uint8_t *at, size_t n)
{
    for (size_t i = PNG_HEAD_BYTES; n - i >= PNG_FRAME_BYTES;) {
        size_t length = big(at + i, 4);

        if (length > n - i - PNG_FRAME_BYTES)
            break;
        if (memcmp(at + i + 4, "eXIf", 4) == 0)
            return crc32(0, at + i + 4, (uInt)length + 4) == big(at + i + 8 + length, 4)
                       ? read_tiff(at + i + 8, length)
                       : 1;
        i += PNG_FRAME_BYTES + length;
    }
    return 1;
}

uint32_t exif_orientation(const void *bytes, size_t n)
{
    return jpeg_is(bytes, n) ? read_jpeg(bytes, n) : png_is(bytes, n) ? read_png(bytes, n) : 1;
}
