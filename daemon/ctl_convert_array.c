/* ctl_convert_array.c - converts NumPy arrays: sample i consists of item i of every name. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "daemon/ctl_convert.h"
#include "data/npy.h"
#include "data/write.h"
#include "tensor/tensor.h"

#define ARRAY_BYTES_MAX ((size_t)1 << 32)

struct array {
    const char *name, *path; /* borrowed */
    struct tensor t;         /* t.data is owned */
    enum tensor_dtype stored; /* the type in the TFRecord file */
    size_t item;             /* number of elements of one item */
    void *converted;         /* one item of the type `stored`, owned; NULL: the array has this type */
};

/* The type in the TFRecord file. */
static enum tensor_dtype stored_type(enum tensor_dtype t)
{
    switch (t) {
    case TENSOR_U8:
    case TENSOR_BOOL:
        return TENSOR_U8;
    case TENSOR_F16:
    case TENSOR_F32:
    case TENSOR_F64:
        return TENSOR_F32;
    default:
        return TENSOR_I64;
    }
}

static int read_array(struct array *a, const struct convert_input *in, struct err *err)
{
    int rc;

    a->name = in->name;
    a->path = in->path;
    rc = npy_read(in->path, ARRAY_BYTES_MAX, &a->t, err);
    if (rc < 0)
        return rc;
    if (a->t.shape.rank == 0)
        return err_set(err, ERR_INPUT, "'%s' is one number: expected an array of samples",
                       in->path);
    a->item = 1;
    for (uint32_t d = 1; d < a->t.shape.rank; d++)
        a->item *= (size_t)a->t.shape.dim[d];
    if (a->item == 0)
        return err_set(err, ERR_INPUT, "'%s': expected items with elements, found empty items",
                       in->path);
    a->stored = stored_type(a->t.dtype);
    if (a->t.dtype == a->stored)
        return 0;
    a->converted = calloc(a->item, tensor_dtype_bytes(a->stored));
    return a->converted != NULL ? 0 : err_set(err, ERR_NOMEM, "'%s': out of memory", in->path);
}

static int convert_item(const struct array *a, size_t i, const void *from, struct err *err)
{
    size_t fitting = npy_convert(a->t.dtype, from, a->item, a->stored, a->converted);
    char number[40];

    if (fitting == a->item)
        return 0;
    npy_print_number(a->t.dtype, from, fitting, number, sizeof(number));
    return err_set(err, ERR_INPUT, "'%s': item %zu has %s (%s), which no %s equals", a->path, i,
                   number, tensor_dtype_name(a->t.dtype), tensor_dtype_name(a->stored));
}

static int add_item(struct convert *c, const struct array *a, size_t i, struct err *err)
{
    const void *item = (const uint8_t *)a->t.data + i * a->item * tensor_dtype_bytes(a->t.dtype);

    if (a->converted != NULL) {
        int rc = convert_item(a, i, item, err);

        if (rc < 0)
            return rc;
        item = a->converted;
    }
    if (a->stored == TENSOR_U8)
        data_write_bytes(&c->list, a->name, item, a->item);
    else if (a->stored == TENSOR_F32)
        data_write_floats(&c->list, a->name, item, a->item);
    else
        data_write_ints(&c->list, a->name, item, a->item);
    return 0;
}

static void item_shape(const struct array *a, struct shape *out)
{
    *out = (struct shape){ .rank = a->t.shape.rank - 1 };
    for (uint32_t d = 0; d < out->rank; d++)
        out->dim[d] = a->t.shape.dim[d + 1];
}

/* Lists the names in the order of their first inputs; *per_name receives the number of files of
 * each. */
static int list_names(const struct convert *c, const char **names, size_t *n_names,
                      size_t *per_name, struct err *err)
{
    *n_names = 0;
    for (size_t i = 0; i < c->inputs.n; i++) {
        const struct convert_input *in = &c->inputs.at[i];
        size_t k = 0, files = 0;

        if (in->name[0] == '\0')
            return err_set(
                err, ERR_INPUT,
                "'%.200s': expected NAME=FILE.npy, because the file does not contain a name",
                in->path);
        while (k < *n_names && strcmp(names[k], in->name) != 0)
            k++;
        if (k == *n_names)
            names[(*n_names)++] = in->name;
        for (size_t j = 0; j < c->inputs.n; j++)
            files += strcmp(c->inputs.at[j].name, in->name) == 0;
        if (i == 0)
            *per_name = files;
        if (files != *per_name)
            return err_set(err, ERR_INPUT,
                           "%zu files of '%s' and %zu of '%s': expected equal numbers of files; file i of "
                           "each name must contain the same samples",
                           *per_name, names[0], files, in->name);
    }
    return 0;
}

/* Returns file number `group` of a name. */
static const struct convert_input *input_of(const struct convert *c, const char *name, size_t group)
{
    for (size_t i = 0;; i++)
        if (strcmp(c->inputs.at[i].name, name) == 0 && group-- == 0)
            return &c->inputs.at[i];
}

/* Describes the feature if the array is of the first group; otherwise compares the array with
 * it. */
static int check_array(struct convert *c, const struct array *a, const struct array *first,
                       struct array *kind, const struct convert_input *in, bool is_first,
                       struct err *err)
{
    struct shape s, was;
    char shape[160], expected[160];

    item_shape(a, &s);
    if (a->t.shape.dim[0] != first->t.shape.dim[0])
        return err_set(err, ERR_INPUT,
                       "'%s' has %" PRId64 " items and '%s' has %" PRId64
                       ": expected equal numbers",
                       first->name, first->t.shape.dim[0], a->name, a->t.shape.dim[0]);
    if (is_first) {
        convert_describe(c, a->name, tensor_dtype_name(a->stored),
                         shape_print(&s, shape, sizeof(shape)), "");
        *kind = *a;
        kind->t.data = kind->converted = NULL;
        return 0;
    }
    item_shape(kind, &was);
    if (a->stored != kind->stored || !shape_equal(&s, &was))
        return err_set(err, ERR_INPUT,
                       "'%s' has items of %s %s, expected %s %s as in the first file of '%s'",
                       in->path, tensor_dtype_name(a->stored),
                       shape_print(&s, shape, sizeof(shape)), tensor_dtype_name(kind->stored),
                       shape_print(&was, expected, sizeof(expected)), a->name);
    return 0;
}

static int convert_group(struct convert *c, const char *const *names, size_t n, size_t group,
                         struct array *arrays, struct array *kinds, struct err *err)
{
    int rc = 0;

    memset(arrays, 0, n * sizeof(*arrays));
    for (size_t i = 0; rc == 0 && i < n; i++) {
        const struct convert_input *in = input_of(c, names[i], group);

        rc = read_array(&arrays[i], in, err);
        if (rc == 0)
            rc = check_array(c, &arrays[i], &arrays[0], &kinds[i], in, group == 0, err);
    }
    for (int64_t k = 0; rc == 0 && k < arrays[0].t.shape.dim[0]; k++) {
        for (size_t i = 0; rc == 0 && i < n; i++)
            rc = add_item(c, &arrays[i], (size_t)k, err);
        if (rc == 0)
            rc = data_writer_add(c->writer, &c->list, err);
    }
    for (size_t i = 0; i < n; i++) {
        free(arrays[i].t.data);
        free(arrays[i].converted);
    }
    return rc;
}

int convert_arrays(struct convert *c, struct err *err)
{
    const char **names = calloc(c->inputs.n, sizeof(*names));
    struct array *arrays = calloc(c->inputs.n, sizeof(*arrays));
    struct array *kinds = calloc(c->inputs.n, sizeof(*kinds));
    size_t n = 0, groups = 0;
    int rc = names != NULL && arrays != NULL && kinds != NULL
                 ? list_names(c, names, &n, &groups, err)
                 : err_set(err, ERR_NOMEM, "out of memory");

    for (size_t group = 0; rc == 0 && group < groups; group++)
        rc = convert_group(c, names, n, group, arrays, kinds, err);
    free(names);
    free(arrays);
    free(kinds);
    return rc;
}
