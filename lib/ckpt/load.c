/* load.c - reads a checkpoint: each file is read sequentially, each tensor directly to its position
 * in the state, and the checksum of the read bytes is verified. Tensors that the caller reads elsewhere
 * (rows.h) are only compared; a shard file that has no others is not read. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/err.h"
#include "base/map.h"
#include "base/text.h"
#include "ckpt/ckpt_priv.h"
#include "ckpt/shard_set.h"

enum { SUGGEST_MAX = 4096 }; /* names searched for a suggestion */

/* The expected tensors of one kind. */
struct expected_tensors {
    const struct ckpt_tensor *tensors;
    uint32_t n;
    struct map by_name; /* name -> index */
    bool *found;        /* owned; [n] */
    uint32_t n_found;
};

static int expected_init(struct expected_tensors *w, const struct ckpt_tensor *tensors, uint32_t n,
                         struct err *err)
{
    *w = (struct expected_tensors){ .tensors = tensors, .n = n };
    w->found = calloc(n > 0 ? n : 1, sizeof(*w->found));
    if (w->found == NULL)
        return err_set(err, ERR_NOMEM, "load: out of memory");
    for (uint32_t i = 0; i < n; i++) {
        enum map_put put = map_put(&w->by_name, tensors[i].name, i);

        CHECK(put != MAP_EXISTED);
        if (put == MAP_NOMEM)
            return err_set(err, ERR_NOMEM, "load: out of memory");
    }
    return 0;
}

static void expected_fini(struct expected_tensors *w)
{
    map_fini(&w->by_name);
    free(w->found);
}

static int unexpected_tensor(const struct expected_tensors *w, const char *name, struct err *err)
{
    const char *names[SUGGEST_MAX], *nearest;
    size_t n = 0;

    for (uint32_t i = 0; i < w->n && n < SUGGEST_MAX; i++)
        if (!w->found[i])
            names[n++] = w->tensors[i].name;
    nearest = text_nearest(name, names, n);
    return err_set(err, ERR_INPUT, "tensor '%s' is in the file, but not in this model%s%s%s", name,
                   nearest != NULL ? " (which has '" : "", nearest != NULL ? nearest : "",
                   nearest != NULL ? "')" : "");
}

/* Finds the expected tensor of that name. */
static int find(struct expected_tensors *w, const char *name, enum tensor_dtype dtype,
                const struct shape *shape, const struct ckpt_tensor **out, struct err *err)
{
    char found[192], expected[192];
    const struct ckpt_tensor *t;
    struct shape expected_shape;
    uint64_t k;

    if (!map_get(&w->by_name, name, &k))
        return unexpected_tensor(w, name, err);
    t = &w->tensors[k];
    expected_shape = t->shape;
    if (t->group > 0 && shape->rank > 0) /* the number of rows is that of the file */
        expected_shape.dim[0] = shape->dim[0];
    if (dtype != t->dtype || !shape_equal(shape, &expected_shape))
        return err_set(err, ERR_INPUT, "tensor '%s' is %s %s, expected %s %s", name,
                       tensor_dtype_name(dtype), shape_print(shape, found, sizeof(found)),
                       tensor_dtype_name(t->dtype),
                       shape_print(&t->shape, expected, sizeof(expected)));
    w->n_found += !w->found[k];
    w->found[k] = true;
    *out = t;
    return 0;
}

static int check_all_found(const struct expected_tensors *w, const char *path, struct err *err)
{
    char expected[192];

    for (uint32_t i = 0; i < w->n; i++)
        if (!w->found[i])
            return err_set(err, ERR_INPUT,
                           "'%s': tensor '%s' %s is not in the file, which contains %" PRIu32
                           " of %" PRIu32,
                           path, w->tensors[i].name,
                           shape_print(&w->tensors[i].shape, expected, sizeof(expected)), w->n_found,
                           w->n);
    return 0;
}

/* ---- reading ---- */

struct reader {
    int fd;
    const char *path;
    XXH3_state_t *hash;
    char *chunk; /* owned [CKPT_CHUNK_BYTES]; for bytes that are not kept; NULL: not needed yet */
};

/* Reads bytes to `to`; NULL: computes their checksum alone. */
static int read_bytes(struct reader *r, char *to, uint64_t left, struct err *err)
{
    if (to == NULL && r->chunk == NULL && (r->chunk = malloc(CKPT_CHUNK_BYTES)) == NULL)
        return err_set(err, ERR_NOMEM, "'%s': out of memory", r->path);
    while (left > 0) {
        size_t n = left < CKPT_CHUNK_BYTES ? (size_t)left : CKPT_CHUNK_BYTES;
        char *at = to != NULL ? to : r->chunk;
        int rc = ckpt_read_all(r->fd, r->path, at, n, err);

        if (rc < 0)
            return rc;
        XXH3_128bits_update(r->hash, at, n); /* the chunk is still in the processor's cache */
        to = to != NULL ? to + n : NULL;
        left -= n;
    }
    return 0;
}

static char *place_of(const struct ckpt_tensor *t, void *state)
{
    return t->offset == CKPT_ELSEWHERE ? NULL : (char *)state + t->offset;
}

/* Reads the header again, for the checksum. */
static int begin_file(struct reader *r, uint64_t data_at, struct err *err)
{
    XXH3_128bits_reset(r->hash);
    if (lseek(r->fd, 0, SEEK_SET) < 0)
        return err_sys(err, errno, "read '%s'", r->path);
    return read_bytes(r, NULL, data_at, err);
}

static int end_file(struct reader *r, const struct ckpt_file *file, struct err *err)
{
    char text[CKPT_HASH_BYTES];

    ckpt_hash_print(XXH3_128bits_digest(r->hash), text);
    return ckpt_check_hash(r->path, file, text, err);
}

/* ---- the file of whole tensors ---- */

static int load_whole(struct reader *r, const struct ckpt_file *file, struct expected_tensors *w,
                      bool has_all, void *state, struct err *err)
{
    const struct ckpt_tensor **where = NULL;
    struct safetensors s = { .n = 0 };
    int rc = ckpt_read_header(r->fd, r->path, file->bytes, &s, NULL, err);

    if (rc == 0 && (where = calloc(s.n + 1, sizeof(*where))) == NULL)
        rc = err_set(err, ERR_NOMEM, "'%s': out of memory", r->path);
    for (size_t i = 0; rc == 0 && i < s.n; i++) {
        rc = find(w, s.entries[i].name, s.entries[i].dtype, &s.entries[i].shape, &where[i], err);
        if (rc < 0)
            rc = err_wrap(err, rc, "'%s'", r->path);
    }
    if (rc == 0 && has_all)
        rc = check_all_found(w, r->path, err);
    if (rc == 0)
        rc = begin_file(r, s.data_at, err);
    for (size_t i = 0; rc == 0 && i < s.n; i++)
        rc = read_bytes(r, place_of(where[i], state), s.entries[i].end - s.entries[i].begin, err);
    if (rc == 0)
        rc = end_file(r, file, err);
    free(where);
    safetensors_fini(&s);
    return rc;
}

static int load_whole_file(const char *folder, const struct ckpt_file *file,
                           struct expected_tensors *w, bool has_all, void *state, struct err *err)
{
    struct reader r = { .hash = XXH3_createState() };
    char *path;
    int rc = ckpt_open_file(folder, file, &path, err);

    if (rc >= 0) {
        r.fd = rc;
        r.path = path;
        rc = r.hash != NULL ? load_whole(&r, file, w, has_all, state, err)
                            : err_set(err, ERR_NOMEM, "'%s': out of memory", path);
        close(r.fd);
        free(path);
    }
    free(r.chunk);
    XXH3_freeState(r.hash);
    return rc;
}

/* ---- shard files ---- */

static int load_rows(struct reader *r, const struct ckpt_shard_table *t, uint32_t file, char *to,
                     struct err *err)
{
    uint64_t n;
    int rc = 0;

    if (t->group > 0) /* no state has these rows */
        return read_bytes(r, NULL, t->n_rows[file] * t->row_bytes, err);
    for (uint64_t row = 0; rc == 0 && ckpt_shard_next(t->rows, t->first_shard, file, &row, &n);
         row += n)
        rc = read_bytes(r, to != NULL ? to + row * t->row_bytes : NULL, n * t->row_bytes, err);
    return rc;
}

static int load_shard_file(struct ckpt_shard_set *set, uint32_t file,
                           const struct ckpt_file *listed, const struct ckpt_tensor *const *where,
                           void *state, struct err *err)
{
    struct reader r = { set->fds[file], set->paths[file], XXH3_createState(), NULL };
    int rc = r.hash != NULL ? begin_file(&r, set->tables[0].at[file], err)
                            : err_set(err, ERR_NOMEM, "'%s': out of memory", r.path);

    for (uint32_t i = 0; rc == 0 && i < set->n; i++)
        rc = load_rows(&r, &set->tables[i], file, place_of(where[i], state), err);
    if (rc == 0)
        rc = end_file(&r, listed, err);
    free(r.chunk);
    XXH3_freeState(r.hash);
    return rc;
}

static int load_shards(const char *folder, const struct ckpt_manifest *m, enum ckpt_shard_kind kind,
                       struct ckpt_shard_set *set, struct expected_tensors *w, void *state,
                       struct err *err)
{
    const struct ckpt_tensor **where = calloc(set->n + 1, sizeof(*where));
    char name[CKPT_FILE_NAME_BYTES];
    bool has_any = false;
    int rc = where != NULL ? 0 : err_set(err, ERR_NOMEM, "'%s': out of memory", folder);

    for (uint32_t i = 0; rc == 0 && i < set->n; i++) {
        rc = find(w, set->tables[i].name, set->tables[i].dtype, &set->tables[i].shape, &where[i],
                  err);
        has_any = has_any || (rc == 0 && where[i]->offset != CKPT_ELSEWHERE);
    }
    if (rc < 0)
        rc = err_wrap(err, rc, "'%s'", folder);
    if (rc == 0)
        rc = check_all_found(w, folder, err);
    for (uint32_t f = 0; rc == 0 && has_any && f < CKPT_SHARD_FILES; f++) {
        ckpt_shard_file_name(kind, f, name);
        rc = load_shard_file(set, f, ckpt_manifest_file(m, name), where, state, err);
    }
    free(where);
    return rc;
}

/* ---- a checkpoint ---- */

struct load {
    const char *path;
    struct ckpt_manifest m;
    struct ckpt_shard_set sets[CKPT_SHARD_KINDS]; /* owned */
    void *state;
};

static int load_kind(struct load *l, enum ckpt_shard_kind kind, const struct ckpt_tensor *tensors,
                     uint32_t n, struct err *err)
{
    struct ckpt_shard_set *set = &l->sets[kind];
    struct expected_tensors w;
    char first[CKPT_FILE_NAME_BYTES];
    bool has_shards;
    int rc = expected_init(&w, tensors, n, err);

    ckpt_shard_file_name(kind, 0, first);
    has_shards = l->m.has_shards && ckpt_manifest_file(&l->m, first) != NULL;
    if (rc == 0)
        rc = load_whole_file(l->path, ckpt_manifest_file(&l->m, ckpt_dense_file(&l->m, kind)), &w,
                             !has_shards, l->state, err);
    if (rc == 0 && has_shards)
        rc = ckpt_shard_set_open(l->path, &l->m, kind,
                                 kind == CKPT_SHARD_MODEL ? NULL : &l->sets[CKPT_SHARD_MODEL], set,
                                 err);
    if (rc == 0 && has_shards)
        rc = load_shards(l->path, &l->m, kind, set, &w, l->state, err);
    expected_fini(&w);
    return rc;
}

int ckpt_load(const char *path, const struct ckpt_tensor *model, uint32_t n_model,
              const struct ckpt_tensor *slots, uint32_t n_slots, void *state, struct err *err)
{
    struct load l = { .path = path, .state = state };
    int rc;

    for (int kind = 0; kind < CKPT_SHARD_KINDS; kind++)
        ckpt_shard_set_init(&l.sets[kind]);
    rc = ckpt_manifest_read(path, &l.m, err);
    if (rc == 0)
        rc = load_kind(&l, CKPT_SHARD_MODEL, model, n_model, err);
    if (rc == 0)
        rc = load_kind(&l, CKPT_SHARD_OPTIMIZER, slots, n_slots, err);
    for (int kind = 0; kind < CKPT_SHARD_KINDS; kind++)
        ckpt_shard_set_close(&l.sets[kind]);
    return rc;
}
