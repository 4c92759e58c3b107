/* ctl_convert_table.c - converts CSV files, concatenated to one table of numbers. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/fs.h"
#include "daemon/ctl_convert.h"
#include "data/csv.h"
#include "data/write.h"

enum { COLUMNS_MAX = 65536, NAME_MAX_BYTES = 120 };

struct table {
    struct buf text;              /* content of the current file */
    bool is_header;               /* the next line is the header of the file */
    struct csv_field *fields;     /* [COLUMNS_MAX] owned */
    char (*names)[NAME_MAX_BYTES + 1];           /* [n_columns] owned */
    /* [n_columns] owned; true: at least one value is not an integer */
    bool *is_float;
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

/* Calls `each` for every non-empty line of a file. */
static int each_line(struct convert *c, struct table *t, const char *path,
                     int (*each)(struct convert *c, struct table *t, struct err *err),
                     struct err *err)
{
    char delimiter = c->delimiter != NULL ? c->delimiter[0] : ',';
    uint64_t line = 0;
    size_t at = 0;
    int rc;

    buf_reset(&t->text);
    rc = fs_read(path, CONVERT_FILE_BYTES_MAX, &t->text, err);
    if (rc == 0)
        rc = csv_check_text(path, t->text.data, t->text.len, err);
    t->is_header = !c->no_header;
    if (rc == 0 && t->text.len >= 3 && memcmp(t->text.data, "\xef\xbb\xbf", 3) == 0)
        at = 3; /* skip a byte order mark */
    while (rc == 0 && at < t->text.len) {
        size_t n = csv_line(t->text.data + at, t->text.len - at);
        uint32_t n_fields;

        line++;
        if (n > 0 && t->text.data[at] != '\n' && t->text.data[at] != '\r') {
            n_fields = csv_split(t->text.data + at, n, delimiter, t->fields, COLUMNS_MAX);
            if (t->n_columns == 0 && n_fields <= COLUMNS_MAX)
                t->n_columns = n_fields;
            rc = n_fields != t->n_columns
                     ? err_set(err, ERR_INPUT, "%" PRIu32 " fields, expected %" PRIu32, n_fields,
                               t->n_columns)
                     : each(c, t, err);
            t->is_header = false;
            if (rc < 0)
                rc = err_wrap(err, rc, "'%s': line %" PRIu64, path, line);
        }
        at += n;
    }
    return rc;
}

static int each_file(struct convert *c, struct table *t,
                     int (*each)(struct convert *c, struct table *t, struct err *err),
                     struct err *err)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < c->inputs.n; i++)
        rc = each_line(c, t, c->inputs.at[i].path, each, err);
    return rc;
}

static int set_names(struct table *t, bool has_header, struct err *err)
{
    t->names = calloc(t->n_columns, sizeof(*t->names));
    t->is_float = calloc(t->n_columns, sizeof(*t->is_float));
    if (t->names == NULL || t->is_float == NULL)
        return err_set(err, ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < t->n_columns; i++)
        if (has_header)
            snprintf(t->names[i], sizeof(t->names[i]), "%.*s",
                     (int)(t->fields[i].n < NAME_MAX_BYTES ? t->fields[i].n : NAME_MAX_BYTES),
                     (const char *)t->fields[i].at);
        else
            snprintf(t->names[i], sizeof(t->names[i]), "%" PRIu32, i);
    return 0;
}

/* Checks that the header equals that of the first file. */
static int check_names(const struct table *t, struct err *err)
{
    for (uint32_t i = 0; i < t->n_columns; i++) {
        size_t n = t->fields[i].n < NAME_MAX_BYTES ? t->fields[i].n : NAME_MAX_BYTES;

        if (strlen(t->names[i]) != n || memcmp(t->names[i], t->fields[i].at, n) != 0)
            return err_set(err, ERR_INPUT,
                           "column %" PRIu32 " is '%.*s', expected '%s' as in the first file", i,
                           (int)n, (const char *)t->fields[i].at, t->names[i]);
    }
    return 0;
}

/* First pass: collects the column names and which columns contain only integers. */
static int survey_line(struct convert *c, struct table *t, struct err *err)
{
    bool is_first = t->names == NULL, integer;
    int64_t i64;
    double x;
    int rc = is_first ? set_names(t, !c->no_header, err) : 0;

    if (rc == 0 && t->is_header && !is_first)
        rc = check_names(t, err);
    if (rc < 0 || t->is_header)
        return rc;
    for (uint32_t i = 0; i < t->n_columns; i++) {
        if (!number_of(&t->fields[i], &x, &i64, &integer))
            return err_set(
                err, ERR_INPUT,
                "column '%s' is '%.*s', expected a number: write a number for each word, classes from 0 on, or remove the column",
                t->names[i], (int)(t->fields[i].n < 40 ? t->fields[i].n : 40),
                (const char *)t->fields[i].at);
        t->is_float[i] = t->is_float[i] || !integer;
    }
    return 0;
}

/* Second pass: writes a line as a sample. With --label the other columns form one list, `x`. */
static int write_line(struct convert *c, struct table *t, struct err *err)
{
    float *x = NULL;
    size_t n = 0;

    if (t->is_header)
        return 0;
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

        /* survey_line() has accepted every value */
        (void)number_of(&t->fields[i], &f64, &i64, &integer);
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
            convert_describe(c, t->names[i], t->is_float[i] ? "float32" : "int64", "[]", "");
    }
    if (c->label != NULL && !found)
        return err_set(err, ERR_INPUT, "--label: there is no column '%.80s'", c->label);
    if (c->label != NULL && t->n_columns > 1)
        convert_describe(c, "x", "float32", shape, "");
    return 0;
}

int convert_tables(struct convert *c, struct err *err)
{
    struct table t = { .n_columns = 0 };
    int rc = 0;

    t.fields = calloc(COLUMNS_MAX, sizeof(*t.fields));
    if (t.fields == NULL)
        return err_set(err, ERR_NOMEM, "out of memory");
    rc = each_file(c, &t, survey_line, err);
    if (rc == 0 && t.names == NULL)
        rc = err_set(err, ERR_INPUT, "'%s' is empty", c->inputs.at[0].path);
    if (rc == 0)
        rc = describe_table(c, &t, err);
    if (rc == 0)
        rc = each_file(c, &t, write_line, err);
    buf_fini(&t.text);
    free(t.fields);
    free(t.names);
    free(t.is_float);
    return rc;
}
