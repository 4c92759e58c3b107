/* kit.h - for the tests of data/: builds tf.train.Examples byte by byte, and directories of records
 * whose content identifies them. */
#ifndef TEST_DATA_KIT_H
#define TEST_DATA_KIT_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/fs.h"
#include "data/data.h"
#include "data/tfrecord.h"

/* ---- messages ---- */

static inline void kit_varint(struct buf *b, uint64_t v)
{
    for (; v >= 0x80; v >>= 7)
        buf_add(b, &(uint8_t){ (uint8_t)(v | 0x80) }, 1);
    buf_add(b, &(uint8_t){ (uint8_t)v }, 1);
}

static inline void kit_member(struct buf *b, uint32_t number, const void *data, size_t n)
{
    kit_varint(b, number << 3 | 2);
    kit_varint(b, n);
    buf_add(b, data, n);
}

/* Adds a map entry with the list `body` (members with number 1) of a kind (1, 2, 3). */
static inline void kit_entry(struct buf *features, const char *key, uint32_t kind,
                             const struct buf *body)
{
    struct buf feature = { 0 }, entry = { 0 };

    kit_member(&feature, kind, body->data, body->len);
    kit_member(&entry, 1, key, strlen(key));
    kit_member(&entry, 2, feature.data, feature.len);
    kit_member(features, 1, entry.data, entry.len);
    buf_fini(&feature);
    buf_fini(&entry);
}

static inline void kit_bytes(struct buf *features, const char *key, const void *data, size_t n)
{
    struct buf body = { 0 };

    kit_member(&body, 1, data, n);
    kit_entry(features, key, 1, &body);
    buf_fini(&body);
}

static inline void kit_floats(struct buf *features, const char *key, const float *x, size_t n)
{
    struct buf body = { 0 };

    kit_member(&body, 1, x, n * sizeof(*x));
    kit_entry(features, key, 2, &body);
    buf_fini(&body);
}

static inline void kit_ints(struct buf *features, const char *key, const int64_t *x, size_t n)
{
    struct buf packed = { 0 }, body = { 0 };

    for (size_t i = 0; i < n; i++)
        kit_varint(&packed, (uint64_t)x[i]);
    kit_member(&body, 1, packed.data, packed.len);
    kit_entry(features, key, 3, &body);
    buf_fini(&packed);
    buf_fini(&body);
}

/* ---- records whose content identifies them ---- */

enum { KIT_PIXELS = 6 };

static inline uint8_t kit_pixel(uint64_t record, size_t i)
{
    return (uint8_t)(record * 7 + i * 31);
}

static const struct data_feature kit_features[] = {
    { .name = "image", .stored = TENSOR_U8, .shape = { 2, { 2, 3 } }, .fed = TENSOR_F32,
      .scale = 0.5, .offset = -1 },
    { .name = "id", .stored = TENSOR_I64, .shape = { 0, { 0 } }, .fed = TENSOR_I64 },
};
enum { KIT_FEATURES = 2 };

static inline void kit_record(struct buf *out, uint64_t record)
{
    struct buf features = { 0 }, example = { 0 };
    uint8_t image[KIT_PIXELS];

    for (size_t i = 0; i < KIT_PIXELS; i++)
        image[i] = kit_pixel(record, i);
    kit_bytes(&features, "image", image, sizeof(image));
    kit_ints(&features, "id", &(int64_t){ (int64_t)record }, 1);
    kit_member(&example, 1, features.data, features.len);
    tfrecord_append(out, example.data, example.len);
    buf_fini(&features);
    buf_fini(&example);
}

/* ---- folders ---- */

static inline char *kit_folder(void)
{
    const char *tmp = getenv("TMPDIR");
    char *path = NULL;

    assert_true(asprintf(&path, "%s/data-test-XXXXXX", tmp != NULL ? tmp : "/tmp") > 0);
    assert_non_null(mkdtemp(path));
    return path;
}

static inline void kit_remove(char *folder)
{
    struct err err;

    if (fs_remove_tree(folder, &err) < 0)
        fail_msg("%s", err.text);
    free(folder);
}

static inline void kit_write(const char *folder, const char *name, const void *data, size_t n)
{
    char *path = fs_join(folder, name);
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    free(path);
}

/* Writes the records [first, first + n). Returns the size of the file. */
static inline size_t kit_file(const char *folder, const char *name, uint64_t first, uint64_t n)
{
    struct buf b = { 0 };
    size_t bytes;

    for (uint64_t i = 0; i < n; i++)
        kit_record(&b, first + i);
    kit_write(folder, name, b.data, b.len);
    bytes = b.len;
    buf_fini(&b);
    return bytes;
}

static inline struct data_set *kit_open(const char *folder, const char *index, bool cache)
{
    char *glob = fs_join(folder, "*.tfrecord");
    struct data_opts opts = { .glob = glob,
                              .features = kit_features,
                              .n_features = KIT_FEATURES,
                              .origin.index_directory = index,
                              .origin.cache = cache ? DATA_CACHE_MEMORY : DATA_CACHE_NONE,
                              .threads = 2 };
    struct data_set *s = NULL;
    struct err err;

    if (data_open(&opts, &s, &err) < 0)
        fail_msg("%s", err.text);
    free(glob);
    return s;
}

#define assert_text(err_, part_)                                                                   \
    do {                                                                                           \
        if (strstr((err_).text, (part_)) == NULL)                                                  \
            fail_msg("'%s' is not in '%s'", (part_), (err_).text);                                 \
    } while (0)

#endif
