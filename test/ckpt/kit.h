/* kit.h - for the tests of ckpt/: a small state whose content is a function of a number, and
 * helpers for a directory of checkpoints. */
#ifndef TEST_CKPT_KIT_H
#define TEST_CKPT_KIT_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/fs.h"
#include "ckpt/ckpt.h"
#include "harness/in_memory.h"
#include "harness/wait.h"

/* The offsets in the state are not in the order of the tensors, and there is a gap. */
static const struct ckpt_tensor kit_model[] = {
    { "conv.weight", TENSOR_F32, { 2, { 3, 5 } }, 128, 0, 0 },
    { "conv.bias", TENSOR_F32, { 1, { 3 } }, 64, 0, 0 },
    { "norm.count", TENSOR_I64, { 0, { 0 } }, 0, 0, 0 },
    { "mask \"\xc3\xa9\"", TENSOR_U8, { 1, { 7 } }, 8, 0, 0 },
    { "nothing", TENSOR_F32, { 2, { 0, 4 } }, 0, 0, 0 },
};
static const struct ckpt_tensor kit_slots[] = {
    { "conv.weight/momentum", TENSOR_F32, { 2, { 3, 5 } }, 188, 0, 0 },
    { "conv.bias/momentum", TENSOR_F32, { 1, { 3 } }, 248, 0, 0 },
};
enum { KIT_MODEL = 5, KIT_SLOTS = 2, KIT_STATE_BYTES = 260 };

static inline void kit_fill(uint8_t state[KIT_STATE_BYTES], uint64_t seed)
{
    for (size_t i = 0; i < KIT_STATE_BYTES; i++)
        state[i] = (uint8_t)(seed * 37 + i * 11 + (i >> 3));
}

static inline int flush_for(struct ckpt_writer *w, uint64_t wait_ms, struct err *err)
{
    return ckpt_flush(w, &(struct ckpt_flush_limits){ .wait_ms = wait_ms }, err);
}

/* Asserts that every tensor has the content of `seed`. */
static inline void kit_check(const uint8_t state[KIT_STATE_BYTES], uint64_t seed)
{
    uint8_t expected[KIT_STATE_BYTES];

    kit_fill(expected, seed);
    assert_memory_equal(state, expected, 15);
    assert_memory_equal(state + 64, expected + 64, 12);
    assert_memory_equal(state + 128, expected + 128, 132);
}

static inline struct ckpt_meta kit_meta(uint64_t step)
{
    return (struct ckpt_meta){ .step = step, .epoch = step / 10, .position = step % 10 * 64,
                               .seed = UINT64_MAX - 1, .lanes = 4, .global_batch_size = 64,
                               .job_digest = "j0b", .model_digest = "m0del",
                               .data_digest = "da7a", .data_content = "00c0ffee", .name = "a \"name\"\n",
                               .phase = 2, .groups = 4, .outer_step = step / 5,
                               .has_outer_momentum = true, .staleness = 2,
                               .residual_groups = 8 };
}

static inline void kit_same_meta(const struct ckpt_meta *a, const struct ckpt_meta *b)
{
    assert_int_equal(a->step, b->step);
    assert_int_equal(a->epoch, b->epoch);
    assert_int_equal(a->position, b->position);
    assert_int_equal(a->seed, b->seed);
    assert_int_equal(a->lanes, b->lanes);
    assert_int_equal(a->global_batch_size, b->global_batch_size);
    assert_string_equal(a->job_digest, b->job_digest);
    assert_string_equal(a->model_digest, b->model_digest);
    assert_string_equal(a->data_digest, b->data_digest);
    assert_string_equal(a->data_content, b->data_content);
    assert_string_equal(a->name, b->name);
    assert_int_equal(a->complete, b->complete);
    assert_int_equal(a->plateau_step, b->plateau_step);
    assert_int_equal(a->plateau_has_best, b->plateau_has_best);
    assert_true(a->plateau_best == b->plateau_best);
    assert_int_equal(a->plateau_waited, b->plateau_waited);
    assert_int_equal(a->plateau_reductions, b->plateau_reductions);
    assert_int_equal(a->phase, b->phase);
    assert_int_equal(a->groups, b->groups);
    assert_int_equal(a->outer_step, b->outer_step);
    assert_int_equal(a->has_outer_momentum, b->has_outer_momentum);
    assert_int_equal(a->staleness, b->staleness);
    assert_int_equal(a->residual_groups, b->residual_groups);
}

static inline char *kit_folder(void)
{
    char *path = NULL;

    assert_true(asprintf(&path, "%s/ckpt-test-XXXXXX", in_memory()) > 0);
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

static inline struct ckpt_writer_opts kit_opts(const char *folder)
{
    return (struct ckpt_writer_opts){ .directory = folder, .model = kit_model,
                                      .n_model = KIT_MODEL, .slots = kit_slots,
                                      .n_slots = KIT_SLOTS, .state_bytes = KIT_STATE_BYTES,
                                      .retry_ms = 1 };
}

static inline struct ckpt_writer *kit_open(const struct ckpt_writer_opts *opts)
{
    struct ckpt_writer *w = NULL;
    struct err err;

    if (ckpt_writer_open(opts, &w, &err) < 0)
        fail_msg("%s", err.text);
    return w;
}

static inline void kit_write(struct ckpt_writer *w, const struct ckpt_meta *meta, uint64_t seed)
{
    uint8_t state[KIT_STATE_BYTES];
    struct err err;

    kit_fill(state, seed);
    while (ckpt_write(w, meta, state, &err) < 0) { /* the previous state is still being written */
        if (err.code != ERR_EXISTS)
            fail_msg("%s", err.text);
        (void)flush_for(w, 20000, NULL); /* its result is not tested here */
    }
}

static inline void kit_flush(struct ckpt_writer *w)
{
    struct err err;

    if (flush_for(w, 20000, &err) < 0)
        fail_msg("%s", err.text);
}

/* Saves a checkpoint of a step with the content of `seed`, with a separate writer. */
static inline void kit_save(const char *folder, uint64_t step, uint64_t seed)
{
    struct ckpt_writer_opts opts = kit_opts(folder);
    struct ckpt_writer *w = kit_open(&opts);
    struct ckpt_meta meta = kit_meta(step);

    kit_write(w, &meta, seed);
    kit_flush(w);
    ckpt_writer_close(w);
}

static inline char *kit_path(const char *folder, uint64_t step, const char *file)
{
    char *path = NULL;

    assert_true(asprintf(&path, "%s/step-%08d%s%s", folder, (int)step, file != NULL ? "/" : "",
                         file != NULL ? file : "") > 0);
    return path;
}

/* Returns the bytes of the file, which the caller frees. */
static inline struct buf kit_read(const char *path)
{
    struct buf b = { 0 };
    struct err err;

    if (fs_read(path, 1 << 20, &b, &err) < 0)
        fail_msg("%s", err.text);
    return b;
}

static inline void kit_write_file(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* Returns the step of the newest checkpoint; 0: none. */
static inline uint64_t kit_newest(const char *folder, struct ckpt_info *info)
{
    int rc = ckpt_newest(folder, NULL, NULL, NULL, NULL, info, NULL);

    assert_true(rc == 0 || rc == ERR_NOENT);
    return rc == 0 ? info->meta.step : 0;
}

/* Loads a checkpoint and asserts its content. */
static inline void kit_load(const char *path, uint64_t seed)
{
    uint8_t state[KIT_STATE_BYTES] = { 0 };
    struct err err;

    if (ckpt_load(path, kit_model, KIT_MODEL, kit_slots, KIT_SLOTS, state, &err) < 0)
        fail_msg("%s", err.text);
    kit_check(state, seed);
}

/* Counts the entries of the directory that start with `prefix`. */
static inline int kit_count(const char *folder, const char *prefix)
{
    struct dirent *entry;
    DIR *d = opendir(folder);
    int n = 0;

    assert_non_null(d);
    while ((entry = readdir(d)) != NULL)
        n += strncmp(entry->d_name, prefix, strlen(prefix)) == 0 &&
             strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(d);
    return n;
}

/* The events reported by a writer. */
struct kit_events {
    char text[4096];
    char last_error[2048];
    const char *folder;
};

static inline void kit_on_event(void *arg, const struct ckpt_event *e)
{
    static const char *const kinds[] = { "written", "failed", "removed", "discarded" };
    struct kit_events *s = arg;
    size_t n = strlen(s->text);

    snprintf(s->text + n, sizeof(s->text) - n, "%s%s %d%s%s", n > 0 ? ", " : "", kinds[e->kind],
             (int)e->step, e->final ? " for good" : "", e->again ? " again" : "");
    if (e->kind == CKPT_FAILED)
        snprintf(s->last_error, sizeof(s->last_error), "%s", e->text);
}

static inline void kit_count_good(void *arg, const struct ckpt_info *info, int rc, const char *why)
{
    int *n = arg;

    if (rc < 0)
        fail_msg("%s: %s", info->path, why);
    kit_load(info->path, info->meta.step); /* in these tests the seed is the step */
    ++*n;
}

/* Asserts that every visible checkpoint is complete, and that there is at least one. */
static inline void kit_check_folder(const char *folder)
{
    struct err err;
    int n = 0;

    if (ckpt_each(folder, kit_count_good, &n, &err) < 0)
        fail_msg("%s", err.text);
    assert_true(n > 0);
}

/* Runs a writer that removes the leftovers of others, and waits until it has done so. */
static inline void kit_clean(const char *folder)
{
    struct ckpt_writer_opts opts = kit_opts(folder);
    struct ckpt_writer *w = kit_open(&opts);

    WAIT_UNTIL(kit_count(folder, ".step-") == 0);
    ckpt_writer_close(w);
}

#define assert_text(text_, part_)                                                                  \
    do {                                                                                           \
        if (strstr((text_), (part_)) == NULL)                                                      \
            fail_msg("'%s' is not in '%s'", (part_), (text_));                                     \
    } while (0)

#endif
