/* bench_decode.c - measures the time of one core to decode an Example, and to preprocess a JPEG
 * file.
 *
 *   bench_decode examples FOLDER   writes FOLDER/<kind>.tfrecord, which decode_peer.cc reads too
 *   bench_decode images FOLDER     compares with libjpeg decoding whole images and a bilinear loop
 *
 * Prints the minimum of several rounds. All data is in memory. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fs.h"
#include "data/data_priv.h"
#include "data/example.h"
#include "data/tfrecord.h"
#include "data/write.h"
#include "test/bench/decode_kinds.h"

static void die(const struct err *err)
{
    fprintf(stderr, "bench_decode: %s\n", err->text);
    exit(1);
}

static uint32_t draw(void)
{
    static uint64_t state = 1;

    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

/* ---- examples ---- */

static void add_example(const struct decode_kind *k, struct buf *list)
{
    uint8_t *bytes = malloc((size_t)k->n_bytes + 1);
    float *f = malloc((size_t)k->length * sizeof(*f));
    int64_t *x = malloc((size_t)k->length * sizeof(*x));
    char name[16];

    for (int i = 0; i < k->n_bytes; i++)
        bytes[i] = (uint8_t)draw();
    if (k->n_bytes > 0)
        data_write_bytes(list, "b", bytes, (size_t)k->n_bytes);
    for (int i = 0; i < k->n_floats + k->n_ints; i++) {
        snprintf(name, sizeof(name), i < k->n_floats ? "f%d" : "i%d",
                 i < k->n_floats ? i : i - k->n_floats);
        for (int e = 0; e < k->length; e++) {
            f[e] = (float)draw();
            x[e] = draw() % k->max_int;
        }
        if (i < k->n_floats)
            data_write_floats(list, name, f, (size_t)k->length);
        else
            data_write_ints(list, name, x, (size_t)k->length);
    }
    free(bytes);
    free(f);
    free(x);
}

static char *write_kind(const struct decode_kind *k, const char *folder)
{
    char *prefix = fs_join(folder, k->name), *path = NULL, *made = NULL;
    struct data_writer *w;
    struct buf list = { 0 };
    struct err err;

    if (prefix == NULL || asprintf(&path, "%s.tfrecord", prefix) < 0 ||
        asprintf(&made, "%s-00000-of-00001.tfrecord", prefix) < 0)
        exit(1);
    if (data_writer_open(prefix, 1, &w, &err) < 0)
        die(&err);
    for (int i = 0; i < DECODE_RECORDS; i++) {
        add_example(k, &list);
        if (data_writer_add(w, &list, &err) < 0)
            die(&err);
    }
    if (data_writer_commit(w, &err) < 0)
        die(&err);
    data_writer_close(w);
    buf_fini(&list);
    if (rename(made, path) < 0) {
        perror(path);
        exit(1);
    }
    free(prefix);
    free(made);
    return path;
}

static uint32_t features_of(const struct decode_kind *k, struct data_feature *f, char names[][16])
{
    uint32_t n = 0;

    if (k->n_bytes > 0)
        f[n++] = (struct data_feature){ .name = "b", .stored = TENSOR_U8,
                                        .shape = { 1, { k->n_bytes } } };
    for (int i = 0; i < k->n_floats + k->n_ints; i++, n++) {
        bool is_float = i < k->n_floats;

        snprintf(names[n], 16, is_float ? "f%d" : "i%d", is_float ? i : i - k->n_floats);
        f[n] = (struct data_feature){ .name = names[n],
                                      .stored = is_float ? TENSOR_F32 : TENSOR_I64,
                                      .shape = { 1, { k->length } } };
    }
    return n;
}

/* Decodes all records once: each feature to an array in memory, of which one byte is read. */
static uint64_t decode_all(const struct buf *file, const struct data_feature *f, uint32_t n,
                           uint32_t *sum)
{
    struct data_entry found[DECODE_FEATURES_MAX];
    uint64_t start, length, count;
    uint8_t *room = malloc(1 << 16);
    struct data_names *names;
    struct err err;

    if (data_names_new(f, n, &names, &err) < 0)
        die(&err);
    start = clock_ns();

    for (size_t at = 0; at < file->len; at += length + TFRECORD_HEAD_BYTES + TFRECORD_TAIL_BYTES) {
        const uint8_t *head = (const uint8_t *)file->data + at;
        const void *stored;

        memcpy(&length, head, sizeof(length));
        if (data_example_find(names, head + TFRECORD_HEAD_BYTES, length, found, &err) < 0)
            die(&err);
        for (uint32_t i = 0; i < n; i++) {
            size_t elements = (size_t)f[i].shape.dim[0];

            if (data_example_read(&f[i], elements, &found[i], room, &stored, &count, &err) < 0)
                die(&err);
            *sum += *(const uint8_t *)stored;
        }
    }
    start = clock_ns() - start;
    data_names_free(names);
    free(room);
    return start;
}

static void examples(const char *folder)
{
    for (size_t i = 0; i < COUNT_OF(decode_kinds); i++) {
        const struct decode_kind *k = &decode_kinds[i];
        struct data_feature f[DECODE_FEATURES_MAX];
        char names[DECODE_FEATURES_MAX][16], *path = write_kind(k, folder);
        uint32_t n = features_of(k, f, names);
        uint64_t least = UINT64_MAX;
        uint32_t sum = 0;
        struct buf file = { 0 };
        struct err err;

        if (fs_read(path, 1 << 30, &file, &err) < 0)
            die(&err);
        for (int round = 0; round < DECODE_ROUNDS; round++) {
            uint64_t ns = decode_all(&file, f, n, &sum);

            least = ns < least ? ns : least;
        }
        printf("%s %.1f ns, sum %" PRIu32 "\n", k->name, (double)least / DECODE_RECORDS, sum);
        buf_fini(&file);
        free(path);
    }
}

/* ---- images ---- */

enum { WIDTH = 500, HEIGHT = 375, SIDE = 224, PICTURES = 24 };

/* Makes a smooth image with some noise, similar to a photograph. */
static void make_jpeg(uint8_t **bytes, unsigned long *n)
{
    struct jpeg_compress_struct j;
    struct jpeg_error_mgr errors;
    uint8_t row[WIDTH * 3], *line = row;
    double phase = draw() % 100;

    j.err = jpeg_std_error(&errors);
    jpeg_create_compress(&j);
    *bytes = NULL;
    *n = 0;
    jpeg_mem_dest(&j, bytes, n);
    j.image_width = WIDTH;
    j.image_height = HEIGHT;
    j.input_components = 3;
    j.in_color_space = JCS_RGB;
    jpeg_set_defaults(&j);
    jpeg_set_quality(&j, 85, TRUE);
    jpeg_start_compress(&j, TRUE);
    for (int y = 0; y < HEIGHT; y++) {
        for (int x = 0; x < WIDTH; x++)
            for (int c = 0; c < 3; c++)
                row[3 * x + c] = (uint8_t)(120 + 80 * sin(x / 17.0 + phase + c) * cos(y / 23.0) +
                                           (double)(draw() % 32));
        jpeg_write_scanlines(&j, &line, 1);
    }
    jpeg_finish_compress(&j);
    jpeg_destroy_compress(&j);
}

struct part {
    double x, y, w, h;
};

/* The first attempt of torchvision's RandomResizedCrop. */
static struct part draw_part(void)
{
    for (;;) {
        double area = WIDTH * HEIGHT * (0.08 + 0.92 * (draw() % 10000) / 1e4);
        double ratio = exp(log(0.75) + (log(4.0 / 3) - log(0.75)) * (draw() % 10000) / 1e4);
        double w = round(sqrt(area * ratio)), h = round(sqrt(area / ratio));

        if (w <= WIDTH && h <= HEIGHT)
            return (struct part){ floor((WIDTH - w) * (draw() % 1000) / 1e3),
                                  floor((HEIGHT - h) * (draw() % 1000) / 1e3), w, h };
    }
}

static void decode_reference(const uint8_t *bytes, unsigned long n, uint8_t *pixels)
{
    struct jpeg_decompress_struct j;
    struct jpeg_error_mgr errors;

    j.err = jpeg_std_error(&errors);
    jpeg_create_decompress(&j);
    jpeg_mem_src(&j, bytes, n);
    jpeg_read_header(&j, TRUE);
    j.out_color_space = JCS_RGB;
    jpeg_start_decompress(&j);
    while (j.output_scanline < j.output_height) {
        uint8_t *line = pixels + (size_t)j.output_scanline * WIDTH * 3;

        jpeg_read_scanlines(&j, &line, 1);
    }
    jpeg_finish_decompress(&j);
    jpeg_destroy_decompress(&j);
}

/* Resizes bilinearly, without a low-pass filter, to a normalised [3, SIDE, SIDE]; optionally
 * mirrored. */
static void resize_reference(const uint8_t *pixels, struct part p, bool flip, float *out)
{
    static const float mean[] = { 0.485f, 0.456f, 0.406f }, std[] = { 0.229f, 0.224f, 0.225f };
    float to_x = (float)(p.w / SIDE), to_y = (float)(p.h / SIDE);

    for (int oy = 0; oy < SIDE; oy++) {
        float y = fmaxf(0, ((float)oy + 0.5f) * to_y - 0.5f) + (float)p.y;
        int y0 = (int)y, y1 = y0 + 1 < HEIGHT ? y0 + 1 : y0;
        float fy = y - (float)y0;

        for (int ox = 0; ox < SIDE; ox++) {
            float x = fmaxf(0, ((float)ox + 0.5f) * to_x - 0.5f) + (float)p.x;
            int x0 = (int)x, x1 = x0 + 1 < WIDTH ? x0 + 1 : x0;
            float fx = x - (float)x0;

            for (int c = 0; c < 3; c++) {
                float a = pixels[(y0 * WIDTH + x0) * 3 + c], b = pixels[(y0 * WIDTH + x1) * 3 + c];
                float d = pixels[(y1 * WIDTH + x0) * 3 + c], e = pixels[(y1 * WIDTH + x1) * 3 + c];
                float v = (a + (b - a) * fx) * (1 - fy) + (d + (e - d) * fx) * fy;

                out[(c * SIDE + oy) * SIDE + (flip ? SIDE - 1 - ox : ox)] =
                    (v / 255 - mean[c]) / std[c];
            }
        }
    }
}

static uint64_t images_reference(uint8_t *const *bytes, const unsigned long *n, float *out)
{
    uint8_t *pixels = malloc((size_t)WIDTH * HEIGHT * 3);
    uint64_t start = clock_ns();

    for (int i = 0; i < PICTURES; i++) {
        decode_reference(bytes[i], n[i], pixels);
        resize_reference(pixels, draw_part(), draw() % 2, out);
    }
    free(pixels);
    return clock_ns() - start;
}

/* Reads one epoch of the set on the calling thread. */
static uint64_t images_trainerd(struct data_set *s, uint64_t epoch)
{
    struct data_reader_opts o = { .seed = 5, .shuffle = true, .global_batch = 1, .lanes = 1,
                                  .n_lanes = 1, .first_step = epoch * PICTURES + 1,
                                  .last_step = (epoch + 1) * PICTURES, .prefetch = 1 };
    const struct data_batch *b;
    struct data_reader *r;
    uint64_t start = clock_ns();
    struct err err;

    if (data_reader_open(s, &o, &r, &err) < 0)
        die(&err);
    for (;;) {
        if (data_next(r, &b, &err) < 0)
            die(&err);
        if (b == NULL)
            break;
        data_release(r);
    }
    data_reader_close(r);
    return clock_ns() - start;
}

static void images(const char *folder)
{
    struct data_step steps[] = {
        { .op = DATA_RANDOM_RESIZED_CROP, .in_training = true, .scale = { 0.08, 1 },
          .ratio = { 0.75, 4.0 / 3 } },
        { .op = DATA_FLIP, .in_training = true, .probability = 0.5 },
        { .op = DATA_NORMALIZE, .in_training = true, .mean = { 0.485, 0.456, 0.406, 0 },
          .std = { 0.229, 0.224, 0.225, 1 } },
    };
    struct data_feature f = { .name = "image", .stored = TENSOR_U8, .fed = TENSOR_F32, .scale = 1,
                              .shape = { 3, { 3, SIDE, SIDE } }, .encoded = true, .steps = steps,
                              .n_steps = COUNT_OF(steps) };
    char *prefix = fs_join(folder, "images"), *glob = fs_join(folder, "images-*.tfrecord");
    struct data_opts opts = { .glob = glob, .features = &f, .n_features = 1, .training = true,
                              .origin.cache = DATA_CACHE_MEMORY };
    float *out = malloc(3 * SIDE * SIDE * sizeof(*out));
    uint64_t ours = UINT64_MAX, plain = UINT64_MAX, ns;
    unsigned long n[PICTURES];
    uint8_t *bytes[PICTURES];
    struct data_writer *w;
    struct data_set *s;
    struct buf list = { 0 };
    struct err err;

    if (data_writer_open(prefix, 1, &w, &err) < 0)
        die(&err);
    for (int i = 0; i < PICTURES; i++) {
        make_jpeg(&bytes[i], &n[i]);
        data_write_bytes(&list, "image", bytes[i], n[i]);
        if (data_writer_add(w, &list, &err) < 0)
            die(&err);
    }
    if (data_writer_commit(w, &err) < 0 || data_open(&opts, &s, &err) < 0)
        die(&err);
    data_writer_close(w);
    for (uint64_t round = 0; round < DECODE_ROUNDS; round++) {
        ns = images_trainerd(s, round);
        ours = ns < ours ? ns : ours;
        ns = images_reference(bytes, n, out);
        plain = ns < plain ? ns : plain;
    }
    printf("ours %.1f us, plain %.1f us\n", (double)ours / PICTURES / 1e3,
           (double)plain / PICTURES / 1e3);
    for (int i = 0; i < PICTURES; i++)
        free(bytes[i]);
    buf_fini(&list);
    data_free(s);
    free(out);
    free(prefix);
    free(glob);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(const char *folder);
    } kinds[] = { { "examples", examples }, { "images", images } };

    for (size_t i = 0; argc == 3 && i < COUNT_OF(kinds); i++)
        if (strcmp(argv[1], kinds[i].name) == 0) {
            kinds[i].run(argv[2]);
            return 0;
        }
    fprintf(stderr, "usage: bench_decode examples|images FOLDER\n");
    return 2;
}
