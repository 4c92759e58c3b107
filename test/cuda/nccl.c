/* nccl.c - NCCL between emulated GPUs: see nccl.h.
 *
 *     rank 0 ----\
 *     rank 1 -----  hub: a thread of the process that created the unique id
 *     rank 2 ----/
 *
 * Each communicator has a thread, and only that thread talks to the hub; work on a stream passes
 * numbers to it and receives the result. The hub disconnects all ranks when one of them leaves.
 * (nccl_work.c: the work; nccl_hub.c, nccl_ras.c) */
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "cuda/nccl_priv.h"

static pthread_mutex_t comms_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ncclComm *comms;
static __thread char last_error[256];

ncclResult_t nccl_set_error(ncclResult_t code, const char *text)
{
    snprintf(last_error, sizeof(last_error), "%s", text);
    return code;
}

uint64_t nccl_has_fault(const char *which)
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

void nccl_wake(struct ncclComm *c)
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

    if (nccl_has_fault("init")) {
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
        *out = c->op == OP_ASKED ? c->asked
                                 : (struct nccl_request){ .kind = c->wants_end ? NCCL_END : 0 };
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

/* Receives the numbers of the answer; the thread owns them during a request. */
static bool receive_numbers(struct ncclComm *c, const struct nccl_request *answer)
{
    if (answer->kind == NCCL_EXCHANGE &&
        !nccl_receive(c->fd, c->counts, c->ranks * sizeof(c->counts[0])))
        return false;
    nccl_reserve(c, answer->n);
    return nccl_receive(c->fd, c->numbers, answer->n * sizeof(float));
}

static bool serve(struct ncclComm *c, const struct nccl_request *request)
{
    struct nccl_request answer;

    if (!nccl_send(c->fd, request, sizeof(*request)) ||
        (request->kind == NCCL_EXCHANGE &&
         !nccl_send(c->fd, c->counts, c->ranks * sizeof(c->counts[0]))) ||
        !nccl_send(c->fd, c->numbers, request->n * sizeof(float)) ||
        !nccl_receive(c->fd, &answer, sizeof(answer)) || !receive_numbers(c, &answer))
        return false;
    pthread_mutex_lock(&c->lock);
    if (request->kind == NCCL_END) {
        c->wants_end = false;
        c->state = ncclSuccess;
    } else {
        c->op = OP_ANSWERED;
        c->done++;
    }
    pthread_mutex_unlock(&c->lock);
    return true;
}

static void *comm_main(void *arg)
{
    struct ncclComm *c = arg;
    struct nccl_request request;

    if (!connect_to_hub(c))
        return NULL;
    do {
        if (!wait_for_work(c, &request) || !serve(c, &request)) {
            set_state(c, ncclRemoteError);
            return NULL;
        }
    } while (request.kind != NCCL_END);
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
        return nccl_set_error(ncclSystemError, "Bootstrap : no socket");
    memset(id, 0, sizeof(*id));
    memcpy(id->internal, &a, sizeof(a));
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    struct ncclComm *c;

    if (emulated_enter() != cudaSuccess)
        return nccl_set_error(ncclUnhandledCudaError, "CUDA fails");
    if (nranks < 1 || rank < 0 || rank >= nranks)
        return nccl_set_error(ncclInvalidArgument, "Invalid rank requested");
    if (config == NULL || config->size != sizeof(*config) || config->magic != 0xcafebeef)
        return nccl_set_error(ncclInvalidArgument,
                              "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
    if (config->blocking != 0)
        emulated_die("communicators that block are not emulated");
    nccl_ras_start();
    c = calloc(1, sizeof(*c));
    if (c == NULL)
        return nccl_set_error(ncclSystemError, "out of memory");
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

ncclResult_t nccl_state(struct ncclComm *c)
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

    *error = nccl_state(c);
    if (*error == ncclInvalidUsage && c->twice_with != UINT32_MAX) {
        snprintf(text, sizeof(text),
                 "Duplicate GPU detected : rank %u and rank %u both on CUDA device %x", c->rank,
                 c->twice_with, (c->gpu + 1) << 12);
        (void)nccl_set_error(*error, text);
    } else if (*error == ncclInvalidUsage)
        (void)nccl_set_error(*error,
                             "Mismatched NCCL version detected, or of how many ranks there are");
    if (*error == ncclRemoteError)
        (void)nccl_set_error(*error, "Connection closed by remote peer");
    if (*error == ncclSystemError)
        (void)nccl_set_error(*error, "NET/IB : Got completion from peer with status=12 opcode=0");
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

static void write_traffic(const struct ncclComm *c)
{
    const char *path = getenv("EMULATED_NCCL_TRAFFIC");
    FILE *f;

    if (path == NULL || path[0] == '\0')
        return;
    f = fopen(path, "a");
    if (f == NULL || fprintf(f, "%u %llu\n", c->rank, (unsigned long long)c->sent) < 0 ||
        fclose(f) != 0)
        emulated_die("EMULATED_NCCL_TRAFFIC: cannot write to %s", path);
}

static void end_communicator(struct ncclComm *c)
{
    wait_for_graphs(c);
    write_traffic(c);
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
    ncclResult_t state = nccl_state(c);

    if (state != ncclSuccess)
        return nccl_set_error(
            ncclInvalidArgument,
            "Attempt to use communicator before the previous operation returned ncclSuccess");
    pthread_mutex_lock(&c->lock);
    c->wants_end = true;
    c->state = ncclInProgress;
    pthread_mutex_unlock(&c->lock);
    nccl_wake(c);
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
    while (nccl_has_fault("abort"))
        pause();
    pthread_mutex_lock(&c->lock);
    c->is_aborted = true;
    if (c->fd >= 0)
        shutdown(c->fd, SHUT_RDWR);
    pthread_mutex_unlock(&c->lock);
    nccl_wake(c);
    end_communicator(c);
    return ncclSuccess;
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
