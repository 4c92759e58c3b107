/* jpeg.c - wraps libjpeg-turbo, which reports errors by longjmp; no longjmp leaves this file. */
#include <stdio.h> /* jpeglib.h requires it */

#include <inttypes.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <jerror.h>
#include <jpeglib.h>

#include "base/err.h"
#include "data/image.h"

enum {
    MEMORY_MAX = 256 << 20, /* limit for a progressive image, which is kept in memory */
    SCANS_MAX = 200,        /* limit of scans; ordinary images have about ten */
};

struct jpeg {
    struct jpeg_decompress_struct d;
    struct jpeg_error_mgr handler;
    struct jpeg_progress_mgr progress;
    jmp_buf jump;
    bool cut_off;               /* a warning reported missing data */
    uint32_t by;                /* downscaling factor of this image */
    char text[JMSG_LENGTH_MAX]; /* the last error */
};

static void on_error(j_common_ptr d)
{
    struct jpeg *j = d->client_data;

    d->err->format_message(d, j->text);
    longjmp(j->jump, 1);
}

/* Called for warnings and traces. Only warnings about missing data matter. */
static void on_message(j_common_ptr d, int level)
{
    struct jpeg *j = d->client_data;

    if (level < 0 && (d->err->msg_code == JWRN_JPEG_EOF || d->err->msg_code == JWRN_HIT_MARKER))
        j->cut_off = true;
}

static void on_output(j_common_ptr d)
{
    (void)d; /* prints nothing: the message is part of the returned error */
}

/* Limits the number of scans: a few kilobytes with thousands of empty scans take minutes. */
static void on_progress(j_common_ptr d)
{
    struct jpeg *j = d->client_data;

    if (j->d.input_scan_number > SCANS_MAX) {
        snprintf(j->text, sizeof(j->text), "more than %d scans", SCANS_MAX);
        longjmp(j->jump, 1);
    }
}

bool jpeg_is(const void *bytes, size_t n)
{
    return n > 3 && memcmp(bytes, "\xff\xd8\xff", 3) == 0;
}

int jpeg_new(struct jpeg **out, struct err *err)
{
    struct jpeg *j = calloc(1, sizeof(*j));

    if (j == NULL)
        return err_set(err, ERR_NOMEM, "decode images: out of memory");
    j->d.err = jpeg_std_error(&j->handler);
    j->handler.error_exit = on_error;
    j->handler.emit_message = on_message;
    j->handler.output_message = on_output;
    j->d.client_data = j;
    if (setjmp(j->jump) != 0) {
        free(j);
        return err_set(err, ERR_NOMEM, "decode images: out of memory");
    }
    jpeg_create_decompress(&j->d);
    j->d.client_data = j;
    j->d.mem->max_memory_to_use = MEMORY_MAX;
    j->progress.progress_monitor = on_progress;
    j->d.progress = &j->progress;
    *out = j;
    return 0;
}

void jpeg_free(struct jpeg *j)
{
    if (j == NULL)
        return;
    jpeg_destroy_decompress(&j->d);
    free(j);
}

static int failed(struct jpeg *j, struct err *err)
{
    jpeg_abort_decompress(&j->d);
    return err_set(err, ERR_CORRUPT, "JPEG: %s", j->text);
}

int jpeg_begin(struct jpeg *j, const void *bytes, size_t n, uint32_t *w, uint32_t *h,
               struct err *err)
{
    jpeg_abort_decompress(&j->d);
    j->cut_off = false;
    if (setjmp(j->jump) != 0)
        return failed(j, err);
    jpeg_mem_src(&j->d, bytes, n);
    (void)jpeg_read_header(&j->d, TRUE); /* TRUE: a file without an image is an error */
    *w = j->d.image_width;
    *h = j->d.image_height;
    if ((uint64_t)*w * *h > IMAGE_PIXELS_MAX)
        return err_set(err, ERR_INPUT,
                       "an image of %" PRIu32 " x %" PRIu32 " pixels, expected at most %d", *w, *h,
                       IMAGE_PIXELS_MAX);
    return 0;
}

uint32_t jpeg_channels(const struct jpeg *j)
{
    return j->d.num_components == 1 ? 1 : 3;
}

/* Returns the largest factor of 8, 4, 2, 1 by which the part is downscaled to at least w x h. */
static uint32_t reduction(const struct image_rect *rect, uint32_t w, uint32_t h)
{
    for (uint32_t by = 8; by > 1; by /= 2)
        if (rect->w / by >= w && rect->h / by >= h)
            return by;
    return 1;
}

/* The columns and rows to decode, in pixels of the downscaled image. */
struct part {
    JDIMENSION x, y, w, h;
};

static struct part find_part(const struct jpeg *j, const struct image_rect *rect, uint32_t by)
{
    struct part p = { .x = (JDIMENSION)(rect->x / by), .y = (JDIMENSION)(rect->y / by) };
    int64_t right = (rect->x + rect->w + by - 1) / by, bottom = (rect->y + rect->h + by - 1) / by;

    if (right > j->d.output_width)
        right = j->d.output_width;
    if (bottom > j->d.output_height)
        bottom = j->d.output_height;
    p.w = (JDIMENSION)right - p.x;
    p.h = (JDIMENSION)bottom - p.y;
    return p;
}

static bool has_four_colors(const struct jpeg *j)
{
    return j->d.jpeg_color_space == JCS_CMYK || j->d.jpeg_color_space == JCS_YCCK;
}

/* a * b / 255, rounded */
static uint32_t scaled(uint32_t a, uint32_t b)
{
    uint32_t x = a * b + 128;

    return ((x >> 8) + x) >> 8;
}

/* Converts a row of cyan, magenta, yellow, black, as Pillow does. Files with the marker of Adobe have the complements. The grey
 * value has the weights of libjpeg. */
static void convert_four_colors(const uint8_t *from, uint32_t w, bool is_complement,
                                uint32_t channels, uint8_t *to)
{
    uint32_t flip = is_complement ? 0 : 255;

    for (uint32_t x = 0; x < w; x++, from += 4, to += channels) {
        uint32_t light = from[3] ^ flip;
        uint32_t red = scaled(from[0] ^ flip, light), green = scaled(from[1] ^ flip, light),
                 blue = scaled(from[2] ^ flip, light);

        if (channels == 1) {
            to[0] = (uint8_t)((19595 * red + 38470 * green + 7471 * blue + 32768) >> 16);
            continue;
        }
        to[0] = (uint8_t)red;
        to[1] = (uint8_t)green;
        to[2] = (uint8_t)blue;
    }
}

int jpeg_read(struct jpeg *j, uint32_t channels, const struct image_rect *rect, uint32_t w,
              uint32_t h, struct image_buffer *room, struct image_pixels *pixels, double at[4],
              struct err *err)
{
    bool four = has_four_colors(j);
    struct part p;
    uint8_t *bytes;
    size_t n;

    j->by = reduction(rect, w, h);
    if (setjmp(j->jump) != 0)
        return failed(j, err);
    j->d.out_color_space = four ? JCS_CMYK : channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    j->d.scale_num = 1;
    j->d.scale_denom = j->by;
    j->d.dct_method = JDCT_ISLOW;       /* bit-identical in its scalar and vector versions */
    (void)jpeg_start_decompress(&j->d); /* never suspends: the input is in memory */
    p = find_part(j, rect, j->by);
    if (p.w < j->d.output_width)
        jpeg_crop_scanline(&j->d, &p.x, &p.w); /* may move x left to the boundary of a block */
    n = (size_t)p.w * p.h * channels;
    bytes = image_buffer_reserve(room, n + (four ? (size_t)p.w * 4 : 0)); /* and a row of four colors */
    if (bytes == NULL) {
        jpeg_abort_decompress(&j->d);
        return err_set(err, ERR_NOMEM, "an image: out of memory");
    }
    if (p.y > 0)
        (void)jpeg_skip_scanlines(&j->d, p.y);
    for (JDIMENSION y = 0; y < p.h;) {
        uint8_t *to = bytes + (size_t)y * p.w * channels;
        JSAMPROW row = four ? bytes + n : to;

        y += jpeg_read_scanlines(&j->d, &row, 1);
        if (four)
            convert_four_colors(row, p.w, j->d.saw_Adobe_marker, channels, to);
    }
    jpeg_abort_decompress(&j->d); /* the rest is not needed */
    if (j->cut_off)
        return err_set(err, ERR_CORRUPT, "JPEG: the image is truncated or damaged");
    *pixels = (struct image_pixels){ bytes, p.w, p.h, channels };
    at[0] = (double)rect->x / j->by - p.x;
    at[1] = (double)rect->y / j->by - p.y;
    at[2] = (double)rect->w / j->by;
    at[3] = (double)rect->h / j->by;
    return 0;
}
