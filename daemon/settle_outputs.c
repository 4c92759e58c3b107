/* settle_outputs.c - refuses an output that would replace something: what is no regular file, a file that the job
 * reads, another output. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/err.h"
#include "base/fs.h"
#include "daemon/settle.h"
#include "data/data.h"

struct output {
    const char *key, *path; /* borrowed; path NULL: not written */
    bool exists;
    struct stat st; /* valid if it exists */
};

enum { N_OUTPUTS = 4 };

struct outputs {
    struct output at[N_OUTPUTS];
    const char *key; /* of the data files that are compared */
};

static bool is_same(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

static const char *kind(mode_t mode)
{
    return S_ISDIR(mode)    ? "a folder"
           : S_ISFIFO(mode) ? "a FIFO"
           : S_ISSOCK(mode) ? "a socket"
                            : "a device";
}

static int find_output(struct output *o, struct err *err)
{
    o->exists = o->path != NULL && stat(o->path, &o->st) == 0; /* else outputs_check() tries the place */
    if (!o->exists || S_ISREG(o->st.st_mode))
        return 0;
    return err_set(err, ERR_INPUT,
                   "%s: '%s' is %s; expected the name of a file; name a file that does not exist, or a regular file that "
                   "may be replaced",
                   o->key, o->path, kind(o->st.st_mode));
}

/* The paths of two files that do not exist: returns 1 if they name the same place, else 0. Errors: ERR_NOMEM. */
static int is_same_place(const char *a, const char *b, struct err *err)
{
    const char *a_name = strrchr(a, '/'), *b_name = strrchr(b, '/');
    char *a_folder = fs_dirname(a), *b_folder = fs_dirname(b);
    struct stat a_st, b_st;
    int rc;

    if (a_folder == NULL || b_folder == NULL)
        rc = err_set(err, ERR_NOMEM, "outputs: out of memory");
    else
        rc = strcmp(a_name != NULL ? a_name + 1 : a, b_name != NULL ? b_name + 1 : b) == 0 &&
             (strcmp(a_folder, b_folder) == 0 ||
              (stat(a_folder, &a_st) == 0 && stat(b_folder, &b_st) == 0 && is_same(&a_st, &b_st)));
    free(a_folder);
    free(b_folder);
    return rc;
}

static int refuse(const struct output *o, const char *key, struct err *err)
{
    return err_set(err, ERR_INPUT,
                   "%s: '%s' is the same file as %s, which it would overwrite: name another file",
                   o->key, o->path, key);
}

static int compare_outputs(const struct outputs *o, struct err *err)
{
    for (uint32_t i = 0; i < N_OUTPUTS; i++)
        for (uint32_t k = 0; k < i; k++) {
            const struct output *a = &o->at[i], *b = &o->at[k];
            int rc;

            if (a->path == NULL || b->path == NULL || a->exists != b->exists)
                continue;
            rc = a->exists ? is_same(&a->st, &b->st) : is_same_place(a->path, b->path, err);
            if (rc != 0)
                return rc < 0 ? rc : refuse(a, b->key, err);
        }
    return 0;
}

static int compare(const struct outputs *o, const char *key, const struct stat *st, struct err *err)
{
    for (uint32_t i = 0; i < N_OUTPUTS; i++)
        if (o->at[i].exists && is_same(&o->at[i].st, st))
            return refuse(&o->at[i], key, err);
    return 0;
}

static int compare_data_file(void *arg, const char *path, struct err *err)
{
    const struct outputs *o = arg;
    char key[4200];
    struct stat st;

    if (stat(path, &st) < 0)
        return 0;
    snprintf(key, sizeof(key), "'%.4000s' of %s", path, o->key);
    return compare(o, key, &st, err);
}

static int find_outputs(const struct settled *s, struct outputs *o, struct err *err)
{
    const struct conf *c = s->conf;
    int rc = 0;

    *o = (struct outputs){ .at = { { .key = "/export/onnx", .path = c->export.onnx },
                                   { .key = "/export/safetensors", .path = c->export.safetensors },
                                   { .key = "--trace", .path = s->train.trace },
                                   { .key = "--sample-log", .path = s->train.sample_log } } };
    for (uint32_t i = 0; rc == 0 && i < N_OUTPUTS; i++)
        rc = find_output(&o->at[i], err);
    return rc;
}

static bool any_exists(const struct outputs *o)
{
    for (uint32_t i = 0; i < N_OUTPUTS; i++)
        if (o->at[i].exists)
            return true;
    return false;
}

int settle_outputs_and_data(const struct settled *s, struct err *err)
{
    const struct train_opts *t = &s->train;
    struct data_opts d = { .origin = t->data.origin, .glob = t->data.train, .features = t->features,
                           .n_features = t->n_features };
    struct outputs o;
    int rc = find_outputs(s, &o, err);

    if (rc < 0 || !any_exists(&o))
        return rc;
    o.key = d.origin.n_parts > 0 ? "/data/mixture" : "/data/train";
    if (d.glob != NULL)
        rc = data_each_path(&d, compare_data_file, &o, err);
    o.key = "/data/eval";
    d.glob = t->data.eval;
    d.origin.n_parts = 0;
    if (rc == 0 && d.glob != NULL)
        rc = data_each_path(&d, compare_data_file, &o, err);
    return rc;
}

int settle_outputs(const struct settled_args *args, const struct settled *s, struct err *err)
{
    const struct conf *c = s->conf;
    struct outputs o;
    const struct {
        const char *key, *path;
    } inputs[] = {
        { "--job", args->job },
        { "--cluster", args->cluster },
        { "/model/onnx", c->model.onnx },
        { "/model/weights", c->model.weights },
        { "/communication/token_file", c->communication.token_file },
    };
    const char *const streams[] = { "standard input", "standard output", "standard error" };
    struct stat st;
    int rc = find_outputs(s, &o, err);

    if (rc == 0)
        rc = compare_outputs(&o, err);
    if (rc < 0 || !any_exists(&o))
        return rc;
    for (size_t i = 0; rc == 0 && i < COUNT_OF(inputs); i++)
        if (inputs[i].path != NULL && stat(inputs[i].path, &st) == 0)
            rc = compare(&o, inputs[i].key, &st, err);
    for (int fd = 0; rc == 0 && fd < (int)COUNT_OF(streams); fd++)
        if (fstat(fd, &st) == 0)
            rc = compare(&o, streams[fd], &st, err);
    return rc;
}
