/* arrays.c - the format npy: a file per feature. Files may have other types of numbers than the features; each record is
 * converted when it is read. */
#include <inttypes.h>
#include <stdio.h>

#include "base/err.h"
#include "data/data_priv.h"
#include "data/npy.h"

int arrays_fit(const struct data_set *s, struct err *err)
{
    for (uint32_t i = 0; i < s->n_features; i++) {
        const struct data_feature *f = &s->features[i];

        if (f->pad || f->truncate || f->derived != DATA_STORED)
            return data_refuse_feature(f, "a .npy file",
                               "all items of an array have the same shape: remove pad, truncate, "
                               "packing and derived features",
                               err);
        if (f->encoded || data_is_token_type(f->stored))
            return data_refuse_feature(f, "a .npy file",
                                       "expected uint8, int32, int64 or float32 arrays", err);
    }
    return 0;
}

int arrays_index(struct data_scan *w, struct err *err)
{
    const struct data_set *s = w->s;
    const struct data_feature *f = &s->features[w->member];
    struct shape expected = { .rank = f->shape.rank + 1 };
    uint64_t item;
    uint64_t want = NPY_HEADER_BYTES < w->f->bytes ? NPY_HEADER_BYTES : w->f->bytes, held;
    const uint8_t *bytes;
    struct npy head;
    char has[160], wants[160], what[300];
    int rc = data_scan_fetch(w, 0, want, want, &bytes, &held, err);

    snprintf(what, sizeof(what), "'%.280s'", w->f->origin);
    if (rc == 0)
        rc = npy_parse_header(bytes, held, what, &head, err);
    if (rc == 0 && head.fortran && head.shape.rank > 1)
        rc = err_set(err, ERR_UNSUPPORTED,
                     "%s is in Fortran order, so its items are not contiguous: save "
                     "numpy.ascontiguousarray(array), or convert it with trainerctl convert",
                     what);
    if (rc < 0)
        return rc;
    for (uint32_t d = 0; d < f->shape.rank; d++)
        expected.dim[d + 1] = f->shape.dim[d];
    expected.dim[0] = head.shape.rank > 0 ? head.shape.dim[0] : 0;
    if (f->shape.rank == TENSOR_MAX_RANK || head.shape.rank == 0 ||
        !shape_equal(&head.shape, &expected))
        return err_set(err, ERR_INPUT, "'%s' is an array %s %s; feature '%s' expects items %s %s",
                       w->f->origin, tensor_dtype_name(head.dtype),
                       shape_print(&head.shape, has, sizeof(has)), f->name,
                       tensor_dtype_name(f->stored), shape_print(&f->shape, wants, sizeof(wants)));
    if (head.dtype == TENSOR_BOOL && f->stored == TENSOR_F32)
        return err_set(err, ERR_INPUT,
                       "'%s' is an array of bool, feature '%s' has the \"dtype\" float32: set it to "
                       "uint8, which also feeds a float input with 0 and 1",
                       w->f->origin, f->name);
    item = s->layout.elements[w->member] * tensor_dtype_bytes(head.dtype);
    if ((w->f->bytes - head.data_at) / item != (uint64_t)head.shape.dim[0] ||
        (w->f->bytes - head.data_at) % item != 0)
        return err_set(err, ERR_CORRUPT,
                       "'%s' has %" PRIu64 " bytes after its header, expected %" PRId64
                       " items of %" PRIu64 " bytes: it is truncated or was changed",
                       w->f->origin, w->f->bytes - head.data_at, head.shape.dim[0], item);
    w->f->data_at = head.data_at;
    w->f->step = w->f->span = item;
    w->f->n_records = (uint64_t)head.shape.dim[0];
    w->f->dtype = head.dtype == TENSOR_BOOL ? TENSOR_U8 : head.dtype; /* a byte of bool is a uint8 */
    return 0;
}

int arrays_parse(struct data_decoder *d, uint32_t member, const uint8_t *bytes, size_t n,
                 struct err *err)
{
    const struct data_feature *f = &d->s->features[member];
    size_t elements = d->s->layout.elements[member], fitting;
    enum tensor_dtype type = d->file->dtype;
    char number[40];

    (void)n;
    d->stored[member] = bytes;
    if (type == f->stored)
        return 0;
    d->stored[member] = d->room + d->s->layout.stored_at[member];
    fitting =
        npy_convert(type, bytes, elements, f->stored, d->room + d->s->layout.stored_at[member]);
    if (fitting == elements)
        return 0;
    npy_print_number(type, bytes, fitting, number, sizeof(number));
    return err_set(err, ERR_INPUT,
                   "feature '%s': value %zu is %s (%s), which %s cannot represent: set the feature's \"dtype\" "
                   "to a type that can, or change the array",
                   f->name, fitting, number, tensor_dtype_name(type), tensor_dtype_name(f->stored));
}
