#include "rdzv/wire.h"

#include <stdbool.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/text.h"

/* ---- memory ---- */

static void *take(void *arg, size_t bytes)
{
    struct wire *w = arg;

    if (bytes > WIRE_MEMORY_MAX - w->used)
        return NULL;
    w->used += bytes;
    return arena_alloc(&w->arena, bytes > 0 ? bytes : 1);
}

static void give(void *arg, void *memory)
{
    (void)arg;
    (void)memory; /* all at once, in wire_fini() */
}

void *wire_unpack(struct wire *w, const ProtobufCMessageDescriptor *type, const void *data,
                  size_t n)
{
    ProtobufCAllocator allocator = { .alloc = take, .free = give, .allocator_data = w };

    w->used = 0;
    if (n > WIRE_BYTES_MAX)
        return NULL;
    return protobuf_c_message_unpack(type, &allocator, n, n > 0 ? data : (const void *)"");
}

void wire_fini(struct wire *w)
{
    arena_fini(&w->arena);
    w->used = 0;
}

/* ---- strings ---- */

static bool is_control(char c)
{
    return (unsigned char)c < 0x20 || c == 0x7f;
}

/* An identifier or a short fact. */
static int check_fact(const char *field, const char *s, size_t max, struct err *err)
{
    size_t n = strlen(s);

    if (n > max)
        return err_set(err, ERR_INPUT, "%s: %zu bytes, at most %zu are allowed", field, n, max);
    if (!text_is_utf8(s, n))
        return err_set(err, ERR_INPUT, "%s: not UTF-8", field);
    for (size_t i = 0; i < n; i++)
        if (is_control(s[i]))
            return err_set(err, ERR_INPUT, "%s: control character 0x%02x at byte %zu", field,
                           (unsigned char)s[i], i);
    return 0;
}

/* A sentence for a person: cut and cleaned rather than refused. */
static int check_reason(const char *field, char *s, size_t max, struct err *err)
{
    size_t n = strlen(s);

    if (!text_is_utf8(s, n))
        return err_set(err, ERR_INPUT, "%s: not UTF-8", field);
    if (n > max)
        s[text_utf8_cut(s, max)] = '\0';
    for (; *s != '\0'; s++)
        if (is_control(*s))
            *s = ' ';
    return 0;
}

void wire_text(char *out, size_t n_out, const void *text, size_t n)
{
    const char *s = text;
    size_t len = 0;

    CHECK(n_out > 0);
    while (n > 0) {
        size_t bytes = text_utf8_char(s, n), put = bytes > 0 ? bytes : 1;

        if (len + put >= n_out)
            break;
        if (bytes == 0)
            out[len] = '?';
        else if (is_control(*s))
            out[len] = ' ';
        else
            memcpy(out + len, s, put);
        len += put;
        s += put;
        n -= put;
    }
    out[len] = '\0';
}

/* The strings of a message, by table. protobuf-c gives every string as a char * that is not NULL.
 */
struct fact {
    const char *name;
    size_t offset, max;
};

static int check_facts(const void *message, const struct fact *facts, size_t n, struct err *err)
{
    for (size_t i = 0; i < n; i++) {
        const char *s = *(char *const *)((const char *)message + facts[i].offset);
        int rc = check_fact(facts[i].name, s, facts[i].max, err);

        if (rc < 0)
            return rc;
    }
    return 0;
}

/* ---- tasks ---- */

static int check_task(const char *field, const Trainerd__V1__Task *t, struct err *err)
{
    static const struct fact facts[] = {
        { "type", offsetof(Trainerd__V1__Task, type), 32 },
        { "address", offsetof(Trainerd__V1__Task, address), 320 },
    };
    int rc;

    if (t == NULL)
        return err_set(err, ERR_INPUT, "%s: missing", field);
    rc = check_facts(t, facts, COUNT_OF(facts), err);
    return rc < 0 ? err_wrap(err, rc, "%s", field) : 0;
}

uint32_t wire_rank(const struct wire_cluster *c, const Trainerd__V1__Task *t)
{
    for (uint32_t i = 0; i < c->world; i++)
        if (c->tasks[i].index == t->index && strcmp(c->tasks[i].type, t->type) == 0)
            return i;
    return UINT32_MAX;
}

static int check_member_task(const struct wire_cluster *c, const char *field,
                             const Trainerd__V1__Task *t, uint32_t *rank, struct err *err)
{
    int rc = check_task(field, t, err);

    if (rc < 0)
        return rc;
    *rank = wire_rank(c, t);
    if (*rank == UINT32_MAX)
        return err_set(err, ERR_INPUT, "%s: '%s' %u is no training task of this cluster", field,
                       t->type, t->index);
    return 0;
}

static int check_incarnation(const ProtobufCBinaryData *b, struct err *err)
{
    if (b->len != MEMBER_INCARNATION_BYTES)
        return err_set(err, ERR_INPUT, "incarnation: %zu bytes, expected %d", b->len,
                       MEMBER_INCARNATION_BYTES);
    return 0;
}

/* ---- requests ---- */

int wire_check_join(const struct wire_cluster *c, Trainerd__V1__JoinRequest *m,
                    struct member_join *out, struct err *err)
{
    static const struct fact facts[] = {
        { "version", offsetof(Trainerd__V1__JoinRequest, version), 64 },
        { "job_digest", offsetof(Trainerd__V1__JoinRequest, job_digest), 128 },
        { "cluster_hash", offsetof(Trainerd__V1__JoinRequest, cluster_hash), 128 },
        { "cluster", offsetof(Trainerd__V1__JoinRequest, cluster), WIRE_BYTES_MAX },
        { "devices", offsetof(Trainerd__V1__JoinRequest, devices), 32 },
        { "kernels", offsetof(Trainerd__V1__JoinRequest, kernels), 256 },
        { "nccl", offsetof(Trainerd__V1__JoinRequest, nccl), 64 },
        { "data_address", offsetof(Trainerd__V1__JoinRequest, data_address), 320 },
        { "host_key", offsetof(Trainerd__V1__JoinRequest, host_key), 256 },
    };
    int rc = check_task("task", m->task, err);

    if (rc == 0)
        rc = check_incarnation(&m->incarnation, err);
    if (rc == 0)
        rc = check_facts(m, facts, COUNT_OF(facts), err);
    if (rc == 0 && m->n_devices == 0)
        rc = err_set(err, ERR_INPUT, "n_devices: 0, expected at least 1");
    if (rc < 0)
        return err_wrap(err, rc, "JoinRequest");
    *out = (struct member_join){ .rank = wire_rank(c, m->task),
                                 .ident = { .version = m->version,
                                            .job_digest = m->job_digest,
                                            .cluster_hash = m->cluster_hash,
                                            .cluster = m->cluster,
                                            .devices = m->devices,
                                            .kernels = m->kernels,
                                            .nccl = m->nccl },
                                 .n_devices = m->n_devices,
                                 .step_held = m->step_held };
    memcpy(out->incarnation, m->incarnation.data, MEMBER_INCARNATION_BYTES);
    return 0;
}

int wire_check_beat(const struct wire_cluster *c, Trainerd__V1__HeartbeatRequest *m,
                    struct member_beat *out, struct err *err)
{
    uint32_t rank;
    int rc = check_member_task(c, "task", m->task, &rank, err);

    if (rc == 0)
        rc = check_incarnation(&m->incarnation, err);
    if (rc == 0)
        rc = check_fact("phase", m->phase, WIRE_PHASE_BYTES - 1, err);
    if (rc < 0)
        return err_wrap(err, rc, "HeartbeatRequest");
    *out = (struct member_beat){ .rank = rank,
                                 .generation = m->generation,
                                 .step = m->step,
                                 .phase = m->phase,
                                 .phase_ms = m->phase_ms };
    memcpy(out->incarnation, m->incarnation.data, MEMBER_INCARNATION_BYTES);
    return 0;
}

int wire_check_leave(const struct wire_cluster *c, Trainerd__V1__LeaveRequest *m,
                     struct wire_leave *out, struct err *err)
{
    static const enum member_leave kinds[] = {
        [TRAINERD__V1__LEAVE_REQUEST__KIND__COMPLETE] = MEMBER_LEAVE_COMPLETE,
        [TRAINERD__V1__LEAVE_REQUEST__KIND__STOPPED] = MEMBER_LEAVE_STOPPED,
        [TRAINERD__V1__LEAVE_REQUEST__KIND__FAILED] = MEMBER_LEAVE_FAILED,
    };
    uint32_t rank;
    int rc = check_member_task(c, "task", m->task, &rank, err);

    if (rc == 0)
        rc = check_incarnation(&m->incarnation, err);
    if (rc == 0 && (size_t)m->kind >= COUNT_OF(kinds)) /* an unknown value passes unpacking */
        rc = err_set(err, ERR_INPUT, "kind: %d, expected 0 (complete), 1 (stopped) or 2 (failed)",
                     (int)m->kind);
    if (rc == 0)
        rc = check_reason("reason", m->reason, MEMBER_TEXT_BYTES - 1, err);
    if (rc < 0)
        return err_wrap(err, rc, "LeaveRequest");
    *out = (struct wire_leave){ .rank = rank,
                                .incarnation = m->incarnation.data,
                                .generation = m->generation,
                                .kind = kinds[m->kind],
                                .step = m->step,
                                .reason = m->reason };
    return 0;
}

/* ---- events ---- */

static int check_waiting(const struct wire_cluster *c, Trainerd__V1__Waiting *w, struct err *err)
{
    if (w->world != c->world || w->present > w->world || w->n_missing > w->world - w->present)
        return err_set(err, ERR_INPUT,
                       "waiting: %u of %u present and %zu missing, in a cluster of %u", w->present,
                       w->world, w->n_missing, c->world);
    for (size_t i = 0; i < w->n_missing; i++) {
        uint32_t rank;
        int rc = check_member_task(c, "waiting.missing.task", w->missing[i]->task, &rank, err);

        if (rc == 0)
            rc = check_reason("waiting.missing.last_error", w->missing[i]->last_error, 1024, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int check_member(const struct wire_cluster *c, uint32_t rank, const Trainerd__V1__Member *m,
                        struct err *err)
{
    static const struct fact facts[] = {
        { "data_address", offsetof(Trainerd__V1__Member, data_address), 320 },
        { "host_key", offsetof(Trainerd__V1__Member, host_key), 256 },
    };
    uint32_t named;
    int rc = check_member_task(c, "task", m->task, &named, err);

    if (rc == 0 && named != rank)
        rc = err_set(err, ERR_INPUT, "task: %s, expected %s", c->tasks[named].name,
                     c->tasks[rank].name);
    if (rc == 0)
        rc = check_incarnation(&m->incarnation, err);
    if (rc == 0)
        rc = check_facts(m, facts, COUNT_OF(facts), err);
    if (rc == 0 && m->n_devices == 0)
        rc = err_set(err, ERR_INPUT, "n_devices: 0, expected at least 1");
    return rc < 0 ? err_wrap(err, rc, "view.members[%u]", rank) : 0;
}

static int check_view(const struct wire_cluster *c, uint32_t self,
                      const uint8_t incarnation[MEMBER_INCARNATION_BYTES],
                      const Trainerd__V1__View *v, struct err *err)
{
    if (v->generation == 0)
        return err_set(err, ERR_INPUT, "view.generation: 0, expected at least 1");
    if (v->key.len != WIRE_KEY_BYTES)
        return err_set(err, ERR_INPUT, "view.key: %zu bytes, expected %d", v->key.len,
                       WIRE_KEY_BYTES);
    if (v->n_members != c->world || v->newest_member >= c->world)
        return err_set(err, ERR_INPUT, "view: %zu members, the newest is %u, in a cluster of %u",
                       v->n_members, v->newest_member, c->world);
    for (uint32_t i = 0; i < c->world; i++) {
        int rc = check_member(c, i, v->members[i], err);

        if (rc < 0)
            return rc;
    }
    if (memcmp(v->members[self]->incarnation.data, incarnation, MEMBER_INCARNATION_BYTES) != 0)
        return err_set(err, ERR_INPUT,
                       "view.members[%u]: another process has the place of this one", self);
    return 0;
}

static int check_over(Trainerd__V1__Over *o, struct err *err)
{
    int rc = o->culprit != NULL ? check_task("over.culprit", o->culprit, err) : 0;

    return rc < 0 ? rc : check_reason("over.reason", o->reason, MEMBER_TEXT_BYTES - 1, err);
}

int wire_check_event(const struct wire_cluster *c, uint32_t self,
                     const uint8_t incarnation[MEMBER_INCARNATION_BYTES],
                     Trainerd__V1__JoinEvent *m, struct err *err)
{
    int rc;

    switch (m->event_case) {
    case TRAINERD__V1__JOIN_EVENT__EVENT_WAITING:
        rc = check_waiting(c, m->waiting, err);
        break;
    case TRAINERD__V1__JOIN_EVENT__EVENT_VIEW:
        rc = check_view(c, self, incarnation, m->view, err);
        break;
    case TRAINERD__V1__JOIN_EVENT__EVENT_OVER:
        rc = check_over(m->over, err);
        break;
    case TRAINERD__V1__JOIN_EVENT__EVENT_REQUEST:
        rc = 0;
        break;
    default: /* of a newer release; versions are compared, so this is nonsense */
        rc = err_set(err, ERR_INPUT, "no event that is known");
        break;
    }
    return rc < 0 ? err_wrap(err, rc, "JoinEvent") : 0;
}
