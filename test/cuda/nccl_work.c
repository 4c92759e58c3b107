/* nccl_work.c - operations of an emulated communicator on a stream: sums, and groups of sends and
 * receives. An operation passes the numbers of its rank to the thread of the communicator, and later
 * copies the answer of the hub to GPU memory. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/nccl_priv.h"

struct transfer { /* between this rank and a peer; n 0: none */
    const float *from;
    float *to;
    uint64_t n_from, n_to;
};

struct operation { /* on a stream */
    struct ncclComm *comm;
    struct nccl_request ask;
    float *x; /* SUM: in place; EXCHANGE: any of its memory */
    struct transfer transfers[NCCL_EXCHANGE_RANKS]; /* EXCHANGE: [ranks] */
};

/* The group that this thread has begun. */
static __thread struct group {
    bool is_open;
    cudaStream_t stream;
    struct operation op; /* comm NULL: nothing yet */
} group;

void nccl_reserve(struct ncclComm *c, size_t n)
{
    if (c->room >= n)
        return;
    free(c->numbers);
    c->numbers = emulated_alloc(n * sizeof(float));
    c->room = n;
}

static void collect_sends(struct ncclComm *c, const struct operation *o)
{
    float *to = c->numbers;

    for (uint32_t i = 0; i < c->ranks; i++) {
        const struct transfer *t = &o->transfers[i];

        c->counts[i] = t->n_from;
        if (t->n_from > 0)
            memcpy(to, t->from, t->n_from * sizeof(float));
        to += t->n_from;
    }
}

static void deliver_receives(const struct ncclComm *c, const struct operation *o)
{
    const float *from = c->numbers;

    for (uint32_t i = 0; i < c->ranks; i++) {
        const struct transfer *t = &o->transfers[i];

        if (c->counts[i] != t->n_to)
            emulated_die("NCCL: rank %u receives %llu numbers from rank %u, which sends %llu",
                         c->rank, (unsigned long long)t->n_to, i, (unsigned long long)c->counts[i]);
        if (t->n_to > 0)
            memcpy(t->to, from, t->n_to * sizeof(float));
        from += t->n_to;
    }
}

static void request(struct ncclComm *c, const struct operation *o)
{
    nccl_reserve(c, o->ask.n);
    if (o->ask.kind == NCCL_SUM)
        memcpy(c->numbers, o->x, o->ask.n * sizeof(float));
    else
        collect_sends(c, o);
    c->sent += o->ask.kind == NCCL_EXCHANGE ? o->ask.n * sizeof(float) : 0;
    c->asked = o->ask;
    c->op_of = o->x;
    c->launched++;
    c->op = nccl_has_fault("sum") == c->launched || nccl_has_fault("error") == c->launched
                ? OP_HANGS
                : OP_ASKED;
    if (nccl_has_fault("error") == c->launched)
        c->state = ncclSystemError;
    nccl_wake(c);
}

static int run_operation(void *args)
{
    const struct operation *o = args;
    struct ncclComm *c = o->comm;
    int rc = EMULATED_NOT_YET;

    pthread_mutex_lock(&c->lock);
    if (c->is_destroyed)
        emulated_die("its communicator is destroyed");
    if (!c->is_aborted && c->op != OP_NONE && /* an abort ends all operations in turn */
        (c->op_of != o->x || c->asked.n != o->ask.n || c->asked.kind != o->ask.kind))
        emulated_die("another operation of its communicator is under way on another stream");
    if (c->is_aborted) {
        rc = EMULATED_DONE;
    } else if (c->op == OP_ANSWERED) {
        if (o->ask.kind == NCCL_SUM)
            memcpy(o->x, c->numbers, o->ask.n * sizeof(float));
        else
            deliver_receives(c, o);
        c->op = OP_NONE;
        rc = EMULATED_DONE;
    } else if (c->op == OP_NONE) {
        request(c, o);
    }
    pthread_mutex_unlock(&c->lock);
    return rc;
}

static void forget_graph(void *args)
{
    struct ncclComm *c = ((struct operation *)args)->comm;

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

static ncclResult_t enqueue(struct operation *o, const char *name, cudaStream_t stream)
{
    struct ncclComm *c = o->comm;
    ncclResult_t state = nccl_state(c);
    enum cudaStreamCaptureStatus captures = cudaStreamCaptureStatusNone;
    bool is_first;

    if (state == ncclInProgress)
        return nccl_set_error(
            ncclInvalidArgument,
            "Attempt to use communicator before the previous operation returned ncclSuccess");
    if (state != ncclSuccess)
        return nccl_set_error(state, "the communicator has failed");
    (void)cudaStreamIsCapturing(stream, &captures);
    if (captures != cudaStreamCaptureStatusNone)
        o->ask.captured = ++c->n_captured;
    if (emulated_enqueue(stream, name, run_operation, o, sizeof(*o)) != cudaSuccess)
        return nccl_set_error(ncclUnhandledCudaError, "CUDA fails");
    remember_graph(c, stream);
    pthread_mutex_lock(&c->lock);
    is_first = (c->used >> o->ask.kind & 1) == 0;
    c->used |= 1u << o->ask.kind;
    c->reports_progress = is_first;
    pthread_mutex_unlock(&c->lock);
    return is_first ? ncclInProgress : ncclSuccess;
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t n, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t c, cudaStream_t stream)
{
    struct operation o = { .comm = c, .ask = { .kind = NCCL_SUM, .n = n }, .x = to };

    if (from != to || type != ncclFloat32 || op != ncclSum || group.is_open)
        emulated_die("ncclAllReduce: only sums of float32 in place, not in a group, are emulated");
    return enqueue(&o, "ncclAllReduce", stream);
}

/* ---- sends and receives ---- */

ncclResult_t ncclGroupStart(void)
{
    if (group.is_open)
        emulated_die("ncclGroupStart: groups in groups are not emulated");
    group = (struct group){ .is_open = true };
    return ncclSuccess;
}

/* Returns the entry of the peer in the open group. */
static struct transfer *join_group(const char *name, ncclDataType_t type, int peer, ncclComm_t c,
                                   cudaStream_t stream)
{
    if (!group.is_open || type != ncclFloat32 || c->ranks > NCCL_EXCHANGE_RANKS)
        emulated_die("%s: only float32 in a group of at most %d ranks is emulated", name,
                     NCCL_EXCHANGE_RANKS);
    if (group.op.comm != NULL && (group.op.comm != c || group.stream != stream))
        emulated_die("%s: a group of several communicators or streams is not emulated", name);
    if (peer < 0 || (uint32_t)peer >= c->ranks)
        emulated_die("%s: peer %d of %u ranks", name, peer, c->ranks);
    group.op.comm = c;
    group.op.ask.kind = NCCL_EXCHANGE;
    group.stream = stream;
    return &group.op.transfers[peer];
}

ncclResult_t ncclSend(const void *from, size_t n, ncclDataType_t type, int peer, ncclComm_t c,
                      cudaStream_t stream)
{
    struct transfer *t = join_group("ncclSend", type, peer, c, stream);

    if (t->from != NULL || n == 0)
        emulated_die("ncclSend: two sends to a peer, or of nothing, are not emulated");
    t->from = from;
    t->n_from = n;
    group.op.ask.n += n;
    group.op.x = (float *)(uintptr_t)from;
    return ncclSuccess;
}

ncclResult_t ncclRecv(void *to, size_t n, ncclDataType_t type, int peer, ncclComm_t c,
                      cudaStream_t stream)
{
    struct transfer *t = join_group("ncclRecv", type, peer, c, stream);

    if (t->to != NULL || n == 0)
        emulated_die("ncclRecv: two receives from a peer, or of nothing, are not emulated");
    t->to = to;
    t->n_to = n;
    if (group.op.x == NULL)
        group.op.x = to;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    if (!group.is_open)
        emulated_die("ncclGroupEnd without ncclGroupStart");
    group.is_open = false;
    return group.op.comm != NULL ? enqueue(&group.op, "ncclGroupEnd", group.stream) : ncclSuccess;
}
