/* csv.c - the CSV format as a source of records. Empty lines are ignored. A feature of n elements
 * uses n adjacent columns. */
#include "data/csv.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/err.h"
#include "base/file_kind.h"
#include "base/text.h"
#include "data/data_priv.h"

enum { LINE_BYTES_MAX = 64 << 20, HEADER_BYTES_MAX = 1 << 20, NUMBER_BYTES = 64 };

/* ---- where lines start ---- */

struct lines {
    uint64_t start;              /* offset of the current line */
    bool in_quotes, has_content; /* state of the current line */
    bool is_header;              /* the next line with content is the header */
};

static int end_line(struct data_scan *w, struct lines *l, uint64_t next, struct err *err)
{
    int rc = 0;

    if (l->has_content && !l->is_header)
        rc = data_scan_add(w, l->start, err);
    l->is_header = l->is_header && !l->has_content;
    l->has_content = false;
    l->start = next;
    return rc;
}

static int scan_block(struct data_scan *w, struct lines *l, const uint8_t *bytes, uint64_t n,
                      uint64_t at, struct err *err)
{
    int rc = 0;

    for (uint64_t i = 0; rc == 0 && i < n; i++) {
        uint8_t c = bytes[i];

        if (c == '\n' && !l->in_quotes) {
            rc = end_line(w, l, at + i + 1, err);
        } else {
            l->in_quotes ^= c == '"'; /* a doubled quote toggles twice */
            l->has_content = l->has_content || c != '\r';
        }
    }
    if (rc == 0 && at + n - l->start > LINE_BYTES_MAX) {
        err_set(err, ERR_INPUT, "a line of more than %d bytes: is a quote not closed?",
                LINE_BYTES_MAX);
        rc = data_scan_error(w, l->start, ERR_INPUT, err);
    }
    return rc;
}

int csv_check_text(const char *name, const void *head, size_t n, struct err *err)
{
    const struct file_kind *kind = file_kind_of(head, n);

    if (n >= 2 && (memcmp(head, "\xff\xfe", 2) == 0 || memcmp(head, "\xfe\xff", 2) == 0))
        return err_set(
            err, ERR_INPUT,
            "'%s' is text in UTF-16, expected a CSV file in UTF-8: save it as UTF-8: iconv -f UTF-16 -t UTF-8 FILE",
            name);
    return kind == NULL
               ? 0
               : err_set(err, ERR_INPUT, "'%s' is %s, expected a CSV file in UTF-8: %s", name,
                         kind->what, kind->remedy != NULL ? kind->remedy : "export it as CSV");
}

int csv_index(struct data_scan *w, struct err *err)
{
    struct lines l = { .is_header = w->s->columns.has_header };
    uint64_t at = 0, held = 0;
    const uint8_t *bytes;
    int rc = 0;

    for (; rc == 0 && at < w->f->bytes; at += held) {
        rc = data_scan_report(w, at, err);
        if (rc == 0)
            rc = data_scan_fetch(w, at, 1, DATA_BLOCK_BYTES, &bytes, &held, err);
        if (rc == 0 && at == 0)
            rc = csv_check_text(w->f->origin, bytes, held, err);
        if (rc == 0)
            rc = scan_block(w, &l, bytes, held, at, err);
        if (rc == 0)
            data_content_add(w->f->content, w->f->bytes, at, bytes, held);
    }
    if (rc == 0 && l.in_quotes) {
        err_set(err, ERR_INPUT, "unterminated quote: no closing quote up to the end of the file");
        rc = data_scan_error(w, l.start, ERR_INPUT, err);
    }
    if (rc == 0)
        rc = end_line(w, &l, at, err); /* the last line may have no newline */
    return rc < 0 ? rc : data_scan_add(w, at, err);
}

/* ---- fields ---- */

/* Parses the field at *at, without its quotes, and advances *at past its delimiter. false: it was
 * the last field. */
static bool next_field(const uint8_t **at, const uint8_t *end, char delimiter,
                       struct csv_field *field)
{
    const uint8_t *p = *at;

    if (p < end && *p == '"') {
        field->at = ++p;
        while (p < end && !(*p == '"' && (p + 1 == end || p[1] != '"')))
            p += *p == '"' ? 2 : 1;
        p = p < end ? p : end;
        field->n = (size_t)(p - field->at);
        while (p < end && *p != (uint8_t)delimiter && *p != '\n')
            p++;
    } else {
        field->at = p;
        while (p < end && *p != (uint8_t)delimiter && *p != '\n')
            p++;
        field->n = (size_t)(p - field->at);
        if (field->n > 0 && field->at[field->n - 1] == '\r')
            field->n--;
    }
    *at = p + (p < end);
    return p < end && *p == (uint8_t)delimiter;
}

size_t csv_line(const void *text, size_t n)
{
    const char *t = text;
    bool in_quotes = false;
    size_t i = 0;

    while (i < n && (t[i] != '\n' || in_quotes))
        in_quotes ^= t[i++] == '"'; /* a doubled quote toggles twice */
    return i < n ? i + 1 : n;
}

uint32_t csv_split(const void *line, size_t n, char delimiter, struct csv_field *fields,
                   uint32_t max)
{
    const uint8_t *at = line, *end = at + n;
    struct csv_field field;
    uint32_t n_fields = 0;
    bool more = true;

    while (more) {
        more = next_field(&at, end, delimiter, &field);
        if (n_fields < max)
            fields[n_fields] = field;
        n_fields++;
    }
    return n_fields;
}

/* ---- columns ---- */

static const char *column_of(const struct data_feature *f)
{
    return f->column != NULL ? f->column : f->name;
}

static int no_column(const struct data_file *f, const char *column, const struct csv_field *names,
                     uint32_t n, struct err *err)
{
    char copies[64][64], list[1024] = "";
    const char *near, *at[64] = { NULL };
    size_t used = 0;
    uint32_t shown = n < 64 ? n : 64;

    for (uint32_t i = 0; i < shown; i++) {
        snprintf(copies[i], sizeof(copies[i]), "%.*s", names[i].n < 60 ? (int)names[i].n : 60,
                 (const char *)names[i].at);
        at[i] = copies[i];
        if (i < 12 && used < sizeof(list))
            used += (size_t)snprintf(list + used, sizeof(list) - used, "%s'%s'", i > 0 ? ", " : "",
                                     copies[i]);
    }
    near = text_nearest(column, at, shown);
    return err_set(err, ERR_INPUT, "'%s' has no column '%s'%s%s%s; its %" PRIu32 " columns: %s%s",
                   f->origin, column, near != NULL ? " (did you mean '" : "",
                   near != NULL ? near : "", near != NULL ? "'?)" : "", n, list,
                   n > 12 ? ", ..." : "");
}

static int find_column(const struct data_set *s, const struct data_file *f, const char *column,
                       const struct csv_field *names, uint32_t n, uint32_t *out, struct err *err)
{
    uint64_t number;
    uint32_t found = n;

    for (uint32_t i = 0; s->columns.has_header && i < n; i++) {
        if (names[i].n != strlen(column) || memcmp(names[i].at, column, names[i].n) != 0)
            continue;
        if (found < n)
            return err_set(err, ERR_INPUT,
                           "'%s': columns %" PRIu32 " and %" PRIu32
                           " are both called '%s', expected a name of "
                           "one column: rename one of them",
                           f->origin, found, i, column);
        found = i;
    }
    if (s->columns.has_header && found == n)
        return no_column(f, column, names, n, err);
    *out = found;
    if (s->columns.has_header)
        return 0;
    if (!text_u64(column, UINT32_MAX, &number) || number >= n)
        return err_set(err, ERR_INPUT,
                       "'%s' has no header: expected a column index from 0 to %" PRIu32
                       ", found '%s'",
                       f->origin, n - 1, column);
    *out = (uint32_t)number;
    return 0;
}

/* Keeps the header of the first file. */
static int keep_header(struct data_set *s, const uint8_t *line, size_t n, struct err *err)
{
    char *copy = arena_alloc(&s->mem, n + 1);

    s->columns.names = arena_array(&s->mem, s->columns.n, sizeof(*s->columns.names));
    if (copy == NULL || s->columns.names == NULL)
        return err_set(err, ERR_NOMEM, "the header of a CSV file: out of memory");
    memcpy(copy, line, n);
    csv_split(copy, n, s->columns.delimiter, s->columns.names, s->columns.n);
    return 0;
}

/* Checks that the columns [first, first + n) of a feature have the names that they have in the first file: all but the
 * first are found by their position. */
static int same_names(const struct data_set *s, const struct data_file *f, uint32_t first, size_t n,
                      const struct csv_field *names, struct err *err)
{
    for (uint32_t i = first; i < first + n; i++) {
        const struct csv_field *a = &s->columns.names[i], *b = &names[i];

        if (a->n != b->n || memcmp(a->at, b->at, a->n) != 0)
            return err_set(err, ERR_INPUT,
                           "'%s' has other columns than '%s': column %" PRIu32
                           " is '%.*s', expected '%.*s': write all files of a set with the same columns in the same "
                           "order",
                           f->origin, s->files[0].origin, i, b->n < 60 ? (int)b->n : 60, (const char *)b->at,
                           a->n < 60 ? (int)a->n : 60, (const char *)a->at);
    }
    return 0;
}

/* Finds the columns of each feature from the first line of a file, and checks that they are the
 * same as in the earlier files. */
static int resolve(struct data_set *s, const struct data_file *f, const uint8_t *line, size_t n,
                   struct err *err)
{
    uint32_t n_columns = csv_split(line, n, s->columns.delimiter, NULL, 0);
    struct csv_field *names = calloc(n_columns, sizeof(*names));
    bool is_first = s->columns.n == 0;
    int rc = 0;

    if (names == NULL)
        return err_set(err, ERR_NOMEM, "'%s': out of memory", f->origin);
    csv_split(line, n, s->columns.delimiter, names, n_columns);
    for (uint32_t i = 0; rc == 0 && i < s->n_features; i++) {
        const char *column = column_of(&s->features[i]);
        uint32_t at = 0;

        if (s->features[i].derived != DATA_STORED)
            continue;
        rc = find_column(s, f, column, names, n_columns, &at, err);
        if (rc == 0 && s->layout.elements[i] > n_columns - at)
            rc = err_set(
                err, ERR_INPUT, "'%s': feature '%s' needs %zu columns from '%s' on, found %" PRIu32,
                f->origin, s->features[i].name, s->layout.elements[i], column, n_columns - at);
        if (rc == 0 && !is_first && (s->columns.first[i] != at || s->columns.n != n_columns))
            rc = err_set(
                err, ERR_INPUT,
                "'%s' has other columns than '%s': all files of a set must have the same columns",
                f->origin, s->files[0].origin);
        if (rc == 0 && !is_first && s->columns.has_header)
            rc = same_names(s, f, at, s->layout.elements[i], names, err);
        s->columns.first[i] = at;
    }
    s->columns.n = n_columns;
    if (rc == 0 && is_first && s->columns.has_header)
        rc = keep_header(s, line, n, err);
    free(names);
    return rc;
}

/* Resolves the columns with the first line of a file: the header, or without a header the first
 * record. */
static int resolve_file(struct data_set *s, struct data_file *f, struct err *err)
{
    uint64_t from = 0, to = 0, bytes;
    bool is_temporary = !f->pinned;
    int64_t mtime_ns;
    uint8_t *line;
    int fd, rc;

    if (f->n_records == 0 && !s->columns.has_header)
        return 0;
    if (s->columns.has_header) /* the header of a file without records is checked too */
        to = f->starts[0];
    else
        data_record_range(f, 0, &from, &to);
    if (to - from > HEADER_BYTES_MAX)
        return err_set(err, ERR_INPUT, "'%s': the first line has more than %d bytes", f->origin,
                       HEADER_BYTES_MAX);
    fd = is_temporary ? data_file_open(f->path, &bytes, &mtime_ns, err) : atomic_load(&f->fd);
    if (fd < 0)
        return fd;
    line = malloc(to - from + 1);
    rc = line == NULL ? err_set(err, ERR_NOMEM, "'%s': out of memory", f->origin)
                      : data_file_read(fd, f->path, line, to - from, from, err);
    if (is_temporary)
        close(fd);
    if (rc == 0) { /* skips a byte order mark and empty lines */
        const uint8_t *at = line, *end = line + (to - from);

        if (end - at >= 3 && memcmp(at, "\xef\xbb\xbf", 3) == 0)
            at += 3;
        while (at < end && (*at == '\n' || *at == '\r'))
            at++;
        if (at < end || f->n_records > 0)
            rc = resolve(s, f, at, (size_t)(end - at), err);
    }
    free(line);
    return rc;
}

int csv_finish(struct data_set *s, struct err *err)
{
    int rc = 0;

    s->columns.first = arena_array(&s->mem, s->n_features, sizeof(*s->columns.first));
    if (s->columns.first == NULL)
        return err_set(err, ERR_NOMEM, "features: out of memory");
    for (uint32_t i = 0; rc == 0 && i < s->n_files; i++)
        rc = resolve_file(s, &s->files[i], err);
    return rc;
}

/* ---- values ---- */

static int not_a_number(const struct data_feature *f, const struct csv_field *field, size_t i,
                        const char *expected, struct err *err)
{
    return err_set(err, ERR_INPUT, "feature '%s': value %zu is '%.*s', expected %s", f->name, i,
                   field->n < 40 ? (int)field->n : 40, (const char *)field->at, expected);
}

static int parse_float(const struct data_feature *f, const struct csv_field *field,
                       const char *text, size_t i, uint8_t *room, struct err *err)
{
    char *end;
    float x = strtof(text, &end); /* correctly rounded, therefore the same on all hosts */

    if (*end != '\0')
        return not_a_number(f, field, i, "a number", err);
    memcpy(room + 4 * i, &x, 4);
    return 0;
}

static int parse_integer(const struct data_feature *f, const struct csv_field *field,
                         const char *text, size_t i, uint8_t *room, struct err *err)
{
    char *end;
    long long x;
    int32_t narrow;

    errno = 0;
    x = strtoll(text, &end, 10);
    if (*end != '\0' || errno != 0)
        return not_a_number(f, field, i, "an integer", err);
    narrow = (int32_t)x;
    if (f->stored == TENSOR_U8 && (x < 0 || x > 255))
        return not_a_number(f, field, i, "an integer from 0 to 255", err);
    if (f->stored == TENSOR_I32 && narrow != x)
        return not_a_number(f, field, i, "an int32", err);
    if (f->stored == TENSOR_U8)
        room[i] = (uint8_t)x;
    else if (f->stored == TENSOR_I32)
        memcpy(room + 4 * i, &narrow, 4);
    else
        memcpy(room + 8 * i, &(int64_t){ x }, 8);
    return 0;
}

static int parse_value(const struct data_feature *f, const struct csv_field *field, size_t i,
                       uint8_t *room, struct err *err)
{
    const uint8_t *at = field->at, *end = field->at + field->n;
    char text[NUMBER_BYTES];

    while (at < end && (*at == ' ' || *at == '\t'))
        at++;
    while (end > at && (end[-1] == ' ' || end[-1] == '\t'))
        end--;
    if (at == end || (size_t)(end - at) >= sizeof(text))
        return not_a_number(f, field, i, "a number", err);
    if (memchr(at, '\0', (size_t)(end - at)) != NULL) /* strtof() would stop at the NUL */
        return err_set(err, ERR_INPUT,
                       "feature '%s': value %zu contains a NUL byte, expected a number: is the "
                       "file UTF-8 text?",
                       f->name, i);
    memcpy(text, at, (size_t)(end - at));
    text[end - at] = '\0';
    return (f->stored == TENSOR_F32 ? parse_float : parse_integer)(f, field, text, i, room, err);
}

/* Reads the fields of feature i: with `pad`, up to the first empty field; else all. */
static int read_feature(struct data_decoder *d, uint32_t i, struct err *err)
{
    const struct data_set *s = d->s;
    const struct data_feature *f = &s->features[i];
    uint8_t *room = d->room + s->layout.stored_at[i];
    size_t n = 0;

    for (; n < s->layout.elements[i]; n++) {
        const struct csv_field *field = &d->fields[s->columns.first[i] + n];
        int rc;

        if (field->n == 0 && f->pad)
            break;
        rc = parse_value(f, field, n, room, err);
        if (rc < 0)
            return rc;
    }
    d->counts[i] = n;
    d->stored[i] = room;
    return 0;
}

int csv_parse(struct data_decoder *d, uint32_t member, const uint8_t *bytes, size_t n,
              struct err *err)
{
    const struct data_set *s = d->s;
    uint32_t n_fields;
    int rc = 0;

    (void)member;
    n_fields = csv_split(bytes, n, s->columns.delimiter, d->fields, s->columns.n);
    if (n_fields != s->columns.n)
        return err_set(err, ERR_INPUT, "a line of %" PRIu32 " fields, expected %" PRIu32, n_fields,
                       s->columns.n);
    for (uint32_t i = 0; rc == 0 && i < s->n_features; i++)
        if (s->features[i].derived == DATA_STORED)
            rc = read_feature(d, i, err);
    return rc;
}
