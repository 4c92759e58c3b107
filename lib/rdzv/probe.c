/* probe.c - probes (Rendezvous.Who): asks other tasks for their status, on a connection of its own,
 * and answers their probes. */
#include "rdzv/rdzv_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"

enum { ANSWER_MS = 1000 };

struct probe { /* a probe; indexed by the probed rank */
    struct rdzv_probes *probes;
    struct rdzv_out *out; /* NULL: no probe is open */
    bool is_answered;
    struct member_status answer;
    char trouble[256]; /* the reason why the answer is invalid */
};

struct rdzv_probes {
    struct rdzv *r;
    struct probe *probes; /* [world] */
};

/* ---- probes by this task ---- */

static void read_answer(struct probe *k, const Trainerd__V1__WhoReply *m)
{
    struct rdzv *r = k->probes->r;
    uint32_t meant = (uint32_t)(k - k->probes->probes), rank;
    struct err err;

    if (m == NULL)
        snprintf(k->trouble, sizeof(k->trouble), "its answer is not a WhoReply");
    else if (wire_read_status(&r->cluster, m->where, &rank, &k->answer, &err) < 0)
        snprintf(k->trouble, sizeof(k->trouble), "its answer: %.200s", err.text);
    else if (rank != meant)
        snprintf(k->trouble, sizeof(k->trouble), "its address leads to %.63s",
                 rank == MEMBER_NO_RANK ? "a task of another cluster"
                                        : r->cluster.tasks[rank].name);
    else
        k->is_answered = true;
}

static void on_message(void *arg, const void *data, size_t n)
{
    struct wire w = { 0 };

    read_answer(arg, wire_unpack(&w, &trainerd__v1__who_reply__descriptor, data, n));
    wire_fini(&w);
}

static void on_end(void *arg, int code, bool is_refused, const char *text)
{
    struct probe *k = arg;
    struct rdzv *r = k->probes->r;
    uint32_t rank = (uint32_t)(k - k->probes->probes);
    k->out = NULL;
    if (code == GRPC_STATUS_OK && k->is_answered)
        rdzv_group_event(r->group, &(struct member_event){ .kind = MEMBER_EV_PROBE_ANSWERED,
                                                           .rank = rank,
                                                           .status = &k->answer });
    else
        rdzv_group_event(r->group, &(struct member_event){ .kind = MEMBER_EV_PROBE_FAILED, .rank = rank, .closed = rdzv_closed(code, is_refused), .text = code == GRPC_STATUS_OK ? k->trouble : text });
}

void rdzv_probes_start(struct rdzv_probes *w, uint32_t rank, const struct member_status *ours)
{
    struct rdzv *r = w->r;
    struct probe *k = &w->probes[rank];
    Trainerd__V1__WhoRequest q = TRAINERD__V1__WHO_REQUEST__INIT;
    Trainerd__V1__Where where;
    struct wire memory = { 0 };

    if (k->out != NULL)
        return; /* the open probe will be answered */
    *k = (struct probe){ .probes = w, .trouble = "it sent no answer" };
    wire_write_status(&memory, &r->cluster, r->opts.self, ours, &where);
    q.where = &where;
    q.cluster_hash = (char *)r->opts.ident.cluster_hash;
    k->out = rdzv_out_start(&(struct rdzv_out_opts){ .r = r,
                                                     .address = r->cluster.tasks[rank].address,
                                                     .method = "/trainerd.v1.Rendezvous/Who",
                                                     .request = &q.base,
                                                     .deadline_ms = ANSWER_MS,
                                                     .arg = k,
                                                     .on_message = on_message,
                                                     .on_end = on_end });
    wire_fini(&memory);
}

/* ---- probes of other tasks ---- */

void rdzv_probed(struct rdzv *r, struct rdzv_in *call, void *request)
{
    Trainerd__V1__WhoRequest *m = request;
    Trainerd__V1__WhoReply reply = TRAINERD__V1__WHO_REPLY__INIT;
    Trainerd__V1__Where where;
    struct member_status theirs, ours;
    struct wire memory = { 0 };
    char names[512] = "";
    struct err err;
    uint32_t rank = 0;

    if (wire_check_string("cluster_hash", m->cluster_hash, 128, &err) < 0) {
        rdzv_in_finish(call, GRPC_STATUS_INVALID_ARGUMENT, "%s", err.text);
        return;
    }
    if (strcmp(m->cluster_hash, r->opts.ident.cluster_hash) != 0) {
        rdzv_in_finish(call, GRPC_STATUS_FAILED_PRECONDITION,
                       "the cluster differs: that of the caller is '%s', that of this task '%s' (%.600s); give "
                       "every task the same cluster specification",
                       m->cluster_hash, r->opts.ident.cluster_hash, r->opts.ident.cluster);
        return;
    }
    if (wire_read_status(&r->cluster, m->where, &rank, &theirs, &err) < 0 ||
        rank == MEMBER_NO_RANK) {
        rdzv_in_finish(call, GRPC_STATUS_INVALID_ARGUMENT, "%s",
                       rank == MEMBER_NO_RANK ? "where: the caller is no task of this cluster"
                                              : err.text);
        return;
    }
    if (!rdzv_in_is_from(call, r->cluster.tasks[rank].address, names, sizeof(names))) {
        rdzv_in_finish(call, GRPC_STATUS_UNAUTHENTICATED,
                       "the certificate of the caller is of '%s', but %s is at %s", names,
                       r->cluster.tasks[rank].name, r->cluster.tasks[rank].address);
        return;
    }
    if (rank == r->opts.self || rdzv_group_has_ended(r->group)) {
        rdzv_in_finish(call, GRPC_STATUS_UNAVAILABLE,
                       rank == r->opts.self ? "this is the caller itself, or another process of it"
                                            : "this task ends");
        return;
    }
    rdzv_group_probed(r->group, rank, &theirs, &ours);
    wire_write_status(&memory, &r->cluster, r->opts.self, &ours, &where);
    reply.where = &where;
    rdzv_in_reply(call, &reply.base);
    wire_fini(&memory);
}

/* ---- open and close ---- */

struct rdzv_probes *rdzv_probes_new(struct rdzv *r)
{
    struct rdzv_probes *w = calloc(1, sizeof(*w));

    CHECK(w != NULL);
    w->r = r;
    w->probes = calloc(r->cluster.world, sizeof(*w->probes));
    CHECK(w->probes != NULL);
    return w;
}

void rdzv_probes_shut(struct rdzv_probes *w)
{
    for (uint32_t i = 0; i < w->r->cluster.world; i++) {
        rdzv_out_abandon(w->probes[i].out);
        w->probes[i].out = NULL;
    }
}

void rdzv_probes_free(struct rdzv_probes *w)
{
    if (w == NULL)
        return;
    free(w->probes);
    free(w);
}
