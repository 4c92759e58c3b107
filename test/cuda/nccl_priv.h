/* nccl_priv.h - shared by the files of the emulated NCCL. */
#ifndef CUDA_NCCL_PRIV_H
#define CUDA_NCCL_PRIV_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include <nccl.h>

#include "cuda/emulator_priv.h"

/* A unique id: the address on which the hub listens (of the interface named by NCCL_SOCKET_IFNAME,
 * or 127.0.0.1), and its secret. */
struct nccl_address {
    uint64_t magic;
    uint32_t ip; /* network byte order */
    uint16_t port;
};

/* Messages, in host byte order, because they stay on the host. */
struct nccl_hello {
    uint64_t magic;
    uint32_t rank, ranks, version;
    uint32_t host, gpu; /* a hash, and an ordinal */
};
enum { NCCL_GO = 1, NCCL_MISFIT, NCCL_GONE, NCCL_TWICE };
struct nccl_welcome { /* the answer, when all ranks have joined */
    uint32_t what;
    uint32_t other; /* TWICE: the rank on the same GPU */
};
enum { NCCL_SUM = 1, NCCL_EXCHANGE, NCCL_END };
/* Followed by n floats, as is the answer. EXCHANGE: before them, the number of floats to each rank as
 * uint64_t [ranks]; in the answer, from each rank. */
struct nccl_request {
    uint32_t kind;
    uint32_t captured; /* number of the operation among the captured ones; 0: not captured. Equal on all
                          ranks */
    uint64_t n;
};

/* ---- communicators ---- */

enum { NCCL_EXCHANGE_RANKS = 64 }; /* that can exchange, at most */
enum nccl_op { OP_NONE, OP_ASKED, OP_ANSWERED, OP_HANGS };

struct ncclComm {
    struct ncclComm *next; /* list of all communicators ever created: work on a stream may refer to
                              an ended one */
    pthread_mutex_t lock;  /* protects the fields down to those of the thread */
    ncclResult_t state;
    bool reports_progress; /* the next answer is ncclInProgress, regardless of the state */
    bool is_aborted, is_destroyed, wants_end;
    uint32_t used; /* bit k: an operation of kind k was enqueued */
    enum nccl_op op;
    const void *op_of; /* GPU memory: identifies the operation */
    struct nccl_request asked;
    float *numbers; /* of the operation: sent, then received. The thread owns them while OP_ASKED */
    size_t room;
    uint64_t counts[NCCL_EXCHANGE_RANKS]; /* likewise; EXCHANGE */
    uint32_t graphs;         /* captured nodes that are operations of this communicator, which must
                                outlive them */
    uint64_t launched, done; /* for RAS */
    uint64_t sent;           /* bytes to other ranks in exchanges */
    uint32_t n_captured;     /* number of captured operations so far */
    uint32_t twice_with;     /* the rank on the same GPU; UINT32_MAX: none */
    int gpu;
    int wake;                /* an eventfd */
    int fd;                  /* connection to the hub; -1: not connected */
    pthread_t thread;
    struct nccl_address hub;
    uint32_t rank, ranks;
};

/* ---- nccl.c ---- */

ncclResult_t nccl_set_error(ncclResult_t code, const char *text); /* returns code */
ncclResult_t nccl_state(struct ncclComm *c);
uint64_t nccl_has_fault(const char *which); /* 0: the fault is not set; else its number, or 1 */
void nccl_wake(struct ncclComm *c);         /* its thread looks for work */

/* ---- nccl_work.c ---- */

void nccl_reserve(struct ncclComm *c, size_t n); /* numbers have room for n; their values may be lost */

/* ---- nccl_hub.c ---- */

int nccl_version(void);
bool nccl_hub_start(struct nccl_address *out); /* starts a thread with a socket, which is never
                                                  stopped */
int nccl_dial(const struct nccl_address *hub); /* -1: no hub listens there */
bool nccl_send(int fd, const void *bytes, size_t n);
bool nccl_receive(int fd, void *bytes, size_t n);

/* ---- nccl_ras.c ---- */

void nccl_ras_start(void); /* called once */
void nccl_waiting(void (*tell)(void *arg, uint32_t rank, uint64_t operation), void *arg);

#endif
