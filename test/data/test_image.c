/* Image preprocessing: decoding, cropping, resizing, colours, batch layout. The JPEG and PNG files
 * are written with the libraries' encoders; resampling is compared with an independent
 * implementation in double. */
#include "base/check.h"
#include "data/kit.h"

#include <math.h>
#include <sys/resource.h>

#include <jpeglib.h>
#include <png.h>
#include <zlib.h>

#include "data/exif_cases.h"
#include "data/image.h"

/* A smooth colour gradient, which JPEG preserves within a few levels. */
static uint8_t color_at(double x, double y, uint32_t k)
{
    double v = k == 0 ? 0.5 + 0.5 * sin(5 * x) : k == 1 ? y : 0.5 + 0.4 * cos(4 * (x + y));

    return (uint8_t)(255 * v + 0.5);
}

static uint8_t *make_picture(uint32_t w, uint32_t h, uint32_t c)
{
    uint8_t *p = malloc((size_t)w * h * c);

    for (uint32_t y = 0; y < h; y++)
        for (uint32_t x = 0; x < w; x++)
            for (uint32_t k = 0; k < c; k++)
                p[((size_t)y * w + x) * c + k] = color_at((x + 0.5) / w, (y + 0.5) / h, k);
    return p;
}

enum { BASELINE = 0, PROGRESSIVE = 1, FULL_COLOR = 2, YCCK = 4, NO_MARKER = 8 }; /* without FULL_COLOR: 4:2:0 subsampling */

static void make_jpeg(const uint8_t *p, uint32_t w, uint32_t h, uint32_t c, unsigned form,
                      struct buf *out)
{
    struct jpeg_compress_struct j;
    struct jpeg_error_mgr errors;
    unsigned char *bytes = NULL;
    unsigned long n = 0;

    j.err = jpeg_std_error(&errors);
    jpeg_create_compress(&j);
    jpeg_mem_dest(&j, &bytes, &n);
    j.image_width = w;
    j.image_height = h;
    j.input_components = (int)c;
    j.in_color_space = c == 1 ? JCS_GRAYSCALE : c == 4 ? JCS_CMYK : JCS_RGB;
    jpeg_set_defaults(&j);
    if (form & YCCK)
        jpeg_set_colorspace(&j, JCS_YCCK);
    if (form & NO_MARKER)
        j.write_Adobe_marker = FALSE;
    jpeg_set_quality(&j, 98, TRUE);
    if (form & FULL_COLOR)
        j.comp_info[0].h_samp_factor = j.comp_info[0].v_samp_factor = 1;
    if (form & PROGRESSIVE)
        jpeg_simple_progression(&j);
    jpeg_start_compress(&j, TRUE);
    while (j.next_scanline < h) {
        JSAMPROW row = (JSAMPROW)(uintptr_t)(p + (size_t)j.next_scanline * w * c);

        jpeg_write_scanlines(&j, &row, 1);
    }
    jpeg_finish_compress(&j);
    jpeg_destroy_compress(&j);
    buf_add(out, bytes, n);
    free(bytes);
}

static void make_png(const void *p, uint32_t w, uint32_t h, uint32_t format, struct buf *out)
{
    png_image image = { .version = PNG_IMAGE_VERSION, .width = w, .height = h, .format = format };
    png_alloc_size_t n = 0;
    void *bytes;

    assert_true(png_image_write_get_memory_size(image, n, 0, p, 0, NULL));
    bytes = malloc(n);
    assert_true(png_image_write_to_memory(&image, bytes, &n, 0, p, 0, NULL));
    buf_add(out, bytes, n);
    free(bytes);
}

/* Opens a set with one record per image, with one feature. */
static struct data_set *open_images(const char *folder, const struct data_feature *f,
                                    const struct buf *images, size_t n, bool training, bool cache)
{
    static int n_files;
    char name[32], *glob;
    struct data_opts opts = { .features = f,
                              .n_features = 1,
                              .training = training,
                              .origin.cache = cache ? DATA_CACHE_MEMORY : DATA_CACHE_NONE };
    struct buf file = { 0 };
    struct data_set *s = NULL;
    struct err err;

    for (size_t i = 0; i < n; i++) {
        struct buf list = { 0 }, example = { 0 };

        kit_bytes(&list, f->name, images[i].data, images[i].len);
        kit_member(&example, 1, list.data, list.len);
        tfrecord_append(&file, example.data, example.len);
        buf_fini(&list);
        buf_fini(&example);
    }
    snprintf(name, sizeof(name), "images-%d", n_files++);
    opts.glob = glob = fs_join(folder, name);
    kit_write(folder, name, file.data, file.len);
    if (data_open(&opts, &s, &err) < 0)
        fail_msg("%s", err.text);
    buf_fini(&file);
    free(glob);
    return s;
}

static void decode(struct data_set *s, uint64_t epoch, uint64_t record, float *out)
{
    struct data_sample_key draw = { .seed = 3, .epoch = epoch, .sample = record };
    struct data_decoder *d;
    uint64_t used;
    struct err err;

    assert_int_equal(data_decoder_new(s, &d, NULL), 0);
    if (data_decode(d, &draw, record, (void *[]){ out }, 0, &used, &err) < 0)
        fail_msg("%s", err.text);
    data_decoder_free(d);
}

static void image_of_the_batch_size_is_unchanged(void **state)
{
    enum { W = 37, H = 29 };
    char *folder = kit_folder();
    uint8_t *p = make_picture(W, H, 3), *grey = make_picture(W, H, 1);
    struct buf images[4] = { { 0 } };
    float *out = malloc(3 * W * H * sizeof(*out));

    (void)state;
    make_png(p, W, H, PNG_FORMAT_RGB, &images[0]);
    make_jpeg(p, W, H, 3, FULL_COLOR, &images[1]);
    make_jpeg(p, W, H, 3, FULL_COLOR | PROGRESSIVE, &images[2]);
    make_png(grey, W, H, PNG_FORMAT_GRAY, &images[3]);
    for (int last = 0; last < 2; last++) {
        struct data_feature f = { .name = "i", .stored = TENSOR_U8, .fed = TENSOR_F32, .scale = 0.5,
                                  .offset = 1, .encoded = true, .channels_last = last };
        struct data_set *s;

        f.shape = last ? shape_of(3, (int64_t)H, (int64_t)W, (int64_t)3)
                       : shape_of(3, (int64_t)3, (int64_t)H, (int64_t)W);
        s = open_images(folder, &f, images, 4, true, last);
        for (uint64_t r = 0; r < 8; r++) {
            decode(s, 0, r % 4, out);
            for (size_t i = 0; i < W * H; i++)
                for (size_t k = 0; k < 3; k++) {
                    float got = out[last ? 3 * i + k : k * W * H + i];
                    float expected = 0.5f * (float)(r % 4 == 3 ? grey[i] : p[3 * i + k]) + 1;

                    if (fabsf(got - expected) > (r % 4 == 0 || r % 4 == 3 ? 0 : 4))
                        fail_msg("image %d, pixel %zu, channel %zu: %g, expected %g", (int)r % 4, i,
                                 k, (double)got, (double)expected);
                }
        }
        data_free(s);
    }
    for (int i = 0; i < 4; i++)
        buf_fini(&images[i]);
    free(out);
    free(p);
    free(grey);
    kit_remove(folder);
}

/* The triangle-weighted mean of an output pixel, computed from the definition in double. */
static double reference_pixel(const struct image_pixels *from, const double part[4], uint32_t ow,
                              uint32_t oh, uint32_t ox, uint32_t oy, uint32_t k)
{
    double sx = part[2] / ow, sy = part[3] / oh, sum = 0, weights = 0;
    double cx = part[0] + (ox + 0.5) * sx, cy = part[1] + (oy + 0.5) * sy;
    double rx = sx > 1 ? sx : 1, ry = sy > 1 ? sy : 1;

    for (uint32_t y = 0; y < from->h; y++) {
        double wy = 1 - fabs(y + 0.5 - cy) / ry;

        if (wy <= 0 || y < floor(part[1]) || y >= ceil(part[1] + part[3]))
            continue;
        for (uint32_t x = (uint32_t)fmax(0, cx - rx - 1); x < from->w && x < cx + rx + 1; x++) {
            double wx = 1 - fabs(x + 0.5 - cx) / rx;

            if (wx <= 0 || x < floor(part[0]) || x >= ceil(part[0] + part[2]))
                continue;
            sum += wx * wy * from->at[((size_t)y * from->w + x) * from->c + k];
            weights += wx * wy;
        }
    }
    return sum / weights;
}

static void resample_equals_the_weighted_mean(void **state)
{
    static const struct {
        double part[4];
        uint32_t ow, oh, c;
    } rows[] = {
        { { 0, 0, 40, 30 }, 20, 15, 3 },     { { 0, 0, 40, 30 }, 80, 60, 3 },
        { { 3, 5, 20, 11 }, 7, 9, 3 },       { { 3, 5, 20, 11 }, 33, 4, 1 },
        { { 2.5, 1.25, 30, 20 }, 11, 8, 4 }, { { 0, 0, 40, 30 }, 1, 1, 3 },
        { { 39, 29, 1, 1 }, 5, 5, 2 },       { { 0.5, 0.5, 39, 29 }, 13, 29, 1 },
    };
    struct resample r = { .row = { NULL, 0 } };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        uint32_t ow = rows[i].ow, oh = rows[i].oh, c = rows[i].c;
        uint8_t *p = make_picture(40, 30, c);
        struct image_pixels from = { p, 40, 30, c };
        float *out = malloc((size_t)ow * oh * c * sizeof(*out));

        for (int flip = 0; flip < 2; flip++) {
            assert_int_equal(resample(&r, &from, rows[i].part, ow, oh, flip, out, NULL), 0);
            for (uint32_t y = 0; y < oh; y++)
                for (uint32_t x = 0; x < ow; x++)
                    for (uint32_t k = 0; k < c; k++) {
                        double expected = reference_pixel(&from, rows[i].part, ow, oh,
                                                          flip ? ow - 1 - x : x, y, k);
                        double got = (double)out[((size_t)y * ow + x) * c + k];

                        if (fabs(got - expected) > 2e-3)
                            fail_msg("row %zu, %d %d %d: %g, expected %g", i, (int)x, (int)y,
                                     (int)k, got, expected);
                    }
        }
        free(out);
        free(p);
    }
    resample_free(&r);
}

/* Cyan, magenta, yellow and black absorb light: each leaves a share of it. */
static void jpeg_of_four_colors_is_decoded_to_rgb_and_grey(void **state)
{
    enum { W = 64, H = 48 };
    static const unsigned forms[] = { FULL_COLOR, FULL_COLOR | YCCK, FULL_COLOR | NO_MARKER, FULL_COLOR | PROGRESSIVE };
    uint8_t *p = make_picture(W, H, 4);
    struct image_rect all = { 0, 0, W, H };
    struct image_buffer room = { NULL, 0 };
    struct jpeg *j;

    (void)state;
    assert_int_equal(jpeg_new(&j, NULL), 0);
    for (size_t f = 0; f < COUNT_OF(forms); f++) {
        struct buf image = { 0 };

        make_jpeg(p, W, H, 4, forms[f], &image);
        for (uint32_t channels = 1; channels <= 3; channels += 2) {
            struct image_pixels got;
            uint32_t w, h;
            double at[4];
            struct err err;

            assert_int_equal(jpeg_begin(j, image.data, image.len, &w, &h, NULL), 0);
            if (jpeg_read(j, channels, &all, W, H, &room, &got, at, &err) < 0)
                fail_msg("%s", err.text);
            for (size_t i = 0; i < (size_t)W * H; i++) {
                double rgb[3], grey;

                for (uint32_t k = 0; k < 3; k++) {
                    double color = p[i * 4 + k] / 255.0, light = p[i * 4 + 3] / 255.0;

                    rgb[k] = forms[f] & NO_MARKER ? 255 * (1 - color) * (1 - light)
                                                  : 255 * color * light;
                }
                grey = 0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2];
                for (uint32_t k = 0; k < channels; k++)
                    if (fabs(got.at[i * channels + k] - (channels == 1 ? grey : rgb[k])) > 8)
                        fail_msg("form %u, pixel %zu, channel %u: %u, expected %g", forms[f], i, k,
                                 got.at[i * channels + k], channels == 1 ? grey : rgb[k]);
            }
        }
        buf_fini(&image);
    }
    jpeg_free(j);
    free(room.at);
    free(p);
}

/* Every part of a JPEG that is downscaled while decoding equals the part of the whole image. */
static void jpeg_part_decodes_the_requested_part(void **state)
{
    enum { W = 403, H = 305 };
    uint8_t *p = make_picture(W, H, 3);
    struct buf image = { 0 };
    struct image_buffer room = { NULL, 0 };
    struct resample r = { .row = { NULL, 0 } };
    struct jpeg *j;
    float out[3 * 24 * 20];

    (void)state;
    make_jpeg(p, W, H, 3, BASELINE, &image);
    assert_int_equal(jpeg_new(&j, NULL), 0);
    for (int64_t at = 0; at < 100; at += 7) {
        struct image_rect rect = { at, at / 2, 402 - 3 * at, 304 - 2 * at };
        struct image_pixels got, whole = { p, W, H, 3 };
        double part[4],
            exact[4] = { (double)rect.x, (double)rect.y, (double)rect.w, (double)rect.h };
        uint32_t w, h;
        struct err err;

        assert_int_equal(jpeg_begin(j, image.data, image.len, &w, &h, NULL), 0);
        assert_int_equal(w, W);
        assert_int_equal(h, H);
        if (jpeg_read(j, 3, &rect, 24, 20, &room, &got, part, &err) < 0)
            fail_msg("%s", err.text);
        assert_true((size_t)got.w * got.h <= (size_t)W * H); /* at most the whole image */
        assert_int_equal(resample(&r, &got, part, 24, 20, false, out, NULL), 0);
        for (uint32_t y = 0; y < 20; y++)
            for (uint32_t x = 0; x < 24; x++)
                for (uint32_t k = 0; k < 3; k++) {
                    double e = reference_pixel(&whole, exact, 24, 20, x, y, k) -
                               (double)out[(y * 24 + x) * 3 + k];

                    if (fabs(e) > 6)
                        fail_msg("part %d at %d %d %d: off by %g", (int)at, (int)x, (int)y, (int)k,
                                 e);
                }
    }
    jpeg_free(j);
    resample_free(&r);
    free(room.at);
    buf_fini(&image);
    free(p);
}

/* ---- random steps ---- */

static const struct data_step augment[] = {
    { .op = DATA_RANDOM_RESIZED_CROP, .in_training = true, .scale = { 0.2, 1 },
      .ratio = { 0.75, 1.3333 } },
    { .op = DATA_CENTER_CROP, .in_evaluation = true, .fraction = 0.875 },
    { .op = DATA_FLIP, .in_training = true, .probability = 0.5 },
    { .op = DATA_COLOR_JITTER, .in_training = true, .brightness = 0.4, .contrast = 0.4,
      .saturation = 0.4, .hue = 0.1 },
    { .op = DATA_NORMALIZE, .in_training = true, .in_evaluation = true,
      .mean = { 0.485, 0.456, 0.406, 0 }, .std = { 0.229, 0.224, 0.225, 1 } },
};

static struct data_feature augmented(uint32_t side)
{
    return (struct data_feature){ .name = "i", .stored = TENSOR_U8, .fed = TENSOR_F32, .scale = 1,
                                  .shape = shape_of(3, (int64_t)3, (int64_t)side, (int64_t)side),
                                  .encoded = true, .steps = augment, .n_steps = 5 };
}

static void image_augmentation_is_a_function_of_seed_epoch_and_record(void **state)
{
    enum { SIDE = 16, N = 3 * SIDE * SIDE };
    struct data_feature f = augmented(SIDE);
    char *folder = kit_folder();
    uint8_t *p = make_picture(60, 50, 3);
    struct buf images[2] = { { 0 } };
    struct data_set *train, *eval;
    float a[N], b[N];

    (void)state;
    make_jpeg(p, 60, 50, 3, BASELINE, &images[0]);
    buf_add(&images[1], images[0].data, images[0].len);
    train = open_images(folder, &f, images, 2, true, false);
    eval = open_images(folder, &f, images, 2, false, true);
    decode(train, 0, 0, a);
    decode(train, 0, 0, b);
    assert_memory_equal(a, b, sizeof(a));
    decode(train, 1, 0, b);
    assert_memory_not_equal(a, b, sizeof(a)); /* another epoch */
    decode(train, 0, 1, b);
    assert_memory_not_equal(a, b, sizeof(a)); /* the same image as another record */
    decode(eval, 0, 0, a);
    /* evaluation is not random */
    for (int i = 0; i < 3; i++) {
        decode(eval, (uint64_t)i, (uint64_t)i % 2, b);
        assert_memory_equal(a, b, sizeof(a));
    }
    data_free(train);
    data_free(eval);
    buf_fini(&images[0]);
    buf_fini(&images[1]);
    free(p);
    kit_remove(folder);
}

/* Any number of threads, with and without a cache, gives the same batches. */
static void image_augmentation_is_independent_of_threads_and_cache(void **state)
{
    enum { SIDE = 8, N = 3 * SIDE * SIDE, RECORDS = 24 };
    struct data_feature f = augmented(SIDE);
    char *folder = kit_folder();
    struct buf images[RECORDS] = { { 0 } };
    float *expected = NULL;

    (void)state;
    for (uint32_t i = 0; i < RECORDS; i++) {
        uint8_t *p = make_picture(20 + i, 40 - i, 3);

        if (i % 3 == 0)
            make_png(p, 20 + i, 40 - i, PNG_FORMAT_RGB, &images[i]);
        else
            make_jpeg(p, 20 + i, 40 - i, 3, i % 3 == 1 ? PROGRESSIVE : BASELINE, &images[i]);
        free(p);
    }
    for (uint32_t kind = 0; kind < 6; kind++) {
        struct data_set *s = open_images(folder, &f, images, RECORDS, true, kind % 2);
        struct data_reader_opts o = { .seed = 8, .shuffle = true, .global_batch = 12, .lanes = 2,
                                      .n_lanes = 2, .first_step = 1, .last_step = 5, .prefetch = 3,
                                      .threads = kind / 2 * 2 };
        float *got = malloc(10 * 6 * N * sizeof(*got));
        const struct data_batch *batch;
        struct data_reader *r;
        size_t n = 0;

        assert_int_equal(data_reader_open(s, &o, &r, NULL), 0);
        while (data_next(r, &batch, NULL) == 0 && batch != NULL) {
            memcpy(got + n * 6 * N, batch->features[0], 6 * N * sizeof(*got));
            n++;
            data_release(r);
        }
        assert_int_equal(n, 10);
        if (expected != NULL)
            assert_memory_equal(got, expected, 10 * 6 * N * sizeof(*got));
        free(expected);
        expected = got;
        data_reader_close(r);
        data_free(s);
    }
    free(expected);
    for (uint32_t i = 0; i < RECORDS; i++)
        buf_fini(&images[i]);
    kit_remove(folder);
}

/* The red value of each pixel is its column and the green value its row, so the part can be
 * determined from the result. */
static void random_resized_crop_has_the_requested_area_and_ratio(void **state)
{
    enum { W = 200, H = 160, SIDE = 20, DRAWS = 400 };
    static const struct data_step step = { .op = DATA_RANDOM_RESIZED_CROP, .in_training = true,
                                           .scale = { 0.1, 0.5 }, .ratio = { 0.5, 2 } };
    struct data_feature f = augmented(SIDE);
    char *folder = kit_folder();
    uint8_t *p = malloc(3 * W * H);
    struct buf image = { 0 };
    struct data_set *s;
    double least = 1, most = 0, low = 9, high = 0;
    float out[3 * SIDE * SIDE];

    (void)state;
    f.steps = &step;
    f.n_steps = 1;
    for (size_t i = 0; i < W * H; i++) {
        p[3 * i] = (uint8_t)(i % W);
        p[3 * i + 1] = (uint8_t)(i / W);
        p[3 * i + 2] = 0;
    }
    make_png(p, W, H, PNG_FORMAT_RGB, &image);
    s = open_images(folder, &f, &image, 1, true, false);
    for (uint64_t epoch = 0; epoch < DRAWS; epoch++) {
        double w, h;

        decode(s, epoch, 0, out);
        /* Away from the edges, adjacent pixel centres differ by 1/SIDE of the part's size. */
        w = (double)(out[SIDE - 4] - out[3]) / (SIDE - 7) * SIDE;
        h = (double)(out[SIDE * SIDE + (SIDE - 4) * SIDE] - out[SIDE * SIDE + 3 * SIDE]) /
            (SIDE - 7) * SIDE;
        least = fmin(least, w * h / (W * H));
        most = fmax(most, w * h / (W * H));
        low = fmin(low, w / h);
        high = fmax(high, w / h);
    }
    assert_true(least > 0.095 && least < 0.12 && most > 0.45 && most < 0.52);
    assert_true(low > 0.48 && low < 0.56 && high > 1.8 && high < 2.1);
    data_free(s);
    buf_fini(&image);
    free(p);
    kit_remove(folder);
}

/* The augmentation for CIFAR: padding of four black pixels, a random part of the original size,
 * half of the images mirrored. */
static void random_crop_moves_pixels_and_pads_with_black(void **state)
{
    enum { SIDE = 8, PAD = 3 };
    static const struct data_step steps[] = {
        { .op = DATA_RANDOM_CROP, .in_training = true, .padding = PAD },
        { .op = DATA_FLIP, .in_training = true, .probability = 0.5 },
    };
    struct data_feature f = { .name = "i", .stored = TENSOR_U8, .fed = TENSOR_F32, .scale = 1,
                              .shape = shape_of(3, (int64_t)3, (int64_t)SIDE, (int64_t)SIDE),
                              .steps = steps, .n_steps = 2 };
    char *folder = kit_folder();
    struct buf image = { 0 };
    uint8_t p[3][SIDE][SIDE];
    bool seen[2 * PAD + 1][2 * PAD + 1][2] = { { { false } } };
    struct data_set *s;
    uint32_t n_seen = 0;

    (void)state;
    for (int k = 0; k < 3; k++)
        for (int y = 0; y < SIDE; y++)
            for (int x = 0; x < SIDE; x++)
                p[k][y][x] = (uint8_t)(1 + k * 64 + y * SIDE + x);
    buf_add(&image, p, sizeof(p));
    s = open_images(folder, &f, &image, 1, true, false);
    for (uint64_t epoch = 0; epoch < 2000; epoch++) {
        float out[3][SIDE][SIDE];
        int found = 0;

        decode(s, epoch, 0, &out[0][0][0]);
        for (int dy = -PAD; dy <= PAD; dy++)
            for (int dx = -PAD; dx <= PAD; dx++)
                for (int flip = 0; flip < 2; flip++) {
                    bool same = true;

                    for (int k = 0; k < 3; k++)
                        for (int y = 0; y < SIDE; y++)
                            for (int x = 0; x < SIDE; x++) {
                                int sx = (flip ? SIDE - 1 - x : x) + dx, sy = y + dy;
                                bool in = sx >= 0 && sx < SIDE && sy >= 0 && sy < SIDE;

                                same = same && out[k][y][x] == (in ? (float)p[k][sy][sx] : 0);
                            }
                    if (same) {
                        found++;
                        n_seen += !seen[dy + PAD][dx + PAD][flip];
                        seen[dy + PAD][dx + PAD][flip] = true;
                    }
                }
        assert_int_equal(found, 1);
    }
    assert_int_equal(n_seen, 2 * 49); /* each position, mirrored and not */
    data_free(s);
    buf_fini(&image);
    kit_remove(folder);
}

/* ---- colours ---- */

static void color_steps_compute_the_expected_values(void **state)
{
    float x[6], grey[3] = { 10, 100, 200 };

    (void)state;
    memcpy(x, (float[]){ 200, 100, 50, 0, 255, 30 }, sizeof(x));
    color_brightness(x, 2, 3, 1.5f);
    assert_memory_equal(x, ((float[]){ 255, 150, 75, 0, 255, 45 }), sizeof(x));
    color_contrast(grey, 3, 1, 0);
    assert_true(grey[0] == grey[2] && fabsf(grey[0] - 310.0f / 3) < 1e-3f);
    memcpy(x, (float[]){ 200, 100, 50, 0, 255, 30 }, sizeof(x));
    color_saturation(x, 2, 0);
    assert_true(fabsf(x[0] - (0.299f * 200 + 0.587f * 100 + 0.114f * 50)) < 1e-3f && x[0] == x[2]);
    memcpy(x, (float[]){ 200, 100, 50, 0, 255, 30 }, sizeof(x));
    color_hue(x, 2, 1.0f / 3); /* a third of a turn: red becomes green, green becomes blue */
    assert_true(fabsf(x[0] - 50) < 0.01f && fabsf(x[1] - 200) < 0.01f && fabsf(x[2] - 100) < 0.01f);
    assert_true(fabsf(x[3] - 30) < 0.01f && fabsf(x[4]) < 0.01f && fabsf(x[5] - 255) < 0.01f);
    color_hue(x, 2, -1.0f / 3);
    assert_true(fabsf(x[0] - 200) < 0.01f && fabsf(x[1] - 100) < 0.01f && fabsf(x[2] - 50) < 0.01f);
    memcpy(x, (float[]){ 7, 7, 7, 1, 2, 3 }, sizeof(x));
    color_hue(x, 1, 0.37f); /* grey has no hue */
    assert_true(x[0] == 7 && x[1] == 7 && x[2] == 7 && x[3] == 1);
}

static void normalize_uses_fractions_of_one(void **state)
{
    static const struct data_step step = { .op = DATA_NORMALIZE, .in_training = true,
                                           .mean = { 0.5, 0.25, 0, 0 }, .std = { 0.5, 2, 1, 1 } };
    struct data_feature f = { .name = "i", .stored = TENSOR_U8, .fed = TENSOR_F32, .scale = 1,
                              .shape = shape_of(3, (int64_t)3, (int64_t)1, (int64_t)2),
                              .steps = &step, .n_steps = 1 };
    char *folder = kit_folder();
    struct buf image = { 0 };
    struct data_set *s;
    float out[6];

    (void)state;
    buf_add(&image, (uint8_t[]){ 0, 255, 51, 102, 255, 0 }, 6);
    s = open_images(folder, &f, &image, 1, true, false);
    decode(s, 0, 0, out);
    assert_true(fabsf(out[0] + 1) < 1e-6f && fabsf(out[1] - 1) < 1e-6f);
    assert_true(fabsf(out[2] + 0.025f) < 1e-6f && fabsf(out[3] - 0.075f) < 1e-6f);
    assert_true(fabsf(out[4] - 1) < 1e-6f && fabsf(out[5]) < 1e-6f);
    data_free(s);
    buf_fini(&image);
    kit_remove(folder);
}

/* ---- errors ---- */

static void image_damaged_is_refused_with_the_format(void **state)
{
    struct data_feature f = augmented(8);
    char *folder = kit_folder();
    uint8_t *p = make_picture(64, 64, 3);
    struct buf images[5] = { { 0 } };
    static const char *const expected[] = { "JPEG: the image is truncated", "PNG: ",
                                            "neither a JPEG nor a PNG", "JPEG: ",
                                            "65500 x 65500 pixels" };
    struct data_set *s;
    float out[3 * 64];

    (void)state;
    make_jpeg(p, 64, 64, 3, BASELINE, &images[0]);
    make_jpeg(p, 64, 64, 3, BASELINE, &images[4]);
    images[0].len = images[0].len / 2;
    make_png(p, 64, 64, PNG_FORMAT_RGB, &images[1]);
    images[1].data[images[1].len / 2] ^= 1;
    buf_str(&images[2], "GIF89a");
    buf_add(&images[3], "\xff\xd8\xff\xe0", 4);
    for (size_t i = 0; i + 8 < images[4].len; i++) /* a larger size in the frame header */
        if (memcmp(images[4].data + i, "\xff\xc0", 2) == 0) {
            memcpy(images[4].data + i + 5, "\xff\xdc\xff\xdc", 4);
            break;
        }
    s = open_images(folder, &f, images, 5, true, false);
    for (uint64_t i = 0; i < 5; i++) {
        struct err err = { .code = 0 };

        if (data_sample(s, i, (void *[]){ out }, &err) >= 0 ||
            strstr(err.text, expected[i]) == NULL)
            fail_msg("image %d: '%s'", (int)i, err.text);
        assert_text(err, "feature 'i'");
    }
    data_free(s);
    for (int i = 0; i < 5; i++)
        buf_fini(&images[i]);
    free(p);
    kit_remove(folder);
}

/* Appends a PNG chunk: length, type, data, CRC-32 of type and data. */
static void put_chunk(struct buf *out, const char *type, const void *data, size_t n)
{
    uint32_t crc = (uint32_t)crc32(crc32(0, (const Bytef *)type, 4), data, (uInt)n);
    uint8_t head[8] = { (uint8_t)(n >> 24), (uint8_t)(n >> 16), (uint8_t)(n >> 8), (uint8_t)n };
    uint8_t tail[4] = { (uint8_t)(crc >> 24), (uint8_t)(crc >> 16), (uint8_t)(crc >> 8),
                        (uint8_t)crc };

    memcpy(head + 4, type, 4);
    buf_add(out, head, 8);
    buf_add(out, data, n);
    buf_add(out, tail, 4);
}

/* Appends a chunk with `prefix` uncompressed and `n` deflated zeros. */
static void put_zeros(struct buf *out, const char *type, const void *prefix, size_t n_prefix,
                      size_t n)
{
    uLongf packed = compressBound(n);
    uint8_t *zeros = calloc(n, 1), *data = malloc(n_prefix + packed);

    if (n_prefix > 0)
        memcpy(data, prefix, n_prefix);
    assert_int_equal(compress(data + n_prefix, &packed, zeros, n), Z_OK);
    put_chunk(out, type, data, n_prefix + packed);
    free(data);
    free(zeros);
}

/* Appends a grey PNG of 8 x 8 pixels with `n_texts` text chunks that inflate to 4 MiB each; its
 * pixels inflate to `n` bytes. */
static void small_png(struct buf *out, size_t n_texts, size_t n)
{
    static const uint8_t head[13] = { 0, 0, 0, 8, 0, 0, 0, 8, 8, 0, 0, 0, 0 };

    buf_add(out, "\x89PNG\r\n\x1a\n", 8);
    put_chunk(out, "IHDR", head, sizeof(head));
    for (size_t i = 0; i < n_texts; i++)
        put_zeros(out, "zTXt", "k\0", 3, 4 << 20);
    put_zeros(out, "IDAT", NULL, 0, n);
    put_chunk(out, "IEND", NULL, 0);
}

static void png_that_inflates_to_more_than_its_pixels_is_refused(void **state)
{
    struct data_feature f = augmented(8);
    char *folder = kit_folder();
    struct buf images[3] = { { 0 } };
    struct data_set *s;
    float out[3 * 64];
    struct rusage before, after;
    struct err err;

    (void)state;
    small_png(&images[0], 0, 8 * 9);
    small_png(&images[1], 0, 64 << 20);
    small_png(&images[2], 64, 8 * 9);
    s = open_images(folder, &f, images, 3, true, false);
    if (data_sample(s, 0, (void *[]){ out }, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(data_sample(s, 1, (void *[]){ out }, &err), ERR_CORRUPT);
    assert_text(err, "PNG: ");
    getrusage(RUSAGE_SELF, &before);
    if (data_sample(s, 2, (void *[]){ out }, &err) < 0) /* text chunks are skipped */
        fail_msg("%s", err.text);
    getrusage(RUSAGE_SELF, &after);
    assert_true(after.ru_maxrss - before.ru_maxrss < 64 << 10); /* KiB */
    data_free(s);
    for (int i = 0; i < 3; i++)
        buf_fini(&images[i]);
    kit_remove(folder);
}

static void image_with_exif_data_is_turned_as_pillow_turns_it(void **state)
{
    char *folder = kit_folder();

    (void)state;
    for (size_t k = 0; k < COUNT_OF(exif_cases); k++) {
        bool jpeg = exif_cases[k].place == EXIF_JPEG, exchanged = exif_cases[k].orientation >= 5;
        const uint8_t *file = jpeg ? exif_jpeg : exif_png;
        const uint8_t(*upright)[EXIF_W * EXIF_H * 3] = jpeg ? exif_jpeg_pixels : exif_png_pixels;
        size_t n = jpeg ? sizeof(exif_jpeg) : sizeof(exif_png);
        size_t at = jpeg ? 2 : exif_cases[k].place == EXIF_PNG ? 33 : n - 12;
        struct buf image = { 0 };

        buf_add(&image, file, at);
        buf_add(&image, exif_cases[k].part, exif_cases[k].n);
        buf_add(&image, file + at, n - at);
        for (int is_upright = 0; is_upright < 2; is_upright++) {
            struct data_feature f = { .name = "i", .stored = TENSOR_U8, .fed = TENSOR_F32, .scale = 1, .encoded = true,
                                      .channels_last = true, .upright = is_upright };
            const uint8_t *pixels = upright[is_upright ? exif_cases[k].orientation - 1 : 0];
            float out[EXIF_W * EXIF_H * 3];
            struct data_set *s;

            f.shape = is_upright && exchanged
                          ? shape_of(3, (int64_t)EXIF_W, (int64_t)EXIF_H, (int64_t)3)
                          : shape_of(3, (int64_t)EXIF_H, (int64_t)EXIF_W, (int64_t)3);
            s = open_images(folder, &f, &image, 1, true, false);
            decode(s, 0, 0, out);
            for (size_t i = 0; i < COUNT_OF(out); i++)
                if (out[i] != pixels[i])
                    fail_msg("%s: number %zu is %g, expected %d", exif_cases[k].name, i,
                             (double)out[i], pixels[i]);
            data_free(s);
        }
        buf_fini(&image);
    }
    kit_remove(folder);
}

/* Adds the Exif data of an orientation to a file: a segment after the start of a JPEG file, or a chunk after the head of a PNG
 * file. */
static void add_orientation(struct buf *file, uint32_t orientation, bool jpeg)
{
    const size_t at = jpeg ? 2 : 33, k = jpeg ? 0 : COUNT_OF(exif_cases) - 8;
    struct buf out = { 0 };

    assert_string_equal(exif_cases[k].name, jpeg ? "little-endian, 1" : "1");
    buf_add(&out, file->data, at);
    buf_add(&out, exif_cases[k + orientation - 1].part, exif_cases[k + orientation - 1].n);
    buf_add(&out, file->data + at, file->len - at);
    buf_fini(file);
    *file = out;
}

/* The operations apply to the upright image: a stored image that is turned gives the same pixels as the upright one. */
static void image_is_turned_before_the_operations(void **state)
{
    enum { W = 190, H = 130, SIDE = 24 };
    static const struct data_step steps[] = {
        { .op = DATA_RANDOM_RESIZED_CROP, .scale = { 0.2, 1 }, .ratio = { 0.5, 2 }, .in_training = true },
        { .op = DATA_RANDOM_CROP, .padding = 9, .in_training = true },
        { .op = DATA_CENTER_CROP, .fraction = 0.7, .in_training = true },
        { .op = DATA_FLIP, .probability = 0.5, .in_training = true },
    };
    char *folder = kit_folder();
    uint8_t *p = make_picture(W, H, 3), *turned = malloc(W * H * 3);

    (void)state;
    for (uint32_t orientation = 1; orientation <= 8; orientation++) {
        uint32_t back = orientation == 6 ? 8 : orientation == 8 ? 6 : orientation, w = W, h = H;
        struct image_pixels pixels = { p, W, H, 3 };
        struct buf images[3] = { { 0 } };

        upright_copy(back, &pixels, turned);
        upright_size(back, &w, &h);
        make_png(p, W, H, PNG_FORMAT_RGB, &images[0]);
        make_png(turned, w, h, PNG_FORMAT_RGB, &images[1]);
        add_orientation(&images[1], orientation, false);
        make_jpeg(turned, w, h, 3, FULL_COLOR, &images[2]);
        add_orientation(&images[2], orientation, true);
        for (size_t k = 0; k < COUNT_OF(steps); k++) {
            struct data_feature f = augmented(SIDE);
            float out[3][3 * SIDE * SIDE];
            struct data_set *s[3];

            f.upright = true;
            f.scale = 1;
            f.offset = 0;
            f.steps = &steps[k];
            f.n_steps = 1;
            for (int i = 0; i < 3; i++)
                s[i] = open_images(folder, &f, &images[i], 1, true, false);
            for (uint64_t epoch = 0; epoch < 6; epoch++) {
                for (int i = 0; i < 3; i++)
                    decode(s[i], epoch, 0, out[i]);
                assert_memory_equal(out[0], out[1], sizeof(out[0]));
                for (size_t i = 0; i < COUNT_OF(out[0]); i++)
                    if (fabsf(out[0][i] - out[2][i]) > 8)
                        fail_msg("orientation %d, step %zu: number %zu is %g, expected %g",
                                 (int)orientation, k, i, (double)out[2][i], (double)out[0][i]);
            }
            for (int i = 0; i < 3; i++)
                data_free(s[i]);
        }
        for (int i = 0; i < 3; i++)
            buf_fini(&images[i]);
    }
    free(turned);
    free(p);
    kit_remove(folder);
}

static void image_steps_invalid_are_refused(void **state)
{
    struct data_step two[] = { augment[0], augment[1] };
    struct data_feature f = augmented(8);
    struct data_opts opts = { .glob = "/dev/null", .features = &f, .n_features = 1,
                              .training = true };
    struct data_set *s;
    struct err err;

    (void)state;
    two[1].in_training = true;
    f.steps = two;
    f.n_steps = 2;
    assert_int_equal(data_open(&opts, &s, &err), ERR_INPUT);
    assert_text(err, "more than one step crops the image");
    f = augmented(8);
    f.shape = shape_of(3, (int64_t)2, (int64_t)8, (int64_t)8);
    assert_int_equal(data_open(&opts, &s, &err), ERR_INPUT);
    assert_text(err, "1 or 3 channels");
    f = augmented(8);
    f.fed = TENSOR_I64;
    assert_int_equal(data_open(&opts, &s, &err), ERR_INPUT);
    assert_text(err, "feeds a float32 input");
    f = augmented(8);
    f.shape = shape_of(1, (int64_t)8);
    assert_int_equal(data_open(&opts, &s, &err), ERR_INPUT);
    assert_text(err, "[channels, height, width]");
    f = augmented(8);
    f.encoded = false;
    f.upright = true;
    assert_int_equal(data_open(&opts, &s, &err), ERR_INPUT);
    assert_text(err, "the orientation is that of a JPEG or PNG file");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(image_of_the_batch_size_is_unchanged),
        cmocka_unit_test(resample_equals_the_weighted_mean),
        cmocka_unit_test(jpeg_part_decodes_the_requested_part),
        cmocka_unit_test(jpeg_of_four_colors_is_decoded_to_rgb_and_grey),
        cmocka_unit_test(image_augmentation_is_a_function_of_seed_epoch_and_record),
        cmocka_unit_test(image_augmentation_is_independent_of_threads_and_cache),
        cmocka_unit_test(random_resized_crop_has_the_requested_area_and_ratio),
        cmocka_unit_test(random_crop_moves_pixels_and_pads_with_black),
        cmocka_unit_test(color_steps_compute_the_expected_values),
        cmocka_unit_test(normalize_uses_fractions_of_one),
        cmocka_unit_test(image_damaged_is_refused_with_the_format),
        cmocka_unit_test(png_that_inflates_to_more_than_its_pixels_is_refused),
        cmocka_unit_test(image_with_exif_data_is_turned_as_pillow_turns_it),
        cmocka_unit_test(image_is_turned_before_the_operations),
        cmocka_unit_test(image_steps_invalid_are_refused),
    };

    return cmocka_run_group_tests_name("data/image", tests, NULL, NULL);
}
