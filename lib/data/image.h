/* image.h - pixels on their way from a file to a batch.
 *
 *   decode (jpeg.c, png.c) -> uint8 [h, w, c]
 *   cut and stretch (resample.c) -> float [h, w, c] from 0 to 255, of the batch's size
 *   colours (color.c), scale or normalise, order of the dimensions (image.c) -> the batch
 *
 * What is random is a function of struct data_draw and the feature alone. Resampling and colours are
 * float32, each operation rounded by itself, so that the bits do not depend on threads or vectors. */
#ifndef DATA_IMAGE_H
#define DATA_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/data_priv.h"

enum {
    IMAGE_SIDE_MAX = 65500,       /* what JPEG can say */
    IMAGE_PIXELS_MAX = 1 << 27,   /* a larger one is refused */
};

struct image_rect { /* pixels; may lie partly outside */
    int64_t x, y, w, h;
};

struct image_pixels { /* uint8 [h, w, c] */
    const uint8_t *at;
    uint32_t w, h, c;
};

struct image_room { /* memory that grows and is kept */
    void *at;
    size_t cap;
};
/* At least `bytes`, of undefined content. NULL: out of memory. */
void *image_room(struct image_room *r, size_t bytes);

/* ---- image.c ---- */
struct image; /* one thread's tools */
int image_new(const struct data_set *s, struct image **out, struct err *err);
void image_free(struct image *m); /* NULL is fine */
/* From the stored form of feature i (struct data_bytes if encoded, else raw uint8) to `out`. */
int image_run(struct image *m, uint32_t feature, const struct data_draw *draw, const void *stored,
              float *out, struct err *err);

/* ---- jpeg.c ---- */
struct jpeg;
bool jpeg_is(const void *bytes, size_t n);
int jpeg_new(struct jpeg **out, struct err *err);
void jpeg_free(struct jpeg *j);
/* Reads the head. The bytes must stay until jpeg_read() or the next jpeg_begin(). */
int jpeg_begin(struct jpeg *j, const void *bytes, size_t n, uint32_t *w, uint32_t *h,
               struct err *err);
/* The part `rect` (inside the image) as `channels` 1 or 3, perhaps reduced by 2, 4 or 8, but not
 * below `w` x `h`. *pixels lie in `room` and hold at least the part; *at is where it is in them. */
int jpeg_read(struct jpeg *j, uint32_t channels, const struct image_rect *rect, uint32_t w,
              uint32_t h, struct image_room *room, struct image_pixels *pixels, double at[4],
              struct err *err);

/* ---- png.c ---- */
bool png_is(const void *bytes, size_t n);
int png_size(const void *bytes, size_t n, uint32_t *w, uint32_t *h, struct err *err);
/* The whole image as `channels` 1 or 3; transparency is left out. */
int png_read_all(const void *bytes, size_t n, uint32_t channels, struct image_room *room,
                 struct image_pixels *pixels, struct err *err);

/* ---- resample.c ---- */
struct resample {
    struct image_room taps[2], weights[2], row;
};
void resample_free(struct resample *r);
/* The part at (x, y) of size (w, h), in pixels and fractions of them, inside `from`, to out [oh, ow, c]:
 * every output pixel is the mean of the pixels it covers, weighted by a triangle as wide as two output
 * pixels (or two input pixels, where it is enlarged). `flip`: left to right.
 * ERR_NOMEM. */
int resample(struct resample *r, const struct image_pixels *from, const double part[4],
             uint32_t ow, uint32_t oh, bool flip, float *out, struct err *err);
/* The same without stretching: pixels outside of `from` are black. */
void resample_copy(const struct image_pixels *from, int64_t x, int64_t y, uint32_t ow, uint32_t oh,
                   bool flip, float *out);

/* ---- color.c: on float [n, c], from 0 to 255, c 1 or 3 ---- */
void color_brightness(float *x, size_t n, uint32_t c, float factor);
void color_contrast(float *x, size_t n, uint32_t c, float factor);
void color_saturation(float *x, size_t n, float factor); /* c 3 */
void color_hue(float *x, size_t n, float turns);         /* c 3 */

#endif
