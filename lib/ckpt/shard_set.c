/* shard_set.c - see shard_set.h. */
#include "ckpt/shard_set.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/err.h"
#include "base/vec.h"
#include "ckpt/ckpt_priv.h"

static int no_memory(struct err *err)
{
    return err_set(err, ERR_NOMEM, "shard files: out of memory");
}

void ckpt_shard_set_init(struct ckpt_shard_set *s)
{
    *s = (struct ckpt_shard_set){ .n = 0 };
    for (uint32_t f = 0; f < CKPT_SHARD_FILES; f++)
        s->fds[f] = -1;
}

void ckpt_shard_set_close(struct ckpt_shard_set *s)
{
    for (uint32_t f = 0; f < CKPT_SHARD_FILES; f++) {
        if (s->fds[f] >= 0)
            close(s->fds[f]);
        free(s->paths[f]);
        ckpt_verified_close(&s->verified[f]);
    }
    for (uint32_t i = 0; i < s->n; i++)
        free(s->tables[i].name);
    free(s->tables);
    ckpt_shard_set_init(s);
}

/* ---- headers ---- */

/* Returns the name of the whole tensor, which the caller frees. Errors: ERR_CORRUPT, ERR_NOMEM. */
static int whole_name(const char *name, uint32_t file, char **out, struct err *err)
{
    char *ending = ckpt_shard_tensor_name("", file);
    size_t n = strlen(name), n_ending;
    int rc = 0;

    *out = NULL;
    if (ending == NULL)
        return no_memory(err);
    n_ending = strlen(ending);
    if (n <= n_ending || strcmp(name + n - n_ending, ending) != 0)
        rc = err_set(err, ERR_CORRUPT, "tensor '%s': expected a name that ends with '%s'", name,
                     ending);
    else if ((*out = strndup(name, n - n_ending)) == NULL)
        rc = no_memory(err);
    free(ending);
    return rc;
}

static bool has_same_rows(const struct shape *a, const struct shape *b)
{
    for (uint32_t i = 1; i < a->rank && a->rank == b->rank; i++)
        if (a->dim[i] != b->dim[i])
            return false;
    return a->rank == b->rank;
}

/* Adds the rows of one file to a table. */
static int add_rows(struct ckpt_shard_table *t, uint32_t file, const struct safetensors_entry *e,
                    uint64_t data_at, struct err *err)
{
    if (e->shape.rank == 0 ||
        (e->dtype != TENSOR_F32 && (e->dtype != TENSOR_I64 || e->shape.rank != 1)))
        return err_set(err, ERR_CORRUPT,
                       "tensor '%s': expected rows of type F32, or a list of type I64", e->name);
    if (file == 0) {
        t->dtype = e->dtype;
        t->shape = e->shape;
        t->shape.dim[0] = 0;
    }
    if (e->dtype != t->dtype || !has_same_rows(&t->shape, &e->shape))
        return err_set(err, ERR_CORRUPT,
                       "tensor '%s': its rows have another shape than those of file 0", e->name);
    t->at[file] = data_at + e->begin;
    t->n_rows[file] = (uint64_t)e->shape.dim[0];
    if (__builtin_add_overflow(t->shape.dim[0], e->shape.dim[0], &t->shape.dim[0]))
        return err_set(err, ERR_CORRUPT, "tensor '%s': too many rows", e->name);
    return 0;
}

static int add_table(struct ckpt_shard_set *s, uint32_t file, uint32_t i,
                     const struct safetensors_entry *e, uint64_t data_at, struct err *err)
{
    char *name;
    int rc = whole_name(e->name, file, &name, err);

    if (rc < 0)
        return rc;
    if (file == 0) {
        s->tables[i].name = name;
        s->n = i + 1;
    } else {
        if (strcmp(name, s->tables[i].name) != 0)
            rc = err_set(err, ERR_CORRUPT,
                         "tensor %" PRIu32 " is of '%s', that of file 0 is of '%s'", i, name,
                         s->tables[i].name);
        free(name);
    }
    return rc == 0 ? add_rows(&s->tables[i], file, e, data_at, err) : rc;
}

int ckpt_shard_set_add(struct ckpt_shard_set *s, uint32_t file, const struct safetensors *header,
                       struct err *err)
{
    int rc = 0;

    if (file == 0) {
        s->tables = calloc(header->n + 1, sizeof(*s->tables));
        if (s->tables == NULL)
            return no_memory(err);
    }
    if (header->n == 0 || header->n > UINT32_MAX || (file > 0 && header->n != s->n))
        return err_set(err, ERR_CORRUPT, "%zu tensors, expected those of file 0", header->n);
    for (uint32_t i = 0; rc == 0 && i < header->n; i++)
        rc = add_table(s, file, i, &header->entries[i], header->data_at, err);
    return rc;
}

/* ---- numbers of tables ---- */

/* Returns what follows "<table>/" in a name; NULL: the tensor is not of the table. */
static const char *part_of(const char *name, const char *table)
{
    size_t n = strlen(table);

    return strncmp(name, table, n) == 0 && name[n] == '/' && name[n + 1] != '\0' &&
                   strchr(name + n + 1, '/') == NULL
               ? name + n + 1
               : NULL;
}

/* The number of the tensors of integers, which precede those of floats. */
static uint32_t count_integers(const struct ckpt_shard_set *s)
{
    uint32_t n = 0;

    while (n < s->n && s->tables[n].dtype == TENSOR_I64)
        n++;
    return n;
}

static int out_of_place(const struct ckpt_shard_table *t, struct err *err)
{
    return err_set(err, ERR_CORRUPT, "tensor '%s': the model has no such table at this place",
                   t->name);
}

/* The tables of the model are its tensors of floats, numbered in their order; <table>/ids makes one dynamic. */
static int number_model(struct ckpt_shard_set *s, struct err *err)
{
    uint32_t n_ids = count_integers(s), k = n_ids;

    for (uint32_t i = n_ids; i < s->n; i++) {
        if (s->tables[i].dtype == TENSOR_I64)
            return out_of_place(&s->tables[i], err);
        s->tables[i].number = i - n_ids;
    }
    for (uint32_t i = 0; i < n_ids; i++, k++) {
        const char *part = NULL;

        for (; k < s->n; k++) {
            part = part_of(s->tables[i].name, s->tables[k].name);
            if (part != NULL && strcmp(part, "ids") == 0)
                break;
        }
        if (k == s->n)
            return out_of_place(&s->tables[i], err);
        s->tables[i].number = s->tables[k].number;
        s->tables[i].group = s->tables[k].group = 1 + CKPT_TRAINED;
    }
    return 0;
}

/* Finds the table of the model that a tensor belongs to; the tensors are in the order of the tables. *k: from where
 * on. Returns what follows its name. */
static const char *find_table(const struct ckpt_shard_table *t, const struct ckpt_shard_set *model,
                              uint32_t *k)
{
    for (; *k < model->n; ++*k) {
        const char *part = part_of(t->name, model->tables[*k].name);

        if (part != NULL)
            return part;
    }
    return NULL;
}

static int number_slots(struct ckpt_shard_set *s, const struct ckpt_shard_set *model,
                        struct err *err)
{
    uint32_t n_ids = count_integers(s), n_dynamic = count_integers(model), k = n_dynamic;
    uint32_t n_each = CKPT_INTEGERS;

    if (n_ids != n_dynamic * n_each)
        return err_set(err, ERR_CORRUPT, "%" PRIu32 " tensors of integers, expected %" PRIu32,
                       n_ids, n_dynamic * n_each);
    for (uint32_t i = 0; i < n_ids; i++) { /* dynamic table i / n_each */
        struct ckpt_shard_table *t = &s->tables[i];
        const struct ckpt_shard_table *ids = &model->tables[i / n_each];
        const struct ckpt_shard_table *table = &model->tables[n_dynamic + ids->number];
        const char *part = part_of(t->name, table->name);

        if (part == NULL || strcmp(part, ckpt_integers[i % n_each].part) != 0)
            return out_of_place(t, err);
        t->number = ids->number;
        t->group = 1 + ckpt_integers[i % n_each].group;
    }
    for (uint32_t i = n_ids; i < s->n; i++) {
        struct ckpt_shard_table *t = &s->tables[i];

        if (t->dtype == TENSOR_I64 || find_table(t, model, &k) == NULL)
            return out_of_place(t, err);
        if (!shape_equal(&t->shape, &model->tables[k].shape))
            return err_set(err, ERR_CORRUPT, "tensor '%s': another shape than its table", t->name);
        t->number = model->tables[k].number;
        t->group = model->tables[k].group;
    }
    return 0;
}

/* ---- numbers of rows ---- */

/* Finds the tensor of the same table and group that precedes all others. */
static const struct ckpt_shard_table *first_of(const struct ckpt_shard_set *s,
                                               const struct ckpt_shard_set *model,
                                               const struct ckpt_shard_table *t)
{
    const struct ckpt_shard_set *of = model != NULL && t->group == 1 + CKPT_TRAINED ? model : s;
    uint32_t i = 0;

    while (of->tables[i].number != t->number || of->tables[i].group != t->group)
        i++;
    return &of->tables[i];
}

static int check_rows(const struct ckpt_shard_table *t, const struct ckpt_shard_table *first,
                      struct err *err)
{
    for (uint32_t f = 0; f < CKPT_SHARD_FILES; f++) {
        uint64_t expected =
            first != NULL ? first->n_rows[f] : ckpt_shard_rows_before(t->first_shard, f, t->rows);

        if (t->n_rows[f] != expected)
            return err_set(err, ERR_CORRUPT,
                           "tensor '%s': file %" PRIu32 " has %" PRIu64 " of its %" PRIu64
                           " rows, expected %" PRIu64,
                           t->name, f, t->n_rows[f], t->rows, expected);
    }
    return 0;
}

int ckpt_shard_set_check(struct ckpt_shard_set *s, const struct ckpt_shard_set *model,
                         struct err *err)
{
    int rc = model == NULL ? number_model(s, err) : number_slots(s, model, err);

    for (uint32_t i = 0; rc == 0 && i < s->n; i++) {
        struct ckpt_shard_table *t = &s->tables[i];
        struct tensor row = { .dtype = t->dtype, .shape = t->shape };

        t->rows = (uint64_t)t->shape.dim[0];
        row.shape.dim[0] = 1;
        t->row_bytes = tensor_bytes(&row);
        t->first_shard = shard_first(t->number);
        if (t->row_bytes == SIZE_MAX || t->rows > (uint64_t)INT64_MAX / 2)
            return err_set(err, ERR_CORRUPT, "tensor '%s': too large", t->name);
        rc = check_rows(t, t->group > 0 ? first_of(s, model, t) : NULL, err);
    }
    return rc;
}

/* ---- files ---- */

static int open_one(const char *folder, const struct ckpt_manifest *m, enum ckpt_shard_kind kind,
                    uint32_t file, struct ckpt_shard_set *s, struct err *err)
{
    char name[CKPT_FILE_NAME_BYTES];
    const struct ckpt_file *listed;
    struct safetensors header;
    int rc;

    ckpt_shard_file_name(kind, file, name);
    listed = ckpt_manifest_file(m, name);
    if (listed == NULL)
        return err_set(err, ERR_CORRUPT, "'%s': its manifest does not list '%s'", folder, name);
    rc = ckpt_open_file(folder, listed, &s->paths[file], err);
    if (rc < 0)
        return rc;
    s->fds[file] = rc;
    rc = ckpt_read_header(s->fds[file], s->paths[file], listed->bytes, &header, NULL, err);
    if (rc < 0)
        return rc;
    rc = ckpt_shard_set_add(s, file, &header, err);
    safetensors_fini(&header);
    return rc < 0 ? err_wrap(err, rc, "'%s'", s->paths[file]) : 0;
}

int ckpt_shard_set_open(const char *folder, const struct ckpt_manifest *m,
                        enum ckpt_shard_kind kind, const struct ckpt_shard_set *model,
                        struct ckpt_shard_set *out, struct err *err)
{
    int rc = 0;

    ckpt_shard_set_init(out);
    for (uint32_t f = 0; rc == 0 && f < CKPT_SHARD_FILES; f++)
        rc = open_one(folder, m, kind, f, out, err);
    if (rc == 0) {
        rc = ckpt_shard_set_check(out, model, err);
        if (rc < 0)
            rc = err_wrap(err, rc, "'%s': files %s-*-of-%05d.safetensors", folder,
                          kind == CKPT_SHARD_MODEL ? "model" : "optimizer", CKPT_SHARD_FILES);
    }
    return rc;
}

int ckpt_shard_set_verify(struct ckpt_shard_set *s, const struct ckpt_manifest *m,
                          enum ckpt_shard_kind kind, ckpt_verified_fn *on_progress, void *arg,
                          struct err *err)
{
    char name[CKPT_FILE_NAME_BYTES];
    int rc = 0;

    for (uint32_t f = 0; rc == 0 && f < CKPT_SHARD_FILES; f++) {
        ckpt_shard_file_name(kind, f, name);
        rc = ckpt_verified_open(s->fds[f], s->paths[f], ckpt_manifest_file(m, name), on_progress,
                                arg, &s->verified[f], err);
    }
    return rc;
}

/* Finds a row of a dynamic table: *file, and its index there. Returns how many rows of the file follow it. */
static uint64_t find_row(const struct ckpt_shard_table *t, uint64_t *row, uint32_t *file)
{
    for (*file = 0; *row >= t->n_rows[*file]; ++*file)
        *row -= t->n_rows[*file];
    return t->n_rows[*file] - *row;
}

int ckpt_shard_set_read(const struct ckpt_shard_set *s, uint32_t table, uint64_t first, uint64_t n,
                        void *out, struct err *err)
{
    const struct ckpt_shard_table *t = &s->tables[table];
    char *to = out;
    uint64_t run;
    int rc = 0;

    CHECK(table < s->n && first <= t->rows && n <= t->rows - first);
    for (; rc == 0 && n > 0; first += run, n -= run, to += run * t->row_bytes) {
        uint32_t f = ckpt_shard_file_of(t->first_shard, first);
        uint64_t at = first;

        if (t->group > 0) {
            run = find_row(t, &at, &f);
            run = run < n ? run : n;
        } else {
            CHECK(ckpt_shard_next(first + n, t->first_shard, f, &first, &run));
            at = ckpt_shard_rows_before(t->first_shard, f, first);
        }
        rc = ckpt_verified_read(&s->verified[f], s->fds[f], s->paths[f], to, run * t->row_bytes,
                                t->at[f] + at * t->row_bytes, err);
    }
    return rc;
}
