/* files.c - finds the files of a set and numbers its records. */
#include <errno.h>
#include <glob.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/mapping.h"
#include "base/text.h"
#include "base/vec.h"
#include "data/data_priv.h"

#define FEATURE_MARK "{feature}"

struct found { /* paths of one pattern */
    char **at; /* owned, with the strings */
    size_t n;
};

static void free_found(struct found *f)
{
    for (size_t i = 0; i < f->n; i++)
        free(f->at[i]);
    free(f->at);
    *f = (struct found){ 0 };
}

static int by_path(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int copy_paths(struct found *out, const glob_t *g, struct err *err)
{
    out->at = calloc(g->gl_pathc, sizeof(*out->at));
    for (size_t i = 0; out->at != NULL && i < g->gl_pathc; i++) {
        out->at[i] = strdup(g->gl_pathv[i]);
        if (out->at[i] == NULL)
            break;
        out->n++;
    }
    if (out->n < g->gl_pathc) {
        free_found(out);
        return err_set(err, ERR_NOMEM, "out of memory for %zu files", g->gl_pathc);
    }
    /* Not the order of glob(3), which depends on the locale: all tasks need the same order. */
    qsort(out->at, out->n, sizeof(*out->at), by_path);
    return 0;
}

/* A file whose name is the pattern, such as "part[1].csv", is meant itself. */
static int find_literal(const char *pattern, struct found *out, struct err *err)
{
    char *path = strdup(pattern);

    if (path != NULL)
        text_unquote_pattern(path);
    if (path != NULL && access(path, F_OK) != 0) {
        free(path);
        return 0;
    }
    out->at = path != NULL ? calloc(1, sizeof(*out->at)) : NULL;
    if (out->at == NULL) {
        free(path);
        return err_set(err, ERR_NOMEM, "find '%s': out of memory", pattern);
    }
    out->at[0] = path;
    out->n = 1;
    return 0;
}

static int find(const char *pattern, struct found *out, struct err *err)
{
    glob_t g;
    int rc = find_literal(pattern, out, err);

    if (rc < 0 || out->n > 0)
        return rc;
    errno = 0;
    rc = glob(pattern, GLOB_ERR | GLOB_NOSORT, NULL, &g);
    if (rc == 0)
        rc = copy_paths(out, &g, err);
    else if (rc == GLOB_NOMATCH)
        rc = err_set(err, ERR_NOENT, "no file matches '%s'", pattern);
    else if (rc == GLOB_NOSPACE)
        rc = err_set(err, ERR_NOMEM, "find '%s': out of memory", pattern);
    else
        rc = err_sys(err, errno != 0 ? errno : EIO, "find '%s'", pattern);
    if (rc == 0)
        rc = data_check_shards(pattern, out->at, out->n, err);
    globfree(&g);
    return rc;
}

/* Finds the .npy files of one feature. */
static int find_member(const char *pattern, const char *feature, struct found *out, struct err *err)
{
    const char *mark = strstr(pattern, FEATURE_MARK);
    char *quoted = malloc(2 * strlen(feature) + 1);
    struct buf b = { 0 };
    int rc;

    if (quoted == NULL)
        return err_set(err, ERR_NOMEM, "find '%s': out of memory", pattern);
    text_quote_pattern(feature, quoted);
    if (mark != NULL) {
        buf_add(&b, pattern, (size_t)(mark - pattern));
        buf_str(&b, quoted);
        buf_str(&b, mark + strlen(FEATURE_MARK));
    }
    if (mark == NULL)
        rc = err_set(err, ERR_INPUT,
                     "'%s': each feature has its own .npy file: write %s in place of its name",
                     pattern, FEATURE_MARK);
    else if (b.failed)
        rc = err_set(err, ERR_NOMEM, "find '%s': out of memory", pattern);
    else
        rc = find(b.data, out, err);
    buf_fini(&b);
    free(quoted);
    return rc;
}

static int add_files(struct data_set *s, struct found *members, struct err *err)
{
    size_t n = members[0].n * s->n_members;
    struct data_file *files;

    if (n > UINT32_MAX - 1 - s->n_files)
        return err_set(err, ERR_INPUT, "more than 2^32 files");
    files = realloc(s->files, (s->n_files + n) * sizeof(*files));
    if (files == NULL)
        return err_set(err, ERR_NOMEM, "out of memory for %zu files", n);
    s->files = files;
    for (size_t i = 0; i < n; i++) {
        struct data_file *f = &files[s->n_files];

        *f = (struct data_file){ .n_records = 0 };
        atomic_init(&f->fd, -1);
        f->origin = strdup(members[i % s->n_members].at[i / s->n_members]);
        f->path = f->origin != NULL ? strdup(f->origin) : NULL;
        s->n_files++;
        if (f->path == NULL)
            return err_set(err, ERR_NOMEM, "out of memory for %zu files", n);
    }
    return 0;
}

static int find_part(struct data_set *s, const char *pattern, struct err *err)
{
    struct found *members = calloc(s->n_members, sizeof(*members));
    int rc = 0;

    if (members == NULL)
        return err_set(err, ERR_NOMEM, "find '%s': out of memory", pattern);
    for (uint32_t m = 0; rc == 0 && m < s->n_members; m++) {
        if (s->source->has_members)
            rc = find_member(pattern, s->features[m].name, &members[m], err);
        else
            rc = find(pattern, &members[m], err);
        if (rc == 0 && members[m].n != members[0].n)
            rc = err_set(err, ERR_INPUT,
                         "'%s' matches %zu files for feature '%s' and %zu for '%s': expected equal "
                         "numbers",
                         pattern, members[0].n, s->features[0].name, members[m].n,
                         s->features[m].name);
    }
    if (rc == 0)
        rc = add_files(s, members, err);
    for (uint32_t m = 0; m < s->n_members; m++)
        free_found(&members[m]);
    free(members);
    return rc;
}

int data_find_files(struct data_set *s, const struct data_opts *opts, struct err *err)
{
    const struct data_part whole = { .glob = opts->glob, .weight = 1 };
    const struct data_part *parts = opts->origin.n_parts > 0 ? opts->origin.parts : &whole;
    int rc = 0;

    s->n_parts = opts->origin.n_parts > 0 ? opts->origin.n_parts : 1;
    s->parts = calloc(s->n_parts, sizeof(*s->parts));
    if (s->parts == NULL)
        return err_set(err, ERR_NOMEM, "data set: out of memory");
    for (uint32_t i = 0; rc == 0 && i < s->n_parts; i++) {
        CHECK(parts[i].weight > 0);
        s->parts[i].weight = parts[i].weight;
        rc = find_part(s, parts[i].glob, err);
        s->parts[i].n = s->n_files; /* until number_part(): the end of the part's files */
    }
    return rc;
}

int data_each_path(const struct data_opts *opts,
                   int (*visit)(void *arg, const char *path, struct err *err), void *arg,
                   struct err *err)
{
    struct data_set s = { .source = data_source_of(opts->origin.format) };
    int rc = 0;

    s.n_members = s.source->has_members ? opts->n_features : 1;
    s.features = (struct data_feature *)(uintptr_t)opts->features; /* only the names are read */
    if (data_find_files(&s, opts, NULL) == 0)
        for (uint32_t i = 0; rc == 0 && i < s.n_files; i++)
            rc = visit(arg, s.files[i].origin, err);
    data_free_files(&s);
    return rc;
}

/* Checks that all arrays of a group have the same number of items. */
static int check_members(const struct data_set *s, uint32_t file, struct err *err)
{
    const struct data_file *f = &s->files[file];

    for (uint32_t m = 1; m < s->n_members; m++)
        if (f[m].n_records != f->n_records)
            return err_set(err, ERR_INPUT,
                           "'%s' has %" PRIu64 " items and '%s' has %" PRIu64
                           ": expected equal numbers, one item per sample",
                           f->origin, f->n_records, f[m].origin, f[m].n_records);
    return 0;
}

static int number_part(struct data_set *s, struct data_order_part *part, uint32_t *file,
                       struct buf *text, struct err *err)
{
    uint32_t end = (uint32_t)part->n, begin = *file;
    size_t at;

    part->first = s->n_records;
    for (; *file < end; *file += s->n_members) {
        int rc = check_members(s, *file, err);

        if (rc < 0)
            return rc;
        for (uint32_t m = 0; m < s->n_members; m++) {
            struct data_file *f = &s->files[*file + m];
            const char *slash = strrchr(f->origin, '/');

            if (m > 0)
                f->n_records = 0; /* only the first member of a group counts records */
            f->first = s->n_records;
            s->n_records += f->n_records;
            at = text->len;
            buf_json(text, slash != NULL ? slash + 1 : f->origin);
            buf_printf(text, " %" PRIu64 " %" PRIu64 "\n", f->origin_bytes, f->n_records);
            if (!text->failed)
                f->content[0] = crc32c(f->content[0], text->data + at, text->len - at);
        }
    }
    part->n = s->n_records - part->first;
    if (part->n == 0)
        return err_set(err, ERR_INPUT, "the %" PRIu32 " files from '%s' on contain no record",
                       end - begin, s->files[begin].origin);
    return 0;
}

int data_number_records(struct data_set *s, struct err *err)
{
    struct buf text = { 0 };
    uint8_t digest[DIGEST_BYTES];
    uint32_t file = 0;
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < s->n_parts; i++) {
        if (s->n_parts > 1)
            buf_printf(&text, "weight %" PRIu32 "\n", s->parts[i].weight);
        rc = number_part(s, &s->parts[i], &file, &text, err);
    }
    if (rc == 0 && text.failed)
        rc = err_set(err, ERR_NOMEM, "data digest: out of memory");
    if (rc == 0) {
        digest_sha256(text.data, text.len, digest);
        digest_hex(digest, s->digest);
    }
    buf_fini(&text);
    return rc;
}

void data_free_files(struct data_set *s)
{
    for (uint32_t i = 0; i < s->n_files; i++) {
        data_file_close(&s->files[i]);
        mapping_free(s->files[i].mapping, s->files[i].bytes);
        free(s->files[i].origin);
        free(s->files[i].path);
        free(s->files[i].starts);
    }
    free(s->files);
    free(s->parts);
}
