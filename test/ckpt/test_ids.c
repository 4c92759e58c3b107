/* test_ids.c - dynamic tables in the shard files of a checkpoint: what verify refuses, and how rows are found. */
#include "ckpt/kit.h"

#include <fcntl.h>

#include "ckpt/ckpt_priv.h"
#include "ckpt/ids.h"
#include "ckpt/join.h"
#include "ckpt/rows.h"

enum { ROWS = 3000, WIDTH = 2, STEP = 7 };

struct row {
    int64_t id, step, count;
};

struct table { /* what the test writes */
    struct row rows[CKPT_GROUPS][ROWS];
    uint32_t n[CKPT_GROUPS];
    struct ckpt_sizes sizes[2]; /* table 0 has a fixed size */
};

/* The order of shards, of a shard by ascending id. */
static int by_place(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    uint32_t s = shard_of_id(x->id), t = shard_of_id(y->id);

    return s != t ? (s > t) - (s < t) : (x->id > y->id) - (x->id < y->id);
}

/* Ids of both signs; every third one is a candidate. */
static void make(struct table *t, uint32_t n)
{
    memset(t, 0, sizeof(*t));
    for (uint32_t i = 0; i < n; i++) {
        int g = i % 3 == 2;
        int64_t id = i == 0   ? INT64_MIN
                     : i == 1 ? INT64_MAX
                              : ((int64_t)i - n / 2) * INT64_C(0x123456789abcd);

        t->rows[g][t->n[g]++] = (struct row){ id, 1 + i % STEP, 1 + i };
        t->sizes[1].rows[g][shard_of_id(id)]++;
    }
    for (int g = 0; g < CKPT_GROUPS; g++)
        qsort(t->rows[g], t->n[g], sizeof(struct row), by_place);
}

static void write_at(struct ckpt_row_files *files, int kind, uint32_t file, int fd, uint64_t *at,
                     const void *row, size_t bytes)
{
    assert_int_equal(pwrite(fd, row, bytes, (off_t)*at), bytes);
    files->sums[kind][file] += ckpt_shard_sum(row, 1, bytes, *at);
    *at += bytes;
}

/* The tensors of a file: integers of table 1, floats of table 0 (two rows in shard 0), floats of table 1. */
static void write_file(const struct table *t, struct ckpt_row_files *files, int kind, uint32_t file)
{
    char name[CKPT_FILE_NAME_BYTES], *path;
    uint64_t at = files->data_at[kind][file];
    uint32_t first[CKPT_GROUPS] = { 0 }, end[CKPT_GROUPS];
    int fd;

    ckpt_shard_file_name(kind, file, name);
    path = fs_join(files->folder, name);
    fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    for (int g = 0; g < CKPT_GROUPS; g++) {
        for (uint32_t f = 0; f < file; f++)
            first[g] += (uint32_t)ckpt_sizes_in_file(&t->sizes[1], g, f);
        end[g] = first[g] + (uint32_t)ckpt_sizes_in_file(&t->sizes[1], g, file);
    }
    for (int tensor = 0; tensor < (kind == 0 ? 1 : 5); tensor++) {
        int g = tensor >= 2;
        int column = kind == 0 ? 0 : tensor < 2 ? tensor + 1 : tensor - 2;

        for (uint32_t i = first[g]; i < end[g]; i++)
            write_at(files, kind, file, fd, &at,
                     column == 0   ? &t->rows[g][i].id
                     : column == 1 ? &t->rows[g][i].step
                                   : &t->rows[g][i].count,
                     sizeof(int64_t));
    }
    for (uint32_t i = 0; file == 0 && i < 2; i++)
        write_at(files, kind, file, fd, &at, (float[]){ (float)(i + 10 * kind) }, sizeof(float));
    for (uint32_t i = first[0]; i < end[0]; i++)
        write_at(files, kind, file, fd, &at, (float[]){ (float)i, (float)kind }, WIDTH * sizeof(float));
    assert_int_equal(close(fd), 0);
    free(path);
}

static int write_rows(void *arg, struct ckpt_row_files *files, struct err *err)
{
    (void)err;
    assert_int_equal(files->n_sizes, 2);
    for (int kind = 0; kind < CKPT_SHARD_KINDS; kind++)
        for (uint32_t f = 0; f < CKPT_SHARD_FILES; f++)
            write_file(arg, files, kind, f);
    return 0;
}

#define INTEGERS(name_, group_) { name_, TENSOR_I64, { 1, { 0 } }, CKPT_ELSEWHERE, 2, group_ }
static const struct ckpt_tensor model[] = {
    { "fixed", TENSOR_F32, { 2, { 2, 1 } }, CKPT_ELSEWHERE, 1, 0 },
    INTEGERS("emb/ids", 1),
    { "emb", TENSOR_F32, { 2, { 1, WIDTH } }, CKPT_ELSEWHERE, 2, 1 },
    { "w", TENSOR_F32, { 1, { 1 } }, 0, 0, 0 },
};
static const struct ckpt_tensor slots[] = {
    { "fixed/sum", TENSOR_F32, { 2, { 2, 1 } }, CKPT_ELSEWHERE, 1, 0 },
    INTEGERS("emb/last_step", 1),
    INTEGERS("emb/count", 1),
    INTEGERS("emb/candidate_ids", 2),
    INTEGERS("emb/candidate_last_step", 2),
    INTEGERS("emb/candidate_count", 2),
    { "emb/sum", TENSOR_F32, { 2, { 1, WIDTH } }, CKPT_ELSEWHERE, 2, 1 },
};

static struct ckpt_writer_opts writer_opts(struct table *t, const char *folder)
{
    return (struct ckpt_writer_opts){ .directory = folder, .model = model, .n_model = 4, .slots = slots,
                                      .n_slots = 7, .state_bytes = 4, .write_rows = write_rows,
                                      .retry_ms = 1, .arg = t };
}

static void save(struct ckpt_writer *w, const struct table *t, uint64_t step)
{
    struct ckpt_meta meta = kit_meta(step);
    struct err err = { .text = "" };
    void *staging;

    assert_int_equal(ckpt_begin(w, &staging, &err), 0);
    *(float *)staging = 3;
    if (ckpt_set_sizes(w, t->sizes, 2, &err) < 0)
        fail_msg("%s", err.text);
    ckpt_hand_over(w, &meta);
    if (ckpt_wait_rows(w, 20000, &err) < 0 || flush_for(w, 20000, &err) < 0)
        fail_msg("%s", err.text);
}

/* Saves the table as the checkpoint of STEP. */
static void save_one(struct table *t, const char *folder)
{
    struct ckpt_writer_opts o = writer_opts(t, folder);
    struct ckpt_writer *w = kit_open(&o);

    save(w, t, STEP);
    ckpt_writer_close(w);
}

static void every_checkpoint_has_its_own_number_of_rows_and_each_is_found_by_its_shard(void **state)
{
    static const uint32_t sizes[] = { 0, 1, 7, ROWS };
    static struct table t;
    char *folder = kit_folder();
    struct ckpt_writer_opts o = writer_opts(&t, folder);
    struct ckpt_writer *w = kit_open(&o);

    (void)state;
    for (uint32_t k = 0; k < 4; k++) {
        char *path = kit_path(folder, STEP + k, NULL);
        struct ckpt_rows *rows;
        struct ckpt_info info;
        struct err err;
        float got[4], state_read = 0;

        make(&t, sizes[k]);
        save(w, &t, STEP + k);
        if (ckpt_verify(path, NULL, NULL, &info, &err) < 0 ||
            ckpt_load(path, model, 4, slots, 7, &state_read, &err) < 0 ||
            ckpt_rows_open(path, &rows, &err) < 0)
            fail_msg("%s", err.text);
        assert_true(state_read == 3);
        for (int g = 0; g < CKPT_GROUPS; g++) {
            struct ckpt_ids ids;
            uint64_t at, expected = 0;

            assert_int_equal(ckpt_ids_open(rows, "emb", g, &ids, &err), 0);
            assert_int_equal(ids.n, t.n[g]);
            for (uint32_t s = 0; s <= SHARDS; s++) {
                assert_int_equal(ckpt_ids_find(&ids, s, &at, &err), 0);
                assert_int_equal(at, expected);
                expected += s < SHARDS ? t.sizes[1].rows[g][s] : 0;
            }
            for (uint32_t i = 0; i < t.n[g]; i++) {
                struct row r;

                assert_int_equal(ckpt_ids_read(&ids, i, 1, &r.id, &r.step, &r.count, &err), 0);
                assert_memory_equal(&r, &t.rows[g][i], sizeof(r));
            }
        }
        for (int kind = 0; kind < 2; kind++)
            for (uint32_t i = 0, n; i + 2 <= t.n[0]; i++) {
                assert_int_equal(
                    ckpt_rows_find(rows, kind, kind == 0 ? "emb" : "emb/sum", &n, &err), 0);
                assert_int_equal(ckpt_rows_read(rows, kind, n, i, 2, got, &err), 0);
                assert_true(got[0] == i && got[1] == kind && got[2] == i + 1);
            }
        ckpt_rows_close(rows);
        free(path);
    }
    ckpt_writer_close(w);
    kit_remove(folder);
}

static void joined_checkpoint_has_the_rows_in_the_same_order(void **state)
{
    static struct table t;
    char *folder = kit_folder(), *path = kit_path(folder, STEP, NULL),
         *to = kit_path(folder, 9, NULL);
    struct ckpt_rows *rows;
    struct ckpt_info info;
    struct ckpt_ids ids;
    struct err err;
    uint64_t at;

    (void)state;
    make(&t, ROWS);
    save_one(&t, folder);
    if (ckpt_join(path, to, &info, &err) < 0 || ckpt_rows_open(to, &rows, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(ckpt_ids_open(rows, "emb", CKPT_TRAINED, &ids, &err), 0);
    assert_int_equal(ids.n, t.n[0]);
    assert_int_equal(ckpt_ids_find(&ids, shard_of_id(t.rows[0][500].id), &at, &err), 0);
    assert_true(at <= 500 && 500 - at < t.sizes[1].rows[0][shard_of_id(t.rows[0][500].id)]);
    for (uint32_t i = 0; i < t.n[0]; i++) {
        struct row r;

        assert_int_equal(ckpt_ids_read(&ids, i, 1, &r.id, &r.step, &r.count, &err), 0);
        assert_memory_equal(&r, &t.rows[0][i], sizeof(r));
    }
    ckpt_rows_close(rows);
    free(path);
    free(to);
    kit_remove(folder);
}

/* ---- damage: programs that know the format, and not the rule ---- */

static void swap_two(struct table *t)
{
    struct row x = t->rows[0][100];

    t->rows[0][100] = t->rows[0][101];
    t->rows[0][101] = x;
}

static void repeat(struct table *t) { t->rows[0][101] = t->rows[0][100]; }

static void use_in_both(struct table *t)
{
    uint32_t shard = shard_of_id(t->rows[0][100].id), i = 0;

    while (shard_of_id(t->rows[1][i].id) < shard)
        i++;
    memmove(&t->rows[1][i + 1], &t->rows[1][i], (t->n[1] - i) * sizeof(struct row));
    t->rows[1][i] = t->rows[0][100];
    t->n[1]++;
    t->sizes[1].rows[1][shard]++;
    qsort(t->rows[1], t->n[1], sizeof(struct row), by_place);
}

/* The last row of file 3 is in file 4, and all are in order. */
static void use_next_file(struct table *t)
{
    uint32_t s = 4 * CKPT_FILE_SHARDS - 1;

    while (t->sizes[1].rows[0][s] == 0)
        s--;
    t->sizes[1].rows[0][s]--;
    t->sizes[1].rows[0][4 * CKPT_FILE_SHARDS]++;
}

static void count_nothing(struct table *t) { t->rows[0][5].count = 0; }
static void count_too_much(struct table *t) { t->rows[1][5].count = INT64_C(1) << 32; }
static void use_a_later_step(struct table *t) { t->rows[1][7].step = STEP + 1; }
static void use_a_negative_step(struct table *t) { t->rows[0][7].step = -1; }

static void ids_that_break_the_rule_are_refused(void **state)
{
    static const struct {
        void (*damage)(struct table *t);
        const char *text;
    } cases[] = {
        { swap_two, "expected the order of shards, in a shard ascending ids" },
        { repeat, "expected the order of shards, in a shard ascending ids" },
        { use_in_both, "is trained and a candidate" },
        { use_next_file, "file 3 ends with row" },
        { count_nothing, "count 0" },
        { count_too_much, "count 4294967296" },
        { use_a_later_step, "last step 8; expected at least 1, the step at most 7" },
        { use_a_negative_step, "last step -1" },
    };
    static struct table t;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        char *folder = kit_folder(), *path = kit_path(folder, STEP, NULL);
        struct ckpt_info info;
        struct err err = { .text = "no error" };

        make(&t, ROWS - 10);
        cases[i].damage(&t);
        save_one(&t, folder);
        if (ckpt_verify(path, NULL, NULL, &info, &err) != ERR_CORRUPT ||
            strstr(err.text, cases[i].text) == NULL)
            fail_msg("case %zu: expected '%s', found '%s'", i, cases[i].text, err.text);
        free(path);
        kit_remove(folder);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_checkpoint_has_its_own_number_of_rows_and_each_is_found_by_its_shard),
        cmocka_unit_test(joined_checkpoint_has_the_rows_in_the_same_order),
        cmocka_unit_test(ids_that_break_the_rule_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
