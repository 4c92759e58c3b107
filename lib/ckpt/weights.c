/* weights.c - opens and maps a set of safetensors files. */
#include "ckpt/weights.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/mapping.h"
#include "base/vec.h"
#include "ckpt/ckpt_priv.h"

#define INDEX_END ".safetensors.index.json"
#define FILE_END ".safetensors"

struct part { /* one file of the set */
    struct mapping *mapping; /* owned */
    struct safetensors head; /* owned */
};

struct ckpt_weights {
    char *path; /* owned */
    VEC(struct part) parts;
    struct map by_name; /* tensor name -> part << 32 | entry */
    const char **names; /* owned; [n_names] the strings belong to the headers */
    uint32_t n_names;
    uint64_t bytes;
};

static int no_memory(struct err *err)
{
    return err_set(err, ERR_NOMEM, "weights: out of memory");
}

static bool ends_in(const char *name, const char *end)
{
    size_t n = strlen(name), n_end = strlen(end);

    return n > n_end && strcmp(name + n - n_end, end) == 0;
}

/* ---- one file ---- */

/* Copies the header from the mapping before parsing it, because the file may change during the
 * parse. */
static int read_head(struct part *p, struct err *err)
{
    uint64_t bytes = mapping_bytes(p->mapping), n;
    const uint8_t *data = mapping_data(p->mapping);
    uint8_t head[SAFETENSORS_HEAD_BYTES] = { 0 };
    char *json = NULL;
    int rc;

    if (bytes >= sizeof(head))
        memcpy(head, data, sizeof(head));
    rc = safetensors_json_bytes(head, bytes, &n, err);
    if (rc < 0)
        return rc;
    if (n > JSON_MAX_BYTES)
        return err_set(err, ERR_CORRUPT, "header of %" PRIu64 " bytes, expected at most %d", n,
                       JSON_MAX_BYTES);
    json = malloc(n > 0 ? n : 1);
    if (json == NULL)
        return no_memory(err);
    memcpy(json, data + sizeof(head), n);
    rc = mapping_check(p->mapping, err);
    if (rc == 0)
        rc = safetensors_parse(json, n, bytes, &p->head, err);
    free(json);
    return rc;
}

static int add_names(struct ckpt_weights *w, uint32_t part, struct err *err)
{
    const struct safetensors *head = &w->parts.at[part].head;
    const char **names = realloc(w->names, (w->n_names + head->n + 1) * sizeof(*names));

    if (names == NULL)
        return no_memory(err);
    w->names = names;
    for (size_t i = 0; i < head->n; i++) {
        enum map_put put = map_put(&w->by_name, head->entries[i].name, (uint64_t)part << 32 | i);

        if (put == MAP_NOMEM)
            return no_memory(err);
        if (put == MAP_EXISTED)
            return err_set(err, ERR_INPUT, "tensor '%s' is also in another file of the set",
                           head->entries[i].name);
        w->names[w->n_names++] = head->entries[i].name;
    }
    return 0;
}

/* Adds a file to the set. Takes ownership of the descriptor. `name` is for messages. */
static int add_part(struct ckpt_weights *w, int fd, const char *name, struct err *err)
{
    struct part p = { .mapping = NULL };
    struct stat st;
    int rc = 0;

    if (fstat(fd, &st) < 0)
        rc = err_sys(err, errno, "read '%s'", name);
    else if (!S_ISREG(st.st_mode))
        rc = err_set(err, ERR_INPUT, "'%s' is not a regular file", name);
    if (rc == 0)
        rc = mapping_open(fd, (uint64_t)st.st_size, name, &p.mapping, err);
    close(fd);
    if (rc == 0) {
        rc = read_head(&p, err);
        if (rc == 0 && !VEC_PUSH(w->parts, p)) {
            safetensors_fini(&p.head);
            rc = no_memory(err);
        }
        if (rc < 0)
            mapping_close(p.mapping);
    }
    if (rc == 0) {
        w->bytes += mapping_bytes(p.mapping);
        rc = add_names(w, (uint32_t)w->parts.n - 1, err);
    }
    return rc < 0 ? err_wrap(err, rc == ERR_CORRUPT ? ERR_INPUT : rc, "'%s'", name) : 0;
}

static int open_file(struct ckpt_weights *w, struct err *err)
{
    int fd = open(w->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* does not wait at a FIFO */

    return fd < 0 ? err_sys(err, errno, "open '%s'", w->path) : add_part(w, fd, w->path, err);
}

/* ---- a set with an index ---- */

/* Checks that each tensor is in the file named by the index, and that the index contains each
 * tensor of the files. */
static int compare(const struct ckpt_weights *w, const struct ckpt_index *index, struct err *err)
{
    uint64_t file, at;

    for (uint32_t i = 0; i < w->n_names; i++) {
        CHECK(map_get(&w->by_name, w->names[i], &at));
        if (!map_get(&index->file_of, w->names[i], &file))
            return err_set(err, ERR_INPUT, "tensor '%s' is in '%s', but not in the index",
                           w->names[i], index->files[at >> 32]);
        if (file != at >> 32)
            return err_set(err, ERR_INPUT, "tensor '%s' is in '%s', but the index names '%s'",
                           w->names[i], index->files[at >> 32], index->files[file]);
    }
    if (w->n_names != index->n_tensors)
        return err_set(err, ERR_INPUT,
                       "the index names %" PRIu32 " tensors, but its files contain %" PRIu32
                       "; copy the files of one version",
                       index->n_tensors, w->n_names);
    return 0;
}

static int open_parts(struct ckpt_weights *w, const struct ckpt_index *index, struct err *err)
{
    char *dir = fs_dirname(w->path);
    int rc = dir != NULL ? 0 : no_memory(err);

    for (uint32_t i = 0; i < index->n_files && rc == 0; i++) {
        int fd = fs_open_below(dir, index->files[i], "file of weights", err);

        rc = fd < 0 ? fd : add_part(w, fd, index->files[i], err);
    }
    free(dir);
    return rc == 0 ? compare(w, index, err) : rc;
}

static int open_index(struct ckpt_weights *w, struct err *err)
{
    struct ckpt_index index = { .n_files = 0 };
    struct buf text = { 0 };
    int rc = fs_read(w->path, JSON_MAX_BYTES, &text, err);

    if (rc == 0)
        rc = ckpt_index_parse(w->path, text.data != NULL ? text.data : "", text.len, &index, err);
    if (rc == 0) {
        rc = open_parts(w, &index, err);
        if (rc < 0)
            rc = err_wrap(err, rc, "'%s'", w->path);
    }
    ckpt_index_fini(&index);
    buf_fini(&text);
    return rc;
}

/* ---- a folder ---- */

struct choice {
    char *name;    /* owned; the first file of this kind, or the one with the usual name */
    uint32_t n;    /* files of this kind */
    bool is_usual; /* `name` is the usual name */
};

static int consider(struct choice *c, const char *name, const char *usual, struct err *err)
{
    bool is_usual = strcmp(name, usual) == 0;

    if (c->n++ > 0 && !is_usual)
        return 0;
    free(c->name);
    c->name = strdup(name);
    c->is_usual = is_usual;
    return c->name != NULL ? 0 : no_memory(err);
}

static int choose(const char *dir, const struct choice *index, const struct choice *file,
                  const char **out, struct err *err)
{
    const struct choice *best = index->n > 0 ? index : file;

    if (best->n == 0)
        return err_set(err, ERR_INPUT,
                       "the folder '%s' has neither *" INDEX_END " nor *" FILE_END
                       "; convert other formats with safetensors.torch.save_file()",
                       dir);
    if (best->n > 1 && !best->is_usual)
        return err_set(err, ERR_INPUT,
                       "the folder '%s' has %" PRIu32 " such files ('%s', ...); name one of them",
                       dir, best->n, best->name);
    *out = best->name;
    return 0;
}

/* Replaces w->path, a directory, by the path of the index or file in it. */
static int resolve_directory(struct ckpt_weights *w, struct err *err)
{
    struct choice index = { .n = 0 }, file = { .n = 0 };
    DIR *dir = opendir(w->path);
    const char *name = NULL;
    struct dirent *e;
    char *path;
    int rc = 0;

    if (dir == NULL)
        return err_sys(err, errno, "open '%s'", w->path);
    while (rc == 0 && (errno = 0, e = readdir(dir)) != NULL) {
        if (ends_in(e->d_name, INDEX_END))
            rc = consider(&index, e->d_name, "model" INDEX_END, err);
        else if (ends_in(e->d_name, FILE_END))
            rc = consider(&file, e->d_name, "model" FILE_END, err);
    }
    if (rc == 0 && errno != 0)
        rc = err_sys(err, errno, "read '%s'", w->path);
    closedir(dir);
    if (rc == 0)
        rc = choose(w->path, &index, &file, &name, err);
    if (rc == 0) {
        path = fs_join(w->path, name);
        if (path != NULL) {
            free(w->path);
            w->path = path;
        } else {
            rc = no_memory(err);
        }
    }
    free(index.name);
    free(file.name);
    return rc;
}

/* ---- */

int ckpt_weights_open(const char *path, struct ckpt_weights **out, struct err *err)
{
    struct ckpt_weights *w = calloc(1, sizeof(*w));
    struct stat st;
    int rc = 0;

    if (w == NULL)
        return no_memory(err);
    w->path = strdup(path);
    if (w->path == NULL)
        rc = no_memory(err);
    else if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        rc = resolve_directory(w, err);
    if (rc == 0)
        rc = ends_in(w->path, ".json") ? open_index(w, err) : open_file(w, err);
    if (rc < 0) {
        ckpt_weights_close(w);
        return err_wrap(err, rc, "weights");
    }
    *out = w;
    return 0;
}

void ckpt_weights_close(struct ckpt_weights *w)
{
    if (w == NULL)
        return;
    for (size_t i = 0; i < w->parts.n; i++) {
        mapping_close(w->parts.at[i].mapping);
        safetensors_fini(&w->parts.at[i].head);
    }
    VEC_FINI(w->parts);
    map_fini(&w->by_name);
    free(w->names);
    free(w->path);
    free(w);
}

const char *ckpt_weights_path(const struct ckpt_weights *w)
{
    return w->path;
}

uint64_t ckpt_weights_bytes(const struct ckpt_weights *w)
{
    return w->bytes;
}

const char *const *ckpt_weights_names(const struct ckpt_weights *w, uint32_t *n)
{
    *n = w->n_names;
    return w->names;
}

bool ckpt_weights_find(const struct ckpt_weights *w, const char *name, struct tensor *out,
                       const struct mapping **mapping)
{
    const struct safetensors_entry *e;
    const struct part *p;
    uint64_t at;

    if (!map_get(&w->by_name, name, &at))
        return false;
    p = &w->parts.at[at >> 32];
    e = &p->head.entries[at & UINT32_MAX];
    *out = (struct tensor){ .dtype = e->dtype, .shape = e->shape };
    out->data = (void *)(uintptr_t)(mapping_data(p->mapping) + p->head.data_at + e->begin);
    *mapping = p->mapping;
    return true;
}

static int digest_part(const struct part *p, XXH3_state_t *hash, struct err *err)
{
    const uint8_t *data = mapping_data(p->mapping);
    uint64_t bytes = mapping_bytes(p->mapping);

    for (uint64_t at = 0; at < bytes; at += CKPT_CHUNK_BYTES) {
        size_t n = bytes - at < CKPT_CHUNK_BYTES ? (size_t)(bytes - at) : CKPT_CHUNK_BYTES;

        XXH3_128bits_update(hash, data + at, n);
        mapping_drop(p->mapping, data + at, n);
    }
    return mapping_check(p->mapping, err);
}

int ckpt_weights_digest(const struct ckpt_weights *w, char out[CKPT_WEIGHTS_DIGEST_BYTES],
                        struct err *err)
{
    XXH3_state_t *hash = XXH3_createState();
    int rc = hash != NULL ? 0 : no_memory(err);

    mapping_enable_thread();
    if (rc == 0)
        XXH3_128bits_reset(hash);
    for (size_t i = 0; i < w->parts.n && rc == 0; i++)
        rc = digest_part(&w->parts.at[i], hash, err);
    if (rc == 0)
        ckpt_hash_print(XXH3_128bits_digest(hash), out);
    XXH3_freeState(hash);
    return rc < 0 ? err_wrap(err, rc, "weights") : 0;
}
