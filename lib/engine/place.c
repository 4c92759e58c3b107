/* place.c - see place.h. A version counter around each write (a sequence lock). */
#include "engine/place.h"

#include <stdatomic.h>

#include "base/clock.h"
#include "base/gate.h"

enum {
    FADES = 16,       /* a shorter phase takes 1/16 off the remembered time */
    STATED_MS = 1000, /* a wait for peers that is not stated for so long is a hang */
};

#define LOAD(x_) atomic_load_explicit(&(x_), memory_order_relaxed)
#define STORE(x_, value_) atomic_store_explicit(&(x_), (value_), memory_order_relaxed)

/* The work up to now counts for the present phase. */
static void add_work(struct place *p, uint64_t now)
{
    if (p->wait == PLACE_WORKS && now - p->since_ns > p->worked_ns)
        STORE(p->worked_ns, now - p->since_ns);
}

/* The present phase ends. */
static void learn(struct place *p)
{
    uint64_t longest = LOAD(p->longest_ns[p->phase]), ns = p->worked_ns;

    longest -= longest / FADES;
    STORE(p->longest_ns[p->phase], ns > longest ? ns : longest);
    STORE(p->seen[p->phase], p->seen[p->phase] + 1);
    STORE(p->worked_ns, 0);
}

static void begin_write(struct place *p)
{
    STORE(p->version, p->version + 1);
    atomic_thread_fence(memory_order_release);
}

static void end_write(struct place *p)
{
    atomic_store_explicit(&p->version, p->version + 1, memory_order_release);
}

static void set(struct place *p, uint64_t step, enum phase phase, uint32_t bucket,
                enum place_wait wait, uint64_t now)
{
    STORE(p->step, step);
    STORE(p->phase, (uint32_t)phase);
    STORE(p->bucket, bucket);
    STORE(p->wait, (uint32_t)wait);
    STORE(p->since_ns, now);
    STORE(p->stated_ns, now);
}

static void enter(struct place *p, uint64_t step, enum phase phase, uint32_t bucket)
{
    uint64_t now = clock_ns();

    begin_write(p);
    add_work(p, now);
    learn(p);
    set(p, step, phase, bucket, PLACE_WORKS, now);
    end_write(p);
}

void place_start(struct place *p, uint64_t step, enum place_wait wait)
{
    begin_write(p);
    for (int i = 0; i < N_PHASES; i++) {
        STORE(p->longest_ns[i], 0);
        STORE(p->seen[i], 0);
    }
    STORE(p->worked_ns, 0);
    set(p, step, PHASE_START, 0, wait, clock_ns());
    end_write(p);
}

static _Thread_local struct place *own;

void place_own(struct place *p)
{
    own = p;
}

void place_enter(struct place *p, enum phase phase)
{
    enter(p, p->step, phase, 0);
}

void place_step(struct place *p, uint64_t step)
{
    enter(p, step, PHASE_BEGIN, 0);
}

void place_chunk(struct place *p, uint32_t chunk)
{
    enter(p, p->step, PHASE_TRANSFER, chunk);
}

void place_bucket(struct place *p, uint64_t step, uint32_t bucket)
{
    enter(p, step, PHASE_REDUCE, bucket);
}

void place_wait(struct place *p, enum place_wait wait)
{
    uint64_t now = clock_ns();

    begin_write(p);
    if (p->wait != wait) {
        add_work(p, now);
        STORE(p->wait, (uint32_t)wait);
        STORE(p->since_ns, now);
    }
    STORE(p->stated_ns, now);
    end_write(p);
}

void place_peers(bool waits)
{
    place_wait(own, waits ? PLACE_WAITS_PEERS : PLACE_WORKS);
}

bool place_meet(struct place *p, struct gate *gate)
{
    bool whole;

    if (gate->n > 1)
        place_wait(p, PLACE_WAITS_LOCAL);
    whole = gate_wait(gate);
    if (gate->n > 1)
        place_wait(p, PLACE_WORKS);
    return whole;
}

struct place_view place_read(const struct place *p)
{
    struct place_view v;
    uint64_t version, now;

    do {
        version = atomic_load_explicit(&p->version, memory_order_acquire);
        v = (struct place_view){ .step = LOAD(p->step),
                                 .since_ns = LOAD(p->since_ns),
                                 .stated_ns = LOAD(p->stated_ns),
                                 .phase = LOAD(p->phase),
                                 .bucket = LOAD(p->bucket),
                                 .wait = LOAD(p->wait) };
        v.longest_ns = LOAD(p->longest_ns[v.phase]);
        v.times = LOAD(p->seen[v.phase]);
        atomic_thread_fence(memory_order_acquire);
    } while (version % 2 != 0 || version != LOAD(p->version));
    now = clock_ns();
    if (v.wait == PLACE_WAITS_PEERS && now > v.stated_ns + STATED_MS * UINT64_C(1000000)) {
        v.wait = PLACE_WORKS; /* the work is unknown */
        v.since_ns = v.stated_ns;
    }
    return v;
}
