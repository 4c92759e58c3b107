/* health.c - health.h says what it is about. */
#include "train/health.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/checksum.h"
#include "base/fault.h"
#include "train/gpu.h"
#include "train/train_priv.h"

/* Two words of every task: there are at most as many tasks as replicas. A word is 1 + checksum, 0:
 * this task has nothing to say. */
enum { WORD_GRADIENT, WORD_STATE, WORDS };
static const char *const what_differs[WORDS] = { "reduced gradient", "weights and optimizer state" };

size_t health_words(const struct train_opts *o)
{
    return ((size_t)o->replicas * WORDS + 15) / 16 * 16;
}

static float *words_of(const struct train *t, float *grads)
{
    return grads + t->mem.params + CONTROL_WORDS;
}

int health_take_up(struct train *t, uint64_t held, const int64_t *votes, struct err *err)
{
    struct health *h = &t->health;
    int rc = 0;

    h->restored_at = (uint64_t)votes[VOTE_RESTORED_AT];
    if (h->lost && held == 0)
        rc = train_start_over(t, err);
    h->lost = rc < 0; /* else what is held came from a peer or a checkpoint, or is new */
    return rc;
}

enum train_end health_end(const struct train *t)
{
    const struct health *h = &t->health;

    return h->rolls_back ? TRAIN_ROLL_BACK
           : h->differs && h->peer != UINT32_MAX ? TRAIN_DIVERGED
                                                 : TRAIN_FAILED;
}

void health_begin(struct train *t)
{
    struct health *h = &t->health;

    h->compares = t->group.n_members > 1;
    h->gradient_step = h->state_step = h->equal_step = h->equal_state_step = 0;
    h->rolls_back = h->differs = false;
    h->peer = UINT32_MAX;
}

static uint32_t total(const struct train *t, const uint32_t *parts)
{
    uint32_t sum = 0;

    for (uint32_t i = 0; i < t->opts->n_devices; i++)
        sum = checksum_add(sum, parts[i]);
    return sum;
}

static void lose_state(struct train *t)
{
    t->health.lost = true;
    __atomic_store_n(&t->held_step, 0, __ATOMIC_RELEASE);
    for (uint32_t i = 0; i < t->opts->n_devices; i++)
        if (t->replicas[i].gpu != NULL)
            gpu_forget(&t->replicas[i]);
}

static void tell(const struct train *t, int kind, uint64_t step, const char *text)
{
    struct train_event e = { .kind = kind, .step = step, .text = text,
                             .done = t->facts.skips_in_row, .all = t->health.skips };

    train_tell(t, &e);
}

/* ---- weights and optimizer state ---- */

/* GPUs of a task each move all weights. The first that differs from most of them; from the first, if there is no
 * majority. n: all are equal. */
static uint32_t odd_one(const uint32_t *sums, uint32_t n)
{
    uint32_t value = sums[0], n_equal = 0, i;

    for (i = 0; i < n && 2 * n_equal <= n; i++) {
        n_equal = 0;
        for (uint32_t k = 0; k < n; k++)
            n_equal += sums[k] == sums[i];
        value = 2 * n_equal > n ? sums[i] : value;
    }
    for (i = 0; i < n && sums[i] == value; i++)
        ;
    return i;
}

/* This task alone is wrong, and knows it before its peers do. */
static int gpus_differ(struct replica *r, const uint32_t *sums, const char *what, uint64_t step, const char *then,
                       struct err *err)
{
    struct train *t = r->train;
    uint32_t n = t->opts->n_devices, odd = odd_one(sums, n), other = sums[0] != sums[odd] ? 0 : 1;
    char name[32], like[32];
    int rc;

    while (sums[other] == sums[odd])
        other++;
    device_name(&t->opts->devices[odd], name, sizeof(name));
    device_name(&t->opts->devices[other], like, sizeof(like));
    rc = err_set(err, ERR_DEVICE,
                 "%s: %s and %s differ in the %s of step %" PRIu64 ", with checksums %06x and %06x%s: one of "
                 "them computed or kept something wrong. %s", t->members[t->group.self].name, name, like, what,
                 step, sums[odd], sums[other], n > 2 ? ", which most of its GPUs have" : "", then);
    if (r->local == 0) {
        t->health.differs = true;
        t->health.peer = t->group.self;
        tell(t, TRAIN_DIFFERS, step, err->text);
    }
    return rc;
}

static int compare_gpus(struct replica *r, uint64_t step, struct err *err)
{
    struct train *t = r->train;
    int rc;

    if (odd_one(t->health.state_part, t->opts->n_devices) == t->opts->n_devices)
        return 0;
    rc = gpus_differ(r, t->health.state_part, what_differs[WORD_STATE], step,
                     "The state of this task counts no longer", err);
    if (r->local == 0)
        lose_state(t);
    return rc;
}

/* Of several GPUs of a task that has no peers too. */
static bool weighs(const struct train *t)
{
    return t->opts->check_weights_every_steps > 0 &&
           (t->health.compares || (train_on_gpus(t) && t->opts->n_devices > 1));
}

bool health_weighs(const struct train *t, uint64_t step)
{
    return weighs(t) && step % t->opts->check_weights_every_steps == 0;
}

int health_weigh(struct replica *r, uint64_t step, struct err *err)
{
    struct train *t = r->train;
    struct health *h = &t->health;
    size_t n = t->mem.state_bytes / sizeof(float), parts = t->opts->n_devices;
    size_t begin = n * r->local / parts / 16 * 16, end = n * (r->local + 1) / parts / 16 * 16;
    bool finite = true; /* what it should have been is the business of the gradients */
    int rc = 0;

    if (!weighs(t))
        return 0;
    if (r->local + 1 == parts)
        end = n;
    if (r->gpu != NULL) /* each holds a whole one */
        rc = gpu_weigh(r, &h->state_part[r->local], err);
    else
        h->state_part[r->local] = checksum_part(t->mem.state + begin, end - begin, begin, &finite);
    if (rc == 0)
        rc = generation_gate(r, err);
    if (rc == 0 && r->gpu != NULL)
        rc = compare_gpus(r, step, err);
    if (rc == 0 && r->local == 0) {
        h->state = r->gpu != NULL ? h->state_part[0] : total(t, h->state_part);
        h->state_step = step;
    }
    return rc;
}

/* ---- comparing ---- */

void health_contribute(const struct train *t, float *control)
{
    const struct health *h = &t->health;
    float *words = control + CONTROL_WORDS + (size_t)t->group.self * WORDS;

    if (!h->compares)
        return;
    if (h->gradient_step > 0 && t->opts->check_gradients)
        words[WORD_GRADIENT] = (float)(h->gradient + 1);
    if (h->state_step > 0)
        words[WORD_STATE] = (float)(h->state + 1);
}

/* The value that more than half of those have who say something; 0: none has. *n: how many say
 * something, *n_equal: how many of them have it. */
static uint32_t majority(const float *words, uint32_t n_members, uint32_t *n, uint32_t *n_equal)
{
    uint32_t value = 0, lead = 0;

    *n = *n_equal = 0;
    for (uint32_t m = 0; m < n_members; m++) { /* Boyer and Moore: if there is one, it is left over */
        uint32_t word = (uint32_t)words[(size_t)m * WORDS];

        if (word == 0)
            continue;
        ++*n;
        if (lead == 0)
            value = word;
        lead += word == value ? 1 : -1u;
    }
    for (uint32_t m = 0; m < n_members && value != 0; m++)
        *n_equal += (uint32_t)words[(size_t)m * WORDS] == value;
    return 2 * *n_equal > *n ? value : 0;
}

/* The generation ends by `err`, on every task: none gives the communicator up, or is told to by another,
 * before all know why. */
static int part_ways(struct replica *r, const struct err *err)
{
    train_remember(r->train, err);
    if (r->train->comm != NULL)
        (void)comm_barrier(r->train->comm, r->local, NULL); /* all is said already */
    return err->code;
}

/* The first member that differs, or the sentence that nobody knows. */
static int give_verdict(struct replica *r, uint32_t which, uint64_t step, const float *words,
                        struct err *err)
{
    struct train *t = r->train;
    uint32_t n, n_equal, value = majority(words, t->group.n_members, &n, &n_equal);
    uint32_t odd = UINT32_MAX, own = (uint32_t)words[(size_t)t->group.self * WORDS];

    for (uint32_t m = t->group.n_members; m-- > 0 && value != 0;) {
        uint32_t word = (uint32_t)words[(size_t)m * WORDS];

        odd = word != 0 && word != value ? m : odd;
    }
    if (value != 0)
        (void)err_set(err, ERR_DEVICE,
                     "%s differs from the others: its %s of step %" PRIu64 " has checksum %06x, %u of "
                     "%u tasks have %06x. A processor or memory of %s computed or kept something "
                     "wrong; its state counts no longer, and it takes that of the others",
                     t->members[odd].name, what_differs[which], step,
                     (uint32_t)words[(size_t)odd * WORDS] - 1, n_equal, n, value - 1,
                     t->members[odd].name);
    else
        (void)err_set(err, ERR_DEVICE,
                     "tasks differ, and no majority tells which are right: the %s of step %" PRIu64
                     " has checksum %06x on %s, and %u tasks of %u have another. No state in memory "
                     "counts any longer; the last checkpoint was compared equal, go on from there",
                     what_differs[which], step, own - 1, t->members[t->group.self].name,
                     n - (own != 0), n);
    if (r->local == 0) {
        t->health.differs = true;
        t->health.peer = odd;
        if (value == 0 || own != value)
            lose_state(t);
        tell(t, TRAIN_DIFFERS, step, err->text);
    }
    return part_ways(r, err);
}

int health_compare(struct replica *r, uint64_t step, struct err *err)
{
    struct train *t = r->train;
    struct health *h = &t->health;
    const float *words = words_of(t, r->grads[0]);
    uint64_t of = step - 1;

    for (uint32_t which = 0; which < WORDS && h->compares; which++) {
        uint32_t n, n_equal;

        (void)majority(words + which, t->group.n_members, &n, &n_equal);
        if (n_equal != n)
            return give_verdict(r, which, of, words + which, err);
        if (r->local == 0 && n == t->group.n_members)
            *(which == WORD_STATE ? &h->equal_state_step : &h->equal_step) = of;
    }
    if (r->local == 0)
        h->gradient_step = h->state_step = 0;
    return 0;
}

bool health_allows(const struct train *t, uint64_t step)
{
    const struct train_opts *o = t->opts;
    const struct health *h = &t->health;

    if (!h->compares)
        return true;
    return (!o->check_gradients || h->equal_step == step || h->equal_state_step == step) &&
           (o->check_weights_every_steps == 0 || h->equal_state_step == step);
}

int health_last(struct replica *r, uint64_t step, struct err *err)
{
    struct train *t = r->train;
    float *control = r->grads[0] + t->mem.params;
    int rc;

    if (!t->health.compares)
        return 0;
    rc = health_weigh(r, step, err);
    memset(control + CONTROL_WORDS, 0, health_words(t->opts) * sizeof(float));
    if (rc == 0 && r->local == 0)
        health_contribute(t, control);
    if (rc == 0)
        rc = comm_all_reduce(t->comm, r->local, control + CONTROL_WORDS, health_words(t->opts),
                             TENSOR_F32, COMM_SUM, err);
    return rc == 0 ? health_compare(r, step + 1, err) : rc;
}

/* ---- the gradient, right before it is used ---- */

struct pass {
    uint32_t sum;
    bool finite;
};

static void look_at_stretch(void *arg, size_t at, const float *g, size_t n)
{
    struct pass *p = arg;

    (void)at;
    p->finite = checksum_finite(g, n) && p->finite;
}

static void add_stretch(void *arg, size_t at, const float *g, size_t n)
{
    struct pass *p = arg;

    p->sum = checksum_add(p->sum, checksum_part(g, n, at, &p->finite));
}

/* A part as this replica's arena has it. Statistics go with part 0: replica 0 moves them all. */
static struct pass pass_over(const struct replica *r, uint32_t part, optim_each_fn *each)
{
    const struct train *t = r->train;
    const struct optim_state state = { .g = r->grads[0],
                                       .packed = r->train->mem.n_tables > 0 ? &r->rows[0] : NULL,
                                       .values = r->grads[0] + t->mem.dense };
    struct pass p = { .finite = true };
    uint32_t n;
    const struct graph_param *params = graph_params(t->graph, &n);

    optim_each(t->optim, part, &state, each, &p);
    for (uint32_t i = 0; part == 0 && i < n; i++)
        if (params[i].kind == GRAPH_STATISTIC)
            each(&p, params[i].offset, r->grads[0] + params[i].offset, params[i].elements);
    return p;
}

static void flip(void *data)
{
    *(uint8_t *)data ^= 1; /* the last bit of a fraction: nothing else would tell */
}

/* A task that has peers is compared with them. */
static bool compares_parts(const struct train *t)
{
    return !t->health.compares && t->opts->n_devices > 1 && t->opts->check_gradients;
}

void health_look(struct replica *r)
{
    struct train *t = r->train;
    struct health *h = &t->health;
    uint32_t n = t->opts->n_devices, before = (r->local + n - 1) % n;
    bool sums = t->opts->check_gradients && (h->compares || n > 1);
    struct pass own;

    if (r->gpu != NULL) {
        h->own[r->local] = gpu_looked(r)->checksum;
        h->bad[r->local] = gpu_looked(r)->bad != 0;
        return;
    }
    if (r->local == 0 && fault_hit("health.flip_gradient"))
        flip(r->grads[0]);
    if (r->local == 0 && t->mem.n_tables > 0 && fault_hit("health.flip_row"))
        flip(r->grads[0] + t->mem.dense);
    if (r->local == 0 && fault_hit("health.not_finite"))
        r->grads[0][0] = NAN;
    own = pass_over(r, r->local, sums ? add_stretch : look_at_stretch);
    h->own[r->local] = own.sum;
    h->bad[r->local] = !own.finite;
    if (compares_parts(t))
        h->other[before] = pass_over(r, before, add_stretch).sum;
}

/* Nothing is lost by it but the step, and only here. */
static int gradients_differ(struct replica *r, uint64_t step, struct err *err)
{
    return gpus_differ(r, r->train->health.own, what_differs[WORD_GRADIENT], step,
                       "The step is not made, the state before it counts", err);
}

/* Part i of the gradient is not the same in the replica that will use it and in the next one. */
static int parts_differ(struct replica *r, uint32_t i, uint64_t step, struct err *err)
{
    struct train *t = r->train;
    const struct health *h = &t->health;
    int rc = err_set(err, ERR_DEVICE,
                     "%s: its replicas %u and %u hold different reduced gradients, with checksums "
                     "%06x and %06x in part %u: a processor or memory of this machine computed or kept "
                     "something wrong. Step %" PRIu64 " is not made, the state before it counts",
                     t->members[t->group.self].name, i, (i + 1) % t->opts->n_devices, h->own[i],
                     h->other[i], i, step);

    if (r->local == 0) {
        t->health.differs = true;
        t->health.peer = t->group.self;
        tell(t, TRAIN_DIFFERS, step, err->text);
    }
    return rc;
}

int health_judge(struct replica *r, uint64_t step, double loss, bool *finite, struct err *err)
{
    struct train *t = r->train;
    struct health *h = &t->health;
    uint32_t n = t->opts->n_devices;

    *finite = isfinite(loss);
    if (r->gpu != NULL && t->opts->check_gradients && odd_one(h->own, n) < n)
        return gradients_differ(r, step, err);
    for (uint32_t i = 0; i < n; i++) {
        *finite = *finite && !h->bad[i];
        if (r->gpu == NULL && compares_parts(t) && h->own[i] != h->other[i])
            return parts_differ(r, i, step, err);
    }
    if (r->local == 0) {
        h->gradient = r->gpu != NULL ? h->own[0] : total(t, h->own);
        h->gradient_step = step;
    }
    return 0;
}

void health_updated(struct replica *r)
{
    struct train *t = r->train;
    struct err ignored; /* that GPU fails: the next step says so */

    if (r->gpu != NULL && r->local + 1 == t->opts->n_devices && fault_hit("health.flip_weight"))
        (void)gpu_spoil(r, GPU_WEIGHT, false, &ignored);
    if (r->local != 0)
        return;
    t->facts.skips_in_row = 0;
    if (r->gpu == NULL && fault_hit("health.flip_weight"))
        flip(t->mem.state);
}

/* ---- a step that is not finite ---- */

bool health_overflowed(const struct replica *r, double loss)
{
    const struct loss_scale now = { .scale = r->scale };

    return isfinite(loss) && loss_scale_can_shrink(&r->train->opts->loss_scale, now);
}

void health_overflow(struct replica *r, uint64_t step)
{
    struct train *t = r->train;
    char text[200];
    struct train_event e = { .kind = TRAIN_OVERFLOWED, .step = step, .text = text };

    update_skip(r, step, true);
    if (r->local != 0)
        return;
    e.all = ++t->health.overflows;
    snprintf(text, sizeof(text), "step %" PRIu64 ": the gradient overflows float16 with a loss scale of %.10g; the "
             "step is skipped, the scale is %.10g from now on", step, r->scale, t->facts.scale.scale);
    train_tell(t, &e);
}

static int skip(struct replica *r, uint64_t step, const char *text, struct err *err)
{
    struct train *t = r->train;
    char all[1200];
    int rc;

    rc = generation_gate(r, err); /* all have looked at how many there were, and come to the next one */
    if (rc < 0)
        return rc;
    update_skip(r, step, false);
    if (r->local != 0)
        return 0;
    t->facts.skips_in_row++;
    t->health.skips++;
    snprintf(all, sizeof(all),
             "%s; the step is skipped, weights and optimizer state stay as they are (%u in a row, more than "
             "%d end the job)",
             text, t->facts.skips_in_row, HEALTH_MAX_SKIPS);
    tell(t, TRAIN_SKIPPED, step, all);
    return 0;
}

/* The state is that of the step before; it goes to the disk first. */
static int stop(struct replica *r, uint64_t step, const char *text, const char *why, struct err *err)
{
    struct train *t = r->train;
    int rc;

    if (r->local == 0)
        t->health.gradient_step = 0; /* that of this step is not what is asked for */
    rc = health_last(r, step - 1, err);
    if (rc == 0 && r->local == 0 && train_leads(t) && step > 1)
        rc = save_now(t, step - 1, t->group.deadline_ms, err);
    if (rc < 0)
        return err_wrap(err, rc, "%s; while the job was stopping", text);
    (void)err_set(err, ERR_INPUT, "%s; %s; the state after step %" PRIu64 " is kept", text, why,
                  step - 1);
    return part_ways(r, err);
}

static int roll_back(struct replica *r, uint64_t step, const char *text, struct err *err)
{
    struct train *t = r->train;
    int rc;

    (void)err_set(err, ERR_DEVICE, "%s; everybody goes back to the newest checkpoint", text);
    rc = part_ways(r, err);
    if (r->local == 0) { /* the other replicas have read it */
        t->health.restored_at = step;
        t->health.rolls_back = true;
        lose_state(t);
    }
    return rc;
}

int health_trouble(struct replica *r, uint64_t step, const struct step_result *result,
                   struct err *err)
{
    const struct train *t = r->train;
    const struct health *h = &t->health;
    char text[900], why[128];
    int rc;

    place_enter(&r->place, PHASE_LOCATE);
    rc = locate_run(r, step, result, text, sizeof(text), err);
    if (rc < 0)
        return err_wrap(err, rc, "find out why loss or gradient are not finite");
    if (t->opts->non_finite == TRAIN_RESTORE && h->restored_at != step)
        return roll_back(r, step, text, err);
    if (t->opts->non_finite == TRAIN_SKIP && t->facts.skips_in_row < HEALTH_MAX_SKIPS)
        return skip(r, step, text, err);
    if (t->opts->non_finite == TRAIN_SKIP)
        snprintf(why, sizeof(why), "%d steps in a row were skipped before it, so the job stops",
                 HEALTH_MAX_SKIPS);
    else if (t->opts->non_finite == TRAIN_STOP)
        snprintf(why, sizeof(why), "health.non_finite is \"stop\"");
    else
        snprintf(why, sizeof(why), "so it was before, from the checkpoint on, so the job stops");
    return stop(r, step, text, why, err);
}
