/* fuzz_shards.c - any bytes as the header of the first shard file of a checkpoint; the other files have the same
 * header with their own numbers. Accepted tables have in every file the rows that the rule gives it, or are dynamic.
 * The same bytes are also the header of slots of a model with a dynamic table. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "ckpt/ckpt_priv.h"
#include "ckpt/shard_set.h"
#include "fuzz/driver.h"

#define TABLE(name_, rows_, from_, to_)                                                            \
    "\"" name_ "/rows-00000-of-00016\":{\"dtype\":\"F32\",\"shape\":[" rows_                       \
    ",1],\"data_offsets\":[" from_ "," to_ "]}"

#define LIST(name_, rows_, from_, to_)                                                             \
    "\"" name_ "/rows-00000-of-00016\":{\"dtype\":\"I64\",\"shape\":[" rows_                       \
    "],\"data_offsets\":[" from_ "," to_ "]}"

/* Of every file: 4 rows of the dynamic table d, 4096 rows of the table a, which has a fixed size. */
static const char model[] = "{" LIST("d/ids", "4", "0", "32") "," TABLE(
    "d", "4", "32", "48") "," TABLE("a", "4096", "48", "16432") "}";

const struct fuzz_seed fuzz_seeds[] = {
    FUZZ_SEED("{\"__metadata__\":{\"format\":\"pt\"}," TABLE("a", "4096", "0", "16384") "}"),
    FUZZ_SEED("{" TABLE("a", "8192", "0", "32768") "," TABLE("b/c", "4096", "32768", "49152") "}"),
    FUZZ_SEED("{" TABLE("a", "0", "0", "0") "}"),
    FUZZ_SEED("{" TABLE("a", "4095", "0", "16380") "}"),
    FUZZ_SEED("{" LIST("a/ids", "3", "0", "24") "," TABLE("a", "3", "24", "36") "}"),
    FUZZ_SEED("{" LIST("b/ids", "3", "0", "24") "," TABLE("a", "4090", "24", "16384") "}"),
    FUZZ_SEED("{" LIST("d/last_step", "4", "0", "32") "," LIST("d/count", "4", "32", "64") ","
              LIST("d/candidate_ids", "2", "64", "80") "," LIST("d/candidate_last_step", "2", "80", "96") ","
              LIST("d/candidate_count", "2", "96", "112") "," TABLE("d/sum", "4", "112", "128") ","
              TABLE("a/sum", "4096", "128", "16512") "}"),
    FUZZ_SEED("{" LIST("d/last_step", "4", "0", "32") "," LIST("d/count", "3", "32", "56") "," TABLE("d/sum", "4", "56", "72") "}"),
};
const size_t n_fuzz_seeds = COUNT_OF(fuzz_seeds);

/* Writes the number of the file in place of 00000. */
static void renumber(char *text, size_t n, uint32_t file)
{
    static const char zero[] = "/rows-00000-of-00016";

    for (char *at = text, *end = text + n;
         (at = memmem(at, (size_t)(end - at), zero, sizeof(zero) - 1)) != NULL;
         at += sizeof(zero) - 1) {
        at[9] = (char)('0' + file / 10);
        at[10] = (char)('0' + file % 10);
    }
}

/* The file is as long as the last tensor requires. */
static int add_file(struct ckpt_shard_set *set, uint32_t file, const uint8_t *data, size_t n,
                    uint64_t data_bytes, struct err *err)
{
    char *text = malloc(n + 1);
    struct safetensors header;
    int rc;

    CHECK(text != NULL);
    if (n > 0)
        memcpy(text, data, n);
    renumber(text, n, file);
    rc = safetensors_parse(text, n, SAFETENSORS_HEAD_BYTES + n + data_bytes, &header, err);
    if (rc == 0) {
        rc = ckpt_shard_set_add(set, file, &header, err);
        safetensors_fini(&header);
    }
    free(text);
    return rc;
}

static void check(const struct ckpt_shard_set *set)
{
    for (uint32_t i = 0; i < set->n; i++) {
        const struct ckpt_shard_table *t = &set->tables[i];
        uint64_t rows = 0;

        CHECK(t->name[0] != '\0' && t->first_shard == shard_first(t->number) &&
              t->row_bytes % tensor_dtype_bytes(t->dtype) == 0 &&
              (t->dtype == TENSOR_F32 || t->group > 0));
        for (uint32_t f = 0; f < CKPT_SHARD_FILES; f++) {
            CHECK(t->group > 0 ||
                  t->n_rows[f] == ckpt_shard_rows_before(t->first_shard, f, t->rows));
            rows += t->n_rows[f];
        }
        CHECK(rows == t->rows && rows == (uint64_t)t->shape.dim[0]);
    }
}

/* of: NULL: the bytes are the header of the model. */
static int open_set(const uint8_t *data, size_t size, uint64_t data_bytes,
                    const struct ckpt_shard_set *of, struct ckpt_shard_set *out, struct err *err)
{
    int rc = 0;

    ckpt_shard_set_init(out);
    for (uint32_t f = 0; rc == 0 && f < CKPT_SHARD_FILES; f++)
        rc = add_file(out, f, data, size, data_bytes, err);
    return rc == 0 ? ckpt_shard_set_check(out, of, err) : rc;
}

static void try_size(const uint8_t *data, size_t size, uint64_t data_bytes)
{
    struct ckpt_shard_set of, set;

    CHECK(open_set((const uint8_t *)model, sizeof(model) - 1, 16432, NULL, &of, NULL) == 0);
    for (int is_slots = 0; is_slots < 2; is_slots++) {
        struct err err = { 0 };
        int rc = open_set(data, size, data_bytes, is_slots ? &of : NULL, &set, &err);

        if (rc == 0) {
            fuzz_accept();
            check(&set);
        } else {
            CHECK(err.text[0] != '\0' && err.code == rc);
        }
        ckpt_shard_set_close(&set);
    }
    ckpt_shard_set_close(&of);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint64_t sizes[] = { 0, 36, 16380, 16384, 16512, 49152 };

    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        try_size(data, size, sizes[i]);
    return 0;
}
