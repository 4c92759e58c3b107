/* groups.h - the optimizer at work on the parameters of a graph: groups of parameters with numbers
 * of their own, and frozen rows. */
#ifndef TRAIN_GROUPS_H
#define TRAIN_GROUPS_H

struct err;
struct graph;
struct optim;
struct train_opts;

/* In n_devices parts. On success the caller owns *out. Errors: ERR_INPUT (a pattern matches
 * nothing, rows that do not exist, lazy rows that cannot be), ERR_NOMEM. */
int groups_open(const struct train_opts *o, const struct graph *graph, struct optim **out,
                struct err *err);

#endif
