/* set.c - the files of a glob as one numbered set of records. */
#include <errno.h>
#include <glob.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/text.h"
#include "data/data_priv.h"
#include "data/order.h"

/* ---- features ---- */

static int bad_feature(const struct data_feature *f, struct err *err, const char *what)
{
    char shape[160];

    return err_set(err, ERR_INPUT, "feature '%s' (%s %s, fed as %s): %s", f->name,
                   tensor_dtype_name(f->stored), shape_print(&f->shape, shape, sizeof(shape)),
                   tensor_dtype_name(f->fed), what);
}

static int check_feature(const struct data_feature *f, int64_t elements, struct err *err)
{
    if (f->name == NULL || f->name[0] == '\0')
        return err_set(err, ERR_INPUT, "a feature without a name");
    if (data_convert_find(f->stored, f->fed) == NULL)
        return bad_feature(f, err,
                           "no such conversion; float32 stays float32, integers may "
                           "become float32, int32 or int64");
    /* A record has at most DATA_RECORD_BYTES_MAX bytes, and no value less than one of them. */
    if (elements < 1 || elements > DATA_RECORD_BYTES_MAX)
        return bad_feature(f, err, "expected between 1 and 2^30 elements");
    if (f->fed == TENSOR_F32 && !(isfinite((float)f->scale) && isfinite((float)f->offset)))
        return bad_feature(f, err, "scale and offset must be finite floats");
    if (f->fed != TENSOR_F32 && (f->scale != 1 || f->offset != 0) &&
        (f->scale != 0 || f->offset != 0))
        return bad_feature(f, err, "scale and offset need a float32 input");
    return 0;
}

static int copy_features(struct data_set *s, const struct data_opts *opts, struct err *err)
{
    uint32_t n = opts->n_features;

    CHECK(n > 0);
    s->n_features = n;
    s->features = arena_array(&s->mem, n, sizeof(*s->features));
    s->elements = arena_array(&s->mem, n, sizeof(*s->elements));
    s->stored_at = arena_array(&s->mem, n, sizeof(*s->stored_at));
    s->fed_bytes = arena_array(&s->mem, n, sizeof(*s->fed_bytes));
    if (s->features == NULL || s->elements == NULL || s->stored_at == NULL || s->fed_bytes == NULL)
        return err_set(err, ERR_NOMEM, "features: out of memory");
    for (uint32_t i = 0; i < n; i++) {
        struct data_feature *f = &s->features[i];
        int64_t elements = shape_elements(&opts->features[i].shape);

        if (check_feature(&opts->features[i], elements, err) < 0)
            return ERR_INPUT;
        *f = opts->features[i];
        f->name = arena_strdup(&s->mem, f->name);
        if (f->name == NULL)
            return err_set(err, ERR_NOMEM, "features: out of memory");
        s->elements[i] = (size_t)elements;
        s->fed_bytes[i] = s->elements[i] * tensor_dtype_bytes(f->fed);
        s->stored_at[i] = s->stored_bytes;
        s->stored_bytes += (s->elements[i] * tensor_dtype_bytes(f->stored) + 7) & ~(size_t)7;
    }
    return 0;
}

/* ---- files ---- */

static int by_path(const void *a, const void *b)
{
    const struct data_file *x = a, *y = b;

    return strcmp(x->path, y->path);
}

static int take_files(struct data_set *s, const glob_t *g, struct err *err)
{
    s->files = calloc(g->gl_pathc, sizeof(*s->files));
    if (s->files == NULL)
        return err_set(err, ERR_NOMEM, "out of memory for %zu files", g->gl_pathc);
    for (size_t i = 0; i < g->gl_pathc; i++) {
        s->files[i].path = strdup(g->gl_pathv[i]);
        atomic_init(&s->files[i].fd, -1);
        s->n_files++;
        if (s->files[i].path == NULL)
            return err_set(err, ERR_NOMEM, "out of memory for %zu files", g->gl_pathc);
    }
    /* glob(3) sorts by the locale; every task must find the same order. */
    qsort(s->files, s->n_files, sizeof(*s->files), by_path);
    return 0;
}

static int find_files(struct data_set *s, const char *pattern, struct err *err)
{
    glob_t g;
    int rc;

    errno = 0;
    rc = glob(pattern, GLOB_ERR | GLOB_NOSORT, NULL, &g);
    if (rc == 0)
        rc = take_files(s, &g, err);
    else if (rc == GLOB_NOMATCH)
        rc = err_set(err, ERR_NOENT, "no file matches '%s'", pattern);
    else if (rc == GLOB_NOSPACE)
        rc = err_set(err, ERR_NOMEM, "find '%s': out of memory", pattern);
    else
        rc = err_sys(err, errno != 0 ? errno : EIO, "find '%s'", pattern);
    globfree(&g);
    return rc;
}

/* Half of what the process may open, so that sockets and checkpoints never lack. */
static uint32_t open_max(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur / 2 > 65536)
        return 65536;
    return (uint32_t)(limit.rlim_cur / 2);
}

static int number_records(struct data_set *s, const char *pattern, struct err *err)
{
    struct buf text = { 0 };
    uint8_t digest[DIGEST_BYTES];

    for (uint32_t i = 0; i < s->n_files; i++) {
        struct data_file *f = &s->files[i];
        const char *slash = strrchr(f->path, '/');

        f->first = s->n_records;
        s->n_records += f->n_records;
        buf_json(&text, slash != NULL ? slash + 1 : f->path);
        buf_printf(&text, " %" PRIu64 " %" PRIu64 "\n", f->bytes, f->n_records);
    }
    digest_sha256(text.data, text.len, digest);
    digest_hex(digest, s->digest);
    buf_fini(&text);
    if (text.failed)
        return err_set(err, ERR_NOMEM, "data digest: out of memory");
    if (s->n_records == 0)
        return err_set(err, ERR_INPUT, "the %" PRIu32 " files of '%s' hold no record", s->n_files,
                       pattern);
    return 0;
}

static int make_cache(struct data_set *s, struct err *err)
{
    uint64_t machine = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    char need[32], have[32];
    size_t bytes;

    if (__builtin_mul_overflow(s->n_records, s->stored_bytes + 1, &bytes))
        bytes = SIZE_MAX;
    if (bytes <= machine) { /* pages are taken as samples come */
        s->cache = calloc(s->n_records, s->stored_bytes);
        s->cached = calloc(s->n_records, sizeof(*s->cached));
        if (s->cache != NULL && s->cached != NULL)
            return 0;
    }
    text_bytes(need, sizeof(need), bytes);
    text_bytes(have, sizeof(have), machine);
    return err_set(err, ERR_NOMEM,
                   "%" PRIu64 " samples of %zu bytes need %s of memory, and this machine has %s: "
                   "do not cache them",
                   s->n_records, s->stored_bytes, need, have);
}

/* ---- the set ---- */

int data_open(const struct data_opts *opts, struct data_set **out, struct err *err)
{
    struct data_set *s = calloc(1, sizeof(*s));
    int rc;

    if (s == NULL)
        return err_set(err, ERR_NOMEM, "data set: out of memory");
    s->open_max = open_max();
    rc = copy_features(s, opts, err);
    if (rc == 0)
        rc = find_files(s, opts->glob, err);
    if (rc == 0)
        rc = data_index(opts, s->files, s->n_files, err);
    if (rc == 0)
        rc = number_records(s, opts->glob, err);
    if (rc == 0 && opts->cache_memory)
        rc = make_cache(s, err);
    if (rc < 0) {
        data_free(s);
        return rc;
    }
    *out = s;
    return 0;
}

void data_free(struct data_set *s)
{
    if (s == NULL)
        return;
    for (uint32_t i = 0; i < s->n_files; i++) {
        data_file_close(&s->files[i]);
        free(s->files[i].path);
        free(s->files[i].starts);
    }
    free(s->files);
    free(s->cache);
    free(s->cached);
    arena_fini(&s->mem);
    free(s);
}

uint64_t data_records(const struct data_set *s)
{
    return s->n_records;
}

uint32_t data_files(const struct data_set *s)
{
    return s->n_files;
}

const char *data_digest(const struct data_set *s)
{
    return s->digest;
}

uint64_t data_steps_per_epoch(const struct data_set *s, uint32_t global_batch, bool pad)
{
    struct data_order order = {
        .n = s->n_records, .global_batch = global_batch, .lanes = 1, .pad = pad
    };

    return data_order_steps(&order);
}

int data_sample(struct data_set *s, uint64_t record, void *const *out, struct err *err)
{
    struct data_decoder *d;
    int rc;

    CHECK(record < s->n_records);
    rc = data_decoder_new(s, &d, err);
    if (rc < 0)
        return rc;
    rc = data_decode(d, record, 1, out, 0, err);
    data_decoder_free(d);
    return rc;
}

int data_thread_start(pthread_t *thread, void *(*run)(void *), void *arg, struct err *err)
{
    sigset_t all, before;
    int errnum;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    errnum = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return errnum != 0 ? err_sys(err, errnum, "start a thread") : 0;
}
