/* nccl.c - NCCL between emulated GPUs: see nccl.h.
 *
 *     rank 0 ----\
 *     rank 1 -----  hub: a thread of the process that created the unique id
 *     rank 2 ----/
 *
 * Each communicator has a thread, and only that thread talks to the hub; work on a stream passes
 * numbers to it and receives the sums. The hub disconnects all ranks when one of them leaves.
 * (nccl_hub.c, nccl_ras.c) */
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "cuda/nccl_priv.h"

enum op { OP_NONE, OP_ASKED, OP_ANSWERED, OP_HANGS };

struct ncclComm {
    struct ncclComm *next; /* list of all communicators ever created: work on a stream may refer to
                              an ended one */
    pthread_mutex_t lock;  /* protects the fields down to those of the thread */
    ncclResult_t state;
    bool reports_progress; /* the next answer is ncclInProgress, regardless of the state */
    bool is_aborted, is_destroyed, wants_end, was_used;
    enum op op;
    const float *op_of; /* GPU memory: identifies the sum */
    float *numbers;
    size_t n, room;
    uint32_t captured;       /* of the requested sum: as in nccl_request */
    uint32_t graphs;         /* captured nodes that are sums of this communicator, which must
                                outlive them */
    uint64_t launched, done; /* for RAS */
    uint32_t n_captured;     /* number of captured sums so far */
    uint32_t twice_with;     /* the rank on the same GPU; UINT32_MAX: none */
    int gpu;
    int wake;                /* an eventfd */
    int fd;                  /* connection to the hub; -1: not connected */
    pthread_t thread;
    struct nccl_address hub;
    uint32_t rank, ranks;
};

static pthread_mutex_t comms_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ncclComm *comms;
static __thread char last_error[256];

static ncclResult_t set_error(ncclResult_t code, const char *text)
{
    snprintf(last_error, sizeof(last_error), "%s", text);
    return code;
}

/* 0: the fault is not set; else its number, or 1. */
static uint64_t has_fault(const char *which)
{
    static const char *const known[] = { "init", "abort", "sum", "error" };
    const char *said = getenv("EMULATED_NCCL_FAULT");
    size_t n;

    if (said == NULL || said[0] == '\0')
        return 0;
    n = strcspn(said, ":");
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strlen(known[i]) == n && strncmp(said, known[i], n) == 0) {
            if (strcmp(which, known[i]) != 0)
                return 0;
            return said[n] == ':' ? strtoull(said + n + 1, NULL, 10) : 1;
        }
    emulated_die("EMULATED_NCCL_FAULT: '%s', expected init, abort, sum:N or error:N", said);
}

/* Host of the GPU, unless NCCL_HOSTID is set. */
static uint32_t host_hash(void)
{
    const char *id = getenv("NCCL_HOSTID");
    uint32_t hash = 5381;

    for (const char *c = id != NULL ? id : ""; *c != '\0'; c++)
        hash = hash * 33 + (unsigned char)*c;
    return hash;
}

/* ---- the thread of a communicator ---- */

static void wake(struct ncclComm *c)
{
    uint64_t one = 1;

    (void)!write(c->wake, &one, sizeof(one));
}

static void set_state(struct ncclComm *c, ncclResult_t state)
{
    pthread_mutex_lock(&c->lock);
    c->state = state;
    pthread_mutex_unlock(&c->lock);
}

static bool connect_to_hub(struct ncclComm *c)
{
    struct nccl_hello hello = { .magic = c->hub.magic, .rank = c->rank, .ranks = c->ranks,
                                .version = (uint32_t)nccl_version(), .host = host_hash(),
                                .gpu = (uint32_t)c->gpu };
    struct nccl_welcome answer = { .what = NCCL_GONE };
    int fd;

    if (has_fault("init")) {
        struct pollfd woken = { .fd = c->wake, .events = POLLIN };

        while (poll(&woken, 1, -1) < 0)
            ;
        return false;
    }
    fd = nccl_dial(&c->hub);
    pthread_mutex_lock(&c->lock);
    c->fd = fd;
    if (c->is_aborted && fd >= 0)
        shutdown(fd, SHUT_RDWR);
    pthread_mutex_unlock(&c->lock);
    if (fd < 0 || !nccl_send(fd, &hello, sizeof(hello)) ||
        !nccl_receive(fd, &answer, sizeof(answer)))
        answer.what = NCCL_GONE;
    if (answer.what == NCCL_TWICE)
        c->twice_with = answer.other;
    set_state(c, answer.what == NCCL_GO     ? ncclSuccess
                 : answer.what == NCCL_GONE ? ncclRemoteError
                                            : ncclInvalidUsage);
    return answer.what == NCCL_GO;
}

/* Waits for a request; false: the hub is gone, or the communicator is aborted. */
static bool wait_for_work(struct ncclComm *c, struct nccl_request *out)
{
    for (;;) {
        struct pollfd ends[2] = { { .fd = c->wake, .events = POLLIN }, { .fd = c->fd, .events = POLLIN } };
        uint64_t drained;

        pthread_mutex_lock(&c->lock);
        *out = (struct nccl_request){ .kind = c->op == OP_ASKED ? NCCL_SUM : c->wants_end ? NCCL_END : 0,
                                      .captured = c->op == OP_ASKED ? c->captured : 0,
                                      .n = c->op == OP_ASKED ? c->n : 0 };
        pthread_mutex_unlock(&c->lock);
        if (out->kind != 0)
            return true;
        if (poll(ends, 2, -1) < 0)
            continue;
        if (ends[1].revents != 0) /* the hub never sends without a request */
            return false;
        (void)!read(c->wake, &drained, sizeof(drained));
    }
}

static bool serve(struct ncclComm *c, const struct nccl_request *request_sum)
{
    struct nccl_request answer;

    /* The thread owns the numbers during the request. */
    if (!nccl_send(c->fd, request_sum, sizeof(*request_sum)) ||
        !nccl_send(c->fd, c->numbers, request_sum->n * sizeof(float)) ||
        !nccl_receive(c->fd, &answer, sizeof(answer)) ||
        !nccl_receive(c->fd, c->numbers, answer.n * sizeof(float)))
        return false;
    pthread_mutex_lock(&c->lock);
    if (request_sum->kind == NCCL_SUM) {
        c->op = OP_ANSWERED;
        c->done++;
    } else {
        c->wants_end = false;
        c->state = ncclSuccess;
    }
    pthread_mutex_unlock(&c->lock);
    return true;
}

static void *comm_main(void *arg)
{
    struct ncclComm *c = arg;
    struct nccl_request request_sum;

    if (!connect_to_hub(c))
        return NULL;
    do {
        if (!wait_for_work(c, &request_sum) || !serve(c, &request_sum)) {
            set_state(c, ncclRemoteError);
            return NULL;
        }
    } while (request_sum.kind != NCCL_END);
    return NULL;
}

/* ---- creation and end ---- */

ncclResult_t ncclGetVersion(int *version)
{
    *version = nccl_version();
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    struct nccl_address a;

    _Static_assert(sizeof(a) <= sizeof(*id), "an address fits");
    if (!nccl_hub_start(&a))
        return set_error(ncclSystemError, "Bootstrap : no socket");
    memset(id, 0, sizeof(*id));
    memcpy(id->internal, &a, sizeof(a));
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    struct ncclComm *c;

    if (emulated_enter() != cudaSuccess)
        return set_error(ncclUnhandledCudaError, "CUDA fails");
    if (nranks < 1 || rank < 0 || rank >= nranks)
        return set_error(ncclInvalidArgument, "Invalid rank requested");
    if (config == NULL || config->size != sizeof(*config) || config->magic != 0xcafebeef)
        return set_error(ncclInvalidArgument,
                         "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
    if (config->blocking != 0)
        emulated_die("communicators that block are not emulated");
    nccl_ras_start();
    c = calloc(1, sizeof(*c));
    if (c == NULL)
        return set_error(ncclSystemError, "out of memory");
    pthread_mutex_init(&c->lock, NULL);
    c->state = ncclInProgress;
    c->reports_progress = true;
    c->fd = -1;
    c->twice_with = UINT32_MAX;
    if (cudaGetDevice(&c->gpu) != cudaSuccess)
        emulated_die("NCCL: no device");
    c->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    c->rank = (uint32_t)rank;
    c->ranks = (uint32_t)nranks;
    memcpy(&c->hub, id.internal, sizeof(c->hub));
    if (c->wake < 0 || pthread_create(&c->thread, NULL, comm_main, c) != 0)
        emulated_die("NCCL: no thread");
    pthread_mutex_lock(&comms_lock);
    c->next = comms;
    comms = c;
    pthread_mutex_unlock(&comms_lock);
    *comm = c;
    return ncclInProgress;
}

static ncclResult_t state_of(struct ncclComm *c)
{
    ncclResult_t state;

    pthread_mutex_lock(&c->lock);
    state = c->reports_progress && (c->state == ncclSuccess) ? ncclInProgress : c->state;
    pthread_mutex_unlock(&c->lock);
    return state;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *error)
{
    char text[128];

    *error = state_of(c);
    if (*error == ncclInvalidUsage && c->twice_with != UINT32_MAX) {
        snprintf(text, sizeof(text),
                 "Duplicate GPU detected : rank %u and rank %u both on CUDA device %x", c->rank,
                 c->twice_with, (c->gpu + 1) << 12);
        (void)set_error(*error, text);
    } else if (*error == ncclInvalidUsage)
        (void)set_error(*error, "Mismatched NCCL version detected, or of how many ranks there are");
    if (*error == ncclRemoteError)
        (void)set_error(*error, "Connection closed by remote peer");
    if (*error == ncclSystemError)
        (void)set_error(*error, "NET/IB : Got completion from peer with status=12 opcode=0");
    pthread_mutex_lock(&c->lock);
    if (c->state != ncclInProgress)
        c->reports_progress = false;
    pthread_mutex_unlock(&c->lock);
    return ncclSuccess;
}

static uint32_t graphs_of(struct ncclComm *c)
{
    uint32_t n;

    pthread_mutex_lock(&c->lock);
    n = c->graphs;
    pthread_mutex_unlock(&c->lock);
    return n;
}

/* As in NCCL since 2.26: neither Destroy nor Abort returns while a graph refers to the
 * communicator. Pending work of such graphs continues meanwhile. */
static void wait_for_graphs(struct ncclComm *c)
{
    int device = emulated_device();

    while (graphs_of(c) > 0) {
        emulated_lock();
        stream_force_device(device, false);
        if (emulated_sticky(device) == cudaSuccess)
            emulated_wait();
        else
            c->graphs = 0; /* the device has a sticky error: its work never runs */
        emulated_unlock();
    }
}

static void end_communicator(struct ncclComm *c)
{
    wait_for_graphs(c);
    pthread_join(c->thread, NULL);
    if (c->fd >= 0)
        close(c->fd);
    close(c->wake);
    pthread_mutex_lock(&c->lock);
    free(c->numbers);
    c->numbers = NULL;
    pthread_mutex_unlock(&c->lock);
}

ncclResult_t ncclCommFinalize(ncclComm_t c)
{
    ncclResult_t state = state_of(c);

    if (state != ncclSuccess)
        return set_error(
            ncclInvalidArgument,
            "Attempt to use communicator before the previous operation returned ncclSuccess");
    pthread_mutex_lock(&c->lock);
    c->wants_end = true;
    c->state = ncclInProgress;
    pthread_mutex_unlock(&c->lock);
    wake(c);
    return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t c)
{
    pthread_mutex_lock(&c->lock);
    if (c->state != ncclSuccess || c->wants_end)
        emulated_die("ncclCommDestroy of a communicator that is not finalized");
    c->is_destroyed = true;
    pthread_mutex_unlock(&c->lock);
    end_communicator(c);
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t c)
{
    while (has_fault("abort"))
        pause();
    pthread_mutex_lock(&c->lock);
    c->is_aborted = true;
    if (c->fd >= 0)
        shutdown(c->fd, SHUT_RDWR);
    pthread_mutex_unlock(&c->lock);
    wake(c);
    end_communicator(c);
    return ncclSuccess;
}

/* ---- sums ---- */

struct sum {
    struct ncclComm *comm;
    float *x;
    size_t n;
    uint32_t captured; /* as in nccl_request */
};

static void request_sum(struct ncclComm *c, const struct sum *s)
{
    if (c->room < s->n) {
        free(c->numbers);
        c->numbers = emulated_alloc(s->n * sizeof(float));
        c->room = s->n;
    }
    memcpy(c->numbers, s->x, s->n * sizeof(float));
    c->n = s->n;
    c->captured = s->captured;
    c->op_of = s->x;
    c->launched++;
    c->op =
        has_fault("sum") == c->launched || has_fault("error") == c->launched ? OP_HANGS : OP_ASKED;
    if (has_fault("error") == c->launched)
        c->state = ncclSystemError;
    wake(c);
}

static int run_sum(void *args)
{
    const struct sum *s = args;
    struct ncclComm *c = s->comm;
    int rc = EMULATED_NOT_YET;

    pthread_mutex_lock(&c->lock);
    if (c->is_destroyed)
        emulated_die("its communicator is destroyed");
    if (c->op != OP_NONE && (c->op_of != s->x || c->n != s->n))
        emulated_die("another sum of its communicator is under way on another stream");
    if (c->is_aborted) {
        rc = EMULATED_DONE;
    } else if (c->op == OP_ANSWERED) {
        memcpy(s->x, c->numbers, s->n * sizeof(float));
        c->op = OP_NONE;
        rc = EMULATED_DONE;
    } else if (c->op == OP_NONE) {
        request_sum(c, s);
    }
    pthread_mutex_unlock(&c->lock);
    return rc;
}

static void forget_graph(void *args)
{
    struct ncclComm *c = ((struct sum *)args)->comm;

    pthread_mutex_lock(&c->lock);
    c->graphs--;
    pthread_mutex_unlock(&c->lock);
}

static void remember_graph(struct ncclComm *c, cudaStream_t stream)
{
    emulated_lock();
    if (stream->capture != NULL) {
        capture_keep(stream, forget_graph);
        pthread_mutex_lock(&c->lock);
        c->graphs++;
        pthread_mutex_unlock(&c->lock);
    }
    emulated_unlock();
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t n, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t c, cudaStream_t stream)
{
    struct sum s = { .comm = c, .x = to, .n = n };
    ncclResult_t state = state_of(c);
    enum cudaStreamCaptureStatus captures = cudaStreamCaptureStatusNone;
    bool is_first;

    if (from != to || type != ncclFloat32 || op != ncclSum)
        emulated_die("ncclAllReduce: only sums of float32 in place are emulated");
    if (state == ncclInProgress)
        return set_error(
            ncclInvalidArgument,
            "Attempt to use communicator before the previous operation returned ncclSuccess");
    if (state != ncclSuccess)
        return set_error(state, "the communicator has failed");
    (void)cudaStreamIsCapturing(stream, &captures);
    if (captures != cudaStreamCaptureStatusNone)
        s.captured = ++c->n_captured;
    if (emulated_enqueue(stream, "ncclAllReduce", run_sum, &s, sizeof(s)) != cudaSuccess)
        return set_error(ncclUnhandledCudaError, "CUDA fails");
    remember_graph(c, stream);
    pthread_mutex_lock(&c->lock);
    is_first = !c->was_used;
    c->was_used = true;
    c->reports_progress = is_first;
    pthread_mutex_unlock(&c->lock);
    return is_first ? ncclInProgress : ncclSuccess;
}

/* ---- error texts ---- */

const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const words[] = { "no error",
                                         "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
                                         "unhandled system error (run with NCCL_DEBUG=INFO for details)",
                                         "internal error - please report this issue to the NCCL developers",
                                         "invalid argument (run with NCCL_DEBUG=WARN for details)",
                                         "invalid usage (run with NCCL_DEBUG=WARN for details)",
                                         "remote process exited or there was a network error",
                                         "NCCL operation in progress" };

    return (unsigned)result < sizeof(words) / sizeof(words[0]) ? words[result]
                                                               : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return last_error;
}

/* For RAS: reports each communicator of this process that waits for others. */
void nccl_waiting(void (*tell)(void *arg, uint32_t rank, uint64_t operation), void *arg)
{
    pthread_mutex_lock(&comms_lock);
    for (struct ncclComm *c = comms; c != NULL; c = c->next) {
        pthread_mutex_lock(&c->lock);
        if (!c->is_aborted && !c->is_destroyed && c->op == OP_ASKED)
            tell(arg, c->rank, c->launched);
        pthread_mutex_unlock(&c->lock);
    }
    pthread_mutex_unlock(&comms_lock);
}
