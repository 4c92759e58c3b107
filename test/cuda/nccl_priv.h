/* nccl_priv.h - what the files of the emulated NCCL share. */
#ifndef CUDA_NCCL_PRIV_H
#define CUDA_NCCL_PRIV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include <nccl.h>

#include "cuda/emulator_priv.h"

/* A unique id: where the hub listens (of the interface that NCCL_SOCKET_IFNAME names, or 127.0.0.1), and its
 * secret. */
struct nccl_address {
    uint64_t magic;
    uint32_t ip; /* in the network's order */
    uint16_t port;
};

/* What goes over the wire, in the host's order: it never leaves it. */
struct nccl_hello {
    uint64_t magic;
    uint32_t rank, ranks, version;
    uint32_t host, gpu; /* a hash, an ordinal */
};
enum { NCCL_GO = 1, NCCL_MISFIT, NCCL_GONE, NCCL_TWICE };
struct nccl_welcome { /* the answer, when all are there */
    uint32_t what;
    uint32_t other; /* TWICE: the rank on the same GPU */
};
enum { NCCL_SUM = 1, NCCL_END };
struct nccl_request { /* with n floats behind it; so is the answer */
    uint32_t kind;
    uint32_t captured; /* the how-many-th sum that was captured; 0: it was not. All ranks' alike */
    uint64_t n;
};

int nccl_version(void);

/* ---- nccl_hub.c ---- */

bool nccl_hub_start(struct nccl_address *out); /* a thread and a socket, for good */
int nccl_dial(const struct nccl_address *hub); /* -1: nobody listens there */
bool nccl_send(int fd, const void *bytes, size_t n);
bool nccl_receive(int fd, void *bytes, size_t n);

/* ---- nccl_ras.c ---- */

void nccl_ras_start(void); /* once */
void nccl_waiting(void (*tell)(void *arg, uint32_t rank, uint64_t operation), void *arg);

#endif
