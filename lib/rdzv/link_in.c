/* link_in.c - Rendezvous.Join: the links in, at most one per task.
 *
 * The first message of a link names its task. A newer call of the same process replaces its older
 * call, which the process may have given up. If two processes run as one task, the process that
 * sends stays: the node decides (member_node_admits()), and no process can displace another by its
 * JOIN alone. */
#include "rdzv/rdzv_priv.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"

struct seat {
    struct rdzv_in *call; /* owned; NULL: no link. The context of the call is this seat */
    uint64_t n_calls;     /* number of the call with the last JOIN */
    struct rdzv_figures figures; /* of the last BEAT; all zero before the first */
};

struct rdzv_links {
    struct rdzv *r;
    struct seat *seats; /* [world] */
    /* A VIEW is sent to many members, so it is packed once. */
    grpc_slice view;
    uint64_t view_generation; /* 0: none */
    uint8_t view_key[GROUP_KEY_BYTES];
};

/* ---- out ---- */

static void send_view(struct rdzv_links *l, struct seat *seat, const struct member_msg *m)
{
    const struct group_view *view = rdzv_views_get(l->r->views, m->view);

    CHECK(view != NULL); /* the node admits only tasks that have joined */
    if (l->view_generation != view->generation ||
        memcmp(l->view_key, view->key, sizeof(l->view_key)) != 0) {
        struct member_msg complete = *m;
        struct wire w = { 0 };

        complete.view = view;
        grpc_slice_unref(l->view);
        l->view = rdzv_pack(wire_write_leader(&w, &l->r->cluster, &complete, NULL));
        l->view_generation = view->generation;
        memcpy(l->view_key, view->key, sizeof(l->view_key));
        wire_fini(&w);
    }
    rdzv_in_send_slice(seat->call, l->view);
}

void rdzv_links_send(struct rdzv_links *l, uint32_t rank, const struct member_msg *m)
{
    struct seat *seat = &l->seats[rank];
    const struct rdzv_progress *p = l->r->opts.progress;
    const char *addresses[MEMBER_REACH_MAX];
    const struct wire_leader s = { addresses, p->advice, p->n_advice, p->page };
    struct wire w = { 0 };

    if (seat->call == NULL)
        return;
    rdzv_msg_out(l->r, rank, m);
    if (m->kind == MEMBER_MSG_VIEW) {
        send_view(l, seat, m);
        return;
    }
    for (uint32_t i = 0; m->kind == MEMBER_MSG_REACH && i < m->n_ranks; i++)
        addresses[i] = rdzv_reach_address(l->r, m->ranks[i]);
    rdzv_in_send(seat->call, wire_write_leader(&w, &l->r->cluster, m, &s));
    wire_fini(&w);
}

void rdzv_links_close(struct rdzv_links *l, uint32_t rank)
{
    struct rdzv_in *call = l->seats[rank].call;

    l->seats[rank].call = NULL;
    if (call == NULL)
        return;
    rdzv_trace(l->r, "link of %s: closed", l->r->cluster.tasks[rank].name);
    rdzv_in_finish(call, GRPC_STATUS_OK, "%s",
                   ""); /* a status other than OK would overtake messages that the member has not
                           read */
}

/* ---- in ---- */

static void on_closed(void *arg, struct rdzv_in *call, const char *why)
{
    struct rdzv_links *l = arg;
    struct seat *seat = rdzv_in_context(call);
    uint32_t rank = (uint32_t)(seat - l->seats);

    CHECK(seat->call == call);
    seat->call = NULL;
    rdzv_trace(l->r, "link of %s: closed by the peer", l->r->cluster.tasks[rank].name);
    rdzv_group_event(l->r->group, &(struct member_event){ .kind = MEMBER_EV_IN_CLOSED, .rank = rank, .text = why });
}

/* Rejects a JOIN that cannot belong to a link of this task, and returns true. Returns false if it
 * can. */
static bool reject_impossible(struct rdzv_links *l, const Trainerd__V1__Join *j, uint32_t rank,
                              struct rdzv_in *call)
{
    struct rdzv *r = l->r;
    uint32_t to = wire_rank(&r->cluster, j->to);
    char self[400], names[512] = "";

    rdzv_full_name(r, r->opts.self, self);
    if (rank == MEMBER_NO_RANK)
        rdzv_in_finish(
            call, GRPC_STATUS_FAILED_PRECONDITION,
            "%s %u (%s) cannot join: it is no training task of the coordinator's "
            "cluster: its cluster is '%.600s', the coordinator's is '%.600s'; give every "
            "task the same cluster specification",
            j->task->type, j->task->index, j->task->address, j->cluster, r->opts.ident.cluster);
    else if (!rdzv_in_is_from(call, r->cluster.tasks[rank].address, names, sizeof(names)))
        rdzv_in_finish(call, GRPC_STATUS_UNAUTHENTICATED,
                       "%s cannot join: its certificate is of '%s', expected the host of its address %s; "
                       "give every task a certificate of its own host",
                       r->cluster.tasks[rank].name, names, r->cluster.tasks[rank].address);
    else if (rank == r->opts.self && j->incarnation != r->opts.incarnation)
        rdzv_in_finish(call, GRPC_STATUS_UNAVAILABLE,
                       "another process runs as this task: this is %s; end one of the two", self);
    /* the name of the address may temporarily resolve to the wrong host */
    else if (to != r->opts.self)
        rdzv_in_finish(call, GRPC_STATUS_UNAVAILABLE,
                       "this is %s, but %s %u was called: its address %s leads here", self,
                       j->to->type, j->to->index, j->to->address);
    else if (rank == r->opts.self)
        rdzv_in_finish(call, GRPC_STATUS_UNAVAILABLE, "this is %s, the caller itself", self);
    /* The call number is trusted only while the link is open: without a token, any caller can send a Join with
     * a high number, and the real task could not join after that. */
    else if (l->seats[rank].call != NULL &&
             j->incarnation == rdzv_joined_get(r->joined, rank)->incarnation &&
             j->call <= l->seats[rank].n_calls)
        rdzv_in_finish(call, GRPC_STATUS_UNAVAILABLE, "a newer call of this process exists");
    else
        return false;
    return true;
}

/* Closes the older link of the task in favour of the newer. Returns false if the older link stays
 * and the newer was refused. */
static bool replace_link(struct rdzv_links *l, uint32_t rank, struct rdzv_in *call,
                         const struct member_msg *join)
{
    bool is_other = rdzv_joined_get(l->r->joined, rank)->incarnation != join->incarnation;
    struct member_msg refusal;
    char text[RDZV_REFUSAL_BYTES];
    struct wire w = { 0 };

    if (l->seats[rank].call == NULL)
        return true;
    if (!rdzv_group_admits(l->r->group, rank, join, &refusal, text)) {
        rdzv_in_send(call, wire_write_leader(&w, &l->r->cluster, &refusal, NULL));
        wire_fini(&w);
        rdzv_in_finish(call, GRPC_STATUS_OK, "%s", "");
        return false;
    }
    rdzv_links_close(l, rank);
    rdzv_group_event(l->r->group, &(struct member_event){ .kind = MEMBER_EV_IN_CLOSED, .rank = rank, .text = is_other ? "another process joined in its place" : "the task called again" });
    return true;
}

static void join(struct rdzv_links *l, struct rdzv_in *call, const Trainerd__V1__Join *j,
                 const struct member_msg *m)
{
    uint32_t rank = wire_rank(&l->r->cluster, j->task);
    struct seat *seat;

    if (reject_impossible(l, j, rank, call))
        return;
    if (!replace_link(l, rank, call, m))
        return;
    if (rdzv_group_has_ended(l->r->group)) { /* because of the event */
        rdzv_in_finish(call, GRPC_STATUS_UNAVAILABLE, "this task ends");
        return;
    }
    seat = &l->seats[rank];
    seat->call = call;
    seat->n_calls = j->call;
    seat->figures = (struct rdzv_figures){ 0 };
    rdzv_joined_store(l->r->joined, &(struct group_member){ .rank = rank,
                                                            .incarnation = j->incarnation,
                                                            .n_devices = j->n_devices,
                                                            .n_servers = j->n_servers,
                                                            .data_address = j->data_address,
                                                            .host_key = j->host_key,
                                                            .location = j->location });
    rdzv_in_set_context(call, seat);
    rdzv_in_on_closed(call, on_closed, l);
    rdzv_msg_in(l->r, rank, m);
    rdzv_group_event(l->r->group, &(struct member_event){ .kind = MEMBER_EV_RECEIVED_IN, .rank = rank, .msg = m });
}

static void store_figures(const struct wire_cluster *c, struct seat *seat,
                          const Trainerd__V1__Beat *m)
{
    const Trainerd__V1__StepTime *t = m->step_time;
    struct rdzv_figures *f = &seat->figures;

    *f = (struct rdzv_figures){ .samples_per_second = m->samples_per_second };
    if (t != NULL)
        f->step_time = (struct rdzv_step_time){ t->seconds, t->data, t->compute, t->reduce, t->checkpoint };
    wire_text(f->trouble, sizeof(f->trouble), m->trouble, strlen(m->trouble));
    if (m->window != NULL)
        wire_read_window(c, m->window, &f->window);
}

static void handle_message(struct rdzv_links *l, struct seat *seat,
                           const Trainerd__V1__MemberMessage *m, const struct member_msg *msg)
{
    uint32_t rank = (uint32_t)(seat - l->seats);

    if (msg->kind == MEMBER_MSG_BEAT)
        store_figures(&l->r->cluster, seat, m->beat);
    rdzv_msg_in(l->r, rank, msg);
    rdzv_group_event(l->r->group, &(struct member_event){ .kind = MEMBER_EV_RECEIVED_IN, .rank = rank, .msg = msg });
}

/* Ends a call that violates the protocol. */
static void reject_call(struct rdzv_links *l, struct rdzv_in *call, const char *why)
{
    struct seat *seat = rdzv_in_context(call);
    uint32_t rank;

    rdzv_in_finish(call, GRPC_STATUS_INVALID_ARGUMENT, "%s", why);
    if (seat == NULL)
        return;
    rank = (uint32_t)(seat - l->seats);
    seat->call = NULL;
    rdzv_trace(l->r, "link of %s: cut: %s", l->r->cluster.tasks[rank].name, why);
    rdzv_group_event(l->r->group, &(struct member_event){ .kind = MEMBER_EV_IN_CLOSED, .rank = rank, .text = why });
}

void rdzv_join(struct rdzv *r, struct rdzv_in *call, void *request)
{
    struct rdzv_links *l = r->links;
    const Trainerd__V1__MemberMessage *m = request;
    struct seat *seat = rdzv_in_context(call);
    struct wire w = { 0 };
    struct member_msg msg;
    struct err err;

    if (rdzv_group_has_ended(r->group))
        rdzv_in_finish(call, GRPC_STATUS_UNAVAILABLE, "this task ends");
    else if (wire_read_member(&w, &r->cluster, m, &msg, &err) < 0)
        reject_call(l, call, err.text);
    else if ((msg.kind == MEMBER_MSG_JOIN) != (seat == NULL))
        reject_call(l, call, "Join: expected as the first message of a link, and only there");
    else if (seat == NULL)
        join(l, call, m->join, &msg);
    else
        handle_message(l, seat, m, &msg);
    wire_fini(&w);
}

/* ---- queries ---- */

bool rdzv_member_window(const struct rdzv *r, uint32_t rank, struct rdzv_window *out)
{
    const struct rdzv_figures *f = rdzv_links_figures(r->links, rank);

    if (f == NULL || f->window.number == 0)
        return false;
    *out = f->window;
    return true;
}

const struct rdzv_figures *rdzv_links_figures(const struct rdzv_links *l, uint32_t rank)
{
    return l->seats[rank].call != NULL ? &l->seats[rank].figures : NULL;
}

/* ---- open and close ---- */

struct rdzv_links *rdzv_links_new(struct rdzv *r)
{
    struct rdzv_links *l = calloc(1, sizeof(*l));

    CHECK(l != NULL);
    l->r = r;
    l->view = grpc_empty_slice();
    l->seats = calloc(r->cluster.world, sizeof(*l->seats));
    CHECK(l->seats != NULL);
    return l;
}

void rdzv_links_close_all(struct rdzv_links *l)
{
    for (uint32_t i = 0; i < l->r->cluster.world; i++)
        rdzv_links_close(l, i);
}

void rdzv_links_free(struct rdzv_links *l)
{
    if (l == NULL)
        return;
    grpc_slice_unref(l->view);
    free(l->seats);
    free(l);
}
