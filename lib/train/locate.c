/* locate.c - see locate.h. */
#include "train/locate.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "comm/comm.h"
#include "train/task.h"

/* The finding that replicas exchange; in gradient arena 0, which peers can access. */
struct note {
    /* 0: nothing was found; else the larger the lower the lane, and the rank in it */
    double key;
    double largest; /* sum over lanes of the largest number in gradient and loss */
    char text[sizeof(((struct engine_nonfinite *)NULL)->text)];
};
_Static_assert(sizeof(struct note) <= MEMORY_LEAST_GRADS_BYTES, "a note fits into every arena");
enum { KEY_RANKS = COMM_MAX_RANKS };

static void __attribute__((format(printf, 3, 4))) add(char *text, size_t n, const char *fmt, ...)
{
    size_t used = strlen(text);
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text + used, n - used, fmt, ap);
    va_end(ap);
}

/* "the loss is nan", "the reduced gradient of 'fc.weight' holds NaN or infinity". */
static int describe(struct replica *r, double loss, char *text, size_t n, struct err *err)
{
    const struct loss_scale_rule *rule = &r->train->opts->run.loss_scale;
    double scale = r->device->scale;

    text[0] = '\0';
    if (loss_scale_is_on(rule))
        add(text, n, "with a loss scale of %.10g%s ", scale,
            scale <= rule->min ? ", the least," : "");
    if (!isfinite(loss))
        add(text, n, "the loss is %s", isnan(loss) ? "nan" : loss > 0 ? "inf" : "-inf");
    return ops_of(r)->describe_nonfinite(r->device, isfinite(loss) ? "" : ", ", text, n, err);
}

/* Makes the text of another task safe: terminates it and replaces control characters. */
static void make_text(char *text, size_t n)
{
    text[n - 1] = '\0';
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < ' ' || *text == 0x7f)
            *text = ' ';
}

/* Shares the finding of the lowest lane with every replica of the group. */
static int share(struct replica *r, struct note *note, struct err *err)
{
    struct comm *c = r->train->generation.comm;
    uint32_t root;
    int rc;

    if (c == NULL)
        return 0;
    rc = comm_all_reduce(c, r->local, &note->key, 1, TENSOR_F64, COMM_MAX, err);
    if (rc == 0)
        rc = comm_all_reduce(c, r->local, &note->largest, 1, TENSOR_F64, COMM_SUM, err);
    if (rc < 0 || note->key == 0)
        return rc;
    root = (uint32_t)fmod(note->key, KEY_RANKS);
    if (!(note->key > 0 && note->key < (double)(r->train->opts->lanes + 1) * KEY_RANKS) ||
        root >= comm_world(c))
        return err_set(err, ERR_PEER,
                       "a task sent an invalid finding of a non-finite number: key %g", note->key);
    rc = comm_broadcast(c, r->local, note->text, sizeof(note->text), root, err);
    make_text(note->text, sizeof(note->text));
    return rc;
}

static void conclude(const struct train *t, const char *seen, uint64_t step,
                     const struct note *note, char *text, size_t n)
{
    const struct generation *g = &t->generation;

    text[0] = '\0';
    add(text, n, "step %" PRIu64 ": %s; ", step, seen);
    if (note->key > 0)
        add(text, n, "first in %s", note->text);
    else if (note->largest > FLT_MAX)
        add(text, n, "every lane's numbers are finite, up to %g together, but their sum is not",
            note->largest);
    else
        add(text, n,
            "when every lane was computed again all was finite: a processor or memory of %s "
            "computed or stored a wrong value",
            g->opts.view.n_members == 1 ? g->opts.view.members[0].name : "an unknown task");
}

int locate_run(struct replica *r, uint64_t step, const struct step_result *result, char *text,
               size_t n, struct err *err)
{
    struct train *t = r->train;
    struct note *note = engine_scratch(r->device);
    float weight = engine_control(r->device)[ENGINE_WEIGHT];
    double shrink = t->opts->mean_of_weights && weight > 0 ? (double)weight / r->device->scale : 1;
    struct engine_nonfinite found;
    char seen[400];
    int rc = describe(r, result->loss, seen, sizeof(seen), err);

    if (rc < 0)
        return rc;
    if (r->local == 0) {
        snprintf(text, n, "step %" PRIu64 ": %s; its lanes are computed again to find out why",
                 step, seen);
        events_warn(&t->events, step, text);
    }
    rc = ops_of(r)->locate_nonfinite(r->device, step, &found, err);
    if (rc < 0)
        return rc;
    note->key = found.lane < t->opts->lanes
                    ? (double)(t->opts->lanes - found.lane) * KEY_RANKS + r->device->rank
                    : 0;
    note->largest = found.largest / shrink;
    memcpy(note->text, found.text, sizeof(found.text));
    rc = share(r, note, err);
    if (rc == 0)
        conclude(t, seen, step, note, text, n);
    return rc;
}
