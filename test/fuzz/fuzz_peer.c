/* fuzz_peer.c - peers of a task, over real connections, with any bytes and in any order. The input is a list of
 * operations of two bytes: the operation; then two bits for the connection, two for the call, four for a parameter.
 *
 * The operations write frames of HTTP/2 (RFC 9113) and messages of gRPC: valid and invalid ones, in parts; they end
 * calls and connections in every way, and hold the loop of the task, so that several events of a call are
 * handled at once. gRPC may return the batches of a call in any order: OP_DELAY makes received messages the last.
 * Each connection has an address of its own, because admission limits what an address sends.
 *
 * Checked: the task never crashes, still handles events after each input, and has no call at its end. */
#define FUZZ_COST 50 /* an input has connections, and waits for the task */

#include <dlfcn.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <grpc/grpc.h>
#include <grpc/support/time.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "fuzz/driver.h"
#include "loop/loop.h"
#include "proto/trainerd.pb-c.h"
#include "rdzv/frames.h"
#include "rdzv/rdzv.h"

enum { WORLD = 4, PEERS = 3, CALLS = 4, OPS_MAX = 64, MESSAGE_MAX = 1024, WAIT_MS = 2000 };

enum op {
    OP_CALL,    /* parameter: the method */
    OP_JOIN,    /* parameter: the rank, and whether the process and the number of the call are new */
    OP_MESSAGE, /* parameter: the kind of message; in one frame or in two */
    OP_BYTES,   /* an invalid message of `parameter` bytes */
    OP_PART,    /* the first bytes of a message */
    OP_HALF_CLOSE,
    OP_RESET,
    OP_CLOSE,  /* parameter: by FIN or by RST */
    OP_FRAME,  /* parameter: the type of a frame without payload */
    OP_WAIT,   /* until the task has handled what the connection has sent */
    OP_HOLD,   /* the loop of the task handles nothing, until OP_WAIT or the next OP_HOLD */
    OP_REOPEN, /* ends the task at once, and opens the next */
    OP_DELAY,  /* parameter: 1: received messages reach the task after the other events of gRPC; 0: in order */
    OPS
};

#define AT(peer_, call_, param_) ((peer_) | (call_) << 2 | (param_) << 4)
#define JOINED(peer_, rank_) { OP_CALL, AT(peer_, 0, 0) }, { OP_JOIN, AT(peer_, 0, rank_) }
#define SEQUENCE(name_, ...) static const uint8_t name_[][2] = { __VA_ARGS__ }
#define SEED(name_) { (const char *)name_, sizeof(name_) }

SEQUENCE(invalid_then_same_rank, JOINED(0, 1), { OP_WAIT, 0 }, { OP_BYTES, AT(0, 0, 3) }, { OP_WAIT, 0 }, JOINED(1, 9),
         { OP_WAIT, AT(1, 0, 0) });
SEQUENCE(valid, JOINED(0, 1), JOINED(1, 2), JOINED(2, 3), { OP_MESSAGE, AT(0, 0, 0) }, { OP_MESSAGE, AT(1, 0, 0) },
         { OP_MESSAGE, AT(2, 0, 8) }, { OP_WAIT, 2 }, { OP_MESSAGE, AT(0, 0, 1) }, { OP_MESSAGE, AT(1, 0, 2) }, { OP_WAIT, 1 });
SEQUENCE(gone_before_join, { OP_HOLD, 0 }, JOINED(0, 1), { OP_RESET, 0 }, JOINED(1, 2), { OP_CLOSE, AT(1, 0, 1) }, { OP_WAIT, 2 },
         JOINED(2, 1), { OP_WAIT, 2 });
SEQUENCE(gone_before_message, { OP_DELAY, AT(0, 0, 1) }, { OP_CALL, 0 }, { OP_WAIT, 0 }, { OP_JOIN, AT(0, 0, 1) }, { OP_RESET, 0 },
         { OP_WAIT, 0 }, JOINED(1, 1), { OP_WAIT, 1 }, { OP_BYTES, 1 }, { OP_CLOSE, 1 }, { OP_WAIT, 0 });
SEQUENCE(half_closed, JOINED(0, 1), { OP_PART, 0 }, { OP_HALF_CLOSE, 0 }, JOINED(1, 1), { OP_HALF_CLOSE, 1 }, { OP_WAIT, 1 });
SEQUENCE(many_joins, JOINED(0, 1), { OP_CALL, AT(0, 1, 0) }, { OP_JOIN, AT(0, 1, 9) }, { OP_CALL, AT(0, 2, 0) },
         { OP_JOIN, AT(0, 2, 5) }, JOINED(1, 13), { OP_RESET, AT(0, 1, 0) }, { OP_WAIT, 0 }, { OP_REOPEN, 0 });
SEQUENCE(other_methods, { OP_CALL, AT(0, 0, 1) }, { OP_MESSAGE, AT(0, 0, 7) }, { OP_CALL, AT(0, 1, 2) }, { OP_BYTES, AT(0, 1, 4) },
         { OP_CALL, AT(1, 0, 3) }, { OP_BYTES, AT(1, 0, 0) }, { OP_CALL, AT(1, 1, 4) }, { OP_BYTES, AT(1, 1, 0) },
         { OP_CALL, AT(2, 0, 5) }, { OP_BYTES, AT(2, 0, 0) }, { OP_WAIT, 2 }, { OP_RESET, 1 }, { OP_FRAME, AT(2, 0, 3) });
const struct fuzz_seed fuzz_seeds[] = {
    SEED(invalid_then_same_rank), SEED(valid),      SEED(gone_before_join),
    SEED(half_closed),            SEED(many_joins), SEED(other_methods),
    SEED(gone_before_message),
};
const size_t n_fuzz_seeds = COUNT_OF(fuzz_seeds);

/* ---- events of gRPC, in another order; these functions take the place of those of the library ---- */

static struct {
    pthread_mutex_t lock;
    void *reads[256];        /* under `lock`: tags of the last batches that receive a message */
    uint32_t n_reads;        /* under `lock` */
    grpc_event delayed[256]; /* [n_delayed] of the thread that waits on the queue */
    uint32_t n_delayed;
    _Atomic bool is_on;
} delay = { .lock = PTHREAD_MUTEX_INITIALIZER };

grpc_call_error grpc_call_start_batch(grpc_call *call, const grpc_op *ops, size_t n, void *tag,
                                      void *reserved)
{
    static grpc_call_error (*next)(grpc_call *, const grpc_op *, size_t, void *, void *);

    pthread_mutex_lock(&delay.lock);
    if (next == NULL)
        *(void **)&next = dlsym(RTLD_NEXT, "grpc_call_start_batch");
    if (n == 1 && ops[0].op == GRPC_OP_RECV_MESSAGE)
        delay.reads[delay.n_reads++ % COUNT_OF(delay.reads)] = tag;
    pthread_mutex_unlock(&delay.lock);
    return next(call, ops, n, tag, reserved);
}

static bool is_read(const void *tag)
{
    bool found = false;

    pthread_mutex_lock(&delay.lock);
    for (uint32_t i = 0; i < COUNT_OF(delay.reads); i++)
        found |= delay.reads[i] == tag;
    pthread_mutex_unlock(&delay.lock);
    return found;
}

/* Returns the delayed events, in order, when there was no other event for some milliseconds. */
grpc_event grpc_completion_queue_next(grpc_completion_queue *queue, gpr_timespec deadline,
                                      void *reserved)
{
    static grpc_event (*_Atomic next)(grpc_completion_queue *, gpr_timespec, void *);
    grpc_event e;

    if (next == NULL)
        next = (grpc_event(*)(grpc_completion_queue *, gpr_timespec, void *))dlsym(
            RTLD_NEXT, "grpc_completion_queue_next");
    for (;;) {
        if (delay.n_delayed > 0)
            deadline =
                gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(3, GPR_TIMESPAN));
        e = next(queue, deadline, reserved);
        if (e.type == GRPC_OP_COMPLETE && delay.is_on &&
            delay.n_delayed < COUNT_OF(delay.delayed) && is_read(e.tag)) {
            delay.delayed[delay.n_delayed++] = e;
            continue;
        }
        if (e.type == GRPC_OP_COMPLETE || delay.n_delayed == 0)
            return e;
        e = delay.delayed[0];
        delay.n_delayed--;
        memmove(delay.delayed, delay.delayed + 1, delay.n_delayed * sizeof(e));
        return e;
    }
}

/* ---- the task ---- */

static struct {
    pthread_t thread;
    struct loop *loop; /* NULL: not open */
    struct rdzv *rdzv;
    struct rdzv_progress progress;
    uint64_t generation;
    uint16_t port;
    int reserved;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_held, wants_hold; /* under `lock` */
    uint64_t n_handled;       /* under `lock` */
    _Atomic bool has_ended;
} task = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

static void report(enum member_event_kind kind)
{
    rdzv_report(task.rdzv, &(struct member_event){ .kind = kind, .generation = task.generation, .ok = true, .text = "" });
}

static void on_action(void *arg, const struct rdzv_action *a)
{
    (void)arg;
    switch (a->action->kind) {
    case MEMBER_TRAIN:
        task.generation = a->view->generation;
        report(MEMBER_EV_CONNECTED);
        break;
    case MEMBER_PAUSE:
        report(MEMBER_EV_PAUSED);
        break;
    case MEMBER_ABORT:
        report(MEMBER_EV_ABORTED);
        break;
    case MEMBER_SAVE:
        report(MEMBER_EV_SAVED);
        break;
    case MEMBER_END:
        task.has_ended = true;
        loop_stop(task.loop);
        break;
    default:
        break;
    }
}

static void on_checkpoint(void *arg)
{
    (void)arg; /* the calls wait until the task ends */
}

static uint64_t on_reload(void *arg)
{
    (void)arg;
    return 1;
}

static void *run_task(void *arg)
{
    (void)arg;
    loop_run(task.loop);
    rdzv_close(task.rdzv, 0);
    loop_close(task.loop);
    return NULL;
}

/* The port stays bound by a socket that does not listen, also while no task is open. */
static void reserve_port(void)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t n = sizeof(a);
    int on = 1;

    task.reserved = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(task.reserved, (struct sockaddr *)&a, n) == 0);
    CHECK(setsockopt(task.reserved, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0);
    CHECK(getsockname(task.reserved, (struct sockaddr *)&a, &n) == 0);
    task.port = ntohs(a.sin_port);
}

static void open_task(void)
{
    static const struct rdzv_task tasks[WORLD] = {
        { "worker", 0, "127.0.0.1:1", "worker 0" }, { "worker", 1, "127.0.0.1:2", "worker 1" },
        { "worker", 2, "127.0.0.1:3", "worker 2" }, { "worker", 3, "127.0.0.1:4", "worker 3" },
    };
    static uint64_t incarnation;
    char listen[32];
    struct rdzv_opts o = { .version = "1", .job_name = "j", .tasks = tasks, .world = WORLD, .listen = listen,
                           .ident = { "1", "j", "c", "c", "cpu", "k", "" }, .n_devices = 1, .data_address = "127.0.0.1:9",
                           .host_key = "h", .min_world = 1, .rejoin_ms = 60000, .deadline_ms = 600000, .grace_ms = 1,
                           .progress = &task.progress, .on_action = on_action, .on_checkpoint = on_checkpoint,
                           .on_reload = on_reload };
    struct err err;

    if (task.port == 0)
        reserve_port();
    task.progress = (struct rdzv_progress){ .phase = "train", .doing = "" };
    task.has_ended = false;
    snprintf(listen, sizeof(listen), "127.0.0.1:%u", task.port);
    CHECK(loop_open(&task.loop, NULL) == 0);
    o.loop = task.loop;
    o.incarnation = ++incarnation;
    if (rdzv_open(&o, &task.rdzv, &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    report(MEMBER_EV_OPENED);
    CHECK(pthread_create(&task.thread, NULL, run_task, NULL) == 0);
}

static void hold(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&task.lock);
    task.is_held = true;
    pthread_cond_broadcast(&task.changed);
    while (task.wants_hold)
        pthread_cond_wait(&task.changed, &task.lock);
    task.is_held = false;
    pthread_cond_broadcast(&task.changed);
    pthread_mutex_unlock(&task.lock);
}

/* The lock is held. The wait has a limit, because a task that ends handles no further event. */
static void wait_for_change(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_nsec += 20000000;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&task.changed, &task.lock, &t);
}

static void set_hold(bool wanted)
{
    pthread_mutex_lock(&task.lock);
    task.wants_hold = wanted;
    pthread_cond_broadcast(&task.changed);
    pthread_mutex_unlock(&task.lock);
    if (wanted)
        loop_post(task.loop, hold, NULL);
    pthread_mutex_lock(&task.lock);
    while (task.is_held != wanted && !task.has_ended)
        wait_for_change();
    pthread_mutex_unlock(&task.lock);
}

static void count(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&task.lock);
    task.n_handled++;
    pthread_cond_broadcast(&task.changed);
    pthread_mutex_unlock(&task.lock);
}

static void close_task(void)
{
    loop_stop(task.loop);
    CHECK(pthread_join(task.thread, NULL) == 0);
    task.loop = NULL;
}

/* Waits until the loop has handled an event. */
static void wait_for_loop(void)
{
    uint64_t n;

    pthread_mutex_lock(&task.lock);
    n = task.n_handled;
    pthread_mutex_unlock(&task.lock);
    if (task.has_ended)
        return;
    loop_post(task.loop, count, NULL);
    pthread_mutex_lock(&task.lock);
    while (task.n_handled == n && !task.has_ended)
        wait_for_change();
    pthread_mutex_unlock(&task.lock);
}

/* ---- the peers ---- */

struct peer {
    int fd;              /* -1: not connected */
    uint32_t ids[CALLS]; /* streams; 0: not called */
    uint32_t last_id;
};

enum { DATA = 0, HEADERS = 1, RST_STREAM = 3, SETTINGS = 4, END_STREAM = 1, END_HEADERS = 4 };

static void put(struct peer *p, const void *bytes, size_t n)
{
    const uint8_t *at = bytes;

    while (n > 0 && p->fd >= 0) {
        ssize_t done = send(p->fd, at, n, MSG_NOSIGNAL);

        if (done <= 0) {
            close(p->fd);
            p->fd = -1;
            return;
        }
        at += done;
        n -= (size_t)done;
    }
}

static void put_frame(struct peer *p, uint8_t type, uint8_t flags, uint32_t id, const void *payload,
                      size_t n)
{
    uint8_t frame[FRAMES_HEAD_BYTES + MESSAGE_MAX + 16] = { 0, (uint8_t)(n >> 8), (uint8_t)n, type, flags,
                                                            0, (uint8_t)(id >> 16), (uint8_t)(id >> 8), (uint8_t)id };

    CHECK(n + FRAMES_HEAD_BYTES <= sizeof(frame));
    if (n > 0)
        memcpy(frame + FRAMES_HEAD_BYTES, payload, n);
    put(p, frame, n + FRAMES_HEAD_BYTES);
}

static void connect_peer(struct peer *p)
{
    static uint32_t host;
    int on = 1;
    struct sockaddr_in own = { .sin_family = AF_INET };
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(task.port),
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };

    host = (host + 1) % 60000;
    own.sin_addr.s_addr = htonl(0x7f010001u + host);
    *p = (struct peer){ .fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), .last_id = 0 };
    CHECK(p->fd >= 0 && bind(p->fd, (struct sockaddr *)&own, sizeof(own)) == 0);
    if (connect(p->fd, (struct sockaddr *)&to, sizeof(to)) < 0) {
        close(p->fd);
        p->fd = -1;
        return;
    }
    CHECK(setsockopt(p->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0);
    put(p, frames_preface, FRAMES_PREFACE_BYTES);
    put_frame(p, SETTINGS, 0, 0, NULL, 0);
}

static bool get(struct peer *p, uint8_t *out, size_t n)
{
    while (n > 0) {
        struct pollfd poll_fd = { .fd = p->fd, .events = POLLIN };
        ssize_t got = poll(&poll_fd, 1, WAIT_MS) == 1 ? recv(p->fd, out, n, 0) : -1;

        if (got <= 0) {
            close(p->fd);
            p->fd = -1;
            return false;
        }
        out += got;
        n -= (size_t)got;
    }
    return true;
}

static size_t put_header(uint8_t *at, const char *name, const char *value)
{
    size_t n = strlen(name), m = strlen(value);

    at[0] = 0; /* a literal without index (RFC 7541, section 6.2.2) */
    at[1] = (uint8_t)n;
    memcpy(at + 2, name, n);
    at[2 + n] = (uint8_t)m;
    memcpy(at + 3 + n, value, m);
    return 3 + n + m;
}

/* Starts a call; returns its stream. */
static uint32_t call(struct peer *p, const char *path)
{
    uint8_t block[256];
    size_t n = put_header(block, ":method", "POST");

    n += put_header(block + n, ":scheme", "http");
    n += put_header(block + n, ":path", path);
    n += put_header(block + n, ":authority", "a");
    n += put_header(block + n, "te", "trailers");
    n += put_header(block + n, "content-type", "application/grpc");
    p->last_id += p->last_id == 0 ? 1 : 2;
    put_frame(p, HEADERS, END_HEADERS, p->last_id, block, n);
    return p->last_id;
}

/* Calls Health.Check and waits for its end. */
static void check_health(struct peer *p)
{
    static const uint8_t empty[5] = { 0 };
    static uint8_t payload[1 << 16];
    uint32_t id = call(p, "/grpc.health.v1.Health/Check");

    put_frame(p, DATA, END_STREAM, id, empty, sizeof(empty));
    while (p->fd >= 0) {
        uint8_t head[FRAMES_HEAD_BYTES];

        if (!get(p, head, sizeof(head)) || head[0] != 0 ||
            !get(p, payload, (size_t)head[1] << 8 | head[2]))
            return;
        if (((uint32_t)head[7] << 8 | head[8]) == id &&
            (head[3] == RST_STREAM || (head[4] & END_STREAM) != 0))
            return;
    }
}

/* Waits until the task has handled all frames: the first call ends after their calls have arrived at the loop, the
 * second one after the messages of these calls. */
static void wait_for_task(struct peer *p)
{
    set_hold(false);
    for (int i = 0; i < 2 && p->fd >= 0; i++)
        check_health(p);
    wait_for_loop();
}

static void close_peer(struct peer *p, bool by_reset)
{
    struct linger linger = { .l_onoff = 1 };

    if (p->fd < 0)
        return;
    if (by_reset)
        CHECK(setsockopt(p->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)) == 0);
    close(p->fd);
    p->fd = -1;
}

/* A message of gRPC: a byte 0, the length in four bytes, and the bytes, of which only `sent` are sent. */
static void put_bytes(struct peer *p, uint32_t id, const uint8_t *bytes, size_t n, size_t sent)
{
    uint8_t all[5 + MESSAGE_MAX] = { 0, 0, 0, (uint8_t)(n >> 8), (uint8_t)n };

    CHECK(n <= MESSAGE_MAX && sent <= n);
    if (sent > 0)
        memcpy(all + 5, bytes, sent);
    put_frame(p, DATA, 0, id, all, 5 + sent);
}

static void put_message(struct peer *p, uint32_t id, const ProtobufCMessage *m, bool in_parts)
{
    uint8_t bytes[MESSAGE_MAX];
    size_t n = protobuf_c_message_get_packed_size(m);

    CHECK(n <= sizeof(bytes));
    protobuf_c_message_pack(m, bytes);
    put_bytes(p, id, bytes, n, in_parts ? n / 2 : n);
    if (in_parts)
        put_frame(p, DATA, 0, id, bytes + n / 2, n - n / 2);
}

static Trainerd__V1__Task task_of(uint32_t rank)
{
    static char *const addresses[WORLD] = { "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3", "127.0.0.1:4" };
    Trainerd__V1__Task t = TRAINERD__V1__TASK__INIT;

    t.type = "worker";
    t.index = rank;
    t.address = addresses[rank];
    return t;
}

static void put_join(struct peer *p, uint32_t id, uint32_t parameter)
{
    static uint64_t n_calls, n_processes = 100;
    Trainerd__V1__Task from = task_of(parameter % WORLD), to = task_of(0);
    Trainerd__V1__Join j = TRAINERD__V1__JOIN__INIT;
    Trainerd__V1__MemberMessage m = TRAINERD__V1__MEMBER_MESSAGE__INIT;

    n_processes += (parameter & 4) != 0;
    n_calls += (parameter & 8) == 0;
    j.task = &from;
    j.to = &to;
    j.incarnation = n_processes;
    j.call = n_calls;
    j.version = "1", j.job_digest = "j", j.cluster_hash = "c", j.cluster = "c", j.devices = "cpu",
    j.kernels = "k";
    j.data_address = "127.0.0.1:9";
    j.host_key = "h";
    j.n_devices = 1;
    m.message_case = TRAINERD__V1__MEMBER_MESSAGE__MESSAGE_JOIN;
    m.join = &j;
    put_message(p, id, &m.base, false);
}

static void put_other(struct peer *p, uint32_t id, uint32_t kind)
{
    Trainerd__V1__Ready ready = TRAINERD__V1__READY__INIT;
    Trainerd__V1__Beat beat = TRAINERD__V1__BEAT__INIT;
    Trainerd__V1__Trouble trouble = TRAINERD__V1__TROUBLE__INIT;
    Trainerd__V1__Complete complete = TRAINERD__V1__COMPLETE__INIT;
    Trainerd__V1__Leave leave = TRAINERD__V1__LEAVE__INIT;
    Trainerd__V1__Reached reached = TRAINERD__V1__REACHED__INIT;
    Trainerd__V1__Where where = TRAINERD__V1__WHERE__INIT;
    Trainerd__V1__WhoRequest who = TRAINERD__V1__WHO_REQUEST__INIT;
    Trainerd__V1__Task sender = task_of(1 + kind % 3);
    Trainerd__V1__MemberMessage m = TRAINERD__V1__MEMBER_MESSAGE__INIT;
    bool in_parts = (kind & 8) != 0;

    trouble.generation = complete.generation = beat.generation = ready.generation = task.generation;
    leave.code = 143;
    where.task = &sender;
    where.incarnation = 7;
    who.where = &where;
    who.cluster_hash = "c";
    kind &= 7;
    if (kind == 7) {
        put_message(p, id, &who.base, in_parts);
        return;
    }
    m.message_case =
        (Trainerd__V1__MemberMessage__MessageCase)(TRAINERD__V1__MEMBER_MESSAGE__MESSAGE_READY +
                                                   kind % 6);
    switch (kind % 6) {
    case 0: m.ready = &ready; break;
    case 1: m.beat = &beat; break;
    case 2: m.trouble = &trouble; break;
    case 3: m.complete = &complete; break;
    case 4: m.leave = &leave; break;
    default: m.reached = &reached; break;
    }
    put_message(p, id, &m.base, in_parts);
}

static void perform(struct peer *peers, enum op op, uint8_t at)
{
    static const char *const paths[] = {
        "/trainerd.v1.Rendezvous/Join", "/trainerd.v1.Rendezvous/Who", "/grpc.health.v1.Health/Watch",
        "/trainerd.v1.Control/Checkpoint", "/trainerd.v1.Control/Reload", "/trainerd.v1.Control/Netcheck",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "/trainerd.v1.Control/Status", "/a/b",
    };
    static const uint8_t invalid[16] = { 0x0a, 0xff, 0xff, 0xff };
    struct peer *p = &peers[(at & 3) % PEERS];
    uint32_t *id = &p->ids[at >> 2 & 3], parameter = at >> 4;
    uint8_t cancel[4] = { 0, 0, 0, 8 };

    if (op == OP_HOLD || op == OP_REOPEN || op == OP_DELAY) {
        set_hold(false);
        if (op == OP_DELAY)
            delay.is_on = parameter % 2 == 1;
        if (op == OP_HOLD)
            set_hold(true);
        if (op == OP_REOPEN) {
            close_task();
            open_task();
        }
        return;
    }
    if (p->fd < 0 && op != OP_WAIT)
        connect_peer(p);
    if (op == OP_CALL || (*id == 0 && op <= OP_RESET))
        *id = call(p, paths[op == OP_CALL && parameter < COUNT_OF(paths) ? parameter : 0]);
    switch (op) {
    case OP_JOIN:
        put_join(p, *id, parameter);
        break;
    case OP_MESSAGE:
        put_other(p, *id, parameter);
        break;
    case OP_BYTES:
        put_bytes(p, *id, invalid, parameter, parameter);
        break;
    case OP_PART:
        put_bytes(p, *id, invalid, 16, parameter);
        break;
    case OP_HALF_CLOSE:
        put_frame(p, DATA, END_STREAM, *id, NULL, 0);
        break;
    case OP_RESET:
        put_frame(p, RST_STREAM, 0, *id, cancel, sizeof(cancel));
        break;
    case OP_CLOSE:
        close_peer(p, parameter % 2 == 1);
        break;
    case OP_FRAME:
        put_frame(p, (uint8_t)parameter, 0, *id, NULL, 0);
        break;
    case OP_WAIT:
        wait_for_task(p);
        break;
    default:
        break;
    }
}

static void close_at_exit(void)
{
    if (task.loop != NULL)
        close_task();
    close(task.reserved);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct peer peers[PEERS] = { { .fd = -1 }, { .fd = -1 }, { .fd = -1 } };
    static bool is_registered;

    if (!is_registered)
        CHECK(atexit(close_at_exit) == 0);
    is_registered = true;
    if (task.loop == NULL)
        open_task();
    for (size_t i = 0; i + 1 < size && i / 2 < OPS_MAX && !task.has_ended; i += 2)
        perform(peers, data[i] % OPS, data[i + 1]);
    set_hold(false);
    delay.is_on = false;
    for (uint32_t i = 0; i < PEERS; i++)
        close_peer(&peers[i], false);
    wait_for_loop();
    if (task.has_ended)
        close_task();
    return 0;
}
