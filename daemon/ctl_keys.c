/* ctl_keys.c - `trainerctl keys`: an authority, and a folder with a certificate for each host of a
 * cluster and for the operator. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/text.h"
#include "conf/cluster.h"
#include "daemon/args.h"
#include "daemon/ctl.h"
#include "daemon/doc_path.h"
#include "rdzv/rdzv.h"
#include "tls/keys.h"

enum { FILE_BYTES_MAX = 1 << 20, DAYS = 397, AUTHORITY_DAYS = 3650, DAYS_MAX = 36500 };

struct keys {
    const char *out; /* folder */
    uint32_t days;
    struct buf authority, authority_key; /* PEM text */
};

static const char *environment(void *arg, const char *name)
{
    (void)arg;
    return getenv(name);
}

/* This program is no task: without a task in the text, resolves the cluster as its first task. */
static int read_cluster(const char *file, struct cluster **out, struct err *err)
{
    static const char *const tasks[] = { NULL, "chief:0", "worker:0" };
    struct cluster_opts o = { .profile = CLUSTER_TF,
                              .cluster_file = file,
                              .required_by = "certificates are for the hosts of a cluster",
                              .allow_same_address = true,
                              .env = environment };
    struct err first;
    int rc = cluster_resolve(&o, out, &first);

    for (size_t i = 1; rc < 0 && i < COUNT_OF(tasks); i++) {
        o.task = tasks[i];
        rc = cluster_resolve(&o, out, err);
    }
    if (rc < 0 && err != NULL)
        *err = first;
    return rc;
}

static int write_file(const char *folder, const char *name, const struct buf *text, struct err *err)
{
    char *path = fs_join(folder, name);
    int rc = path != NULL ? fs_replace(path, text->data, text->len, err)
                          : err_set(err, ERR_NOMEM, "out of memory");

    free(path);
    return rc;
}

static int read_file(const char *folder, const char *name, struct buf *out, struct err *err)
{
    char *path = fs_join(folder, name);
    int rc = path != NULL ? fs_read(path, FILE_BYTES_MAX, out, err)
                          : err_set(err, ERR_NOMEM, "out of memory");

    free(path);
    return rc;
}

/* Reads the authority in the folder, or creates one there. */
static int open_authority(struct keys *k, struct err *err)
{
    int rc = read_file(k->out, "ca.crt", &k->authority, err);

    if (rc == 0)
        return read_file(k->out, "ca.key", &k->authority_key, err);
    if (rc != ERR_NOENT)
        return rc;
    rc = fs_mkdirs(k->out, err);
    if (rc == 0)
        rc = tls_authority_new("trainerd cluster", AUTHORITY_DAYS, &k->authority, &k->authority_key,
                               err);
    if (rc == 0) /* the key first: a certificate without its key would be of no use */
        rc = write_file(k->out, "ca.key", &k->authority_key, err);
    if (rc == 0)
        rc = write_file(k->out, "ca.crt", &k->authority, err);
    return rc;
}

/* Writes out/NAME/{tls.crt,tls.key,ca.crt}. */
static int write_folder(const struct keys *k, const char *name, const char *host, struct err *err)
{
    struct tls_subject subject = { .name = name, .hosts = &host, .n_hosts = 1, .days = k->days };
    struct buf certificate = { 0 }, key = { 0 };
    char *folder = fs_join(k->out, name);
    int rc = folder != NULL ? fs_mkdirs(folder, err) : err_set(err, ERR_NOMEM, "out of memory");

    if (rc == 0)
        rc = tls_certificate_new(k->authority.data, k->authority_key.data, &subject, &certificate,
                                 &key, err);
    if (rc == 0)
        rc = write_file(folder, "tls.key", &key, err);
    if (rc == 0)
        rc = write_file(folder, "tls.crt", &certificate, err);
    if (rc == 0)
        rc = write_file(folder, "ca.crt", &k->authority, err);
    if (rc == 0)
        printf("%s: tls.crt, tls.key, ca.crt, valid for %u days\n", folder, k->days);
    buf_fini(&certificate);
    buf_fini(&key);
    free(folder);
    return rc;
}

/* Whether an earlier task of the cluster has the same host. */
static bool is_repeated(const struct cluster *c, uint32_t i)
{
    for (uint32_t k = 0; k < i; k++)
        if (c->tasks[k].host != NULL && strcmp(c->tasks[k].host, c->tasks[i].host) == 0)
            return true;
    return false;
}

static int write_all(struct keys *k, const struct cluster *c, struct err *err)
{
    int rc = open_authority(k, err);

    for (uint32_t i = 0; i < c->n_tasks && rc == 0; i++)
        if (c->tasks[i].host != NULL && !is_repeated(c, i))
            rc = write_folder(k, c->tasks[i].host, c->tasks[i].host, err);
    if (rc == 0)
        rc = write_folder(k, "operator", RDZV_OPERATOR, err);
    if (rc == 0)
        printf("\nCopy each folder to its host, for example to /etc/trainerd/tls, readable by the user of trainerd alone,\n"
               "and set TRAINERD_TLS=/etc/trainerd/tls there. TRAINERD_TLS=%s/operator is for trainerctl.\n"
               "Keep %s/ca.key offline: its owner can join the cluster. To renew, run the same command again.\n",
               k->out, k->out);
    return rc;
}

static const char usage[] =
    "usage: trainerctl keys --out DIR [--cluster FILE] [--days N]\n\n"
    "Writes an authority, and a folder with certificate and key for each host of the cluster\n"
    "and for the operator: see the section Security of\nsystemd/README.md\n\n";

int ctl_keys(int argc, char **argv)
{
    char text[6000];
    const char *cluster = NULL, *out = NULL, *days = NULL;
    bool asked = false;
    const struct arg table[] = {
        { "cluster", "FILE", NULL, "the cluster, in place of TF_CONFIG", &cluster, NULL },
        { "out", "DIR", NULL, "the folder to write; an authority in it is used again", &out, NULL },
        { "days", "N", NULL, "validity of the certificates; 397 by default", &days, NULL },
        { "help", NULL, NULL, "print this", NULL, &asked },
    };
    struct keys k = { .days = DAYS };
    struct cluster *c = NULL;
    struct err err = { 0 };
    uint64_t n = DAYS;
    int rc = args_parse(table, COUNT_OF(table), &argc, argv, &err);

    if (rc == 0 && (asked || argc != 1 || out == NULL)) {
        doc_path_replace(usage, text, sizeof(text));
        fputs(text, asked ? stdout : stderr);
        args_help(table, COUNT_OF(table), asked ? stdout : stderr);
        return asked ? CTL_OK : CTL_USAGE;
    }
    if (rc == 0 && days != NULL && (!text_u64(days, DAYS_MAX, &n) || n == 0))
        rc = err_set(&err, ERR_INPUT, "--days: expected 1 to %d, found '%.80s'", DAYS_MAX, days);
    k.out = out;
    k.days = (uint32_t)n;
    (void)umask(077); /* the files and folders are for their owner alone */
    if (rc == 0)
        rc = read_cluster(cluster, &c, &err);
    if (rc == 0)
        rc = write_all(&k, c, &err);
    if (rc < 0)
        fprintf(stderr, "trainerctl: %s\n", err.text);
    cluster_free(c);
    buf_fini(&k.authority);
    buf_fini(&k.authority_key);
    return ctl_exit_code(rc);
}
