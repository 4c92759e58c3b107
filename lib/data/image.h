/* image.h - preprocesses images from a file to a batch.
 *
 *   decode (jpeg.c, png.c) -> uint8 [h, w, c], turned by the orientation of the file (exif.c, upright.c)
 *   crop and resize (resample.c) -> float [h, w, c] from 0 to 255, of the batch's size
 *   colours (color.c), scale or normalise, order of the dimensions (image.c) -> the batch
 *
 * Random choices are functions of struct data_sample_key and the feature. Resampling and colours
 * use float32 with separately rounded operations, so the bits do not depend on threads or vector
 * width. */
#ifndef DATA_IMAGE_H
#define DATA_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/data_priv.h"

enum {
    IMAGE_SIDE_MAX = 65500,     /* the limit of JPEG */
    IMAGE_PIXELS_MAX = 1 << 27, /* a larger image is rejected */
};

struct image_rect { /* in pixels; may lie partly outside the image */
    int64_t x, y, w, h;
};

struct image_pixels { /* uint8 [h, w, c] */
    const uint8_t *at;
    uint32_t w, h, c;
};

struct image_buffer { /* a reusable buffer */
    void *at;   /* owned */
    size_t cap; /* bytes */
};
/* Returns the buffer with at least `bytes` bytes of undefined content; NULL: out of memory. */
void *image_buffer_reserve(struct image_buffer *r, size_t bytes);

/* ---- image.c ---- */
struct image; /* buffers and decoder of one thread */
int image_new(const struct data_set *s, struct image **out, struct err *err);
void image_free(struct image *m); /* NULL is allowed */
/* Preprocesses the stored form of a feature (struct data_bytes if encoded, else raw uint8) to
 * `out`. Errors: ERR_INPUT, ERR_CORRUPT, ERR_UNSUPPORTED, ERR_NOMEM. */
int image_preprocess(struct image *m, uint32_t feature, const struct data_sample_key *draw,
                     const void *stored, float *out, struct err *err);

/* ---- jpeg.c ---- */
struct jpeg;
bool jpeg_is(const void *bytes, size_t n);
int jpeg_new(struct jpeg **out, struct err *err);
void jpeg_free(struct jpeg *j);
/* Parses the header. The bytes must stay valid until jpeg_read() returns or the next
 * jpeg_begin(). */
int jpeg_begin(struct jpeg *j, const void *bytes, size_t n, uint32_t *w, uint32_t *h,
               struct err *err);
uint32_t jpeg_channels(const struct jpeg *j); /* after jpeg_begin(): 1 grey, 3 colors */
/* Decodes the part `rect` (inside the image) with `channels` 1 or 3, downscaled by 1, 2, 4 or 8 but
 * not below `w` x `h`. *pixels are in `room` and contain at least the part; at: its x, y, w, h in
 * *pixels. */
int jpeg_read(struct jpeg *j, uint32_t channels, const struct image_rect *rect, uint32_t w,
              uint32_t h, struct image_buffer *room, struct image_pixels *pixels, double at[4],
              struct err *err);

/* ---- png.c ---- */
bool png_is(const void *bytes, size_t n);
int png_describe(const void *bytes, size_t n, uint32_t *w, uint32_t *h, uint32_t *channels,
                 struct err *err);
/* Decodes the whole image with `channels` 1 or 3; transparency is discarded. */
int png_read_all(const void *bytes, size_t n, uint32_t channels, struct image_buffer *room,
                 struct image_pixels *pixels, struct err *err);

/* ---- exif.c ---- */
/* Returns the orientation that the Exif data of a JPEG or PNG file state, 1 to 8; 1, as it is stored, if they are absent or
 * invalid. */
uint32_t exif_orientation(const void *bytes, size_t n);

/* ---- upright.c: `orientation` is that of Exif, 1 to 8 ---- */
/* Changes the size of a stored image to that of the upright image. */
void upright_size(uint32_t orientation, uint32_t *w, uint32_t *h);
/* Changes a rectangle of the upright image to that of the stored image of w x h pixels. */
void upright_rect_stored(uint32_t orientation, uint32_t w, uint32_t h, struct image_rect *rect);
/* Changes x, y, w, h of a part of stored pixels w x h to those in the upright pixels. */
void upright_part(uint32_t orientation, uint32_t w, uint32_t h, double part[4]);
/* Writes the pixels of the upright image, as many bytes as `from` has. */
void upright_copy(uint32_t orientation, const struct image_pixels *from, uint8_t *out);

/* ---- resample.c ---- */
struct resample {
    struct image_buffer taps[2], weights[2], row;
};
void resample_free(struct resample *r);
/* Resizes `part` = x, y, w, h (in fractional pixels, inside `from`) to out [oh, ow, c]: each output
 * pixel is the weighted mean of the input pixels below a triangle of the width of two output pixels
 * (when enlarging: of two input pixels). `flip`: left to right. Errors: ERR_NOMEM. */
int resample(struct resample *r, const struct image_pixels *from, const double part[4], uint32_t ow,
             uint32_t oh, bool flip, float *out, struct err *err);
/* Copies the part at (x, y) of size (ow, oh) without resizing; pixels outside `from` are black. */
void resample_copy(const struct image_pixels *from, int64_t x, int64_t y, uint32_t ow, uint32_t oh,
                   bool flip, float *out);

/* ---- color.c: changes float [n, c] in [0, 255], c 1 or 3 ---- */
void color_brightness(float *x, size_t n, uint32_t c, float factor);
void color_contrast(float *x, size_t n, uint32_t c, float factor);
void color_saturation(float *x, size_t n, float factor); /* c 3 */
void color_hue(float *x, size_t n, float turns);         /* c 3 */

#endif
