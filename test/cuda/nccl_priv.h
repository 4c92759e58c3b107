/* nccl_priv.h - shared by the files of the emulated NCCL. */
#ifndef CUDA_NCCL_PRIV_H
#define CUDA_NCCL_PRIV_H

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
enum { NCCL_SUM = 1, NCCL_END };
struct nccl_request { /* followed by n floats, as is the answer */
    uint32_t kind;
    uint32_t captured; /* number of the sum among the captured ones; 0: not captured. Equal on all
                          ranks */
    uint64_t n;
};

int nccl_version(void);

/* ---- nccl_hub.c ---- */

bool nccl_hub_start(struct nccl_address *out); /* starts a thread with a socket, which is never
                                                  stopped */
int nccl_dial(const struct nccl_address *hub); /* -1: no hub listens there */
bool nccl_send(int fd, const void *bytes, size_t n);
bool nccl_receive(int fd, void *bytes, size_t n);

/* ---- nccl_ras.c ---- */

void nccl_ras_start(void); /* called once */
void nccl_waiting(void (*tell)(void *arg, uint32_t rank, uint64_t operation), void *arg);

#endif
