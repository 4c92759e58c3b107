/* settle_cluster.c - the cluster and this task, from flags and environment. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/text.h"
#include "conf/cluster_master.h"
#include "conf/job.h"
#include "daemon/meeting.h"
#include "daemon/security.h"
#include "daemon/settle.h"

enum { MEETING_SECONDS = 30 /* without a job: the default of train.deadline_seconds */ };

static const char *environment(void *arg, const char *name)
{
    (void)arg;
    return getenv(name);
}

/* --port: the control port of the first task of each host. */
static int read_first_port(const char *text, uint32_t *out, struct err *err)
{
    uint64_t port = 0;

    if (text != NULL && (!text_u64(text, UINT16_MAX, &port) || port == 0))
        return err_set(err, ERR_INPUT, "--port: expected 1 to 65535, found '%.80s'", text);
    *out = (uint32_t)port;
    return 0;
}

/* The limit and the token are those of the job, which is read before the cluster for them. */
static int meet(const struct settled_args *args, const struct cluster_master *master,
                struct meeting **out, char **hosts, struct err *err)
{
    char token[SECURITY_TOKEN_BYTES];
    struct meeting_opts o = { .master = master, .token = token, .seconds = MEETING_SECONDS };
    struct conf *conf = NULL;
    int rc = args->job != NULL ? conf_read(args->job, &conf, err) : 0;

    if (rc == 0 && conf != NULL)
        o.seconds = conf->train.deadline_seconds;
    if (rc == 0)
        rc = security_read_token(conf != NULL ? conf->communication.token_file : NULL, token, err);
    conf_free(conf);
    return rc < 0 ? rc : meeting_join(&o, out, hosts, err);
}

int settle_cluster(const struct settled_args *args, struct settled *s, struct err *err)
{
    char host[256] = "";
    char *hosts = NULL;
    struct cluster_master master;
    bool must_meet;
    int rc;
    struct cluster_opts o = {
        .profile = CLUSTER_STRICT,
        .cluster_file = args->cluster,
        .hosts = args->hosts,
        .task = args->task,
        .ignore_jobs = args->ignore_jobs,
        .required_by = args->require_cluster ? "--require-cluster is set" : NULL,
        .allow_same_address = args->allow_same_address,
        .env = environment,
        .hostname = host,
    };

    if (args->profile != NULL && strcmp(args->profile, "tf") == 0)
        o.profile = CLUSTER_TF;
    else if (args->profile != NULL && strcmp(args->profile, "strict") != 0)
        return err_set(err, ERR_INPUT, "--profile: expected strict or tf, found '%.80s'",
                       args->profile);
    if (read_first_port(args->port, &o.first_port, err) < 0)
        return ERR_INPUT;
    /* The name of a machine ends in a number for many reasons; the name of a pod for one. */
    if (getenv("KUBERNETES_SERVICE_HOST") == NULL && cluster_is_launched(&o))
        o.hostname = NULL;
    else if (gethostname(host, sizeof(host) - 1) != 0)
        o.hostname = NULL;
    rc = cluster_master_find(&o, &master, &must_meet, err);
    if (rc == 0 && must_meet) {
        rc = meet(args, &master, &s->meeting, &hosts, err);
        o.hosts = hosts;
        o.hosts_from = "MASTER_ADDR";
        o.rank_variable = "RANK";
    }
    if (rc == 0)
        rc = cluster_resolve(&o, &s->cluster, err);
    free(hosts);
    return rc;
}
