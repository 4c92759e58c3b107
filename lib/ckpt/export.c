#include "ckpt/export.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/fs.h"
#include "base/map.h"
#include "base/rng.h"
#include "base/text.h"
#include "ckpt/safetensors.h"
#include "tensor/half.h"

enum {
    CHUNK = 1 << 16, /* elements per conversion */
    READ = 1 << 20,  /* elements of a tensor without data that are read at once */
};

struct exporter {
    const struct ckpt_export_tensor *tensors;
    size_t n;
    enum tensor_dtype floats;
    size_t *order;     /* owned; [n] indices of the tensors in file order */
    struct buf header; /* owned */
    int fd;            /* owned; -1: not open */
    char *temporary;   /* owned; the file exists while fd is open */
};

static int no_memory(struct err *err)
{
    return err_set(err, ERR_NOMEM, "out of memory");
}

/* ---- header ---- */

static struct tensor as_written(const struct exporter *e, size_t i)
{
    struct tensor t = e->tensors[i].tensor;

    if (t.dtype == TENSOR_F32)
        t.dtype = e->floats;
    return t;
}

static int check_names(const struct exporter *e, struct err *err)
{
    struct map names = { 0 };
    int rc = 0;

    for (size_t i = 0; i < e->n && rc == 0; i++) {
        const char *name = e->tensors[i].name;
        enum map_put put = map_put(&names, name, i);

        if (put == MAP_NOMEM)
            rc = no_memory(err);
        else if (put == MAP_EXISTED)
            rc = err_set(err, ERR_INPUT, "two tensors have the name '%s'", name);
        else if (name[0] == '\0' || strcmp(name, "__metadata__") == 0 ||
                 !text_is_utf8(name, strlen(name)))
            rc = err_set(err, ERR_INPUT, "'%s' is not a valid tensor name", name);
        else if (safetensors_dtype(e->tensors[i].tensor.dtype) == NULL)
            rc = err_set(err, ERR_UNSUPPORTED, "tensor '%s': safetensors has no type for %s", name,
                         tensor_dtype_name(e->tensors[i].tensor.dtype));
    }
    map_fini(&names);
    return rc;
}

/* Places the largest element types first, so that each tensor is aligned to its element size. */
static int make_header(struct exporter *e, struct err *err)
{
    const struct safetensors_text pytorch = { "format", "pt" };
    struct safetensors_entry *entries = calloc(e->n + 1, sizeof(*entries));
    uint64_t at = 0;
    size_t placed = 0;
    int rc;

    e->order = calloc(e->n + 1, sizeof(*e->order));
    if (entries == NULL || e->order == NULL) {
        free(entries);
        return no_memory(err);
    }
    for (size_t width = 8; width > 0; width /= 2)
        for (size_t i = 0; i < e->n; i++) {
            struct tensor t = as_written(e, i);

            if (tensor_dtype_bytes(t.dtype) != width)
                continue;
            entries[placed] = (struct safetensors_entry){ e->tensors[i].name, t.dtype, t.shape, at,
                                                          at + tensor_bytes(&t) };
            at += tensor_bytes(&t);
            e->order[placed++] = i;
        }
    CHECK(placed == e->n);
    rc = safetensors_header(entries, e->n, &pytorch, 1, &e->header, err);
    free(entries);
    return rc;
}

/* ---- data ---- */

static int write_bytes(const struct exporter *e, const void *data, size_t n, struct err *err)
{
    return fs_write_all(e->fd, data, n, e->temporary, err);
}

/* Writes floats in the requested type. */
static int write_floats(const struct exporter *e, const float *from, size_t n, struct err *err)
{
    size_t at, some;
    uint16_t *half;
    int rc;

    if (e->floats == TENSOR_F32)
        return write_bytes(e, from, n * sizeof(*from), err);
    half = malloc(CHUNK * sizeof(*half));
    rc = half != NULL ? 0 : no_memory(err);

    for (at = 0; at < n && rc == 0; at += some) {
        some = n - at < CHUNK ? n - at : CHUNK;
        rc = tensor_narrow_finite(e->floats, from + at, some, half, err);
        if (rc == 0)
            rc = write_bytes(e, half, some * sizeof(*half), err);
    }
    free(half);
    return rc;
}

/* Reads and writes a tensor in parts of at least one row. */
static int write_rows(const struct exporter *e, const struct ckpt_export_tensor *x, struct err *err)
{
    uint64_t rows = (uint64_t)x->tensor.shape.dim[0], n;
    size_t width = rows > 0 ? (size_t)tensor_elements(&x->tensor) / rows : 1;
    size_t row_bytes = width * tensor_dtype_bytes(x->tensor.dtype);
    uint64_t most = width < READ ? READ / width : 1;
    void *chunk = malloc(most * row_bytes);
    int rc = chunk != NULL ? 0 : no_memory(err);

    CHECK(x->tensor.shape.rank > 0);
    for (uint64_t at = 0; rc == 0 && at < rows; at += n) {
        n = rows - at < most ? rows - at : most;
        rc = x->read(x->arg, at, n, chunk, err);
        if (rc == 0)
            rc = x->tensor.dtype == TENSOR_F32 ? write_floats(e, chunk, n * width, err)
                                               : write_bytes(e, chunk, n * row_bytes, err);
    }
    free(chunk);
    return rc;
}

static int write_content(const struct exporter *e, struct err *err)
{
    int rc = write_bytes(e, e->header.data, e->header.len, err);

    for (size_t i = 0; i < e->n && rc == 0; i++) {
        const struct ckpt_export_tensor *x = &e->tensors[e->order[i]];
        const struct tensor *t = &x->tensor;

        if (x->read != NULL)
            rc = write_rows(e, x, err);
        else if (t->dtype == TENSOR_F32)
            rc = write_floats(e, t->data, (size_t)tensor_elements(t), err);
        else
            rc = write_bytes(e, t->data, tensor_bytes(t), err);
        if (rc < 0)
            return err_wrap(err, rc, "tensor '%s'", x->name);
    }
    return rc;
}

/* ---- the file ---- */

static int open_temporary(struct exporter *e, const char *path, struct err *err)
{
    uint64_t random;

    if (rng_os(&random, sizeof(random)) < 0)
        return err_set(err, ERR_IO, "getrandom failed");
    if (asprintf(&e->temporary, "%s.tmp-%016" PRIx64, path, random) < 0) {
        e->temporary = NULL;
        return no_memory(err);
    }
    e->fd = open(e->temporary, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
    return e->fd < 0 ? err_sys(err, errno, "create '%s'", e->temporary) : 0;
}

static int publish(struct exporter *e, const char *path, struct err *err)
{
    char *dir;
    int rc;

    if (FAULT_TRY("export.sync", fsync(e->fd)) < 0)
        return err_sys(err, errno, "sync '%s'", e->temporary);
    if (FAULT_TRY("export.rename", rename(e->temporary, path)) < 0)
        return err_sys(err, errno, "rename '%s' to '%s'", e->temporary, path);
    close(e->fd);
    e->fd = -1; /* the file has its final name and must not be removed */
    dir = fs_dirname(path);
    if (dir == NULL)
        return no_memory(err);
    rc = fs_sync_dir(dir, err);
    free(dir);
    return rc;
}

int ckpt_export(const char *path, const struct ckpt_export_tensor *tensors, size_t n,
                enum tensor_dtype floats, struct err *err)
{
    struct exporter e = { .tensors = tensors, .n = n, .floats = floats, .fd = -1 };
    int rc = check_names(&e, err);

    CHECK(floats == TENSOR_F32 || tensor_is_half(floats));
    if (rc == 0)
        rc = make_header(&e, err);
    if (rc == 0)
        rc = open_temporary(&e, path, err);
    if (rc == 0)
        rc = write_content(&e, err);
    if (rc == 0)
        rc = publish(&e, path, err);
    if (e.fd >= 0) {
        close(e.fd);
        (void)unlink(e.temporary); /* best effort */
    }
    free(e.temporary);
    free(e.order);
    buf_fini(&e.header);
    return rc < 0 ? err_wrap(err, rc, "export '%s'", path) : 0;
}
