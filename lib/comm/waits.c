/* waits.c - the time that the ranks of this member waited for each other member; comm.h states what
 * the counters mean.
 *
 * One thread at a time makes the calls of a rank and adds to its counters; any thread reads them. So
 * each counter needs no more than a relaxed load and a relaxed store. */
#include "comm/comm_priv.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "base/check.h"

static void add(_Atomic uint64_t *counter, uint64_t n)
{
    uint64_t was = atomic_load_explicit(counter, memory_order_relaxed);

    atomic_store_explicit(counter, was + n, memory_order_relaxed);
}

void waits_add(const struct comm *c, struct comm_rank *r, uint32_t rank, enum wait_kind kind,
               uint64_t ns)
{
    struct wait_counters *w = &r->waits[c->topo.member_of[rank]];

    add(kind == WAIT_LATE ? &w->late_ns : &w->slow_ns, ns);
}

void waits_add_bytes(const struct comm *c, struct comm_rank *r, uint32_t rank, uint64_t bytes)
{
    add(&r->waits[c->topo.member_of[rank]].slow_bytes, bytes);
}

/* Returns 0 for a connection that is not TCP, or is not open. */
static uint32_t retransmissions(int fd)
{
    struct tcp_info info = { 0 };
    socklen_t n = sizeof(info);

    return fd >= 0 && getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &n) == 0
               ? info.tcpi_total_retrans
               : 0;
}

void comm_read_waits(const struct comm *c, uint32_t local, struct comm_wait *out)
{
    CHECK(local < c->n_ranks);
    for (uint32_t m = 0; m < c->topo.n_members; m++) {
        const struct wait_counters *w = &c->ranks[local].waits[m];

        out[m] = (struct comm_wait){
            .late_ns = atomic_load_explicit(&w->late_ns, memory_order_relaxed),
            .slow_ns = atomic_load_explicit(&w->slow_ns, memory_order_relaxed),
            .slow_bytes = atomic_load_explicit(&w->slow_bytes, memory_order_relaxed),
        };
    }
    for (uint32_t i = 0; i < c->ranks[local].n_links; i++) {
        const struct comm_link *l = &c->ranks[local].links[i];

        out[c->topo.member_of[l->peer]].retransmissions += retransmissions(l->fd);
    }
}
