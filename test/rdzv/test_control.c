/* test_control.c - the services Control and Health, and an independent client. */
#include "rdzv/kit.h"

#include <grpc/support/log.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/fs.h"
#include "base/log_ring.h"
#include "proto/trainerd.pb-c.h"
#include "tls/keys.h"
#include "tls/tls.h"

static Trainerd__V1__StatusReply *status(const char *address, struct tls *tls)
{
    Trainerd__V1__StatusReply *s;
    struct err err = { 0 };
    void *packed;
    size_t n;

    if (rdzv_call(address, tls, NULL, "Status", WAIT_GUARD_MS, &packed, &n, &err) < 0)
        fail_msg("%s", err.text);
    s = trainerd__v1__status_reply__unpack(NULL, n, packed);
    free(packed);
    assert_non_null(s);
    return s;
}

static void status_reports_members_and_progress(void **state)
{
    struct wait heartbeat = WAIT_BEGIN("a heartbeat with step 2");
    struct cluster *c = open_cluster(2);
    Trainerd__V1__StatusReply *s;

    (void)state;
    post(&c->nodes[1], do_step);
    post(&c->nodes[1], do_step);
    s = status(c->addresses[0], NULL);
    while (s->tasks[1]->step < 2 || s->tasks[1]->heard_ms >= 1000) {
        trainerd__v1__status_reply__free_unpacked(s, NULL);
        wait_poll(&heartbeat);
        s = status(c->addresses[0], NULL);
    }
    assert_string_equal(s->state, "leading");
    assert_string_equal(s->job, "digits");
    assert_string_equal(s->self->address, c->addresses[0]);
    assert_int_equal(s->generation, c->nodes[0].generation);
    assert_int_equal(s->leader->index, 0);
    assert_int_equal(s->n_view, 2);
    assert_int_equal(s->view[1]->index, 1);
    assert_int_equal(s->n_tasks, 2);
    assert_true(s->tasks[1]->present);
    assert_string_equal(s->tasks[1]->state, "active");
    assert_string_equal(s->phase, "train");
    assert_string_equal(s->tasks[1]->phase, "reduce");
    assert_int_equal(s->tasks[1]->step, 2);
    assert_int_equal(s->tasks[1]->step_held, 2);
    assert_true(s->tasks[1]->incarnation == c->nodes[1].incarnation);
    assert_true(s->tasks[1]->samples_per_second == 125);
    for (int i = 0; i < 2; i++) { /* this task, and what the beat of the other said */
        assert_non_null(s->tasks[i]->step_time);
        assert_true(s->tasks[i]->step_time->seconds == 0.5 &&
                    s->tasks[i]->step_time->data == 0.125);
        assert_true(s->tasks[i]->step_time->compute == 0.5 &&
                    s->tasks[i]->step_time->reduce == 0.25);
        assert_true(s->tasks[i]->step_time->checkpoint == 0.125);
        assert_string_equal(s->tasks[i]->last_trouble, "a disk is slow");
        assert_int_equal(s->tasks[i]->n_devices, c->opts.n_devices);
    }
    trainerd__v1__status_reply__free_unpacked(s, NULL);
    s = status(c->addresses[1], NULL);
    assert_string_equal(s->state, "following");
    assert_int_equal(s->leader->index, 0);
    assert_int_equal(s->self->index, 1);
    assert_int_equal(s->n_view, 2);
    trainerd__v1__status_reply__free_unpacked(s, NULL);
    kill_node(c, 1);
    WAIT_FOR(is_group(c, "0") || c->nodes[0].n_aborts == 1);
    s = status(c->addresses[0], NULL);
    assert_non_null(strstr(s->cause, "worker 1 (127.0.0.1:"));
    assert_non_null(strstr(s->cause, "was lost: its connection closed"));
    assert_false(s->tasks[1]->present);
    assert_string_equal(s->tasks[1]->state, "missing");
    assert_string_equal(s->tasks[1]->phase, "");
    trainerd__v1__status_reply__free_unpacked(s, NULL);
    close_cluster(c);
}

static void status_of_a_waiting_task_reports_other_tasks_as_unknown(void **state)
{
    struct wait leader = WAIT_BEGIN("task 1 knows its leader");
    struct cluster *c = new_cluster(3);
    Trainerd__V1__StatusReply *s;

    (void)state;
    c->opts.min_world = 3;
    open_node(c, 0);
    open_node(c, 1);
    s = status(c->addresses[1], NULL);
    while (s->leader == NULL) {
        trainerd__v1__status_reply__free_unpacked(s, NULL);
        wait_poll(&leader);
        s = status(c->addresses[1], NULL);
    }
    assert_string_equal(s->state, "following");
    assert_int_equal(s->generation, 0);
    assert_string_equal(s->tasks[0]->state, "joined");
    assert_string_equal(s->tasks[1]->state, "joined");
    assert_string_equal(s->tasks[2]->state, "unknown");
    trainerd__v1__status_reply__free_unpacked(s, NULL);
    s = status(c->addresses[0], NULL);
    assert_string_equal(s->tasks[1]->state, "joined");
    assert_string_equal(s->tasks[2]->state, "missing");
    trainerd__v1__status_reply__free_unpacked(s, NULL);
    close_cluster(c);
}

/* Packs a request of Logs and unpacks the reply. */
static Trainerd__V1__LogsReply *logs(struct rdzv_caller *caller, uint64_t after, bool events_only)
{
    Trainerd__V1__LogsRequest q = TRAINERD__V1__LOGS_REQUEST__INIT;
    Trainerd__V1__LogsReply *reply;
    uint8_t bytes[32];
    struct err err;
    void *packed;
    size_t n;

    q.after = after;
    q.events_only = events_only;
    n = trainerd__v1__logs_request__pack(&q, bytes);
    if (rdzv_caller_call(caller, "Logs", bytes, n, WAIT_GUARD_MS, &packed, &n, NULL, &err) < 0)
        fail_msg("%s", err.text);
    reply = trainerd__v1__logs_reply__unpack(NULL, n, packed);
    free(packed);
    assert_non_null(reply);
    return reply;
}

static void logs_returns_the_records_after_a_number(void **state)
{
    struct cluster *c = open_cluster(1);
    Trainerd__V1__LogsReply *l;
    struct rdzv_caller *caller;
    struct err err;
    uint64_t last;

    (void)state;
    assert_int_equal(rdzv_caller_open(c->addresses[0], NULL, NULL, &caller, &err), 0);
    l = logs(caller, 0, false);
    last = l->last;
    assert_true(l->incarnation == c->nodes[0].incarnation);
    trainerd__v1__logs_reply__free_unpacked(l, NULL);
    log_ring_add(LOG_INFO, "step", "step 1");
    log_ring_add(LOG_WARN, "warning", "bad \xff byte");
    l = logs(caller, last, false);
    assert_int_equal(l->n_records, 2);
    assert_int_equal(l->last, last + 2);
    assert_string_equal(l->records[0]->message, "step 1");
    assert_string_equal(l->records[1]->message, "bad ? byte");
    assert_string_equal(l->records[1]->level, "warn");
    trainerd__v1__logs_reply__free_unpacked(l, NULL);
    l = logs(caller, last, true);
    assert_int_equal(l->n_records, 1);
    assert_int_equal(l->records[0]->number, last + 2);
    trainerd__v1__logs_reply__free_unpacked(l, NULL);
    rdzv_caller_close(caller);
    close_cluster(c);
}

/* Calls Trace; the returned reply is NULL if the call failed with `code`. */
static Trainerd__V1__TraceReply *trace(struct rdzv_caller *caller, uint64_t offset, bool clock_only,
                                       int code)
{
    Trainerd__V1__TraceRequest q = TRAINERD__V1__TRACE_REQUEST__INIT;
    Trainerd__V1__TraceReply *reply;
    uint64_t times[2];
    uint8_t bytes[32];
    struct err err;
    void *packed;
    size_t n;

    q.offset = offset;
    q.clock_only = clock_only;
    n = trainerd__v1__trace_request__pack(&q, bytes);
    assert_int_equal(
        rdzv_caller_call(caller, "Trace", bytes, n, WAIT_GUARD_MS, &packed, &n, times, &err), code);
    if (code < 0)
        return NULL;
    reply = trainerd__v1__trace_reply__unpack(NULL, n, packed);
    free(packed);
    assert_non_null(reply);
    assert_true(times[0] <= reply->clock_ns && reply->clock_ns <= times[1]); /* the same clock in this test */
    return reply;
}

static void trace_is_read_in_parts_when_it_is_written(void **state)
{
    char path[] = "/tmp/trainerd-trace-XXXXXX", text[] = "{\"traceEvents\":[]}";
    struct cluster *c = open_cluster(1);
    Trainerd__V1__TraceReply *t;
    struct rdzv_caller *caller;
    struct err err;
    int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    assert_int_equal(rdzv_caller_open(c->addresses[0], NULL, NULL, &caller, &err), 0);
    trainerd__v1__trace_reply__free_unpacked(trace(caller, 0, true, 0), NULL);
    (void)trace(caller, 0, false, ERR_REFUSED); /* none is written */
    c->nodes[0].progress.trace_path = path;
    t = trace(caller, 5, false, 0);
    assert_int_equal(t->total, strlen(text));
    assert_int_equal(t->data.len, strlen(text) - 5);
    assert_memory_equal(t->data.data, text + 5, t->data.len);
    assert_string_equal(t->task, "worker 0");
    trainerd__v1__trace_reply__free_unpacked(t, NULL);
    t = trace(caller, 1000, false, 0);
    assert_int_equal(t->data.len, 0);
    trainerd__v1__trace_reply__free_unpacked(t, NULL);
    unlink(path);
    (void)trace(caller, 0, false, ERR_REFUSED);
    close(fd);
    rdzv_caller_close(caller);
    close_cluster(c);
}

static void checkpoint_and_drain_are_answered_or_refused(void **state)
{
    struct cluster *c = open_cluster(3);
    Trainerd__V1__CheckpointReply *reply;
    struct err err = { 0 };
    void *packed = NULL;
    size_t n;

    (void)state;
    assert_int_equal(
        rdzv_call(c->addresses[0], NULL, NULL, "Checkpoint", WAIT_GUARD_MS, &packed, &n, &err), 0);
    reply = trainerd__v1__checkpoint_reply__unpack(NULL, n, packed);
    free(packed);
    assert_int_equal(reply->step, 42);
    assert_string_equal(reply->path, "run/step-00000042");
    trainerd__v1__checkpoint_reply__free_unpacked(reply, NULL);
    assert_int_equal(
        rdzv_call(c->addresses[1], NULL, NULL, "Checkpoint", WAIT_GUARD_MS, &packed, &n, &err),
        ERR_REFUSED);
    assert_non_null(strstr(err.text, ": this task does not write checkpoints: ask the chief"));
    assert_int_equal(
        rdzv_call(c->addresses[1], NULL, NULL, "Drain", WAIT_GUARD_MS, &packed, &n, &err), 0);
    free(packed);
    WAIT_FOR(c->nodes[1].code == 143);
    join_node(&c->nodes[1]);
    WAIT_FOR(is_group(c, "02"));
    assert_int_equal(
        rdzv_call("127.0.0.1:1", NULL, NULL, "Status", WAIT_GUARD_MS, &packed, &n, &err), ERR_PEER);
    assert_string_equal(err.text, "Status of 127.0.0.1:1: connect: Connection refused");
    assert_int_equal(rdzv_call("127.0.0.1", NULL, NULL, "Status", WAIT_GUARD_MS, &packed, &n, &err),
                     ERR_INPUT);
    assert_non_null(strstr(err.text, "'127.0.0.1': expected HOST:PORT"));
    close_cluster(c);
}

struct reload_call {
    pthread_t thread;
    const char *address;
    int rc;
    struct err err;
    Trainerd__V1__ReloadReply *reply;
};

static void *call_reload(void *arg)
{
    struct reload_call *r = arg;
    void *packed;
    size_t n;

    r->rc = rdzv_call(r->address, NULL, NULL, "Reload", WAIT_GUARD_MS, &packed, &n, &r->err);
    if (r->rc == 0) {
        r->reply = trainerd__v1__reload_reply__unpack(NULL, n, packed);
        free(packed);
    }
    return NULL;
}

static void start_reload(struct cluster *c, struct reload_call *r)
{
    uint64_t before = c->nodes[0].n_reloads;

    *r = (struct reload_call){ .address = c->addresses[0] };
    assert_int_equal(pthread_create(&r->thread, NULL, call_reload, r), 0);
    WAIT_FOR(c->nodes[0].n_reloads == before + 1);
}

static void finish_first_reload(void *arg)
{
    struct node *n = arg;

    rdzv_reload_done(n->rdzv, 1, (struct rdzv_change[]){ { "/log/level", "\"info\"", "\"debug\"", "" } }, 1, NULL);
}

static void refuse_second_reload(void *arg)
{
    struct node *n = arg;

    rdzv_reload_done(n->rdzv, 2, NULL, 0, "job.json: /train/epochs changed");
}

/* Ends the task as its process does: the last answers are sent. */
static void end_in_order(void *arg)
{
    struct node *n = arg;

    SEEN(n->grace_ms = WAIT_GUARD_MS);
    loop_stop(n->loop);
}

static void reload_is_answered_by_its_own_reload_with_the_changes_or_the_refusal(void **state)
{
    struct cluster *c = open_cluster(2);
    struct reload_call first, second;
    struct err err = { 0 };
    void *packed;
    size_t n;

    (void)state;
    start_reload(c, &first);
    start_reload(c, &second); /* arrives while the first one reads the file */
    post(&c->nodes[0], finish_first_reload);
    pthread_join(first.thread, NULL);
    assert_int_equal(first.rc, 0);
    assert_int_equal(first.reply->n_changes, 1);
    assert_string_equal(first.reply->changes[0]->key, "/log/level");
    assert_string_equal(first.reply->changes[0]->from, "\"info\"");
    assert_string_equal(first.reply->changes[0]->to, "\"debug\"");
    assert_string_equal(first.reply->changes[0]->note, "");
    trainerd__v1__reload_reply__free_unpacked(first.reply, NULL);
    post(&c->nodes[0], refuse_second_reload);
    pthread_join(second.thread, NULL);
    assert_int_equal(second.rc, ERR_REFUSED);
    assert_non_null(strstr(second.err.text, ": job.json: /train/epochs changed"));

    assert_int_equal(
        rdzv_call(c->addresses[1], NULL, NULL, "Reload", WAIT_GUARD_MS, &packed, &n, &err),
        ERR_REFUSED);
    assert_non_null(strstr(err.text, ": no reload can start now"));
    start_reload(c, &first); /* is answered when the task ends */
    post(&c->nodes[0], end_in_order);
    join_node(&c->nodes[0]);
    pthread_join(first.thread, NULL);
    assert_int_equal(first.rc, ERR_REFUSED);
    assert_non_null(strstr(first.err.text, ": the task ends"));
    close_cluster(c);
}

static int call_netcheck(struct rdzv_caller *caller, const Trainerd__V1__NetcheckRequest *q,
                         Trainerd__V1__NetcheckReply **out, struct err *err)
{
    uint8_t request[256];
    size_t n_request = trainerd__v1__netcheck_request__get_packed_size(q), n = 0;
    void *packed = NULL;
    int rc;

    assert_true(n_request <= sizeof(request));
    trainerd__v1__netcheck_request__pack(q, request);
    rc = rdzv_caller_call(caller, "Netcheck", request, n_request, WAIT_GUARD_MS, &packed, &n, NULL,
                          err);
    *out = rc == 0 ? trainerd__v1__netcheck_reply__unpack(NULL, n, packed) : NULL;
    free(packed);
    return rc;
}

static void netcheck_opens_a_port_or_measures_a_peer_and_refuses_other_requests(void **state)
{
    struct cluster *c = open_cluster(2);
    Trainerd__V1__NetcheckRequest q = TRAINERD__V1__NETCHECK_REQUEST__INIT;
    Trainerd__V1__Task peer = TRAINERD__V1__TASK__INIT;
    Trainerd__V1__NetcheckReply *reply;
    struct rdzv_caller *caller;
    uint8_t ticket[17] = { [15] = 4 };
    struct err err = { 0 };
    const struct {
        uint32_t port, ms, index;
        uint64_t bytes;
        size_t ticket;
        int code;
        const char *text;
    } rows[] = {
        { 7000, 100, 0, 5000, 16, ERR_IO, "peer: expected another task of this cluster" },
        { 7000, 100, 2, 5000, 16, ERR_IO, "peer: expected another task of this cluster" },
        { 0, 100, 1, 5000, 16, ERR_IO, "port 0, ticket of 16 bytes" },
        { 65536, 100, 1, 5000, 16, ERR_IO, "port 65536" },
        { 7000, 100, 1, 5000, 15, ERR_IO, "ticket of 15 bytes" },
        { 7000, 100, 1, 5000, 17, ERR_IO, "ticket of 17 bytes" },
        { 7000, 0, 1, 5000, 16, ERR_IO, "ms 0" },
        { 7000, 2001, 1, 5000, 16, ERR_IO, "ms 2001" },
        { 7000, 100, 1, 0, 16, ERR_IO, "bytes 0" },
        { 7000, 100, 1, (256 << 20) + 1, 16, ERR_IO, "bytes 268435457" },
        { 13, 100, 1, 5000, 16, ERR_REFUSED, "port 13 refuses the connection" },
        { 7000, 100, 1, 5000, 16, 0, "" },
    };

    (void)state;
    assert_int_equal(rdzv_caller_open(c->addresses[0], NULL, NULL, &caller, &err), 0);
    assert_int_equal(call_netcheck(caller, &q, &reply, &err), 0);
    assert_int_equal(reply->port, 7000);
    assert_true(reply->ticket.len == 16 && reply->ticket.data[0] == 9);
    trainerd__v1__netcheck_reply__free_unpacked(reply, NULL);
    peer.type = "worker";
    q.peer = &peer;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        peer.index = rows[i].index;
        peer.address = c->addresses[rows[i].index < 2 ? rows[i].index : 1];
        q.port = rows[i].port;
        q.ms = rows[i].ms;
        q.bytes = rows[i].bytes;
        q.ticket = (ProtobufCBinaryData){ rows[i].ticket, ticket };
        assert_int_equal(call_netcheck(caller, &q, &reply, &err), rows[i].code);
        if (rows[i].code != 0) {
            assert_non_null(strstr(err.text, rows[i].text));
            continue;
        }
        assert_true(reply->round_trip_us == 100 + 1 + 4 && reply->rate == 5000 && reply->port == 0);
        trainerd__v1__netcheck_reply__free_unpacked(reply, NULL);
    }
    rdzv_caller_close(caller);
    close_cluster(c);
}

static void stop_on_any_task_ends_the_job_everywhere(void **state)
{
    struct cluster *c = open_cluster(3);
    struct err err = { 0 };
    void *packed;
    size_t n;

    (void)state;
    assert_int_equal(
        rdzv_call(c->addresses[1], NULL, NULL, "Stop", WAIT_GUARD_MS, &packed, &n, &err), 0);
    free(packed);
    for (uint32_t i = 0; i < 3; i++)
        WAIT_FOR(c->nodes[i].code == 143);
    close_cluster(c);
}

/* ---- TLS ---- */

static struct tls *of_token(const char *token)
{
    const char *const hosts[] = { "127.0.0.1" };
    struct tls *t = NULL;
    struct err err;

    if (tls_open_token(token, hosts, 1, &t, &err) < 0)
        fail_msg("%s", err.text);
    return t;
}

static const char secret[] = "a secret that all tasks share";

static void caller_or_task_without_the_token_is_rejected(void **state)
{
    struct cluster *c = new_cluster(2);
    struct tls *tls = of_token(secret), *wrong = of_token("A secret that all tasks share");
    struct rdzv_opts other;
    struct err err = { 0 };
    void *packed;
    size_t n;

    (void)state;
    c->opts.tls = tls;
    other = c->opts;
    other.tls = wrong;
    open_node(c, 0);
    open_node_with(&c->nodes[1], &other);
    WAIT_FOR(strstr(c->nodes[1].trouble, "worker 0") != NULL);
    assert_non_null(strstr(c->nodes[1].trouble, " is absent: the process at its address is not accepted: "
                                                "TLS: the certificate of the other side is not accepted"));
    assert_non_null(strstr(c->nodes[1].trouble, "either the token differs or is absent there, or another program has this address: compare "
                                                "TRAINERD_TOKEN of both tasks"));
    assert_int_equal(c->nodes[1].code, RUNNING); /* a correct process may appear there */
    assert_int_equal(
        rdzv_call(c->addresses[0], NULL, NULL, "Status", WAIT_GUARD_MS, &packed, &n, &err),
        ERR_AUTH);
    assert_non_null(strstr(err.text, "set the same TRAINERD_TOKEN for the caller"));
    assert_int_equal(
        rdzv_call(c->addresses[0], wrong, NULL, "Status", WAIT_GUARD_MS, &packed, &n, &err),
        ERR_AUTH);
    trainerd__v1__status_reply__free_unpacked(status(c->addresses[0], tls), NULL);
    close_cluster(c);
    tls_close(tls);
    tls_close(wrong);
}

static void task_with_a_token_is_rejected_by_a_task_in_clear_text(void **state)
{
    struct cluster *c = new_cluster(2);
    struct tls *tls = of_token(secret);
    struct rdzv_opts other;

    (void)state;
    open_node(c, 0);
    other = c->opts;
    other.tls = tls;
    open_node_with(&c->nodes[1], &other);
    WAIT_FOR(strstr(c->nodes[1].trouble, "has this address: compare TRAINERD_TOKEN") != NULL);
    assert_non_null(strstr(c->nodes[1].trouble, "the other side does not use TLS"));
    assert_int_equal(c->nodes[1].code, RUNNING);
    close_cluster(c);
    tls_close(tls);
}

static void caller_with_tls_of_a_task_in_clear_text_is_told(void **state)
{
    struct cluster *c = open_cluster(1);
    struct tls *tls = of_token(secret);
    struct err err = { 0 };
    void *packed;
    size_t n;

    (void)state;
    assert_int_equal(
        rdzv_call(c->addresses[0], tls, NULL, "Status", WAIT_GUARD_MS, &packed, &n, &err),
        ERR_AUTH);
    assert_non_null(strstr(err.text, "does not use TLS"));
    close_cluster(c);
    tls_close(tls);
}

/* Certificates in files, of one authority. */
struct issued {
    char folder[64];
    struct buf authority, key;
};

static void write_pem(const char *folder, const char *name, const char *text)
{
    char path[128];
    struct err err;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    if (fs_replace(path, text, strlen(text), &err) < 0)
        fail_msg("%s", err.text);
}

static struct tls *issue(struct issued *to, const char *host)
{
    const struct tls_subject subject = { .name = "task", .hosts = &host, .n_hosts = 1, .days = 1 };
    struct buf certificate = { 0 }, key = { 0 };
    char paths[3][96];
    struct tls *t = NULL;
    struct err err;

    if (tls_certificate_new(to->authority.data, to->key.data, &subject, &certificate, &key, &err) <
        0)
        fail_msg("%s", err.text);
    write_pem(to->folder, "tls.crt", certificate.data);
    write_pem(to->folder, "tls.key", key.data);
    write_pem(to->folder, "ca.crt", to->authority.data);
    buf_fini(&certificate);
    buf_fini(&key);
    snprintf(paths[0], sizeof(paths[0]), "%s/tls.crt", to->folder);
    snprintf(paths[1], sizeof(paths[1]), "%s/tls.key", to->folder);
    snprintf(paths[2], sizeof(paths[2]), "%s/ca.crt", to->folder);
    if (tls_open(&(struct tls_files){ paths[0], paths[1], paths[2] }, &t, &err) < 0)
        fail_msg("%s", err.text);
    return t;
}

static void begin_issuing(struct issued *to)
{
    struct err err;

    memset(to, 0, sizeof(*to));
    snprintf(to->folder, sizeof(to->folder), "/tmp/trainerd-control-XXXXXX");
    assert_non_null(mkdtemp(to->folder));
    if (tls_authority_new("test", 1, &to->authority, &to->key, &err) < 0)
        fail_msg("%s", err.text);
}

static void end_issuing(struct issued *to)
{
    assert_int_equal(fs_remove_tree(to->folder, NULL), 0);
    buf_fini(&to->authority);
    buf_fini(&to->key);
}

static void logs_and_trace_need_a_certificate_of_the_authority_alone(void **state)
{
    struct cluster *c = new_cluster(1);
    struct issued from;
    struct tls *good, *viewer, *callers[2];
    struct rdzv_caller *caller;
    struct err err = { 0 };

    (void)state;
    begin_issuing(&from);
    good = issue(&from, "127.0.0.1");
    viewer = issue(&from, "monitor.example");
    c->opts.tls = good;
    c->opts.token = secret;
    open_node(c, 0);
    callers[0] = viewer;
    callers[1] = NULL; /* clear text */
    for (int i = 0; i < 2; i++) {
        static const char *const methods[] = { "Logs", "Trace" };
        int expected[] = { i == 0 ? 0 : ERR_AUTH, i == 0 ? ERR_REFUSED : ERR_AUTH /* no trace is written */ };

        assert_int_equal(rdzv_caller_open(c->addresses[0], callers[i], NULL, &caller, &err), 0);
        for (int m = 0; m < 2; m++) {
            void *packed = NULL;
            size_t n;

            assert_int_equal(rdzv_caller_call(caller, methods[m], NULL, 0, WAIT_GUARD_MS, &packed,
                                              &n, NULL, &err),
                             expected[m]);
            free(packed);
        }
        rdzv_caller_close(caller);
    }
    close_cluster(c);
    tls_close(good);
    tls_close(viewer);
    end_issuing(&from);
}

static void task_with_the_certificate_of_another_host_is_rejected(void **state)
{
    struct cluster *c = new_cluster(2);
    struct issued from;
    struct tls *good, *other;
    struct rdzv_opts stranger;

    (void)state;
    begin_issuing(&from);
    good = issue(&from, "127.0.0.1");
    other = issue(&from, "10.9.8.7");
    c->opts.tls = good;
    stranger = c->opts;
    stranger.tls = other;
    open_node(c, 0);
    open_node_with(&c->nodes[1], &stranger);
    WAIT_FOR(
        strstr(c->nodes[1].trouble,
               "its certificate is of '10.9.8.7', expected the host of its address 127.0.0.1") !=
        NULL);
    assert_int_equal(c->nodes[1].code, RUNNING);
    close_cluster(c);
    tls_close(good);
    tls_close(other);
    end_issuing(&from);
}

static void command_that_changes_the_job_needs_its_host_or_the_operator(void **state)
{
    struct cluster *c = new_cluster(1);
    struct issued from;
    struct tls *good, *viewer, *operator;
    struct err err = { 0 };
    void *packed;
    size_t n;

    (void)state;
    begin_issuing(&from);
    good = issue(&from, "127.0.0.1");
    viewer = issue(&from, "monitor.example");
    operator= issue(&from, RDZV_OPERATOR);
    c->opts.tls = good;
    open_node(c, 0);
    WAIT_FOR(is_group(c, "0"));
    trainerd__v1__status_reply__free_unpacked(status(c->addresses[0], viewer), NULL);
    assert_int_equal(
        rdzv_call(c->addresses[0], viewer, NULL, "Stop", WAIT_GUARD_MS, &packed, &n, &err),
        ERR_AUTH);
    assert_non_null(strstr(err.text, "needs a certificate of a host of the cluster"));
    assert_int_equal(
        rdzv_call(c->addresses[0], operator, NULL, "Stop", WAIT_GUARD_MS, &packed, &n, &err), 0);
    free(packed);
    WAIT_FOR(c->nodes[0].code == 143);
    close_cluster(c);
    tls_close(good);
    tls_close(viewer);
    tls_close(operator);
    end_issuing(&from);
}

static void command_that_changes_the_job_needs_the_token_if_there_is_one(void **state)
{
    struct cluster *c = new_cluster(1);
    struct issued from;
    struct tls *good;
    struct err err = { 0 };
    void *packed;
    size_t n;

    (void)state;
    begin_issuing(&from);
    good = issue(&from, "127.0.0.1");
    c->opts.tls = good;
    c->opts.token = secret;
    open_node(c, 0);
    WAIT_FOR(is_group(c, "0"));
    assert_int_equal(
        rdzv_call(c->addresses[0], good, NULL, "Stop", WAIT_GUARD_MS, &packed, &n, &err), ERR_AUTH);
    assert_int_equal(
        rdzv_call(c->addresses[0], good, "another", "Stop", WAIT_GUARD_MS, &packed, &n, &err),
        ERR_AUTH);
    assert_non_null(strstr(err.text, "needs the token of the cluster"));
    assert_int_equal(
        rdzv_call(c->addresses[0], good, "two\nlines", "Stop", WAIT_GUARD_MS, &packed, &n, &err),
        ERR_INPUT);
    assert_int_equal(
        rdzv_call(c->addresses[0], good, secret, "Stop", WAIT_GUARD_MS, &packed, &n, &err), 0);
    free(packed);
    close_cluster(c);
    tls_close(good);
    end_issuing(&from);
}

/* client.py: Python's gRPC with the .proto files of this project; also joins as a third member. */
static void independent_grpc_client_all_services_answer(void **state)
{
    const char *directory_end = strrchr(__FILE__, '/');
    struct cluster *c = new_cluster(3);
    struct issued from;
    struct tls *good;
    char command[1024];

    (void)state;
    begin_issuing(&from);
    good = issue(&from, "127.0.0.1");
    c->opts.tls = good;
    open_node(c, 0);
    open_node(c, 1);
    WAIT_FOR(is_group(c, "01"));
    for (uint32_t i = 0; i < 2; i++) {
        snprintf(command, sizeof(command),
                 "python3 '%.*s/client.py' %s '%s' '{\"type\": \"worker\", \"index\": 2, "
                 "\"version\": \"1.2\", \"job_digest\": \"j0b\", \"cluster_hash\": \"c1u\", "
                 "\"devices\": \"cpu\", \"n_devices\": 2, \"kernels\": \"onednn avx2\"}' >&2",
                 (int)(directory_end - __FILE__), __FILE__, c->addresses[i], from.folder);
        assert_int_equal(system(command), 0);
    }
    close_cluster(c);
    tls_close(good);
    end_issuing(&from);
}

static uint32_t n_grpc_errors;
static char last_grpc_error[600];

static void count_grpc_error(const char *line)
{
    if (strstr(line, "from a test") == NULL)
        return;
    n_grpc_errors++;
    snprintf(last_grpc_error, sizeof(last_grpc_error), "%s", line);
}

static void errors_in_the_log_of_grpc_are_reported_less_and_less_often(void **state)
{
    struct cluster *c = open_cluster(1); /* initializes gRPC */

    (void)state;
    rdzv_on_grpc_error(count_grpc_error);
    gpr_log("a.cc", 7, GPR_LOG_SEVERITY_INFO, "no error, from a test");
    assert_int_equal(n_grpc_errors, 0);
    gpr_log("a.cc", 7, GPR_LOG_SEVERITY_ERROR, "accept4 failed, %s", "from a test");
    assert_int_equal(n_grpc_errors, 1);
    assert_string_equal(last_grpc_error, "a.cc:7: accept4 failed, from a test");
    for (int i = 1; i < 100; i++)
        gpr_log("a.cc", 7, GPR_LOG_SEVERITY_ERROR, "accept4 failed, from a test");
    assert_int_equal(n_grpc_errors, 6); /* 1 to 4, 16, 64 */
    assert_string_equal(last_grpc_error, "a.cc:7: accept4 failed, from a test (64 so far)");
    gpr_log("a.cc", 8, GPR_LOG_SEVERITY_ERROR, "another, from a test");
    assert_string_equal(last_grpc_error, "a.cc:8: another, from a test");
    rdzv_on_grpc_error(NULL);
    gpr_log("a.cc", 9, GPR_LOG_SEVERITY_ERROR, "no receiver, from a test");
    assert_int_equal(n_grpc_errors, 7);
    close_cluster(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(status_reports_members_and_progress),
        cmocka_unit_test(errors_in_the_log_of_grpc_are_reported_less_and_less_often),
        cmocka_unit_test(status_of_a_waiting_task_reports_other_tasks_as_unknown),
        cmocka_unit_test(logs_returns_the_records_after_a_number),
        cmocka_unit_test(trace_is_read_in_parts_when_it_is_written),
        cmocka_unit_test(checkpoint_and_drain_are_answered_or_refused),
        cmocka_unit_test(reload_is_answered_by_its_own_reload_with_the_changes_or_the_refusal),
        cmocka_unit_test(netcheck_opens_a_port_or_measures_a_peer_and_refuses_other_requests),
        cmocka_unit_test(stop_on_any_task_ends_the_job_everywhere),
        cmocka_unit_test(caller_or_task_without_the_token_is_rejected),
        cmocka_unit_test(task_with_a_token_is_rejected_by_a_task_in_clear_text),
        cmocka_unit_test(caller_with_tls_of_a_task_in_clear_text_is_told),
        cmocka_unit_test(logs_and_trace_need_a_certificate_of_the_authority_alone),
        cmocka_unit_test(task_with_the_certificate_of_another_host_is_rejected),
        cmocka_unit_test(command_that_changes_the_job_needs_its_host_or_the_operator),
        cmocka_unit_test(command_that_changes_the_job_needs_the_token_if_there_is_one),
        cmocka_unit_test(independent_grpc_client_all_services_answer),
    };

    return cmocka_run_group_tests_name("rdzv/control", tests, NULL, NULL);
}
