/* ctl_data.c - `trainerctl data`: prints the files and samples that a job reads, one decoded
 * sample, and which task reads which samples. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/text.h"
#include "daemon/args.h"
#include "daemon/ctl.h"
#include "daemon/settle.h"
#include "data/data.h"

enum { FILES_SHOWN = 20, VALUES_SHOWN = 8 };

/* The command does not read the network, so the type of the input that a feature feeds is
 * guessed. */
static enum tensor_dtype likely_fed(const struct data_feature *f)
{
    return f->stored == TENSOR_F32 || f->stored == TENSOR_U8 ? TENSOR_F32 : TENSOR_I64;
}

static void on_trouble(void *arg, const char *text)
{
    (void)arg;
    fprintf(stderr, "trainerctl: %s\n", text);
}

static int open_set(const struct settled *s, bool training, struct data_feature *features,
                    struct data_set **out, struct err *err)
{
    const struct train_opts *t = &s->train;
    struct data_opts o = { .origin = t->data.origin,
                           .glob = training ? t->data.train : t->data.eval,
                           .features = features,
                           .n_features = t->n_features,
                           .training = training,
                           .deadline_ms = t->data_deadline_ms,
                           .on_warning = on_trouble };

    if (!training)
        o.origin.n_parts = 0;
    for (uint32_t i = 0; i < t->n_features; i++) {
        features[i] = t->features[i];
        features[i].fed = likely_fed(&features[i]);
        if (features[i].fed != TENSOR_F32) { /* scale and offset apply to float inputs only */
            features[i].scale = 1;
            features[i].offset = 0;
        }
    }
    return data_open(&o, out, err);
}

static void print_value(enum tensor_dtype fed, const void *values, size_t i)
{
    if (fed == TENSOR_F32)
        printf(" %.6g", (double)((const float *)values)[i]);
    else
        printf(" %" PRId64, ((const int64_t *)values)[i]);
}

static void print_feature(const struct data_feature *f, const void *values, size_t n)
{
    double low = INFINITY, high = -INFINITY, sum = 0;
    char shape[160];

    for (size_t i = 0; i < n; i++) {
        double x = f->fed == TENSOR_F32 ? (double)((const float *)values)[i]
                                        : (double)((const int64_t *)values)[i];

        low = x < low ? x : low;
        high = x > high ? x : high;
        sum += x;
    }
    printf("  %-16s %s%s %s as %s:", f->name, f->encoded ? "image, " : "",
           tensor_dtype_name(f->stored), shape_print(&f->shape, shape, sizeof(shape)),
           tensor_dtype_name(f->fed));
    for (size_t i = 0; i < n && i < VALUES_SHOWN; i++)
        print_value(f->fed, values, i);
    if (n > VALUES_SHOWN)
        printf(" ...  from %.6g to %.6g, mean %.6g", low, high, sum / (double)n);
    printf("\n");
}

static int print_sample(const struct settled *s, struct data_set *set,
                        const struct data_feature *features, uint64_t number, struct err *err)
{
    uint32_t n = s->train.n_features;
    void *out[CONF_MAX_FEATURES] = { NULL };
    size_t elements[CONF_MAX_FEATURES];
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        elements[i] = (size_t)shape_elements(&features[i].shape);
        out[i] = malloc(elements[i] * tensor_dtype_bytes(features[i].fed));
        if (out[i] == NULL)
            rc = err_set(err, ERR_NOMEM, "a sample: out of memory");
    }
    if (rc == 0)
        rc = data_sample(set, number, out, err);
    if (rc == 0) {
        printf("sample %" PRIu64 ":\n", number);
        for (uint32_t i = 0; i < n; i++)
            print_feature(&features[i], out[i], elements[i]);
    }
    for (uint32_t i = 0; i < n; i++)
        free(out[i]);
    return rc;
}

static void print_files(const struct data_set *set, const char *what, bool packed)
{
    uint32_t n = data_files(set);
    uint64_t records;

    printf("%s: ", what);
    if (packed)
        printf("%" PRIu64 " samples, %.1f %% full, packed from ", data_samples(set),
               100 * data_pack_fill(set));
    printf("%" PRIu64 " %s in %" PRIu32 " file%s\n", data_records(set),
           packed ? "records" : "samples", n, n == 1 ? "" : "s");
    for (uint32_t i = 0; i < n && i < FILES_SHOWN; i++) {
        const char *name = data_file_name(set, i, &records);

        printf("  %10" PRIu64 "  %s\n", records, name);
    }
    if (n > FILES_SHOWN)
        printf("  and %" PRIu32 " more\n", n - FILES_SHOWN);
}

static void print_epoch(const struct settled *s, const struct data_set *set)
{
    const struct train_opts *t = &s->train;
    uint64_t n = data_samples(set), steps = data_steps_per_epoch(set, t->global_batch, t->data.pad);

    printf("an epoch is %" PRIu64 " steps of %" PRIu32 " samples", steps, t->global_batch);
    if (steps == 0)
        printf(": fewer samples than one global batch (/train/global_batch_size, /data/remainder)");
    else if (n % t->global_batch != 0)
        printf(t->data.pad ? ", the last one of %" PRIu64 : "; %" PRIu64 " are left out of each",
               n % t->global_batch);
    printf("%s\n",
           t->data.shuffle ? ", in an order drawn for each epoch" : ", in the order of the files");
}

/* Lanes (micro-batches) are assigned to replicas in order, and replicas to tasks in the order of the cluster, if that of
 * the group is not another one. */
static void print_tasks(const struct settled *s)
{
    const struct cluster *c = s->cluster;
    uint32_t world = c->is_local ? 1 : c->world, first, n;
    uint32_t samples = s->lanes.global_batch / s->lanes.n;
    const char *unknown = settled_order_unknown(s);
    char name[64] = "this task";

    if (unknown != NULL)
        printf("note: %s\n", unknown);
    printf("each step, of every %" PRIu32 " samples:\n", s->lanes.global_batch);
    for (uint32_t r = 0; r < world; r++) {
        if (!c->is_local)
            cluster_task_name(c->ranks[r], name, sizeof(name));
        settled_task_lanes(s, r, &first, &n);
        printf("  %-12s lanes %" PRIu32 " to %" PRIu32 ": samples %" PRIu32 " to %" PRIu32 "\n",
               name, first, first + n - 1, first * samples, (first + n) * samples - 1);
    }
}

static int print_data(const struct settled *s, const char *sample, struct err *err)
{
    struct data_feature *features = calloc(CONF_MAX_FEATURES, sizeof(*features));
    struct data_set *set = NULL;
    uint64_t number = 0;
    int rc;

    if (features == NULL)
        return err_set(err, ERR_NOMEM, "out of memory");
    rc = open_set(s, true, features, &set, err);
    if (rc == 0 && sample != NULL && !text_u64(sample, data_samples(set) - 1, &number))
        rc = err_set(err, ERR_INPUT,
                     "--sample: expected a number from 0 to %" PRIu64 ", found '%.40s'",
                     data_samples(set) - 1, sample);
    if (rc == 0) {
        print_files(set, "training", s->train.data.origin.pack != NULL);
        print_epoch(s, set);
        rc = print_sample(s, set, features, number, err);
    }
    data_free(set);
    set = NULL;
    if (rc == 0 && s->train.data.eval != NULL) {
        rc = open_set(s, false, features, &set, err);
        if (rc == 0) {
            print_files(set, "evaluation", s->train.data.origin.pack != NULL);
            rc = print_sample(s, set, features, 0, err);
        }
        data_free(set);
    }
    if (rc == 0)
        print_tasks(s);
    free(features);
    return rc;
}

int ctl_data(int argc, char **argv)
{
    struct settled_args a = { .job = NULL };
    struct settled *s = NULL;
    const char *sample = NULL;
    bool help = false;
    const struct arg table[] = {
        { "cluster", "FILE", NULL, "the cluster, in place of TF_CONFIG", &a.cluster, NULL },
        { "devices", "SPEC", NULL, "auto, cpu, cpu:N, as for trainerd", &a.devices, NULL },
        { "sample", "I", NULL, "which one to show, in the order of the files; default: 0", &sample, NULL },
        { "help", NULL, NULL, "this text", NULL, &help },
    };
    struct err err;
    int rc = args_parse(table, COUNT_OF(table), &argc, argv, &err);

    if (rc == 0 && (help || argc != 2)) {
        fprintf(help ? stdout : stderr,
                "usage: trainerctl data [options] JOB\n\nReads the data of a job: how many samples, what a decoded "
                "one looks like, and which task\nreads which part of every batch.\n\n");
        args_help(table, COUNT_OF(table), help ? stdout : stderr);
        return help ? CTL_OK : CTL_USAGE;
    }
    a.job = argv[1];
    if (rc == 0)
        rc = settle(&a, &s, &err);
    if (rc == 0)
        rc = print_data(s, sample, &err);
    settled_free(s);
    if (rc < 0)
        fprintf(stderr, "trainerctl: %s\n", err.text);
    return ctl_exit_code(rc);
}
