/* fuzz_example.c - any bytes as a tf.train.Example, from which features of every stored type are
 * read. */
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "data/data.h"
#include "data/example.h"
#include "fuzz/driver.h"

/* {image: 4 bytes, label: int64 -1, weight: 2 floats}, packed and not. */
#define PACKED \
    "\x0a\x44\x0a\x11\x0a\x05\x69\x6d\x61\x67\x65\x12\x08\x0a" \
    "\x06\x0a\x04\x01\x02\x03\x04\x0a\x17\x0a\x05\x6c\x61\x62" \
    "\x65\x6c\x12\x0e\x1a\x0c\x0a\x0a\xff\xff\xff\xff\xff\xff" \
    "\xff\xff\xff\x01\x0a\x16\x0a\x06\x77\x65\x69\x67\x68\x74" \
    "\x12\x0c\x12\x0a\x0a\x08\x00\x00\xc0\x3f\x00\x00\x00\xc0"
#define LOOSE \
    "\x0a\x43\x0a\x11\x0a\x05\x69\x6d\x61\x67\x65\x12\x08\x0a" \
    "\x06\x0a\x04\x01\x02\x03\x04\x0a\x16\x0a\x05\x6c\x61\x62" \
    "\x65\x6c\x12\x0d\x1a\x0b\x08\xff\xff\xff\xff\xff\xff\xff" \
    "\xff\xff\x01\x0a\x16\x0a\x06\x77\x65\x69\x67\x68\x74\x12" \
    "\x0c\x12\x0a\x0d\x00\x00\xc0\x3f\x0d\x00\x00\x00\xc0"

const struct fuzz_seed fuzz_seeds[] = { FUZZ_SEED(PACKED), FUZZ_SEED(LOOSE) };
const size_t n_fuzz_seeds = COUNT_OF(fuzz_seeds);

static const struct data_feature features[] = {
    { .name = "image", .stored = TENSOR_U8, .shape = { 1, { 4 } } },
    { .name = "label", .stored = TENSOR_I64 },
    { .name = "weight", .stored = TENSOR_F32, .shape = { 1, { 2 } } },
    { .name = "image", .stored = TENSOR_F32 },
    { .name = "label", .stored = TENSOR_I32 },
};
static const size_t elements[] = { 4, 1, 2, 1, 1 };

static int find(const uint8_t *data, size_t size, const struct data_feature *f, uint32_t n,
                struct data_entry *found)
{
    struct data_names *names;
    int rc;

    CHECK(data_names_new(f, n, &names, NULL) == 0);
    rc = data_example_find(names, data, size, found, NULL);
    data_names_free(names);
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct data_entry found[COUNT_OF(features)];
    struct err err;

    /* Finds all features, then each separately: a missing feature must not hide the others. */
    (void)find(data, size, features, COUNT_OF(features), found); /* any result is allowed */
    for (size_t i = 0; i < COUNT_OF(features); i++) {
        uint64_t room[4], count;
        const void *stored;
        uint8_t copy[16];

        if (find(data, size, &features[i], 1, found) < 0)
            continue;
        CHECK(found->at >= data && found->n <= size && found->at - data + found->n <= size);
        if (data_example_read(&features[i], elements[i], found, room, &stored, &count, &err) == 0)
            memcpy(copy, stored, elements[i] * tensor_dtype_bytes(features[i].stored));
    }
    return 0;
}
