/* division.h - which lanes (micro-batches) each replica of a group computes: equal shares (comm_share()),
 * or the pieces of the view (comm/pieces.h). Pure functions of options and view. */
#ifndef TRAIN_DIVISION_H
#define TRAIN_DIVISION_H

#include <stddef.h>
#include <stdint.h>

struct engine_opts;
struct engine_replica;
struct err;
struct group_view;
struct lane_tree;
struct train_opts;

/* Returns the lanes of the largest piece that a replica may have, if opts->balances: a power of two. The
 * memory for gradients is made for it. It follows from the full cluster, because tasks can have different
 * numbers for the smallest group. */
uint32_t division_max_piece(const struct train_opts *opts);
/* Sets max_lanes and max_piece of *out. */
void division_limit(const struct train_opts *opts, struct engine_opts *out);
/* Validates the pieces of a view of `world` replicas. Errors: ERR_INPUT. */
int division_check(const struct train_opts *opts, const struct group_view *v, uint32_t world,
                   struct err *err);
/* Sets rank and lanes of a replica. shares: of the ranks; not used if the view has pieces. */
void division_place(const struct group_view *v, const uint32_t *shares, uint32_t rank,
                    struct engine_replica *out);
/* After division_place(): sets the spare lanes of a replica (comm/spare_lanes.h); world: number of replicas. */
void division_place_spare(const struct group_view *v, const uint32_t *shares, uint32_t world,
                          struct engine_replica *out);

/* Writes "64 lanes: 16 8 8 | 16 8 8", the lanes of each replica with a '|' between two racks, or the range of them if
 * there are many. `v` has locations and no pieces. Returns `out`. */
const char *division_describe(const struct lane_tree *tree, uint32_t lanes,
                              const struct group_view *v, char *out, size_t n);

#endif
