/* export_rows.c - see export_priv.h: the rows of remote tables, which are read in parts. */
#include "graph/export_priv.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "graph/export_ids.h"
#include "tensor/half.h"

enum { READ_FLOATS = 1 << 20 /* part of a remote table that is read at once, at least one row */ };

uint64_t export_rows_of(const struct exporter *e, uint32_t remote)
{
    const struct graph_remote *r = &e->g->remotes[remote];

    return r->rows > 0 ? r->rows : e->ids[remote].n + 1;
}

/* rows->read(), and the last row of a dynamic table. */
static int read_part(struct exporter *e, uint32_t i, uint64_t first, uint64_t n, float *out,
                     struct err *err)
{
    const struct graph_remote *r = &e->g->remotes[i];
    bool has_zeros = r->rows == 0 && first + n == export_rows_of(e, i);

    if (has_zeros)
        memset(out + (n - 1) * r->width, 0, r->width * sizeof(*out));
    n -= has_zeros;
    return n > 0 ? e->rows->read(e->rows->arg, i, first, n, out, err) : 0;
}

int export_read_rows(struct exporter *e, uint32_t i, struct export_out *to, uint8_t *at,
                     struct err *err)
{
    const struct graph_remote *r = &e->g->remotes[i];
    enum tensor_dtype dtype = (enum tensor_dtype)e->remotes[i]->data_type;
    uint64_t most = r->width < READ_FLOATS ? READ_FLOATS / r->width : 1, first, n;
    float *part = malloc(most * r->width * sizeof(*part));
    int rc = part != NULL ? 0 : export_no_memory(err);

    for (first = 0; first < export_rows_of(e, i) && rc == 0; first += n) {
        size_t bytes;

        n = export_rows_of(e, i) - first < most ? export_rows_of(e, i) - first : most;
        bytes = n * r->width * tensor_dtype_bytes(dtype);
        rc = read_part(e, i, first, n, part, err);
        if (rc == 0 && tensor_is_half(dtype)) /* in place: element k is read before it is written */
            rc = tensor_narrow_finite(dtype, part, n * r->width, (uint16_t *)part, err);
        if (rc == 0 && to != NULL) {
            export_append(&to->base, bytes, (const uint8_t *)part);
            rc = to->rc;
        } else if (rc == 0) {
            memcpy(at, part, bytes);
            at += bytes;
        }
    }
    free(part);
    return rc < 0 ? err_wrap(err, rc, "remote table '%s'", r->name) : 0;
}

uint32_t export_remote_of(const struct exporter *e, const Onnx__TensorProto *t)
{
    uint32_t i;

    for (i = 0; i < e->g->n_remotes; i++)
        if (e->remotes[i] == t && t->raw_data.data == NULL)
            return i;
    return GRAPH_NONE;
}

int export_read_inline(struct exporter *e, size_t least, struct err *err)
{
    uint32_t i;
    int rc = 0;

    for (i = 0; i < e->g->n_remotes && rc == 0; i++) {
        Onnx__TensorProto *t = e->remotes[i];
        uint8_t *data;

        if (t->raw_data.len >= least)
            continue;
        data = arena_alloc(&e->mem, t->raw_data.len);
        if (data == NULL)
            return export_no_memory(err);
        rc = export_read_rows(e, i, NULL, data, err);
        t->raw_data.data = data;
    }
    return rc;
}
