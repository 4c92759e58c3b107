/* wire_read.c - validates received messages field by field, and converts them for the node. */
#include "rdzv/wire.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/location.h"
#include "base/text.h"

enum { ADDRESS_BYTES = WIRE_ADDRESS_BYTES - 1, HOST_KEY_BYTES = 256 };

struct reader {
    struct wire *w;
    const struct wire_cluster *c;
    struct err *err;
};

/* ---- pieces ---- */

/* A string field of a message, for tables. protobuf-c represents every string as a char * that is
 * not NULL. */
struct string_field {
    const char *name;
    size_t offset, max;
};

static int check_strings(const void *message, const struct string_field *strings, size_t n,
                         struct err *err)
{
    for (size_t i = 0; i < n; i++) {
        const char *s = *(char *const *)((const char *)message + strings[i].offset);
        int rc = wire_check_string(strings[i].name, s, strings[i].max, err);

        if (rc < 0)
            return rc;
    }
    return 0;
}

/* A number that is incremented later: there must be room above it. */
struct number {
    const char *name;
    uint64_t value;
};

static int check_numbers(const struct number *numbers, size_t n, struct err *err)
{
    for (size_t i = 0; i < n; i++)
        if (numbers[i].value > WIRE_NUMBER_MAX)
            return err_set(err, ERR_INPUT, "%s: %llu, expected at most 2^62", numbers[i].name,
                           (unsigned long long)numbers[i].value);
    return 0;
}

/* Reads a text for the log: truncated and cleaned, not rejected. */
static int read_reason(const struct reader *r, const char *field, char *s, struct member_msg *out)
{
    size_t n = strlen(s);

    if (!text_is_utf8(s, n))
        return err_set(r->err, ERR_INPUT, "%s: not UTF-8", field);
    if (n > MEMBER_TEXT_BYTES - 1)
        s[text_utf8_cut(s, MEMBER_TEXT_BYTES - 1)] = '\0';
    out->text = s;
    for (; *s != '\0'; s++)
        if ((unsigned char)*s < ' ' || *s == 0x7f)
            *s = ' ';
    return 0;
}

static int check_task(const char *field, const Trainerd__V1__Task *t, struct err *err)
{
    static const struct string_field strings[] = {
        { "type", offsetof(Trainerd__V1__Task, type), 32 },
        { "address", offsetof(Trainerd__V1__Task, address), ADDRESS_BYTES },
    };
    int rc;

    if (t == NULL)
        return err_set(err, ERR_INPUT, "%s: missing", field);
    rc = check_strings(t, strings, COUNT_OF(strings), err);
    return rc < 0 ? err_wrap(err, rc, "%s", field) : 0;
}

static int read_rank(const struct wire_cluster *c, const char *field, const Trainerd__V1__Task *t,
                     uint32_t *rank, struct err *err)
{
    int rc = check_task(field, t, err);

    if (rc < 0)
        return rc;
    *rank = wire_rank(c, t);
    if (*rank == MEMBER_NO_RANK)
        return err_set(err, ERR_INPUT, "%s: '%s' %u is no training task of this cluster", field,
                       t->type, t->index);
    return 0;
}

/* Reads an optional task; MEMBER_NO_RANK if absent. */
static int read_optional_rank(const struct wire_cluster *c, const char *field,
                              const Trainerd__V1__Task *t, uint32_t *rank, struct err *err)
{
    *rank = MEMBER_NO_RANK;
    return t != NULL ? read_rank(c, field, t, rank, err) : 0;
}

static int read_ranks(const struct reader *r, const char *field, Trainerd__V1__Task **tasks,
                      size_t n, struct member_msg *out)
{
    uint32_t *ranks;

    if (n == 0)
        return 0;
    if (n > MEMBER_REACH_MAX)
        return err_set(r->err, ERR_INPUT, "%s: %zu tasks, expected at most %d", field, n,
                       MEMBER_REACH_MAX);
    ranks = arena_array(&r->w->arena, n, sizeof(*ranks));
    CHECK(ranks != NULL);
    for (size_t i = 0; i < n; i++) {
        int rc = read_rank(r->c, field, tasks[i], &ranks[i], r->err);

        if (rc < 0)
            return rc;
    }
    out->ranks = ranks;
    out->n_ranks = (uint32_t)n;
    return 0;
}

static int check_incarnation(uint64_t incarnation, struct err *err)
{
    return incarnation != 0 ? 0
                            : err_set(err, ERR_INPUT, "incarnation: 0, expected a random number");
}

/* A training task has devices; a parameter server has service threads in their place. */
static int check_devices(uint32_t n, uint32_t n_servers, struct err *err)
{
    if (n_servers > MEMBER_SERVERS_MAX || (n_servers > 0 && n > 0))
        return err_set(err, ERR_INPUT,
                       "n_servers: %u with %u devices, expected 0, or 1 to %d without devices",
                       n_servers, n, MEMBER_SERVERS_MAX);
    if (n_servers > 0)
        return 0;
    return n > 0 && n <= WIRE_DEVICES_MAX
               ? 0
               : err_set(err, ERR_INPUT, "n_devices: %u, expected 1 to %d", n, WIRE_DEVICES_MAX);
}

/* Reads an exit code of the set `allowed`; MEMBER_CONTINUE if `ends` is false. */
static int read_code(const struct reader *r, bool ends, uint32_t code, const char *allowed,
                     struct member_msg *out)
{
    static const int codes[] = { 0, 2, 138, 143 };

    out->code = MEMBER_CONTINUE;
    if (!ends)
        return 0;
    for (size_t i = 0; i < COUNT_OF(codes); i++)
        if (code == (uint32_t)codes[i] && allowed[i] == 'y') {
            out->code = codes[i];
            return 0;
        }
    return err_set(r->err, ERR_INPUT, "code: %u, expected %s2, 138 or 143", code,
                   allowed[0] == 'y' ? "0, " : "");
}

/* ---- of a member ---- */

static int read_join(const struct reader *r, void *body, struct member_msg *out)
{
    static const struct string_field strings[] = {
        { "version", offsetof(Trainerd__V1__Join, version), 64 },
        { "job_digest", offsetof(Trainerd__V1__Join, job_digest), 128 },
        { "cluster_hash", offsetof(Trainerd__V1__Join, cluster_hash), 128 },
        { "cluster", offsetof(Trainerd__V1__Join, cluster), WIRE_BYTES_MAX },
        { "devices", offsetof(Trainerd__V1__Join, devices), 32 },
        { "kernels", offsetof(Trainerd__V1__Join, kernels), 256 },
        { "nccl", offsetof(Trainerd__V1__Join, nccl), 64 },
        { "protocol", offsetof(Trainerd__V1__Join, protocol), 128 },
        { "code", offsetof(Trainerd__V1__Join, code), 64 },
        { "job", offsetof(Trainerd__V1__Join, job), WIRE_BYTES_MAX },
        { "data_address", offsetof(Trainerd__V1__Join, data_address), ADDRESS_BYTES },
        { "host_key", offsetof(Trainerd__V1__Join, host_key), HOST_KEY_BYTES },
    };
    const Trainerd__V1__Join *m = body;
    const struct number numbers[] = { { "generation", m->generation },
                                      { "step_held", m->step_held } };
    struct member_ident *ident = arena_alloc(&r->w->arena, sizeof(*ident));
    int rc = check_task("task", m->task, r->err);

    CHECK(ident != NULL);
    if (rc == 0)
        rc = check_task("to", m->to, r->err);
    if (rc == 0)
        rc = check_incarnation(m->incarnation, r->err);
    if (rc == 0)
        rc = check_strings(m, strings, COUNT_OF(strings), r->err);
    if (rc == 0)
        rc = check_numbers(numbers, COUNT_OF(numbers), r->err);
    if (rc == 0)
        rc = check_devices(m->n_devices, m->n_servers, r->err);
    if (rc == 0)
        rc = location_check("location", m->location, r->err);
    if (rc < 0)
        return rc;
    *ident = (struct member_ident){ .version = m->version,
                                    .job_digest = m->job_digest,
                                    .cluster_hash = m->cluster_hash,
                                    .cluster = m->cluster,
                                    .devices = m->devices,
                                    .kernels = m->kernels,
                                    .nccl = m->nccl,
                                    .protocol = m->protocol,
                                    .code = m->code,
                                    .job = m->job };
    out->incarnation = m->incarnation;
    out->generation = m->generation;
    out->held = m->step_held;
    out->is_attaching = m->attaching;
    out->n_devices = m->n_devices;
    out->n_servers = m->n_servers;
    out->ident = ident;
    return read_ranks(r, "dead_paths", m->dead_paths, m->n_dead_paths, out);
}

static int read_ready(const struct reader *r, void *body, struct member_msg *out)
{
    const Trainerd__V1__Ready *m = body;
    const struct number numbers[] = { { "step_held", m->step_held },
                                      { "generation", m->generation } };

    out->held = m->step_held;
    out->generation = m->generation;
    out->storage_failures = m->storage_failures;
    return check_numbers(numbers, COUNT_OF(numbers), r->err);
}

/* The figures of a BEAT are shown and not used, so that a wrong one is a mistake of the sender. */
static int check_figures(const Trainerd__V1__Beat *m, struct err *err)
{
    const Trainerd__V1__StepTime *t = m->step_time;
    const struct {
        const char *name;
        double value, max;
    } figures[] = { { "samples_per_second", m->samples_per_second, DBL_MAX },
                    { "step_time.seconds", t != NULL ? t->seconds : 0, DBL_MAX },
                    { "step_time.data", t != NULL ? t->data : 0, 1 },
                    { "step_time.compute", t != NULL ? t->compute : 0, 1 },
                    { "step_time.reduce", t != NULL ? t->reduce : 0, 1 },
                    { "step_time.checkpoint", t != NULL ? t->checkpoint : 0, 1 } };

    for (size_t i = 0; i < COUNT_OF(figures); i++)
        if (!(figures[i].value >= 0 && figures[i].value <= figures[i].max))
            return err_set(err, ERR_INPUT, "%s: %g, expected a finite number from 0 to %g",
                           figures[i].name, figures[i].value, figures[i].max);
    return wire_check_string("trouble", m->trouble, WIRE_TROUBLE_BYTES - 1, err);
}

static int read_beat(const struct reader *r, void *body, struct member_msg *out)
{
    const Trainerd__V1__Beat *m = body;
    const struct number numbers[] = { { "generation", m->generation },
                                      { "step", m->step },
                                      { "place", m->place },
                                      { "phase_ms", m->phase_ms },
                                      { "limit_ms", m->limit_ms } };
    int rc = wire_check_string("phase", m->phase, WIRE_PHASE_BYTES - 1, r->err);

    if (rc == 0)
        rc = check_numbers(numbers, COUNT_OF(numbers), r->err);
    if (rc == 0)
        rc = check_figures(m, r->err);
    if (rc == 0)
        rc = wire_check_string("page", m->page, WIRE_PAGE_BYTES - 1, r->err);
    if (rc == 0)
        rc = wire_check_beat_window(r->c, m, r->err);
    if (rc < 0)
        return rc;
    out->generation = m->generation;
    out->progress = (struct member_progress){ .held = m->step,
                                              .place = m->place,
                                              .phase = m->phase,
                                              .phase_ms = m->phase_ms,
                                              .limit_ms = m->limit_ms };
    return 0;
}

static int read_trouble(const struct reader *r, void *body, struct member_msg *out)
{
    const Trainerd__V1__Trouble *m = body;
    int rc = read_optional_rank(r->c, "peer", m->peer, &out->rank, r->err);

    out->generation = m->generation;
    out->is_leader_silent = m->leader_is_silent;
    if (rc == 0)
        rc = read_ranks(r, "dead_paths", m->dead_paths, m->n_dead_paths, out);
    if (rc == 0)
        rc = check_numbers(&(struct number){ "generation", m->generation }, 1, r->err);
    return rc < 0 ? rc : read_reason(r, "reason", m->reason, out);
}

static int read_reached(const struct reader *r, void *body, struct member_msg *out)
{
    const Trainerd__V1__Reached *m = body;

    out->round = m->round;
    return read_ranks(r, "dead_paths", m->dead_paths, m->n_dead_paths, out);
}

static int read_complete(const struct reader *r, void *body, struct member_msg *out)
{
    const Trainerd__V1__Complete *m = body;
    const struct number numbers[] = { { "generation", m->generation },
                                      { "step_held", m->step_held } };

    out->generation = m->generation;
    out->held = m->step_held;
    return check_numbers(numbers, COUNT_OF(numbers), r->err);
}

static int read_leave(const struct reader *r, void *body, struct member_msg *out)
{
    const Trainerd__V1__Leave *m = body;
    int rc = read_code(r, true, m->code, "nyyy", out);

    out->is_all = m->everywhere;
    return rc < 0 ? rc : read_reason(r, "reason", m->reason, out);
}

/* ---- of a leader ---- */

static int read_wait(const struct reader *r, void *body, struct member_msg *out)
{
    return read_reason(r, "reason", ((Trainerd__V1__Wait *)body)->reason, out);
}

static int read_view_member(const struct reader *r, const Trainerd__V1__Member *m,
                            struct group_member *out)
{
    static const struct string_field strings[] = {
        { "data_address", offsetof(Trainerd__V1__Member, data_address), ADDRESS_BYTES },
        { "host_key", offsetof(Trainerd__V1__Member, host_key), HOST_KEY_BYTES },
    };
    int rc = read_rank(r->c, "task", m->task, &out->rank, r->err);

    if (rc == 0)
        rc = check_incarnation(m->incarnation, r->err);
    if (rc == 0)
        rc = check_strings(m, strings, COUNT_OF(strings), r->err);
    if (rc == 0)
        rc = check_devices(m->n_devices, m->n_servers, r->err);
    if (rc == 0)
        rc = location_check("location", m->location, r->err);
    if (rc == 0)
        rc = check_numbers(&(struct number){ "step_held", m->step_held }, 1, r->err);
    if (rc == 0 && m->n_servers > 0 && m->step_held > 0)
        rc = err_set(r->err, ERR_INPUT, "step_held: %llu, expected 0 of a parameter server",
                     (unsigned long long)m->step_held);
    if (rc < 0)
        return rc;
    out->incarnation = m->incarnation;
    out->held = m->step_held;
    out->storage_failures = m->storage_failures;
    out->n_devices = m->n_devices;
    out->n_servers = m->n_servers;
    out->name = r->c->tasks[out->rank].name;
    out->data_address = m->data_address;
    out->host_key = m->host_key;
    out->location = m->location;
    return 0;
}

/* Successive blocks of the lanes from 0 on; lib/train validates them against the lanes of the job. */
static int read_pieces(const struct reader *r, const Trainerd__V1__View *m, struct group_view *out)
{
    uint32_t n_ranks = 0, at = 0;
    struct group_piece *pieces;

    for (uint32_t i = 0; i < out->n_members; i++)
        n_ranks += out->members[i].n_devices;
    if (m->n_pieces > GROUP_MAX_PIECES)
        return err_set(r->err, ERR_INPUT, "%zu pieces, expected at most %d", m->n_pieces,
                       GROUP_MAX_PIECES);
    pieces = arena_array(&r->w->arena, m->n_pieces + 1, sizeof(*pieces));
    CHECK(pieces != NULL);
    for (uint32_t i = 0; i < m->n_pieces; i++) {
        const Trainerd__V1__Piece *p = m->pieces[i];

        if (p->rank >= n_ranks || p->first != at || p->lanes == 0 || p->lanes > UINT32_MAX - at)
            return err_set(r->err, ERR_INPUT,
                           "pieces[%u]: %u lanes from %u on rank %u, expected 1 or more from %u on one of "
                           "%u ranks",
                           i, p->lanes, p->first, p->rank, at, n_ranks);
        pieces[i] = (struct group_piece){ .rank = p->rank, .first = p->first, .n = p->lanes };
        at += p->lanes;
    }
    out->pieces = pieces;
    out->n_pieces = (uint32_t)m->n_pieces;
    return 0;
}

static int read_view(const struct reader *r, void *body, struct member_msg *out)
{
    const Trainerd__V1__View *m = body;
    uint32_t n = (uint32_t)m->n_members;
    struct group_view *v = arena_alloc(&r->w->arena, sizeof(*v));
    struct group_member *members;
    uint64_t newest = 0;

    if (m->generation == 0 || m->generation > WIRE_NUMBER_MAX)
        return err_set(r->err, ERR_INPUT, "generation: %llu, expected 1 to 2^62",
                       (unsigned long long)m->generation);
    if (m->key.len != GROUP_KEY_BYTES)
        return err_set(r->err, ERR_INPUT, "key: %zu bytes, expected %d", m->key.len,
                       GROUP_KEY_BYTES);
    if (m->n_members == 0 || m->n_members > r->c->world || m->newest_member >= m->n_members)
        return err_set(r->err, ERR_INPUT, "%zu members, the newest is %u, in a cluster of %u",
                       m->n_members, m->newest_member, r->c->world);
    members = arena_array(&r->w->arena, n, sizeof(*members));
    CHECK(v != NULL && members != NULL);
    for (uint32_t i = 0; i < n; i++) {
        int rc = read_view_member(r, m->members[i], &members[i]);

        if (rc == 0 && i > 0 && members[i].rank <= members[i - 1].rank)
            rc = err_set(r->err, ERR_INPUT, "task: %s after %s, expected the order of ranks",
                         r->c->tasks[members[i].rank].name, r->c->tasks[members[i - 1].rank].name);
        if (rc == 0 && members[i].n_servers == 0 && i > 0 && members[i - 1].n_servers > 0)
            rc = err_set(r->err, ERR_INPUT,
                         "n_servers: 0, expected training tasks before parameter servers");
        if (rc == 0 && i == 0 && members[i].n_servers > 0)
            rc = err_set(r->err, ERR_INPUT, "n_servers: %u, expected a training task first",
                         members[i].n_servers);
        if (rc < 0)
            return err_wrap(r->err, rc, "members[%u]", i);
        newest = members[i].held > newest ? members[i].held : newest;
    }
    if (m->newest_step != newest || members[m->newest_member].held != newest)
        return err_set(r->err, ERR_INPUT,
                       "newest_step %llu, held by members[%u]: that member holds %llu, the newest "
                       "held is %llu",
                       (unsigned long long)m->newest_step, m->newest_member,
                       (unsigned long long)members[m->newest_member].held,
                       (unsigned long long)newest);
    *v = (struct group_view){ .generation = m->generation,
                              .n_members = n,
                              .members = members,
                              .newest_step = newest,
                              .newest_member = newest > 0 ? m->newest_member : 0 };
    v->coordinator = group_view_choose_coordinator(v);
    memcpy(v->key, m->key.data, sizeof(v->key));
    out->view = v;
    if (read_pieces(r, m, v) < 0)
        return ERR_INPUT;
    return read_reason(r, "reason", m->reason, out);
}

static int read_over(const struct reader *r, void *body, struct member_msg *out)
{
    const Trainerd__V1__Over *m = body;
    int rc = read_optional_rank(r->c, "culprit", m->culprit, &out->rank, r->err);

    out->generation = m->generation;
    if (rc == 0)
        rc = check_numbers(&(struct number){ "generation", m->generation }, 1, r->err);
    if (rc == 0)
        rc = read_code(r, m->ends, m->code, "yyyy", out);
    if (rc == 0)
        rc = read_ranks(r, "dead_paths", m->dead_paths, m->n_dead_paths, out);
    return rc < 0 ? rc : read_reason(r, "reason", m->reason, out);
}

static int read_reach(const struct reader *r, void *body, struct member_msg *out)
{
    const Trainerd__V1__Reach *m = body;
    Trainerd__V1__Task *tasks[MEMBER_REACH_MAX] = { NULL };

    for (size_t i = 0; i < m->n_peers && i < MEMBER_REACH_MAX; i++) {
        int rc =
            wire_check_string("data_address", m->peers[i]->data_address, ADDRESS_BYTES, r->err);

        if (rc < 0)
            return rc;
        tasks[i] = m->peers[i]->task;
    }
    out->round = m->round;
    return read_ranks(r, "peers", tasks, m->n_peers, out);
}

static int read_pause(const struct reader *r, void *body, struct member_msg *out)
{
    const Trainerd__V1__Pause *m = body;

    out->generation = m->generation;
    return check_numbers(&(struct number){ "generation", m->generation }, 1, r->err);
}

static int read_redirect(const struct reader *r, void *body, struct member_msg *out)
{
    const Trainerd__V1__Redirect *m = body;

    out->is_staying = m->staying;
    out->expired_ms = m->expired_ms;
    return read_rank(r->c, "task", m->task, &out->rank, r->err);
}

static int read_refuse(const struct reader *r, void *body, struct member_msg *out)
{
    const Trainerd__V1__Refuse *m = body;
    int rc = read_code(r, m->ends, m->code, "yyyy", out);

    return rc < 0 ? rc : read_reason(r, "reason", m->reason, out);
}

/* ---- messages ---- */

struct row { /* indexed by the case of the oneof */
    const char *name;
    enum member_kind kind;
    int (*read)(const struct reader *r, void *body, struct member_msg *out);
};

#define ROW(side_, NAME_, name_, read_)                                                            \
    [TRAINERD__V1__##side_##_MESSAGE__MESSAGE_##NAME_] = { name_, MEMBER_MSG_##NAME_, read_ }
static const struct row of_member[] = {
    ROW(MEMBER, JOIN, "Join", read_join),
    ROW(MEMBER, READY, "Ready", read_ready),
    ROW(MEMBER, BEAT, "Beat", read_beat),
    ROW(MEMBER, TROUBLE, "Trouble", read_trouble),
    ROW(MEMBER, COMPLETE, "Complete", read_complete),
    ROW(MEMBER, LEAVE, "Leave", read_leave),
    ROW(MEMBER, REACHED, "Reached", read_reached),
};
static const struct row of_leader[] = {
    ROW(LEADER, WAIT, "Wait", read_wait),
    ROW(LEADER, VIEW, "View", read_view),
    ROW(LEADER, OVER, "Over", read_over),
    ROW(LEADER, PAUSE, "Pause", read_pause),
    ROW(LEADER, REDIRECT, "Redirect", read_redirect),
    ROW(LEADER, REFUSE, "Refuse", read_refuse),
    ROW(LEADER, BEAT, "Beat", read_beat),
    ROW(LEADER, REACH, "Reach", read_reach),
};

static int read_row(const struct row *rows, size_t n, const struct reader *r, int which, void *body,
                    struct member_msg *out)
{
    const struct row *row = &rows[which];
    int rc;

    if (which < 0 || (size_t)which >= n || row->read == NULL || body == NULL)
        return err_set(r->err, ERR_INPUT, "unknown kind of message");
    *out = (struct member_msg){ .kind = row->kind, .text = "", .progress.phase = "" };
    rc = row->read(r, body, out);
    return rc < 0 ? err_wrap(r->err, rc, "%s", row->name) : 0;
}

/* The members of the unions are all pointers to messages. */
int wire_read_member(struct wire *w, const struct wire_cluster *c,
                     const Trainerd__V1__MemberMessage *m, struct member_msg *out, struct err *err)
{
    return read_row(of_member, COUNT_OF(of_member), &(struct reader){ w, c, err },
                    (int)m->message_case, m->join, out);
}

int wire_read_leader(struct wire *w, const struct wire_cluster *c,
                     const Trainerd__V1__LeaderMessage *m, struct member_msg *out, struct err *err)
{
    return read_row(of_leader, COUNT_OF(of_leader), &(struct reader){ w, c, err },
                    (int)m->message_case, m->wait, out);
}

int wire_read_status(const struct wire_cluster *c, const Trainerd__V1__Where *m, uint32_t *rank,
                     struct member_status *out, struct err *err)
{
    int rc;

    if (m == NULL)
        return err_set(err, ERR_INPUT, "where: missing");
    rc = check_task("task", m->task, err);
    if (rc == 0)
        rc = check_incarnation(m->incarnation, err);
    if (rc == 0)
        rc = check_numbers(&(struct number){ "generation", m->generation }, 1, err);
    if (rc == 0)
        rc = read_optional_rank(c, "leader", m->leader, &out->leader, err);
    if (rc < 0)
        return err_wrap(err, rc, "where");
    *rank = wire_rank(c, m->task);
    out->incarnation = m->incarnation;
    out->generation = m->generation;
    out->has_view = m->has_view;
    return 0;
}
