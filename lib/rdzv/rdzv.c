#include "rdzv/rdzv.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/err.h"
#include "proto/health.pb-c.h"
#include "proto/reflection.pb-c.h"
#include "rdzv/rdzv_priv.h"

/* the methods that every task serves */
#define RENDEZVOUS(name_) "/trainerd.v1.Rendezvous/" name_
#define CONTROL(name_) "/trainerd.v1.Control/" name_
#define HEALTH(name_) "/grpc.health.v1.Health/" name_
#define REFLECTION(v_) "/grpc.reflection." v_ ".ServerReflection/ServerReflectionInfo"
static const struct rdzv_method methods[] = {
    { .path = RENDEZVOUS("Join"), .request = &trainerd__v1__member_message__descriptor,
      .is_bidi = true, .pending = 64, .handle = rdzv_join },
    { .path = RENDEZVOUS("Who"), .request = &trainerd__v1__who_request__descriptor,
      .pending = 64, .handle = rdzv_probed },
    { .path = CONTROL("Status"), .request = &trainerd__v1__status_request__descriptor,
      .pending = 8, .handle = rdzv_status },
    { .path = CONTROL("Checkpoint"), .request = &trainerd__v1__checkpoint_request__descriptor,
      .is_change = true, .pending = 4, .handle = rdzv_checkpoint },
    { .path = CONTROL("Drain"), .request = &trainerd__v1__drain_request__descriptor,
      .is_change = true, .pending = 4, .handle = rdzv_drain },
    { .path = CONTROL("Stop"), .request = &trainerd__v1__stop_request__descriptor,
      .is_change = true, .pending = 4, .handle = rdzv_stop_all },
    { .path = CONTROL("Reload"), .request = &trainerd__v1__reload_request__descriptor,
      .is_change = true, .pending = 4, .handle = rdzv_reload },
    { .path = CONTROL("Logs"), .request = &trainerd__v1__logs_request__descriptor,
      .pending = 4, .handle = rdzv_logs },
    { .path = CONTROL("Trace"), .request = &trainerd__v1__trace_request__descriptor,
      .pending = 4, .handle = rdzv_read_trace },
    { .path = CONTROL("Rows"), .request = &trainerd__v1__rows_request__descriptor,
      .pending = 4, .handle = rdzv_read_rows },
    { .path = CONTROL("Netcheck"), .request = &trainerd__v1__netcheck_request__descriptor,
      .is_change = true, .pending = 4, .handle = rdzv_netcheck },
    { .path = HEALTH("Check"), .request = &grpc__health__v1__health_check_request__descriptor,
      .is_open = true, .pending = 8, .handle = rdzv_health_check },
    { .path = HEALTH("Watch"), .request = &grpc__health__v1__health_check_request__descriptor,
      .is_open = true, .pending = 4, .handle = rdzv_health_watch },
    { .path = REFLECTION("v1alpha"),
      .request = &grpc__reflection__v1alpha__server_reflection_request__descriptor,
      .is_open = true, .is_bidi = true, .pending = 4, .handle = rdzv_reflect },
    { .path = REFLECTION("v1"),
      .request = &grpc__reflection__v1alpha__server_reflection_request__descriptor,
      .is_open = true, .is_bidi = true, .pending = 4, .handle = rdzv_reflect },
};
/* ---- opening ---- */

static const char *copy(struct rdzv *r, const char *s)
{
    char *own = s != NULL ? arena_strdup(&r->memory, s) : NULL;

    CHECK(s == NULL || own != NULL);
    return own;
}

static void copy_opts(struct rdzv *r, const struct rdzv_opts *opts)
{
    struct rdzv_task *tasks = arena_array(&r->memory, opts->world, sizeof(*tasks));
    struct rdzv_opts *o = &r->opts;

    CHECK(tasks != NULL);
    for (uint32_t i = 0; i < opts->world; i++)
        tasks[i] = (struct rdzv_task){ .type = copy(r, opts->tasks[i].type),
                                       .index = opts->tasks[i].index,
                                       .address = copy(r, opts->tasks[i].address),
                                       .name = copy(r, opts->tasks[i].name) };
    *o = *opts;
    o->tasks = tasks;
    o->version = copy(r, opts->version);
    o->job_name = copy(r, opts->job_name);
    o->listen = copy(r, opts->listen);
    o->token = copy(r, opts->token);
    o->data_address = copy(r, opts->data_address);
    o->host_key = copy(r, opts->host_key);
    o->location = copy(r, opts->location);
    o->ident = (struct member_ident){ .version = copy(r, opts->ident.version),
                                      .job_digest = copy(r, opts->ident.job_digest),
                                      .cluster_hash = copy(r, opts->ident.cluster_hash),
                                      .cluster = copy(r, opts->ident.cluster),
                                      .devices = copy(r, opts->ident.devices),
                                      .kernels = copy(r, opts->ident.kernels),
                                      .nccl = copy(r, opts->ident.nccl),
                                      .protocol = copy(r, opts->ident.protocol),
                                      .code = copy(r, opts->ident.code),
                                      .job = copy(r, opts->ident.job != NULL ? opts->ident.job : "") };
    r->cluster = (struct wire_cluster){ .tasks = tasks, .world = opts->world };
}

static int open_all(struct rdzv *r, struct err *err)
{
    int rc = 0;

    if (!rdzv_is_address(r->opts.listen))
        return err_set(err, ERR_INPUT, "listen on '%s': expected HOST:PORT", r->opts.listen);
    if (r->opts.token != NULL) {
        rc = rdzv_check_token(r->opts.token, err);
        digest_sha256(r->opts.token, strlen(r->opts.token), r->token_digest);
    }
    if (rc < 0)
        return err_wrap(err, rc, "control plane");
    rc = rdzv_hub_open(r->opts.loop, &r->hub, err);
    if (rc < 0)
        return rc;
    r->health = rdzv_health_new();
    r->control = rdzv_control_new();
    r->traces = rdzv_traces_new(r);
    r->rows = rdzv_rows_new(r);
    r->netcheck = rdzv_netcheck_new(r);
    r->views = rdzv_views_new(r);
    r->joined = rdzv_joined_new(&r->cluster);
    rdzv_joined_store(r->joined, &(struct group_member){ .rank = r->opts.self,
                                                         .incarnation = r->opts.incarnation,
                                                         .n_devices = r->opts.n_devices,
                                                         .n_servers = r->opts.n_servers,
                                                         .data_address = r->opts.data_address,
                                                         .host_key = r->opts.host_key,
                                                         .location = r->opts.location });
    r->links = rdzv_links_new(r);
    r->client = rdzv_client_new(r);
    r->probes = rdzv_probes_new(r);
    r->group = rdzv_group_new(r, rdzv_perform);
    return rdzv_server_open(r, methods, COUNT_OF(methods), &r->server, err);
}

int rdzv_open(const struct rdzv_opts *opts, struct rdzv **out, struct err *err)
{
    struct rdzv *r = calloc(1, sizeof(*r));
    int rc;

    CHECK(opts->self < opts->world && opts->incarnation != 0);
    if (r == NULL)
        return err_set(err, ERR_NOMEM, "control plane: out of memory");
    copy_opts(r, opts);
    r->started_ms = clock_ms();
    rc = open_all(r, err);
    if (rc < 0) {
        rdzv_close(r, 0);
        return rc;
    }
    *out = r;
    rdzv_group_start(r->group);
    return 0;
}

/* ---- running ---- */

void rdzv_divide(struct rdzv *r, const struct group_piece *pieces, uint32_t n_pieces,
                 const char *why)
{
    const struct member_node *n = rdzv_node(r);

    if (member_node_state(n) != MEMBER_LEADING || member_node_view(n)->generation == 0)
        return;
    rdzv_views_divide(r->views, member_node_view(n), pieces, n_pieces);
    rdzv_report(r, &(struct member_event){ .kind = MEMBER_EV_REGROUP, .text = why });
}

void rdzv_place(struct rdzv *r, const char *const *locations, const char *why)
{
    const struct member_node *n = rdzv_node(r);

    if (member_node_state(n) != MEMBER_LEADING || member_node_view(n)->generation == 0)
        return;
    rdzv_views_place(r->views, member_node_view(n), locations);
    rdzv_divide(r, NULL, 0, why);
}

void rdzv_checkpoint_done(struct rdzv *r, uint64_t step, const char *path, const char *error)
{
    rdzv_control_checkpoint_done(r->control, step, path, error);
}

void rdzv_reload_done(struct rdzv *r, uint64_t number, const struct rdzv_change *changes,
                      uint32_t n_changes, const char *error)
{
    rdzv_control_reload_done(r->control, number, changes, n_changes, error);
}

void rdzv_set_serving(struct rdzv *r, bool serving)
{
    rdzv_health_set(r->health, serving);
}

/* ---- closing ---- */

static bool is_silent(void *arg)
{
    struct rdzv *r = arg;

    return r->outs == NULL && (r->server == NULL || rdzv_server_is_down(r->server));
}

/* The last messages, for which other tasks wait, are sent within the grace time. */
static void shut(struct rdzv *r, uint64_t grace_ms)
{
    rdzv_group_shut(r->group);
    rdzv_probes_shut(r->probes);
    if (grace_ms > 0) {
        rdzv_client_close(r->client);
        rdzv_links_close_all(r->links);
    }
    rdzv_health_shut(r->health);
    rdzv_control_checkpoint_done(r->control, 0, "", "the task ends");
    rdzv_control_reload_done(r->control, UINT64_MAX, NULL, 0, "the task ends");
    rdzv_traces_shut(r->traces);
    rdzv_rows_shut(r->rows);
    rdzv_netcheck_shut(r->netcheck);
    if (r->server != NULL && !rdzv_server_is_closing(r->server))
        rdzv_server_shutdown(r->server);
    if (grace_ms > 0 && rdzv_hub_pump(r->hub, is_silent, r, grace_ms))
        return;
    rdzv_out_abandon_all(r);
    if (r->server != NULL)
        rdzv_server_cancel(r->server);
    (void)rdzv_hub_pump(r->hub, is_silent, r, UINT32_MAX); /* all are cancelled */
}

void rdzv_close(struct rdzv *r, uint64_t grace_ms)
{
    if (r == NULL)
        return;
    if (r->hub != NULL) {
        shut(r, grace_ms);
        (void)rdzv_hub_pump(r->hub, rdzv_hub_is_idle, r->hub, UINT32_MAX); /* all were cancelled */
        rdzv_server_free(r->server);
        rdzv_group_free(r->group);
        rdzv_probes_free(r->probes);
        rdzv_client_free(r->client);
        rdzv_links_free(r->links);
        rdzv_joined_free(r->joined);
        rdzv_views_free(r->views);
        rdzv_hub_close(r->hub);
    }
    rdzv_health_free(r->health);
    rdzv_control_free(r->control);
    rdzv_traces_free(r->traces);
    rdzv_rows_free(r->rows);
    rdzv_netcheck_free(r->netcheck);
    arena_fini(&r->memory);
    free(r);
}
