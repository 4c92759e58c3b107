/* units.h - which lanes (micro-batches) of which steps are applied, in a phase in which the ranks run
 * asynchronously within a bound (stale synchronous parallel, Ho et al., NIPS 2013). Pure.
 *
 * A *unit* is an aligned block of the lanes of one step, computed by one rank. Its gradient is an update of
 * its own. All servers apply the units in one order, so all of them have the same ledger:
 *
 *     step        complete | + 1    + 2    ...    + 1 + bound
 *     lanes       all      | some or none of each
 *
 * With the bound k a rank may begin a unit of step t when all lanes of the steps up to t - 1 - k are
 * applied. So no gradient is computed from weights that lack an update of these steps.
 *
 * A lane of a step is applied once: a unit whose lanes are not all free is refused. */
#ifndef PS_UNITS_H
#define PS_UNITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "opts/ps.h"

struct err;

enum { PS_FACTS_MAX = PS_BOUND_MAX + 2 };

struct ps_unit {
    uint64_t step;
    uint32_t first, n; /* lanes */
};

struct ps_step_facts { /* of a step whose lanes are all applied; in messages */
    uint64_t step;
    double loss; /* mean over the lanes */
    double norm; /* mean over the lanes of the norms of the units' gradients; NaN: unknown */
    uint32_t n_skipped; /* lanes of units that were not finite, and changed nothing */
    uint32_t zero;
};

struct ps_unit_row { /* of one step */
    uint32_t n_applied, n_skipped;
    double loss, norm; /* sums over the applied lanes */
    uint64_t *lanes; /* bit l % 64 of word l / 64: lane l is applied */
};

struct ps_units {
    uint32_t n_lanes, bound; /* n_lanes 0: the job has no asynchronous phase */
    uint64_t complete;       /* all lanes of the steps up to this one are applied */
    struct ps_unit_row rows[PS_BOUND_MAX + 1]; /* step t is in row t % (bound + 1) */
    uint64_t *memory;        /* owned; the lanes of all rows */
    struct ps_step_facts facts[PS_FACTS_MAX]; /* of step t at t % PS_FACTS_MAX; step 0: none */
};

/* A zeroed ledger is one of a job without asynchronous phases. bound: 1 to PS_BOUND_MAX; n_lanes > 0. Errors:
 * ERR_NOMEM. */
int ps_units_open(struct ps_units *u, uint32_t n_lanes, uint32_t bound, struct err *err);
void ps_units_close(struct ps_units *u); /* zeroes it */

/* All lanes up to this step are applied, and no other ones. */
void ps_units_begin(struct ps_units *u, uint64_t complete);
/* Returns the newest step of which a lane is applied; the complete one, if no lane of a later step is. */
uint64_t ps_units_newest(const struct ps_units *u);

/* May a rank begin a unit of the step? */
bool ps_units_may_begin(const struct ps_units *u, uint64_t step);
/* Returns the first largest aligned block among the lanes [first, first + n) of a step that are not applied; its
 * n is 0 if all are. The step is complete, or a unit of it may begin. */
struct ps_unit ps_units_next(const struct ps_units *u, uint64_t step, uint32_t first, uint32_t n);
/* Is the unit one that ps_units_apply() accepts? */
bool ps_units_is_free(const struct ps_units *u, const struct ps_unit *unit);

struct ps_unit_facts { /* mean over the samples of the unit */
    double loss, norm;
    bool is_skipped;
};
/* Marks the lanes of a unit that is free. `complete` grows when the last lane of its next step is applied. */
void ps_units_apply(struct ps_units *u, const struct ps_unit *unit,
                    const struct ps_unit_facts *facts);

/* Copies the facts of the complete steps after `after`, of at most the last PS_FACTS_MAX steps, ascending. Returns
 * their number. */
uint32_t ps_units_facts(const struct ps_units *u, uint64_t after,
                        struct ps_step_facts out[PS_FACTS_MAX]);

/* The ledger as bytes: little-endian, a multiple of 8. */
size_t ps_units_bytes(const struct ps_units *u);
void ps_units_write(const struct ps_units *u, void *out);
/* Replaces the content by the bytes of a ledger of the same job. Errors: ERR_PEER (then it is unchanged). */
int ps_units_read(struct ps_units *u, const void *data, size_t n, struct err *err);

#endif
