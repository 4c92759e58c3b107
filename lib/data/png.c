/* png.c - wraps libpng, which reports errors by longjmp; no longjmp leaves this file. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <png.h>

#include "base/err.h"
#include "data/image.h"

enum { CHUNK_BYTES_MAX = 8 << 20, CHUNKS_MAX = 1000 };

struct reader {
    png_structp png;
    png_infop info;
    const uint8_t *at, *end;
    char text[128];
};

static void on_error(png_structp png, png_const_charp what)
{
    struct reader *r = png_get_error_ptr(png);

    snprintf(r->text, sizeof(r->text), "%s", what);
    png_longjmp(png, 1);
}

static void on_warning(png_structp png, png_const_charp what)
{
    (void)png;
    (void)what;
}

static void on_read(png_structp png, png_bytep out, size_t n)
{
    struct reader *r = png_get_io_ptr(png);

    if (n > (size_t)(r->end - r->at))
        png_error(png, "the image is truncated");
    memcpy(out, r->at, n);
    r->at += n;
}

bool png_is(const void *bytes, size_t n)
{
    return n > 8 && memcmp(bytes, "\x89PNG\r\n\x1a\n", 8) == 0;
}

static int open_reader(struct reader *r, const void *bytes, size_t n, struct err *err)
{
    *r = (struct reader){ .at = bytes, .end = (const uint8_t *)bytes + n };
    r->png = png_create_read_struct(PNG_LIBPNG_VER_STRING, r, on_error, on_warning);
    r->info = r->png != NULL ? png_create_info_struct(r->png) : NULL;
    if (r->info != NULL)
        return 0;
    png_destroy_read_struct(&r->png, NULL, NULL);
    return err_set(err, ERR_NOMEM, "an image: out of memory");
}

static int close_reader(struct reader *r, int rc)
{
    png_destroy_read_struct(&r->png, &r->info, NULL);
    return rc;
}

static int failed(struct reader *r, struct err *err)
{
    return close_reader(r, err_set(err, ERR_CORRUPT, "PNG: %s", r->text));
}

/* Reads the header and sets limits. All errors except the size are reported by longjmp. Text chunks
 * are skipped, because each can inflate to CHUNK_BYTES_MAX and a file can contain any number of
 * them. */
static int read_head(struct reader *r, uint32_t *w, uint32_t *h, struct err *err)
{
    static const png_byte texts[] = "tEXt\0zTXt\0iTXt";

    png_set_read_fn(r->png, r, on_read);
    png_set_user_limits(r->png, IMAGE_SIDE_MAX, IMAGE_SIDE_MAX);
    png_set_chunk_malloc_max(r->png, CHUNK_BYTES_MAX);
    png_set_chunk_cache_max(r->png, CHUNKS_MAX);
    png_set_keep_unknown_chunks(r->png, PNG_HANDLE_CHUNK_NEVER, texts, sizeof(texts) / 5);
    png_read_info(r->png, r->info);
    *w = png_get_image_width(r->png, r->info);
    *h = png_get_image_height(r->png, r->info);
    if ((uint64_t)*w * *h > IMAGE_PIXELS_MAX)
        return err_set(err, ERR_INPUT,
                       "an image of %" PRIu32 " x %" PRIu32 " pixels, expected at most %d", *w, *h,
                       IMAGE_PIXELS_MAX);
    return 0;
}

int png_describe(const void *bytes, size_t n, uint32_t *w, uint32_t *h, uint32_t *channels,
                 struct err *err)
{
    struct reader r;
    int rc = open_reader(&r, bytes, n, err);

    if (rc < 0)
        return rc;
    if (setjmp(png_jmpbuf(r.png)) != 0)
        return failed(&r, err);
    rc = read_head(&r, w, h, err);
    if (rc == 0)
        *channels = (png_get_color_type(r.png, r.info) & PNG_COLOR_MASK_COLOR) != 0 ? 3 : 1;
    return close_reader(&r, rc);
}

/* Requests a conversion to 8 bits and to the given number of channels. */
static void set_form(struct reader *r, uint32_t channels)
{
    int color = png_get_color_type(r->png, r->info);

    png_set_expand(r->png); /* palette to RGB, less than 8 bits to 8, tRNS to alpha */
    png_set_strip_16(r->png);
    png_set_strip_alpha(r->png);
    if (channels == 3 && (color & PNG_COLOR_MASK_COLOR) == 0)
        png_set_gray_to_rgb(r->png);
    if (channels == 1 && (color & PNG_COLOR_MASK_COLOR) != 0) /* luminance as in JPEG */
        png_set_rgb_to_gray_fixed(r->png, PNG_ERROR_ACTION_NONE, 29900, 58700);
}

int png_read_all(const void *bytes, size_t n, uint32_t channels, struct image_buffer *room,
                 struct image_pixels *pixels, struct err *err)
{
    struct reader r;
    uint32_t w, h;
    uint8_t *out;
    int passes, rc = open_reader(&r, bytes, n, err);

    if (rc < 0)
        return rc;
    if (setjmp(png_jmpbuf(r.png)) != 0)
        return failed(&r, err);
    rc = read_head(&r, &w, &h, err);
    if (rc < 0)
        return close_reader(&r, rc);
    set_form(&r, channels);
    passes = png_set_interlace_handling(r.png);
    png_read_update_info(r.png, r.info);
    if (png_get_rowbytes(r.png, r.info) != (size_t)w * channels)
        return close_reader(&r, err_set(err, ERR_UNSUPPORTED, "PNG: unsupported pixel format"));
    out = image_buffer_reserve(room, (size_t)w * h * channels);
    if (out == NULL)
        return close_reader(&r, err_set(err, ERR_NOMEM, "an image: out of memory"));
    /* More pixels than the header declares are an error from here on. */
    png_set_benign_errors(r.png, 0);
    for (int pass = 0; pass < passes; pass++)
        for (uint32_t y = 0; y < h; y++)
            png_read_row(r.png, out + (size_t)y * w * channels, NULL);
    *pixels = (struct image_pixels){ out, w, h, channels };
    return close_reader(&r, 0);
}
