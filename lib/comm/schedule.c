#include "comm/schedule.h"

#include "base/check.h"
#include "comm/comm.h"

enum { ALIGN = 16 }; /* elements between two cuts: a cache line of float32 */

bool schedule_is_power(uint32_t n)
{
    return n != 0 && (n & (n - 1)) == 0;
}

uint32_t schedule_log2(uint32_t n)
{
    return 31 - (uint32_t)__builtin_clz(n);
}

uint32_t schedule_reverse(uint32_t x, uint32_t n)
{
    uint32_t out = 0;

    for (uint32_t bits = schedule_log2(n); bits > 0; bits--, x >>= 1)
        out = out << 1 | (x & 1);
    return out;
}

struct comm_range schedule_cut(uint32_t n, uint32_t i, size_t count, size_t grain)
{
    size_t blocks = count / grain + (count % grain != 0), each = blocks / n, rest = blocks % n;
    /* blocks * i / n without overflow */
    size_t begin = grain * (each * i + rest * i / n);
    size_t end = grain * (each * (i + 1) + rest * (i + 1) / n);

    return (struct comm_range){ begin < count ? begin : count, end < count ? end : count };
}

struct comm_range schedule_part(uint32_t n, uint32_t i, size_t count)
{
    return schedule_cut(n, i, count, ALIGN);
}

struct comm_range schedule_some(struct comm_range x, size_t at, size_t most)
{
    x.begin += at < x.end - x.begin ? at : x.end - x.begin;
    if (x.end - x.begin > most)
        x.end = x.begin + most;
    return x;
}

struct comm_range comm_slice(uint32_t world, uint32_t rank, size_t count)
{
    CHECK(rank < world && world <= COMM_MAX_RANKS);
    return schedule_part(world, schedule_is_power(world) ? schedule_reverse(rank, world) : rank,
                         count);
}

uint32_t schedule_steps(const struct schedule *s)
{
    return s->direct ? s->n_nodes - 1 : schedule_log2(s->n_nodes);
}

static struct schedule_range everything(const struct schedule *s)
{
    return (struct schedule_range){ 0, s->n_segments };
}

/* Returns the segments that `node` still has after `depth` halvings: those whose `depth` high bits
 * are the mirrored low bits of the node. */
static struct schedule_range held(const struct schedule *s, uint32_t node, uint32_t depth)
{
    uint32_t length = s->n_nodes >> depth;
    uint32_t begin = schedule_reverse(node, s->n_nodes) & ~(length - 1);

    return (struct schedule_range){ begin, begin + length };
}

static struct schedule_step halving_step(const struct schedule *s, uint32_t i)
{
    uint32_t peer = s->self ^ (uint32_t)1 << i;

    return (struct schedule_step){ .to = peer,
                                   .from = peer,
                                   .send = held(s, peer, i + 1),
                                   .recv = held(s, s->self, i + 1),
                                   .add = true };
}

static struct schedule_step unhalving_step(const struct schedule *s, uint32_t i)
{
    uint32_t k = schedule_log2(s->n_nodes) - 1 - i, peer = s->self ^ (uint32_t)1 << k;

    return (struct schedule_step){
        .to = peer, .from = peer, .send = held(s, s->self, k + 1), .recv = held(s, peer, k + 1)
    };
}

static struct schedule_step doubling_step(const struct schedule *s, uint32_t i)
{
    uint32_t peer = s->self ^ (uint32_t)1 << i;

    return (struct schedule_step){
        .to = peer, .from = peer, .send = everything(s), .recv = everything(s), .add = true
    };
}

static struct schedule_step tree_step(const struct schedule *s, uint32_t i)
{
    uint32_t distance = s->self ^ s->root, bit = (uint32_t)1 << i;
    struct schedule_step step = { .to = SCHEDULE_NONE, .from = SCHEDULE_NONE };

    if (distance < bit) {
        step.to = s->self ^ bit;
        step.send = everything(s);
    } else if (distance < 2 * bit) {
        step.from = s->self ^ bit;
        step.recv = everything(s);
    }
    return step;
}

static struct schedule_range segment(uint32_t i)
{
    return (struct schedule_range){ i, i + 1 };
}

static struct schedule_step direct_step(const struct schedule *s, uint32_t i)
{
    uint32_t n = s->n_nodes, to = (s->self + 1 + i) % n, from = (s->self + n - 1 - i) % n;
    bool scatter = s->what == SCHEDULE_REDUCE_SCATTER;

    return (struct schedule_step){ .to = to,
                                   .from = from,
                                   .send = segment(scatter ? to : s->self),
                                   .recv = segment(scatter ? s->self : from),
                                   .keep = scatter };
}

static struct schedule_step scatter_step(const struct schedule *s, uint32_t i)
{
    uint32_t n = s->n_nodes, to = (s->self + 1 + i) % n, from = (s->self + n - 1 - i) % n;
    struct schedule_step step = { .to = SCHEDULE_NONE, .from = SCHEDULE_NONE };

    if (s->self == s->root) {
        step.to = to;
        step.send = segment(to);
    }
    if (from == s->root) {
        step.from = from;
        step.recv = segment(s->self);
    }
    return step;
}

struct schedule_step schedule_step(const struct schedule *s, uint32_t i)
{
    typedef struct schedule_step step_of(const struct schedule *, uint32_t);
    static step_of *const of[2][4] = {
        { halving_step, unhalving_step, doubling_step, tree_step },
        { direct_step, direct_step, NULL, scatter_step },
    };
    step_of *f = of[s->direct][s->what];

    CHECK(f != NULL && i < schedule_steps(s));
    return f(s, i);
}
