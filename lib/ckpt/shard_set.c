/* shard_set.c - see shard_set.h. */
#include "ckpt/shard_set.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/err.h"
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
    if (e->shape.rank == 0 || e->dtype != TENSOR_F32)
        return err_set(err, ERR_CORRUPT, "tensor '%s': expected rows of type F32", e->name);
    if (file == 0) {
        t->shape = e->shape;
        t->shape.dim[0] = 0;
    }
    if (!has_same_rows(&t->shape, &e->shape))
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

/* Does the tensor `name` have a slot of the table? */
static bool is_slot_of(const char *name, const char *table)
{
    size_t n = strlen(table);

    return strncmp(name, table, n) == 0 && name[n] == '/' && name[n + 1] != '\0' &&
           strchr(name + n + 1, '/') == NULL;
}

/* Finds the number of the table that a tensor belongs to; the tensors are in the order of the tables. */
static int find_number(const struct ckpt_shard_table *t, uint32_t i,
                       const struct ckpt_shard_set *model, uint32_t *number, struct err *err)
{
    if (model == NULL) {
        *number = i;
        return 0;
    }
    while (*number < model->n && !is_slot_of(t->name, model->tables[*number].name))
        ++*number;
    if (*number == model->n)
        return err_set(err, ERR_CORRUPT, "tensor '%s': the model has no such table at this place",
                       t->name);
    return shape_equal(&t->shape, &model->tables[*number].shape)
               ? 0
               : err_set(err, ERR_CORRUPT, "tensor '%s': another shape than its table", t->name);
}

int ckpt_shard_set_check(struct ckpt_shard_set *s, const struct ckpt_shard_set *model,
                         struct err *err)
{
    uint32_t number = 0;

    for (uint32_t i = 0; i < s->n; i++) {
        struct ckpt_shard_table *t = &s->tables[i];
        struct tensor row = { .dtype = TENSOR_F32, .shape = t->shape };
        int rc = find_number(t, i, model, &number, err);

        if (rc < 0)
            return rc;
        t->rows = (uint64_t)t->shape.dim[0];
        row.shape.dim[0] = 1;
        t->row_bytes = tensor_bytes(&row);
        t->first_shard = shard_first(number);
        if (t->row_bytes == SIZE_MAX || t->rows > (uint64_t)INT64_MAX / 2)
            return err_set(err, ERR_CORRUPT, "tensor '%s': too large", t->name);
        for (uint32_t f = 0; f < CKPT_SHARD_FILES; f++) {
            uint64_t expected = ckpt_shard_rows_before(t->first_shard, f, t->rows);

            if (t->n_rows[f] != expected)
                return err_set(err, ERR_CORRUPT,
                               "tensor '%s': file %" PRIu32 " has %" PRIu64 " of its %" PRIu64
                               " rows, expected %" PRIu64,
                               t->name, f, t->n_rows[f], t->rows, expected);
        }
    }
    return 0;
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

        CHECK(ckpt_shard_next(first + n, t->first_shard, f, &first, &run));
        rc = ckpt_pread_all(
            s->fds[f], s->paths[f], to, run * t->row_bytes,
            t->at[f] + ckpt_shard_rows_before(t->first_shard, f, first) * t->row_bytes, err);
    }
    return rc;
}
