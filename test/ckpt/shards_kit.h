/* shards_kit.h - a state with two tables, whose rows are in shard files. Every float is a number of its own. */
#ifndef TEST_CKPT_SHARDS_KIT_H
#define TEST_CKPT_SHARDS_KIT_H

#include "ckpt/kit.h"

#include <fcntl.h>

#include "base/fault.h"
#include "ckpt/ckpt_priv.h"

enum {
    A_ROWS = 70000, /* more than one block for each shard */
    A_WIDTH = 3,
    B_ROWS = 1000, /* fewer than one block for each shard */
    B_WIDTH = 2,
    A_AT = 8, /* floats */
    B_AT = A_AT + A_ROWS * A_WIDTH,
    SLOTS_AT = B_AT + B_ROWS * B_WIDTH, /* slots of w, a, b */
    SHARDS_FLOATS = 2 * SLOTS_AT,
    SHARDS_MODEL = 3,
    SHARDS_SLOTS = 3,
};

/* is_elsewhere: of the tables; wants_shards: they are written to shard files. */
static inline void shards_tensors(bool wants_shards, bool is_elsewhere, struct ckpt_tensor model[3],
                                  struct ckpt_tensor slots[3])
{
    static const char *const names[2][3] = { { "emb.a", "w", "emb.b" },
                                             { "emb.a/sum", "w/sum", "emb.b/sum" } };

    for (int kind = 0; kind < 2; kind++) {
        struct ckpt_tensor *t = kind == 0 ? model : slots;
        size_t at = kind == 0 ? 0 : SLOTS_AT;

        t[0] = (struct ckpt_tensor){ names[kind][0], TENSOR_F32, { 2, { A_ROWS, A_WIDTH } },
                                     is_elsewhere ? CKPT_ELSEWHERE : (at + A_AT) * 4, wants_shards, 0 };
        t[1] = (struct ckpt_tensor){ names[kind][1], TENSOR_F32, { 1, { 5 } }, at * 4, 0, 0 };
        t[2] = (struct ckpt_tensor){ names[kind][2], TENSOR_F32, { 2, { B_ROWS, B_WIDTH } },
                                     is_elsewhere ? CKPT_ELSEWHERE : (at + B_AT) * 4,
                                     wants_shards ? 2 : 0, 0 };
    }
}

static inline float *shards_state(uint64_t seed)
{
    float *state = malloc(SHARDS_FLOATS * sizeof(*state));

    assert_non_null(state);
    for (size_t i = 0; i < SHARDS_FLOATS; i++)
        state[i] = (float)(i + seed * 1000000);
    return state;
}

/* A server of the tests: writes the rows of the shards s with s mod n = i. */
struct shards_server {
    const float *state;
    uint32_t i, n;
};

static inline void shards_write(const struct shards_server *s, struct ckpt_row_files *files,
                                int kind, uint32_t file)
{
    static const struct {
        uint64_t rows;
        size_t at, width;
    } tables[] = { { A_ROWS, A_AT, A_WIDTH }, { B_ROWS, B_AT, B_WIDTH } };
    char name[CKPT_FILE_NAME_BYTES], *path;
    uint64_t at = files->data_at[kind][file];
    int fd;

    ckpt_shard_file_name(kind, file, name);
    path = fs_join(files->folder, name);
    fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    for (uint32_t t = 0; t < 2; t++) {
        size_t row_bytes = tables[t].width * 4;
        uint32_t first = shard_first(t);

        for (uint64_t r = 0; r < tables[t].rows; r++) {
            const float *row =
                s->state + (kind == 0 ? 0 : SLOTS_AT) + tables[t].at + r * tables[t].width;
            uint64_t to = at + ckpt_shard_rows_before(first, file, r) * row_bytes;

            if (ckpt_shard_file_of(first, r) != file ||
                shard_of_block(first, r / 64) % s->n != s->i)
                continue;
            assert_int_equal(pwrite(fd, row, row_bytes, (off_t)to), row_bytes);
            files->sums[kind][file] += ckpt_shard_sum(row, 1, row_bytes, to);
        }
        at += ckpt_shard_rows_before(first, file, tables[t].rows) * row_bytes;
    }
    assert_int_equal(close(fd), 0);
    free(path);
}

/* A ckpt_write_rows_fn: `arg` is the state. Two servers write, the second one first. */
static inline int shards_write_rows(void *arg, struct ckpt_row_files *files, struct err *err)
{
    (void)err;
    for (int kind = 0; kind < CKPT_SHARD_KINDS; kind++)
        for (uint32_t f = 0; f < CKPT_SHARD_FILES; f++)
            for (uint32_t i = 2; i-- > 0;)
                shards_write(&(struct shards_server){ arg, i, 2 }, files, kind, f);
    return ckpt_row_files_check(files, err);
}

static inline struct ckpt_writer_opts shards_opts(const char *folder, bool is_elsewhere,
                                                  struct ckpt_tensor model[3],
                                                  struct ckpt_tensor slots[3])
{
    shards_tensors(true, is_elsewhere, model, slots);
    return (struct ckpt_writer_opts){ .directory = folder,
                                      .model = model,
                                      .n_model = 3,
                                      .slots = slots,
                                      .n_slots = 3,
                                      .state_bytes = SHARDS_FLOATS * 4,
                                      .write_rows = is_elsewhere ? shards_write_rows : NULL,
                                      .retry_ms = 1 };
}

/* Saves a checkpoint of `step` with the state of `seed`, with the faults of `spec` (NULL: none) from the start
 * of the save on; returns the result. */
static inline int shards_save_with(struct ckpt_writer_opts *opts, uint64_t step, uint64_t seed,
                                   const char *spec, struct err *err)
{
    float *state = shards_state(seed);
    struct ckpt_meta meta = kit_meta(step);
    struct ckpt_writer *w;
    int rc;

    opts->arg = state;
    w = kit_open(opts);
    if (spec != NULL)
        assert_int_equal(fault_arm(spec, NULL), 0);
    assert_int_equal(ckpt_write(w, &meta, state, err), 0);
    rc = opts->write_rows != NULL ? ckpt_wait_rows(w, 20000, err) : 0;
    memset(state, 0, SHARDS_FLOATS * sizeof(*state)); /* the rows may change from here on */
    if (rc == 0)
        rc = flush_for(w, 20000, err);
    ckpt_writer_close(w);
    free(state);
    return rc;
}

static inline void shards_save(const char *folder, uint64_t step, uint64_t seed, bool is_elsewhere)
{
    struct ckpt_tensor model[3], slots[3];
    struct ckpt_writer_opts opts = shards_opts(folder, is_elsewhere, model, slots);
    struct err err = { .text = "" };

    if (shards_save_with(&opts, step, seed, NULL, &err) < 0)
        fail_msg("%s", err.text);
}

/* The names of all files, without the manifest. The caller frees each name, and the array. */
static inline char **shards_files(size_t *n)
{
    struct ckpt_tensor model[3], slots[3];
    struct ckpt_layouts layouts;
    char **names;

    shards_tensors(true, true, model, slots);
    assert_int_equal(
        ckpt_layouts_init(model, 3, slots, 3, SHARDS_FLOATS * 4, NULL, 0, &layouts, NULL), 0);
    names = calloc(layouts.n, sizeof(*names));
    assert_non_null(names);
    for (uint32_t i = 0; i < layouts.n; i++)
        names[i] = strdup(layouts.at[i].name);
    *n = layouts.n;
    ckpt_layouts_fini(&layouts);
    return names;
}

#endif
