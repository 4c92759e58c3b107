/* load.c - reads a checkpoint: each file is read sequentially, each tensor directly to its position
 * in the state, and the checksum of the read bytes is verified. */
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

enum { SUGGEST_MAX = 4096 }; /* names searched for a suggestion */

/* The expected tensors of one file. */
struct expected_tensors {
    const struct ckpt_tensor *tensors;
    uint32_t n;
    struct map by_name; /* name -> index */
    bool *found;        /* owned; [n] */
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

/* Finds the expected tensor where[i] of each entries[i] of the file. */
static int match(struct expected_tensors *w, const struct safetensors *s,
                 const struct ckpt_tensor **where, struct err *err)
{
    char found[192], expected[192];

    for (size_t i = 0; i < s->n; i++) {
        const struct safetensors_entry *e = &s->entries[i];
        const struct ckpt_tensor *t;
        uint64_t k;

        if (!map_get(&w->by_name, e->name, &k))
            return unexpected_tensor(w, e->name, err);
        t = &w->tensors[k];
        if (e->dtype != t->dtype || !shape_equal(&e->shape, &t->shape))
            return err_set(
                err, ERR_INPUT, "tensor '%s' is %s %s, expected %s %s", e->name,
                tensor_dtype_name(e->dtype), shape_print(&e->shape, found, sizeof(found)),
                tensor_dtype_name(t->dtype), shape_print(&t->shape, expected, sizeof(expected)));
        w->found[k] = true;
        where[i] = t;
    }
    for (uint32_t i = 0; i < w->n; i++)
        if (!w->found[i])
            return err_set(
                err, ERR_INPUT, "tensor '%s' %s is not in the file, which contains %zu of %" PRIu32,
                w->tensors[i].name, shape_print(&w->tensors[i].shape, expected, sizeof(expected)),
                s->n, w->n);
    return 0;
}

static int read_data(int fd, const char *path, const struct safetensors *s,
                     const struct ckpt_tensor *const *where, void *state, XXH3_state_t *hash,
                     struct err *err)
{
    for (size_t i = 0; i < s->n; i++) {
        uint64_t left = s->entries[i].end - s->entries[i].begin;
        char *to = (char *)state + where[i]->offset;

        while (left > 0) {
            size_t n = left < CKPT_CHUNK_BYTES ? (size_t)left : CKPT_CHUNK_BYTES;
            int rc = ckpt_read_all(fd, path, to, n, err);

            if (rc < 0)
                return rc;
            XXH3_128bits_update(hash, to, n); /* the chunk is still in the processor's cache */
            to += n;
            left -= n;
        }
    }
    return 0;
}

static int load_open(int fd, const char *path, const struct ckpt_file *file,
                     struct expected_tensors *w, void *state, struct err *err)
{
    XXH3_state_t *hash = XXH3_createState();
    const struct ckpt_tensor **where = NULL;
    struct safetensors s = { .n = 0 };
    char *header = NULL, text[CKPT_HASH_BYTES];
    int rc;

    rc = ckpt_read_header(fd, path, file->bytes, &s, &header, err);
    if (rc == 0) {
        where = calloc(s.n > 0 ? s.n : 1, sizeof(*where));
        if (where == NULL || hash == NULL)
            rc = err_set(err, ERR_NOMEM, "'%s': out of memory", path);
    }
    if (rc == 0) {
        rc = match(w, &s, where, err);
        if (rc < 0)
            rc = err_wrap(err, rc, "'%s'", path);
    }
    if (rc == 0) {
        XXH3_128bits_reset(hash);
        XXH3_128bits_update(hash, header, s.data_at);
        rc = read_data(fd, path, &s, where, state, hash, err);
    }
    if (rc == 0) {
        ckpt_hash_print(XXH3_128bits_digest(hash), text);
        rc = ckpt_check_hash(path, file, text, err);
    }
    free(header);
    free(where);
    safetensors_fini(&s);
    XXH3_freeState(hash);
    return rc;
}

static int load_file(const char *folder, const struct ckpt_file *file,
                     const struct ckpt_tensor *tensors, uint32_t n, void *state, struct err *err)
{
    struct expected_tensors w;
    char *path;
    int fd, rc;

    rc = expected_init(&w, tensors, n, err);
    if (rc == 0) {
        fd = ckpt_open_file(folder, file, &path, err);
        if (fd < 0) {
            rc = fd;
        } else {
            rc = load_open(fd, path, file, &w, state, err);
            close(fd);
            free(path);
        }
    }
    expected_fini(&w);
    return rc;
}

int ckpt_load(const char *path, const struct ckpt_tensor *model, uint32_t n_model,
              const struct ckpt_tensor *slots, uint32_t n_slots, void *state, struct err *err)
{
    struct ckpt_manifest m;
    int rc;

    rc = ckpt_manifest_read(path, &m, err);
    if (rc == 0)
        rc = load_file(path, ckpt_manifest_file(&m, CKPT_MODEL_FILE), model, n_model, state, err);
    if (rc == 0)
        rc = load_file(path, ckpt_manifest_file(&m, CKPT_OPTIMIZER_FILE), slots, n_slots, state,
                       err);
    return rc;
}
