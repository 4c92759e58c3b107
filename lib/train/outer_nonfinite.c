/* outer_nonfinite.c - see outer_nonfinite.h. */
#include "train/outer_nonfinite.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "comm/comm.h"
#include "train/task.h"

enum {
    KEY_RANKS = COMM_MAX_RANKS,
    STEPS_MAX = 1 << 23, /* steps of a period that keys tell apart */
};
_Static_assert((double)(STEPS_MAX + 1) * (COMM_MAX_LEAVES + 1) * KEY_RANKS < 0x1p53,
               "a key is exact as a double");
_Static_assert(sizeof(struct outer_note) <= MEMORY_LEAST_GRADS_BYTES, "a note fits in any arena");

/* lane: the lowest with a non-finite number; the number of lanes: none of this task. */
static double key_of(const struct replica *r, uint64_t step, uint64_t last, uint32_t lane)
{
    uint32_t lanes = r->train->opts->lanes;
    uint64_t after = last - step < STEPS_MAX ? last - step : STEPS_MAX - 1;

    return ((double)after * (lanes + 1) + (double)(lanes - lane) + 1) * KEY_RANKS +
           (double)r->device->rank;
}

int outer_note_step(struct replica *r, uint64_t step, uint64_t last, double loss,
                    struct outer_note *note, struct err *err)
{
    const struct train *t = r->train;
    struct engine_nonfinite found;
    char seen[400] = "";
    int rc;

    if (note->key > 0)
        return 0;
    place_enter(&r->device->place, PHASE_LOCATE);
    if (!isfinite(loss))
        snprintf(seen, sizeof(seen), "the loss is %s",
                 isnan(loss) ? "nan"
                 : loss > 0  ? "inf"
                             : "-inf");
    rc = ops_of(r)->describe_nonfinite(r->device, isfinite(loss) ? "" : ", ", seen, sizeof(seen),
                                       err);
    if (rc == 0)
        rc = ops_of(r)->locate_nonfinite(r->device, step, &found, err);
    if (rc < 0)
        return err_wrap(err, rc, "find out why loss or gradient are not finite");
    note->key = key_of(r, step, last, found.lane < t->opts->lanes ? found.lane : t->opts->lanes);
    snprintf(note->text, sizeof(note->text),
             "step %" PRIu64 ", lanes %u to %u of a local model: %.300s; %s%.300s", step,
             r->device->first_lane, r->device->first_lane + r->device->n_lanes - 1, seen,
             found.lane < t->opts->lanes ? "first in " : "",
             found.lane < t->opts->lanes
                 ? found.text
                 : "when these lanes were computed again, all their numbers were finite");
    events_warn(&t->events, step, note->text);
    return 0;
}

/* Makes the text of another task safe: terminates it and replaces control characters. */
static void make_text(char *text, size_t n)
{
    text[n - 1] = '\0';
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < ' ' || *text == 0x7f)
            *text = ' ';
}

int outer_share_note(struct replica *r, struct outer_note *note, struct err *err)
{
    struct comm *c = r->train->generation.comm;
    struct outer_note *shared = engine_scratch(r->device); /* peers can reach it */
    uint32_t root;
    int rc;

    if (c == NULL)
        return 0;
    *shared = *note;
    rc = comm_all_reduce(c, r->local, &shared->key, 1, TENSOR_F64, COMM_MAX, err);
    if (rc < 0)
        return rc;
    root = shared->key > 0 && shared->key < 0x1p53 ? (uint32_t)fmod(shared->key, KEY_RANKS)
                                                   : UINT32_MAX;
    if (root >= comm_world(c))
        return err_set(err, ERR_PEER, "a task sent an invalid note of a non-finite number: key %g",
                       shared->key);
    rc = comm_broadcast(c, r->local, shared->text, sizeof(shared->text), root, err);
    if (rc == 0) {
        *note = *shared;
        make_text(note->text, sizeof(note->text));
    }
    return rc;
}
