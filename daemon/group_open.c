/* group_open.c - opens and closes the parts of a task of a cluster. */
#include "daemon/group_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/log.h"
#include "base/rng.h"
#include "conf/job_print.h"
#include "daemon/balancer.h"
#include "daemon/placer.h"
#include "daemon/certificates.h"
#include "daemon/complete.h"
#include "daemon/net_test.h"
#include "daemon/own_address.h"
#include "daemon/work.h"

enum {
    CLOSE_MS = 1000,          /* limit of the last messages */
    JOB_BYTES_MAX = 64 << 10, /* of a longer job, only the digest is sent */
};

/* Opens the data port. data_address becomes the numeric address that peers use, with the port that
 * was bound. */
static int open_data_port(struct run *r, struct err *err)
{
    struct group *g = r->group;
    const struct cluster_task *self = r->s->cluster->self;
    bool any = r->s->binds_any;
    const char *bound;
    char address[OWN_ADDRESS_BYTES], why[OWN_ADDRESS_BYTES + 128];
    const struct conf_ports *ports = &r->s->conf->communication.data_port;
    int rc = comm_listener_open(any ? NULL : self->host, (uint16_t)ports->first,
                                (uint16_t)ports->last, &r->s->control_ports, &g->listener, err);

    if (rc == 0 && any)
        rc = own_address(self->host, address, why, sizeof(why), err);
    if (rc < 0)
        return err_wrap(err, rc, "data plane of %s", r->s->task_name);
    bound = comm_listener_address(g->listener);
    if (!any) {
        snprintf(g->data_address, sizeof(g->data_address), "%s", bound);
        return 0;
    }
    snprintf(g->data_address, sizeof(g->data_address), strchr(address, ':') ? "[%s]%s" : "%s%s",
             address, strrchr(bound, ':'));
    if (strcmp(address, self->host) != 0)
        log_info("address", "peers reach the data plane at %s (%s)", g->data_address, why);
    return 0;
}

/* The rows of a job whose tables all stay on the training tasks are not lost with ps tasks. */
static bool has_rows_on_ps(const struct settled *s)
{
    return s->ps != NULL && (s->ps->tables != PS_TABLES_NONE || ps_wants_dense(s->ps));
}

static void log_grpc_error(const char *line)
{
    log_warn("grpc", "gRPC: %s", line);
}

static int open_rdzv(struct run *r, const struct rdzv_opts *callbacks, struct err *err)
{
    const struct settled *s = r->s;
    const struct conf *conf = s->conf;
    const struct cluster *c = s->cluster;
    struct group *g = r->group;
    struct rdzv_task *tasks = calloc(c->group, sizeof(*tasks));
    char(*names)[64] = calloc(c->group, sizeof(*names));
    struct rdzv_opts o = {
        .loop = r->loop,
        .version = TRAINERD_VERSION,
        .job_name = conf->name,
        .tasks = tasks,
        .world = c->group,
        .n_ps = c->group - c->world,
        .self = c->self->rank,
        .incarnation = g->incarnation,
        .listen = s->listen,
        .tls = s->security.tls,
        .token = s->security.token[0] != '\0' ? s->security.token : NULL,
        .ident = { .version = TRAINERD_VERSION,
                   .job_digest = conf->digest,
                   .cluster_hash = c->hash,
                   .cluster = c->canonical,
                   .devices = s->devices[0].kind == DEVICE_CUDA ? "cuda" : "cpu",
                   .kernels = s->kernels,
                   .protocol = s->protocol,
                   .code = versions_code,
                   .nccl = s->nccl },
        .n_devices = s->n_devices,
        .n_servers = s->n_servers,
        .data_address = g->data_address,
        .host_key = comm_host_key(),
        .location = s->location,
        .min_world = s->min_world,
        .min_ps = s->ps != NULL ? s->ps->min_ps : 0,
        .replicas = has_rows_on_ps(s) ? s->ps->replicas : 0,
        .rejoin_ms = (uint64_t)(conf->elastic.rejoin_seconds * 1e3),
        .deadline_ms = run_deadline_ms(r),
        .grace_ms = run_grace_ms(r),
        .silent_ms = (uint64_t)(conf->detection.silent_seconds * 1e3),
        .has_lease = r->lock.is_driven,
        .saves = r->s->train.checkpoint.directory != NULL,
        .progress = &r->progress,
        .arg = r,
        .on_action = callbacks->on_action,
        .on_state = callbacks->on_state,
        .on_checkpoint = callbacks->on_checkpoint,
        .on_reload = callbacks->on_reload,
        .on_status = callbacks->on_status,
        .read_rows = r->ops->read_rows != NULL ? callbacks->read_rows : NULL,
        .netcheck = callbacks->netcheck,
        .on_trace = callbacks->on_trace,
    };
    struct buf job = { 0 };
    int rc;

    CHECK(tasks != NULL && names != NULL);
    conf_print_canonical(conf, &job);
    for (size_t i = 0; i < job.len; i++) /* between values; a message has no control characters */
        job.data[i] = (unsigned char)job.data[i] < ' ' ? ' ' : job.data[i];
    if (!job.failed && job.len <= JOB_BYTES_MAX)
        o.ident.job = job.data;
    for (uint32_t i = 0; i < c->group; i++) {
        const struct cluster_task *t = c->ranks[i];

        cluster_task_name(t, names[i], sizeof(names[i]));
        tasks[i] = (struct rdzv_task){ .type = cluster_type_name(t->type),
                                       .index = t->index,
                                       .address = t->address,
                                       .name = names[i] };
    }
    rdzv_on_grpc_error(log_grpc_error);
    rc = rdzv_open(&o, &g->rdzv, err);
    free(tasks);
    free(names);
    buf_fini(&job);
    return rc;
}

static int new_incarnation(struct group *g, struct err *err)
{
    int rc = 0;

    while (rc == 0 && g->incarnation == 0)
        rc = rng_os(&g->incarnation, sizeof(g->incarnation));
    return rc < 0 ? err_set(err, ERR_IO, "the system gives no random numbers") : 0;
}

int group_open(struct run *r, const struct rdzv_opts *callbacks, struct err *err)
{
    struct group *g = calloc(1, sizeof(*g));
    int rc;

    CHECK(g != NULL);
    r->group = g;
    g->run = r;
    g->tests.loop = r->loop;
    g->net_test = net_test_new(r->s);
    g->balancer = balancer_new(r->s);
    g->placer = placer_new(r->s);
    pthread_mutex_init(&g->lock, NULL);
    rc = new_incarnation(g, err);
    if (rc == 0)
        rc = open_data_port(r, err);
    if (rc == 0 && !r->s->is_ps) /* a parameter server never leads, and writes no checkpoint */
        rc = group_lease_open(r, err);
    if (rc == 0)
        rc = open_rdzv(r, callbacks, err);
    if (rc == 0 && r->s->security.tls != NULL)
        rc = certificates_watch(r->s->security.tls, r->http.metrics, &g->certificates, err);
    return rc;
}

void group_close(struct run *r)
{
    if (r->group == NULL)
        return;
    certificates_unwatch(r->group->certificates);
    r->group->certificates = NULL;
    path_tests_abandon(&r->group->tests);
    net_test_stop(r->group->net_test);
    rdzv_close(r->group->rdzv, CLOSE_MS);
    r->group->rdzv = NULL;
}

void group_free(struct run *r)
{
    struct group *g = r->group;

    if (g == NULL)
        return;
    complete_check_free(g->lease.completion);
    complete_check_free(g->final.check);
    lock_close(r);
    comm_listener_close(g->listener);
    net_test_free(g->net_test);
    balancer_free(g->balancer);
    placer_free(g->placer);
    arena_fini(&g->view_memory);
    pthread_mutex_destroy(&g->lock);
    free(g);
    r->group = NULL;
}
