/* ctl_convert.c - `trainerctl convert`: TFRecord files from CSV, NumPy arrays and folders of images. It
 * says how the features are to be described in a job. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/rng.h"
#include "base/text.h"
#include "base/vec.h"
#include "daemon/args.h"
#include "daemon/ctl.h"
#include "data/csv.h"
#include "data/data.h"
#include "data/npy.h"
#include "data/write.h"

enum { FILE_BYTES_MAX = 1 << 30, COLUMNS_MAX = 65536 };
#define ARRAY_BYTES_MAX ((size_t)1 << 32)

struct convert {
    const char *out, *shards_text, *label, *delimiter, *seed_text;
    bool no_header, help;
    uint32_t n_shards;
    uint64_t seed;
    struct data_writer *writer;
    struct buf list;     /* of the sample at hand */
    struct buf features; /* how a job describes them */
};

static void describe(struct convert *c, const char *name, const char *dtype, const char *shape,
                     const char *more)
{
    buf_str(&c->features, c->features.len > 0 ? ",\n" : "");
    buf_str(&c->features, "  ");
    buf_json(&c->features, name);
    buf_printf(&c->features, ": { \"dtype\": \"%s\", \"shape\": %s%s }", dtype, shape, more);
}

/* ---- NumPy: NAME=FILE ... ---- */

struct array {
    char name[256];
    struct tensor t; /* data owned */
    size_t item;     /* elements of one */
};

static bool is_integer(enum tensor_dtype t)
{
    return t == TENSOR_I8 || t == TENSOR_I16 || t == TENSOR_U16 || t == TENSOR_I32 ||
           t == TENSOR_U32 || t == TENSOR_I64;
}

static int64_t integer_at(const struct tensor *t, size_t i)
{
    switch (t->dtype) {
    case TENSOR_I8:
        return ((const int8_t *)t->data)[i];
    case TENSOR_I16:
        return ((const int16_t *)t->data)[i];
    case TENSOR_U16:
        return ((const uint16_t *)t->data)[i];
    case TENSOR_I32:
        return ((const int32_t *)t->data)[i];
    case TENSOR_U32:
        return ((const uint32_t *)t->data)[i];
    default:
        return ((const int64_t *)t->data)[i];
    }
}

static int read_array(struct array *a, const char *text, struct err *err)
{
    const char *equals = strchr(text, '=');
    int rc;

    if (equals == NULL || equals == text || (size_t)(equals - text) >= sizeof(a->name))
        return err_set(err, ERR_INPUT,
                       "'%.200s': expected NAME=FILE.npy: an array has no name of its own", text);
    memcpy(a->name, text, (size_t)(equals - text));
    rc = npy_read(equals + 1, ARRAY_BYTES_MAX, &a->t, err);
    if (rc < 0)
        return rc;
    if (a->t.shape.rank == 0)
        return err_set(err, ERR_INPUT, "'%s' is one number: expected an array of samples", equals + 1);
    if (a->t.dtype != TENSOR_F32 && a->t.dtype != TENSOR_F64 && a->t.dtype != TENSOR_U8 &&
        a->t.dtype != TENSOR_BOOL && !is_integer(a->t.dtype))
        return err_set(err, ERR_UNSUPPORTED, "'%s' is an array of %s: save it as float32 or int64",
                       equals + 1, tensor_dtype_name(a->t.dtype));
    a->item = 1;
    for (uint32_t d = 1; d < a->t.shape.rank; d++)
        a->item *= (size_t)a->t.shape.dim[d];
    return a->item > 0 ? 0 : err_set(err, ERR_INPUT, "'%s': its items are empty", equals + 1);
}

static int add_item(struct convert *c, const struct array *a, size_t i, struct err *err)
{
    size_t from = i * a->item;

    if (a->t.dtype == TENSOR_U8 || a->t.dtype == TENSOR_BOOL) {
        data_write_bytes(&c->list, a->name, (const uint8_t *)a->t.data + from, a->item);
    } else if (a->t.dtype == TENSOR_F32) {
        data_write_floats(&c->list, a->name, (const float *)a->t.data + from, a->item);
    } else if (a->t.dtype == TENSOR_F64) {
        float *x = malloc(a->item * sizeof(*x));

        if (x == NULL)
            return err_set(err, ERR_NOMEM, "out of memory");
        for (size_t k = 0; k < a->item; k++)
            x[k] = (float)((const double *)a->t.data)[from + k];
        data_write_floats(&c->list, a->name, x, a->item);
        free(x);
    } else {
        int64_t *x = malloc(a->item * sizeof(*x));

        if (x == NULL)
            return err_set(err, ERR_NOMEM, "out of memory");
        for (size_t k = 0; k < a->item; k++)
            x[k] = integer_at(&a->t, from + k);
        data_write_ints(&c->list, a->name, x, a->item);
        free(x);
    }
    return 0;
}

static void describe_array(struct convert *c, const struct array *a)
{
    struct shape s = { .rank = a->t.shape.rank - 1 };
    char shape[160];

    for (uint32_t d = 0; d < s.rank; d++)
        s.dim[d] = a->t.shape.dim[d + 1];
    describe(c, a->name,
             is_integer(a->t.dtype) ? "int64"
             : a->t.dtype == TENSOR_F32 || a->t.dtype == TENSOR_F64 ? "float32"
                                                                    : "uint8",
             shape_print(&s, shape, sizeof(shape)), "");
}

static int convert_arrays(struct convert *c, char **inputs, int n, struct err *err)
{
    struct array *arrays = calloc((size_t)n, sizeof(*arrays));
    int rc = 0;

    if (arrays == NULL)
        return err_set(err, ERR_NOMEM, "out of memory");
    for (int i = 0; rc == 0 && i < n; i++) {
        rc = read_array(&arrays[i], inputs[i], err);
        if (rc == 0 && arrays[i].t.shape.dim[0] != arrays[0].t.shape.dim[0])
            rc = err_set(err, ERR_INPUT,
                         "'%s' has %" PRId64 " items and '%s' has %" PRId64 ": expected as many",
                         arrays[0].name, arrays[0].t.shape.dim[0], arrays[i].name,
                         arrays[i].t.shape.dim[0]);
        if (rc == 0)
            describe_array(c, &arrays[i]);
    }
    for (int64_t k = 0; rc == 0 && k < arrays[0].t.shape.dim[0]; k++) {
        for (int i = 0; rc == 0 && i < n; i++)
            rc = add_item(c, &arrays[i], (size_t)k, err);
        if (rc == 0)
            rc = data_writer_add(c->writer, &c->list, err);
    }
    for (int i = 0; i < n; i++)
        free(arrays[i].t.data);
    free(arrays);
    return rc;
}

/* ---- CSV ---- */

struct table {
    struct buf text;              /* of the file */
    struct csv_field *fields;     /* [COLUMNS_MAX] owned */
    char (*names)[128];           /* [n_columns] owned */
    bool *is_float;               /* [n_columns] owned: some value is no integer */
    uint32_t n_columns;
};

static bool number_of(const struct csv_field *f, double *x, int64_t *i, bool *is_integer_)
{
    char text[64], *end;

    if (f->n == 0 || f->n >= sizeof(text))
        return false;
    memcpy(text, f->at, f->n);
    text[f->n] = '\0';
    errno = 0;
    *i = strtoll(text, &end, 10);
    *is_integer_ = *end == '\0' && errno == 0;
    *x = strtod(text, &end);
    return *end == '\0';
}

/* Calls `each` for every line with content, perhaps but for the first. */
static int each_line(struct convert *c, struct table *t, const char *path, bool skip_first,
                     int (*each)(struct convert *c, struct table *t, struct err *err),
                     struct err *err)
{
    char delimiter = c->delimiter != NULL ? c->delimiter[0] : ',';
    size_t at = 0;
    uint64_t line = 0;
    int rc = 0;

    while (rc == 0 && at < t->text.len) {
        size_t n = csv_line(t->text.data + at, t->text.len - at);
        uint32_t n_fields;

        line++;
        if (n > 0 && t->text.data[at] != '\n' && t->text.data[at] != '\r') {
            n_fields = csv_split(t->text.data + at, n, delimiter, t->fields, COLUMNS_MAX);
            if (t->n_columns == 0 && n_fields <= COLUMNS_MAX)
                t->n_columns = n_fields;
            if (n_fields != t->n_columns)
                rc = err_set(err, ERR_INPUT, "%" PRIu32 " fields, expected %" PRIu32, n_fields,
                             t->n_columns);
            else if (!skip_first)
                rc = each(c, t, err);
            skip_first = false;
            if (rc < 0)
                rc = err_wrap(err, rc, "'%s': line %" PRIu64, path, line);
        }
        at += n;
    }
    return rc;
}

static int take_names(struct table *t, bool has_header, struct err *err)
{
    t->names = calloc(t->n_columns, sizeof(*t->names));
    t->is_float = calloc(t->n_columns, sizeof(*t->is_float));
    if (t->names == NULL || t->is_float == NULL)
        return err_set(err, ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < t->n_columns; i++)
        if (has_header)
            snprintf(t->names[i], sizeof(t->names[i]), "%.*s", (int)(t->fields[i].n < 120 ? t->fields[i].n : 120),
                     (const char *)t->fields[i].at);
        else
            snprintf(t->names[i], sizeof(t->names[i]), "%" PRIu32, i);
    return 0;
}

/* The first pass: names, and which columns are of integers alone. */
static int survey_line(struct convert *c, struct table *t, struct err *err)
{
    bool is_first = t->names == NULL, integer;
    int64_t i64;
    double x;

    if (is_first) {
        int rc = take_names(t, !c->no_header, err);

        if (rc < 0 || !c->no_header)
            return rc;
    }
    for (uint32_t i = 0; i < t->n_columns; i++) {
        if (!number_of(&t->fields[i], &x, &i64, &integer))
            return err_set(err, ERR_INPUT, "column '%s' is '%.*s', expected a number", t->names[i],
                           (int)(t->fields[i].n < 40 ? t->fields[i].n : 40),
                           (const char *)t->fields[i].at);
        t->is_float[i] = t->is_float[i] || !integer;
    }
    return 0;
}

/* The second: with a label the other columns become one list, `x`. */
static int write_line(struct convert *c, struct table *t, struct err *err)
{
    float *x = NULL;
    size_t n = 0;

    if (c->label != NULL) {
        x = malloc(t->n_columns * sizeof(*x));
        if (x == NULL)
            return err_set(err, ERR_NOMEM, "out of memory");
    }
    for (uint32_t i = 0; i < t->n_columns; i++) {
        bool integer, is_label = c->label != NULL && strcmp(t->names[i], c->label) == 0;
        int64_t i64 = 0;
        double f64 = 0;
        float f32;

        (void)number_of(&t->fields[i], &f64, &i64, &integer); /* the survey saw all */
        f32 = (float)f64;
        if (x != NULL && !is_label)
            x[n++] = f32;
        else if (t->is_float[i])
            data_write_floats(&c->list, t->names[i], &f32, 1);
        else
            data_write_ints(&c->list, t->names[i], &i64, 1);
    }
    if (x != NULL)
        data_write_floats(&c->list, "x", x, n);
    free(x);
    return data_writer_add(c->writer, &c->list, err);
}

static int describe_table(struct convert *c, const struct table *t, struct err *err)
{
    bool found = false;
    char shape[32];

    snprintf(shape, sizeof(shape), "[%" PRIu32 "]", t->n_columns - 1);
    for (uint32_t i = 0; i < t->n_columns; i++) {
        bool is_label = c->label != NULL && strcmp(t->names[i], c->label) == 0;

        found = found || is_label;
        if (c->label == NULL || is_label)
            describe(c, t->names[i], t->is_float[i] ? "float32" : "int64", "[]", "");
    }
    if (c->label != NULL && !found)
        return err_set(err, ERR_INPUT, "--label: there is no column '%.80s'", c->label);
    if (c->label != NULL && t->n_columns > 1)
        describe(c, "x", "float32", shape, "");
    return 0;
}

static int convert_csv(struct convert *c, char **inputs, int n, struct err *err)
{
    struct table t = { .n_columns = 0 };
    int rc = 0;

    if (n != 1)
        return err_set(err, ERR_INPUT, "one CSV file at a time: join several with cat");
    t.fields = calloc(COLUMNS_MAX, sizeof(*t.fields));
    if (t.fields == NULL)
        return err_set(err, ERR_NOMEM, "out of memory");
    rc = fs_read(inputs[0], FILE_BYTES_MAX, &t.text, err);
    if (rc == 0)
        rc = each_line(c, &t, inputs[0], false, survey_line, err);
    if (rc == 0 && t.names == NULL)
        rc = err_set(err, ERR_INPUT, "'%s' is empty", inputs[0]);
    if (rc == 0)
        rc = describe_table(c, &t, err);
    if (rc == 0)
        rc = each_line(c, &t, inputs[0], !c->no_header, write_line, err);
    buf_fini(&t.text);
    free(t.fields);
    free(t.names);
    free(t.is_float);
    return rc;
}

/* ---- a folder of images: a folder inside for each class ---- */

struct picture {
    char *path; /* owned */
    uint32_t label;
};

struct pictures {
    VEC(struct picture) all;
    VEC(char *) classes; /* owned */
};

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name); /* not by the locale */
}

static int visible(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

static bool is_folder(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static int list_class(struct pictures *p, const char *folder, struct err *err)
{
    struct dirent **entries;
    int n = scandir(folder, &entries, visible, by_name), rc = 0;

    if (n < 0)
        return err_sys(err, errno, "list '%s'", folder);
    for (int i = 0; i < n; i++) {
        char *path = fs_join(folder, entries[i]->d_name);

        if (rc == 0 && (path == NULL ||
                        !VEC_PUSH(p->all, ((struct picture){ path, (uint32_t)p->classes.n }))))
            rc = err_set(err, ERR_NOMEM, "list '%s': out of memory", folder);
        if (rc < 0)
            free(path);
        free(entries[i]);
    }
    free(entries);
    return rc;
}

static int list_classes(struct pictures *p, const char *folder, struct err *err)
{
    struct dirent **entries;
    int n = scandir(folder, &entries, visible, by_name), rc = 0;

    if (n < 0)
        return err_sys(err, errno, "list '%s'", folder);
    for (int i = 0; i < n; i++) {
        char *path = fs_join(folder, entries[i]->d_name), *name = strdup(entries[i]->d_name);

        if (rc == 0 && (path == NULL || name == NULL))
            rc = err_set(err, ERR_NOMEM, "list '%s': out of memory", folder);
        if (rc == 0 && is_folder(path)) {
            rc = list_class(p, path, err);
            if (rc == 0 && VEC_PUSH(p->classes, name))
                name = NULL;
        }
        free(path);
        free(name);
        free(entries[i]);
    }
    free(entries);
    if (rc == 0 && p->all.n == 0)
        rc = err_set(err, ERR_INPUT, "'%s': expected a folder for each class with its images inside",
                     folder);
    return rc;
}

static int add_picture(struct convert *c, const struct picture *p, struct err *err)
{
    int64_t label = p->label;
    struct buf file = { 0 };
    uint32_t w, h;
    int rc = fs_read(p->path, FILE_BYTES_MAX, &file, err);

    if (rc == 0) {
        rc = data_image_size(file.data != NULL ? file.data : "", file.len, &w, &h, err);
        if (rc < 0)
            rc = err_wrap(err, rc, "'%s'", p->path);
    }
    if (rc == 0) {
        data_write_bytes(&c->list, "image", file.data, file.len);
        data_write_ints(&c->list, "label", &label, 1);
        rc = data_writer_add(c->writer, &c->list, err);
    }
    buf_fini(&file);
    return rc;
}

/* In an order drawn from the seed, so that a part of the files is a part of every class. */
static int convert_images(struct convert *c, char **inputs, int n, struct err *err)
{
    struct pictures p = { .all = { NULL, 0, 0 } };
    int rc = n == 1 ? list_classes(&p, inputs[0], err)
                    : err_set(err, ERR_INPUT, "one folder of images at a time");

    for (size_t i = 0; rc == 0 && i < p.all.n; i++)
        rc = add_picture(c, &p.all.at[rng_permute(c->seed, 0, p.all.n, i)], err);
    if (rc == 0) {
        describe(c, "image", "uint8", "[3, 224, 224]", ", \"encoded\": true");
        describe(c, "label", "int64", "[]", "");
        for (size_t i = 0; i < p.classes.n; i++)
            printf("class %zu: %s\n", i, p.classes.at[i]);
    }
    for (size_t i = 0; i < p.all.n; i++)
        free(p.all.at[i].path);
    for (size_t i = 0; i < p.classes.n; i++)
        free(p.classes.at[i]);
    VEC_FINI(p.all);
    VEC_FINI(p.classes);
    return rc;
}

/* ---- the command ---- */

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);

    return n >= m && strcmp(s + n - m, end) == 0;
}

static int convert(struct convert *c, char **inputs, int n, struct err *err)
{
    uint64_t shards = 1;
    int rc;

    if (c->out == NULL)
        return err_set(err, ERR_INPUT, "--out PREFIX is missing: what the files begin with");
    if (c->shards_text != NULL && (!text_u64(c->shards_text, 1000, &shards) || shards == 0))
        return err_set(err, ERR_INPUT, "--shards: expected a number from 1 to 1000, found '%.40s'",
                       c->shards_text);
    if (c->seed_text != NULL && !text_u64(c->seed_text, UINT64_MAX, &c->seed))
        return err_set(err, ERR_INPUT, "--seed: expected a number, found '%.40s'", c->seed_text);
    if (c->delimiter != NULL && strlen(c->delimiter) != 1)
        return err_set(err, ERR_INPUT, "--delimiter: expected one character");
    rc = data_writer_open(c->out, (uint32_t)shards, &c->writer, err);
    if (rc < 0)
        return rc;
    if (is_folder(inputs[0]))
        rc = convert_images(c, inputs, n, err);
    else if (ends_with(inputs[0], ".npy"))
        rc = convert_arrays(c, inputs, n, err);
    else if (ends_with(inputs[0], ".csv"))
        rc = convert_csv(c, inputs, n, err);
    else
        rc = err_set(err, ERR_INPUT, "'%.200s': expected NAME=FILE.npy ..., FILE.csv or a folder",
                     inputs[0]);
    if (rc == 0)
        rc = data_writer_commit(c->writer, err);
    if (rc == 0)
        printf("%" PRIu64 " samples in %" PRIu64 " file%s %s-*.tfrecord\n\"features\": {\n%s\n}\n",
               data_writer_records(c->writer), shards, shards == 1 ? "" : "s", c->out,
               c->features.data != NULL ? c->features.data : "");
    data_writer_close(c->writer);
    return rc;
}

int ctl_convert(int argc, char **argv)
{
    struct convert c = { .out = NULL };
    const struct arg table[] = {
        { "out", "PREFIX", NULL, "files are PREFIX-00000-of-0000N.tfrecord", &c.out, NULL },
        { "shards", "N", NULL, "how many files; default: 1", &c.shards_text, NULL },
        { "label", "COLUMN", NULL, "CSV: this column is a feature, the others together are \"x\";\n"
                                   "default: each column is a feature", &c.label, NULL },
        { "no-header", NULL, NULL, "CSV: the first line is a sample; columns are 0, 1, 2 ...", NULL,
          &c.no_header },
        { "delimiter", "C", NULL, "CSV: between two fields; default: a comma", &c.delimiter, NULL },
        { "seed", "N", NULL, "images: from which their order is drawn; default: 0", &c.seed_text, NULL },
        { "help", NULL, NULL, "this text", NULL, &c.help },
    };
    struct err err;
    int rc = args_parse(table, COUNT_OF(table), &argc, argv, &err);

    if (rc == 0 && (c.help || argc < 2)) {
        fprintf(c.help ? stdout : stderr,
                "usage: trainerctl convert --out PREFIX [options] INPUT...\n\nWrites TFRecord files and says how a "
                "job describes their features. INPUT is one of\n  NAME=FILE.npy ...   arrays, the first dimension "
                "counts samples\n  FILE.csv            of numbers\n  FOLDER              with a folder of JPEG or PNG "
                "files for each class\n\n");
        args_help(table, COUNT_OF(table), c.help ? stdout : stderr);
        return c.help ? CTL_OK : CTL_USAGE;
    }
    if (rc == 0)
        rc = convert(&c, argv + 1, argc - 1, &err);
    buf_fini(&c.list);
    buf_fini(&c.features);
    if (rc < 0)
        fprintf(stderr, "trainerctl: %s\n", err.text);
    return ctl_exit_code(rc);
}
