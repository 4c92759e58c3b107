/* nccl.cu - all-reduce between GPUs with NCCL, and the exchange of an all-reduce in our own order.
 *
 * A communicator never blocks (config.blocking = 0): the state of an operation is polled, and a
 * waiting thread checks `cancel`. One thread uses it. Only its end may block, because
 * ncclCommAbort() joins threads of NCCL. Therefore a thread of its own ends it, and the caller
 * waits for that thread for a limited time. After that, the thread and its resources are lost, and
 * the process must end.
 *
 * Each generation makes a new communicator. ncclCommSplit, Shrink and Grow would save a part of a
 * second, but each needs all ranks of the old communicator, or its sockets, alive and in step; a
 * second death meanwhile hangs it; and not every NCCL has all three. They are not used. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <nccl.h>

#include "base/cancel.h"
#include "comm/nccl.cuh"

static_assert(sizeof(ncclUniqueId) == CUDA_ID_BYTES, "an id is what the table says");

enum { CLOSE_SECONDS = 5, ABORT_SECONDS = 5, NAP_NS = 100000 };

struct cuda_comm {
    ncclComm_t nccl;
    const struct cancel *cancel;
    int gpu;
    uint32_t rank, world;

    /* state of the end of the communicator; the last of the two threads that use it frees it */
    pthread_mutex_t lock;
    pthread_cond_t over;
    bool is_orderly;  /* false: after a timeout, or `cancel` */
    bool is_over, is_left;
};

static bool canceled(const struct cuda_comm *c)
{
    return cancel_requested(c->cancel);
}

static void nap(void)
{
    struct timespec t = { .tv_sec = 0, .tv_nsec = NAP_NS };

    nanosleep(&t, NULL);
}

/* Maps an NCCL error to a code: a peer or the network failed; two tasks have different NCCL
 * versions or share a GPU; this GPU failed. */
static int code_of(ncclResult_t said)
{
    switch (said) {
    case ncclRemoteError:
    case ncclSystemError:
        return ERR_PEER;
    case ncclInvalidUsage:
        return ERR_INPUT;
    default:
        return ERR_DEVICE;
    }
}

static int complain(ncclResult_t said, ncclComm_t c, struct err *err)
{
    const char *more = ncclGetLastError(c); /* the last message of NCCL in this process */

    return err_set(err, code_of(said), "NCCL: %s%s%s", ncclGetErrorString(said),
                   more != NULL && more[0] != '\0' ? ": " : "", more != NULL ? more : "");
}

int comm_nccl_version(void)
{
    int version = 0;

    return ncclGetVersion(&version) == ncclSuccess ? version : 0;
}

int comm_nccl_id(unsigned char id[CUDA_ID_BYTES], struct err *err)
{
    ncclUniqueId made;
    ncclResult_t said = ncclGetUniqueId(&made);

    if (said != ncclSuccess)
        return complain(said, NULL, err);
    memcpy(id, &made, sizeof(made));
    return 0;
}

int comm_nccl_open(const unsigned char id[CUDA_ID_BYTES], uint32_t rank, uint32_t world,
                   const struct cancel *cancel, struct cuda_comm **out, struct err *err)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    struct cuda_comm *c = (struct cuda_comm *)calloc(1, sizeof(*c));
    pthread_condattr_t attr;
    ncclUniqueId theirs;
    ncclResult_t said;
    int rc;

    if (c == NULL)
        return err_set(err, ERR_NOMEM, "out of memory");
    rc = cuda_check(cudaGetDevice(&c->gpu), err, "which GPU this is");
    if (rc < 0) {
        free(c);
        return rc;
    }
    c->cancel = cancel;
    c->rank = rank;
    c->world = world;
    pthread_mutex_init(&c->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&c->over, &attr);
    pthread_condattr_destroy(&attr);
    memcpy(&theirs, id, sizeof(theirs));
    config.blocking = 0;
    said = ncclCommInitRankConfig(&c->nccl, (int)world, theirs, (int)rank, &config);
    if (said == ncclSuccess || said == ncclInProgress) {
        *out = c;
        return 0;
    }
    rc = complain(said, c->nccl, err);
    (void)comm_nccl_abort(c, NULL); /* the first error is reported */
    return rc;
}

int comm_nccl_state(struct cuda_comm *c, struct err *err)
{
    ncclResult_t state = ncclSuccess, said = ncclCommGetAsyncError(c->nccl, &state);

    if (said != ncclSuccess)
        return complain(said, c->nccl, err);
    if (state == ncclInProgress)
        return 0;
    return state == ncclSuccess ? 1 : complain(state, c->nccl, err);
}

static bool has_failed(ncclResult_t said)
{
    return said != ncclSuccess && said != ncclInProgress;
}

/* `said`: the result of the call that enqueues an operation. No operation may follow on the stream, and
 * the capture must not end, before the operation is enqueued: at the first time NCCL connects the peers
 * meanwhile. */
static int wait_until_enqueued(struct cuda_comm *c, ncclResult_t said, struct err *err)
{
    int rc = 0;

    if (has_failed(said))
        return complain(said, c->nccl, err);
    if (said == ncclInProgress)
        while ((rc = comm_nccl_state(c, err)) == 0) {
            if (canceled(c))
                return err_set(err, ERR_CANCELED, "canceled");
            nap();
        }
    return rc < 0 ? rc : 0;
}

int comm_nccl_all_reduce(struct cuda_comm *c, float *x, size_t n, struct cuda_stream *s,
                         struct err *err)
{
    return n == 0 ? 0
                  : wait_until_enqueued(
                        c, ncclAllReduce(x, x, n, ncclFloat32, ncclSum, c->nccl, cuda_stream_of(s)),
                        err);
}

/* ---- the exchange ---- */

/* NCCL needs the end of a group after an error, too. */
static int end_group(struct cuda_comm *c, ncclResult_t said, struct err *err)
{
    ncclResult_t end = ncclGroupEnd();

    return wait_until_enqueued(c, has_failed(said) ? said : end, err);
}

/* Bytes travel as float32: NCCL does not look at them. */
static ncclResult_t send_and_receive(const struct cuda_comm *c, uint32_t peer,
                                     const struct cuda_exchange *x, cudaStream_t stream)
{
    ncclResult_t said = ncclSuccess;

    if (x->from_bytes > 0)
        said = ncclSend(x->from, x->from_bytes / sizeof(float), ncclFloat32, (int)peer, c->nccl,
                        stream);
    if (!has_failed(said) && x->to_bytes > 0)
        said =
            ncclRecv(x->to, x->to_bytes / sizeof(float), ncclFloat32, (int)peer, c->nccl, stream);
    return said;
}

int comm_nccl_exchange(struct cuda_comm *c, const struct cuda_exchange *with, struct cuda_stream *s,
                       struct err *err)
{
    ncclResult_t said = ncclGroupStart();

    if (has_failed(said))
        return complain(said, c->nccl, err);
    for (uint32_t k = 0; k < c->world && !has_failed(said); k++)
        if (k != c->rank)
            said = send_and_receive(c, k, &with[k], cuda_stream_of(s));
    return end_group(c, said, err);
}

/* ---- the end ---- */

static bool is_still_orderly(struct cuda_comm *c)
{
    bool is;

    pthread_mutex_lock(&c->lock);
    is = c->is_orderly && !canceled(c);
    pthread_mutex_unlock(&c->lock);
    return is;
}

/* All ranks call it: no rank ends before the others have received their data. */
static bool finalize(struct cuda_comm *c)
{
    ncclResult_t said = ncclCommFinalize(c->nccl);
    int state = 1;

    if (said != ncclSuccess && said != ncclInProgress)
        return false;
    while (is_still_orderly(c) && (state = comm_nccl_state(c, NULL)) == 0)
        nap();
    return state == 1 && is_still_orderly(c);
}

static void free_comm(struct cuda_comm *c)
{
    pthread_cond_destroy(&c->over);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static void *end_main(void *arg)
{
    struct cuda_comm *c = (struct cuda_comm *)arg;
    bool is_left;

    (void)cudaSetDevice(c->gpu); /* if it fails, NCCL reports the error */
    if (c->nccl != NULL) {
        if (is_still_orderly(c) && finalize(c))
            (void)ncclCommDestroy(c->nccl);
        else
            (void)ncclCommAbort(c->nccl);
    }
    pthread_mutex_lock(&c->lock);
    c->is_over = true;
    is_left = c->is_left;
    pthread_cond_signal(&c->over);
    pthread_mutex_unlock(&c->lock);
    if (is_left)
        free_comm(c);
    return NULL;
}

/* Returns true if the end has completed; the caller holds the lock. */
static bool wait_for_end(struct cuda_comm *c, int seconds)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += seconds;
    while (!c->is_over && pthread_cond_timedwait(&c->over, &c->lock, &until) != ETIMEDOUT)
        ;
    return c->is_over;
}

static int end(struct cuda_comm *c, bool is_orderly, struct err *err)
{
    pthread_t thread;
    bool is_over;
    int rc;

    c->is_orderly = is_orderly;
    rc = pthread_create(&thread, NULL, end_main, c);
    if (rc != 0)
        return err_sys(err, rc, "end the communicator of NCCL: start a thread");
    pthread_detach(thread);
    pthread_mutex_lock(&c->lock);
    is_over = is_orderly && wait_for_end(c, CLOSE_SECONDS);
    c->is_orderly = false;
    is_over = is_over || wait_for_end(c, ABORT_SECONDS);
    c->is_left = !is_over;
    pthread_mutex_unlock(&c->lock);
    if (is_over) {
        free_comm(c);
        return 0;
    }
    return err_set(err, ERR_DEVICE,
                   "NCCL did not release its communicator within %d s after the abort: only the end of the "
                   "process frees this GPU", ABORT_SECONDS);
}

int comm_nccl_abort(struct cuda_comm *c, struct err *err)
{
    return end(c, false, err);
}

int comm_nccl_close(struct cuda_comm *c, struct err *err)
{
    return end(c, true, err);
}
