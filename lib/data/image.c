/* image.c - runs the preprocessing steps of an image: selects the part, decodes, resizes, changes
 * the colours and writes the batch. */
#include "data/image.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/power.h"
#include "base/rng.h"

enum { CROP_TRIES = 10 };

struct image {
    const struct data_set *s;
    struct jpeg *jpeg;
    struct resample resample;
    struct image_buffer pixels, turned, floats;
};

int image_new(const struct data_set *s, struct image **out, struct err *err)
{
    struct image *m = calloc(1, sizeof(*m));
    int rc;

    if (m == NULL)
        return err_set(err, ERR_NOMEM, "decode images: out of memory");
    m->s = s;
    rc = jpeg_new(&m->jpeg, err);
    if (rc < 0) {
        image_free(m);
        return rc;
    }
    *out = m;
    return 0;
}

void image_free(struct image *m)
{
    if (m == NULL)
        return;
    jpeg_free(m->jpeg);
    resample_free(&m->resample);
    free(m->pixels.at);
    free(m->turned.at);
    free(m->floats.at);
    free(m);
}

int data_image_info(const void *bytes, size_t n, struct data_image_info *out, struct err *err)
{
    struct jpeg *j;
    int rc;

    if (png_is(bytes, n)) {
        rc = png_describe(bytes, n, &out->w, &out->h, &out->channels, err);
    } else if (jpeg_is(bytes, n)) {
        rc = jpeg_new(&j, err);
        if (rc < 0)
            return rc;
        rc = jpeg_begin(j, bytes, n, &out->w, &out->h, err);
        if (rc == 0)
            out->channels = jpeg_channels(j);
        jpeg_free(j);
    } else {
        rc = err_set(err, ERR_INPUT, "%zu bytes that are neither a JPEG nor a PNG file", n);
    }
    if (rc == 0)
        out->orientation = exif_orientation(bytes, n);
    return rc;
}

/* ---- random numbers ---- */

struct draw_state {
    struct rng_key key;
    uint64_t i;
};

static struct draw_state draws_of(const struct data_sample_key *draw, uint32_t feature)
{
    const uint32_t images = 0x696d6700; /* a stream that no op uses */

    return (struct draw_state){ .key = { .seed = draw->seed ^
                                                 (draw->sample >> 32) * 0x9e3779b97f4a7c15u,
                                         .step = (uint32_t)draw->epoch,
                                         .lane = (uint32_t)draw->sample,
                                         .stream = images + feature } };
}

static double draw_between(struct draw_state *d, double low, double high)
{
    return low + (high - low) * (double)rng_f32(&d->key, d->i++);
}

/* Returns a random integer from 0 to n. */
static int64_t draw_int(struct draw_state *d, int64_t n)
{
    int64_t i = (int64_t)draw_between(d, 0, (double)n + 1);

    return i > n ? n : i;
}

/* ---- selection of the part ---- */

struct view { /* the part of the source image and its size in the batch */
    uint32_t ow, oh, c;     /* width, height and channels in the batch */
    struct image_rect rect; /* part of the source */
    bool whole;             /* no step crops: the whole image is resized */
    bool exact;             /* not resized; the part may lie partly outside the source */
    bool flip;
};

/* Selects the largest central part with this aspect ratio, times `fraction`. */
static void center_part(struct view *v, int64_t w, int64_t h, double proportion, double fraction)
{
    double cw = (double)w, ch = (double)h;

    if (cw > ch * proportion)
        cw = ch * proportion;
    else
        ch = cw / proportion;
    v->rect.w = (int64_t)(cw * fraction + 0.5);
    v->rect.h = (int64_t)(ch * fraction + 0.5);
    v->rect.w = v->rect.w < 1 ? 1 : v->rect.w > w ? w : v->rect.w;
    v->rect.h = v->rect.h < 1 ? 1 : v->rect.h > h ? h : v->rect.h;
    v->rect.x = (w - v->rect.w) / 2;
    v->rect.y = (h - v->rect.h) / 2;
}

static void random_resized_part(struct view *v, const struct data_step *step, struct draw_state *d,
                                int64_t w, int64_t h)
{
    double whole = (double)w / (double)h;

    for (int i = 0; i < CROP_TRIES; i++) {
        double area = (double)w * (double)h * draw_between(d, step->scale[0], step->scale[1]);
        double proportion =
            step->ratio[0] * power_real(step->ratio[1] / step->ratio[0], draw_between(d, 0, 1));
        int64_t cw = (int64_t)(sqrt(area * proportion) + 0.5);
        int64_t ch = (int64_t)(sqrt(area / proportion) + 0.5);

        if (cw < 1 || ch < 1 || cw > w || ch > h)
            continue;
        v->rect = (struct image_rect){ draw_int(d, w - cw), draw_int(d, h - ch), cw, ch };
        return;
    }
    if (whole < step->ratio[0]) /* no part fitted: the centre with the nearest allowed ratio */
        whole = step->ratio[0];
    if (whole > step->ratio[1])
        whole = step->ratio[1];
    center_part(v, w, h, whole, 1);
}

static int random_exact_part(struct view *v, const struct data_step *step, struct draw_state *d,
                             int64_t w, int64_t h, struct err *err)
{
    int64_t pad = step->padding, room_x = w + 2 * pad - v->ow, room_y = h + 2 * pad - v->oh;

    if (room_x < 0 || room_y < 0)
        return err_set(
            err, ERR_INPUT,
            "an image of %" PRId64 " x %" PRId64 " pixels is too small for random_crop to "
            "%" PRIu32 " x %" PRIu32 ": increase the padding, or use random_resized_crop",
            w, h, v->ow, v->oh);
    v->rect = (struct image_rect){ draw_int(d, room_x) - pad, draw_int(d, room_y) - pad, v->ow,
                                   v->oh };
    v->exact = true;
    return 0;
}

/* Applies the cropping steps and the flip to the view; needs only the size of the source. */
static int select_part(struct view *v, const struct data_step *steps, uint32_t n,
                       struct draw_state *d, uint32_t w, uint32_t h, struct err *err)
{
    int rc = 0;

    if (w == 0 || h == 0)
        return err_set(err, ERR_INPUT, "an image without pixels");
    v->rect = (struct image_rect){ 0, 0, w, h };
    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        const struct data_step *step = &steps[i];

        if (step->op == DATA_RANDOM_RESIZED_CROP)
            random_resized_part(v, step, d, w, h);
        else if (step->op == DATA_RANDOM_CROP)
            rc = random_exact_part(v, step, d, w, h, err);
        else if (step->op == DATA_CENTER_CROP)
            center_part(v, w, h, (double)v->ow / v->oh, step->fraction);
        else if (step->op == DATA_FLIP)
            v->flip ^= draw_between(d, 0, 1) < step->probability;
    }
    return rc;
}

/* ---- pixels ---- */

static void set_part(double part[4], const struct image_rect *rect)
{
    part[0] = (double)rect->x;
    part[1] = (double)rect->y;
    part[2] = (double)rect->w;
    part[3] = (double)rect->h;
}

/* Decodes the part of a JPEG file that the steps select; part: its place in *pixels. */
static int read_jpeg(struct image *m, const struct data_bytes *b, uint32_t orientation,
                     struct view *v, const struct data_step *steps, uint32_t n,
                     struct draw_state *d, struct image_pixels *pixels, double part[4],
                     struct err *err)
{
    uint32_t w, h, upright_w, upright_h, least_w = v->ow, least_h = v->oh;
    struct image_rect inside;
    int rc = jpeg_begin(m->jpeg, b->at, b->n, &w, &h, err);

    if (rc < 0)
        return rc;
    upright_w = w;
    upright_h = h;
    upright_size(orientation, &upright_w, &upright_h);
    rc = select_part(v, steps, n, d, upright_w, upright_h, err);
    if (rc < 0)
        return rc;
    if (v->exact) {
        inside = (struct image_rect){ 0, 0, w, h };
        least_w = w;
        least_h = h;
    } else {
        inside = v->rect;
        upright_rect_stored(orientation, w, h, &inside);
        upright_size(orientation, &least_w, &least_h);
    }
    return jpeg_read(m->jpeg, v->c, &inside, least_w, least_h, &m->pixels, pixels, part, err);
}

/* Decodes a whole PNG file, and selects the part. */
static int read_png(struct image *m, const struct data_bytes *b, uint32_t orientation,
                    struct view *v, const struct data_step *steps, uint32_t n, struct draw_state *d,
                    struct image_pixels *pixels, double part[4], struct err *err)
{
    int rc = png_read_all(b->at, b->n, v->c, &m->pixels, pixels, err);
    uint32_t w, h;
    struct image_rect stored;

    if (rc < 0)
        return rc;
    w = pixels->w;
    h = pixels->h;
    upright_size(orientation, &w, &h);
    rc = select_part(v, steps, n, d, w, h, err);
    if (rc < 0)
        return rc;
    stored = v->rect;
    upright_rect_stored(orientation, pixels->w, pixels->h, &stored);
    set_part(part, &stored);
    return 0;
}

/* Decodes an encoded image, and turns it upright. */
static int read_encoded(struct image *m, const struct data_feature *f, const struct data_bytes *b,
                        struct view *v, const struct data_step *steps, struct draw_state *d,
                        struct image_pixels *pixels, double part[4], struct err *err)
{
    uint32_t orientation = f->upright ? exif_orientation(b->at, b->n) : 1, w, h;
    uint8_t *turned;
    int rc;

    if (png_is(b->at, b->n))
        rc = read_png(m, b, orientation, v, steps, f->n_steps, d, pixels, part, err);
    else if (jpeg_is(b->at, b->n))
        rc = read_jpeg(m, b, orientation, v, steps, f->n_steps, d, pixels, part, err);
    else
        rc = err_set(err, ERR_INPUT, "%zu bytes that are neither a JPEG nor a PNG file", b->n);
    if (rc < 0 || orientation == 1)
        return rc;
    w = pixels->w;
    h = pixels->h;
    turned = image_buffer_reserve(&m->turned, (size_t)w * h * pixels->c);
    if (turned == NULL)
        return err_set(err, ERR_NOMEM, "an image: out of memory");
    upright_copy(orientation, pixels, turned);
    upright_part(orientation, w, h, part);
    upright_size(orientation, &w, &h);
    *pixels = (struct image_pixels){ turned, w, h, pixels->c };
    return 0;
}

/* Converts raw pixels to [h, w, c]. */
static int read_raw(struct image *m, const struct data_feature *f, const uint8_t *stored,
                    const struct view *v, struct image_pixels *pixels, struct err *err)
{
    size_t plane = (size_t)v->ow * v->oh;
    uint8_t *to;

    *pixels = (struct image_pixels){ stored, v->ow, v->oh, v->c };
    if (f->channels_last || v->c == 1)
        return 0;
    to = image_buffer_reserve(&m->pixels, plane * v->c);
    if (to == NULL)
        return err_set(err, ERR_NOMEM, "an image: out of memory");
    for (uint32_t k = 0; k < v->c; k++)
        for (size_t i = 0; i < plane; i++)
            to[i * v->c + k] = stored[k * plane + i];
    pixels->at = to;
    return 0;
}

static struct view view_of(const struct data_feature *f)
{
    const int64_t *dim = f->shape.dim;
    uint32_t at = f->shape.rank == 3 && !f->channels_last; /* dimension of the height */

    return (struct view){ .oh = (uint32_t)dim[at],
                          .ow = (uint32_t)dim[at + 1],
                          .c = f->shape.rank < 3 ? 1 : (uint32_t)dim[f->channels_last ? 2 : 0] };
}

/* ---- colours and the batch ---- */

static float factor(struct draw_state *d, double most)
{
    return (float)draw_between(d, most < 1 ? 1 - most : 0, 1 + most);
}

static void jitter(const struct data_step *step, struct draw_state *d, float *x, size_t n,
                   uint32_t c)
{
    if (step->brightness > 0)
        color_brightness(x, n, c, factor(d, step->brightness));
    if (step->contrast > 0)
        color_contrast(x, n, c, factor(d, step->contrast));
    if (step->saturation > 0 && c == 3)
        color_saturation(x, n, factor(d, step->saturation));
    if (step->hue > 0 && c == 3)
        color_hue(x, n, (float)draw_between(d, -step->hue, step->hue));
}

/* value = pixel * mul + add for each channel */
struct linear {
    float mul[DATA_CHANNELS_MAX], add[DATA_CHANNELS_MAX];
};

static struct linear linear_of(const struct data_feature *f, const struct data_step *steps,
                               uint32_t n)
{
    struct linear l;

    for (uint32_t k = 0; k < DATA_CHANNELS_MAX; k++) {
        l.mul[k] = (float)f->scale;
        l.add[k] = (float)f->offset;
        for (uint32_t i = 0; i < n; i++)
            if (steps[i].op == DATA_NORMALIZE) {
                l.mul[k] = (float)(1 / (255 * steps[i].std[k]));
                l.add[k] = (float)(-steps[i].mean[k] / steps[i].std[k]);
            }
    }
    return l;
}

static void write_batch(const struct data_feature *f, const struct view *v, const struct linear *l,
                        const float *x, float *out)
{
    size_t plane = (size_t)v->ow * v->oh;

    for (uint32_t k = 0; k < v->c; k++) {
        float mul = l->mul[k], add = l->add[k];
        size_t step = f->channels_last ? v->c : 1;
        float *to = out + (f->channels_last ? k : k * plane);

        for (size_t i = 0; i < plane; i++)
            to[i * step] = x[i * v->c + k] * mul + add;
    }
}

int image_preprocess(struct image *m, uint32_t feature, const struct data_sample_key *draw,
                     const void *stored, float *out, struct err *err)
{
    const struct data_feature *f = &m->s->features[feature];
    const struct data_step *steps = m->s->steps[feature];
    struct view v = view_of(f);
    size_t n = (size_t)v.ow * v.oh;
    struct draw_state d = draws_of(draw, feature);
    struct linear l = linear_of(f, steps, f->n_steps);
    struct image_pixels pixels;
    double part[4];
    float *x = image_buffer_reserve(&m->floats, n * v.c * sizeof(*x));
    int rc;

    if (x == NULL)
        return err_set(err, ERR_NOMEM, "an image: out of memory");
    if (f->encoded) {
        rc = read_encoded(m, f, stored, &v, steps, &d, &pixels, part, err);
    } else {
        rc = read_raw(m, f, stored, &v, &pixels, err);
        if (rc == 0)
            rc = select_part(&v, steps, f->n_steps, &d, pixels.w, pixels.h, err);
        set_part(part, &v.rect);
    }
    if (rc < 0)
        return err_wrap(err, rc, "feature '%s'", f->name);
    if (v.exact || (v.rect.w == v.ow && v.rect.h == v.oh && part[2] == v.ow && part[3] == v.oh))
        resample_copy(&pixels, v.exact ? v.rect.x : (int64_t)part[0],
                      v.exact ? v.rect.y : (int64_t)part[1], v.ow, v.oh, v.flip, x);
    else
        rc = resample(&m->resample, &pixels, part, v.ow, v.oh, v.flip, x, err);
    for (uint32_t i = 0; rc == 0 && i < f->n_steps; i++)
        if (steps[i].op == DATA_COLOR_JITTER)
            jitter(&steps[i], &d, x, n, v.c);
    if (rc == 0)
        write_batch(f, &v, &l, x, out);
    return rc < 0 ? err_wrap(err, rc, "feature '%s'", f->name) : 0;
}
