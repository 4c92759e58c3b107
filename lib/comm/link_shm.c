/* link_shm.c - the barrier of the ranks that share memory, and the record of their calls.
 *
 * Every rank counts its arrivals in its own slot, and waits until the slots of the others have the
 * same count; a rank that does not arrive is therefore known by name. If there is a core for each
 * rank, a wait spins first, and a barrier takes a fraction of a microsecond; else it yields the
 * core at once.
 *
 * A published call stays readable until the rank begins the call after the next: to begin it, the
 * rank must have met all ranks in the next call, which they enter only after they have read this
 * one. */
#include "comm/comm_priv.h"

#include <linux/futex.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <time.h>

#include "base/clock.h"
#include "base/err.h"

enum { SPINS = 2000, SPINS_TO_YIELD = 64, YIELDS = 8 };

static void futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t ns)
{
    struct timespec t = { .tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000) };

    syscall(SYS_futex, word, FUTEX_WAIT, seen, &t, NULL, 0);
}

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Returns the index of the slot of a rank for the present call of r. */
static uint32_t index_of(const struct comm *c, const struct comm_rank *r, uint32_t rank)
{
    return c->shm.slot_of[rank] + (r->in_part ? c->shm.n_ranks : 0);
}

static struct host_slot *slot_of(struct comm *c, const struct comm_rank *r, uint32_t rank)
{
    return &c->shm.page->slots[index_of(c, r, rank)];
}

/* The counts may wrap around. */
static bool arrived(uint32_t word, uint32_t target)
{
    return (int32_t)((word & ~(uint32_t)(PAGE_STEP - 1)) - target) >= 0;
}

/* Wakes the ranks that wait at `s`. */
static void announce(struct host_slot *s)
{
    if (atomic_load(&s->sleepers) != 0)
        page_wake(&s->word);
}

/* Returns 1: keep waiting, 0: arrived, -1: failed. */
static int look(struct comm *c, struct comm_rank *r, uint32_t rank, uint32_t word)
{
    uint32_t member = c->topo.member_of[rank];

    if (arrived(word, r->arrivals))
        return 0;
    if (comm_has_failed(c))
        return -1;
    if ((word & PAGE_BROKEN) != 0)
        return host_check(c);
    if ((word & PAGE_LEFT) != 0)
        return comm_fail(c, ERR_PEER, member, "%s has left, but rank %u still waits for it in %s",
                         comm_rank_text(c, rank).text, r->rank, comm_call_text(&r->call).text);
    if (clock_ns() >= r->deadline_ns)
        return comm_fail(c, ERR_TIMEOUT, member, "%s has not arrived at %s within %.3g s",
                         comm_rank_text(c, rank).text, comm_call_text(&r->call).text,
                         (double)r->limit_ns / 1e9);
    return 1;
}

static int wait_for(struct comm *c, struct comm_rank *r, uint32_t rank)
{
    struct host_slot *s = slot_of(c, r, rank);
    bool spin = c->shm.page->spin != 0 && !r->yields;
    uint32_t seen = atomic_load_explicit(&s->word, memory_order_acquire);
    uint64_t since_ns = 0; /* begin of the sleeps; 0: none yet */
    int rc = 1;

    /* All ranks have arrived. If the generation has ended meanwhile, the others may already use
       their arenas for the next one, because this process may have been suspended: the data read
       may be invalid. */
    if (arrived(seen, r->arrivals))
        return (seen & PAGE_BROKEN) != 0 ? host_check(c) : 0;
    for (int i = 0; i < (spin ? SPINS : YIELDS) && rc == 1; i++) {
        if (spin && i % SPINS_TO_YIELD != 0)
            relax();
        else
            sched_yield();
        rc = arrived(atomic_load_explicit(&s->word, memory_order_acquire), r->arrivals) ? 0 : 1;
    }
    while (rc == 1) {
        uint32_t word;

        since_ns = since_ns == 0 ? clock_ns() : since_ns;
        comm_waits(c, true);
        atomic_fetch_add(&s->sleepers, 1);
        word = atomic_load(&s->word);
        rc = look(c, r, rank, word);
        if (rc == 1)
            futex_wait(&s->word, word, COMM_SLICE_MS * (uint64_t)1000000);
        atomic_fetch_sub(&s->sleepers, 1);
    }
    if (since_ns != 0) {
        comm_waits(c, false);
        waits_add(c, r, rank, WAIT_LATE, clock_ns() - since_ns);
    }
    return rc;
}

int host_barrier(struct comm *c, struct comm_rank *r, uint32_t first, uint32_t n)
{
    struct host_slot *own = slot_of(c, r, r->rank);

    if (n == 1)
        return 0;
    r->arrivals += PAGE_STEP;
    atomic_fetch_add(&own->word, PAGE_STEP);
    announce(own);
    for (uint32_t i = first; i < first + n; i++)
        if (i != r->rank && wait_for(c, r, i) < 0)
            return -1;
    return 0;
}

/* `theirs` is a copy, because another process can write to the page. Returns -1 after
 * comm_fail(). */
static int calls_differ(struct comm *c, const struct comm_rank *r, uint32_t rank,
                        struct comm_call theirs)
{
    uint32_t member = c->topo.member_of[rank];
    struct err err;

    if (message_check_call(&theirs, c->topo.world, &err) < 0)
        return comm_fail(c, ERR_PEER, member, "%s made an invalid call: %s",
                         comm_rank_text(c, rank).text, err.text);
    return comm_fail(c, ERR_PEER, member, "%s is in %s, but %s in %s", comm_rank_text(c, rank).text,
                     comm_call_text(&theirs).text, comm_rank_text(c, r->rank).text,
                     comm_call_text(&r->call).text);
}

int host_enter(struct comm *c, struct comm_rank *r, uint32_t first, uint32_t n)
{
    uint32_t parity = r->call.number & 1;

    slot_of(c, r, r->rank)->calls[parity] = r->call;
    if (host_barrier(c, r, first, n) < 0)
        return -1;
    for (uint32_t i = first; i < first + n; i++) {
        const struct comm_call *theirs = &slot_of(c, r, i)->calls[parity];

        if (!comm_call_same(theirs, &r->call))
            return calls_differ(c, r, i, *theirs);
    }
    return 0;
}

void *host_piece(struct comm *c, struct comm_rank *r, uint32_t rank, bool is_second, size_t bytes)
{
    const struct comm_memory *m = &c->shm.memory[c->topo.member_of[rank]];
    const struct comm_call *theirs = &slot_of(c, r, rank)->calls[r->call.number & 1];
    /* the value that is checked must be the value that is used */
    uint64_t offset = __atomic_load_n(&theirs->offset, __ATOMIC_RELAXED);

    if (is_second)
        offset += (uint64_t)__atomic_load_n(&theirs->stride, __ATOMIC_RELAXED) * COMM_STRIDE_UNIT;
    if (offset > m->bytes || bytes > m->bytes - offset) {
        comm_fail(c, ERR_PEER, c->topo.member_of[rank],
                  "%s: its data is at %llu, outside its arena of %zu bytes",
                  comm_rank_text(c, rank).text, (unsigned long long)offset, m->bytes);
        return NULL;
    }
    return (void *)((uintptr_t)m->base + offset);
}

void *host_data(struct comm *c, struct comm_rank *r, uint32_t rank, size_t bytes)
{
    return host_piece(c, r, rank, false, bytes);
}

void *host_small(struct comm *c, const struct comm_rank *r, uint32_t rank)
{
    struct host_page *p = c->shm.page;
    uint8_t *places = (uint8_t *)&p->slots[c->shm.n_slots];

    return places + ((size_t)index_of(c, r, rank) * 2 + (r->call.number & 1)) * COMM_SMALL_BYTES;
}

void host_reset_part(struct comm *c, const struct comm_rank *r)
{
    struct host_slot *s = &c->shm.page->slots[c->shm.slot_of[r->rank] + c->shm.n_ranks];

    atomic_fetch_and(&s->word, PAGE_STEP - 1);
}

void host_leave(struct comm *c)
{
    for (uint32_t i = 0; c->shm.page != NULL && c->n_ranks > 0 && i < 2; i++)
        page_flag(c->shm.page, c->shm.slot_of[c->first_rank] + i * c->shm.n_ranks, c->n_ranks,
                  PAGE_LEFT);
}

int host_check(struct comm *c)
{
    struct host_page *p = c->shm.page;
    char why[COMM_WHY_BYTES];
    uint32_t culprit;

    if (p == NULL || atomic_load(&p->broken) == 0)
        return 0;
    /* The process that wrote the reason may have died before it was complete: continue without
       it. */
    if (atomic_load(&p->broken) != 2)
        return comm_fail(c, ERR_PEER, COMM_NO_MEMBER,
                         "another process of this host ended the generation");
    memcpy(why, p->why, sizeof(why));
    why[sizeof(why) - 1] = '\0';
    /* read once: other processes can write the field */
    culprit = __atomic_load_n(&p->culprit, __ATOMIC_RELAXED);
    return comm_fail(c, ERR_PEER, culprit < c->topo.n_members ? culprit : COMM_NO_MEMBER, "%s",
                     why);
}
