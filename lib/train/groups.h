/* groups.h - opens the optimizer on the parameters of a graph: parameter groups with their own
 * hyperparameters, and frozen rows. */
#ifndef TRAIN_GROUPS_H
#define TRAIN_GROUPS_H

#include <stdint.h>

struct err;
struct graph;
struct optim;
struct train_opts;
struct train_params;

/* Opens the optimizer in n_devices parts. On success the caller owns *out. Errors: ERR_INPUT (a
 * pattern without a match, also of /parameter_server/tables, rows that do not exist, unsupported lazy rows), ERR_UNSUPPORTED (clip_norm
 * over parameters that parameter servers could hold, on a GPU), ERR_NOMEM. */
int groups_open(const struct train_opts *o, const struct graph *graph, struct optim **out,
                struct err *err);

/* Numbers the tables that parameter servers would hold, which have the numbers of graph_remotes(): those that
 * the job selects, in the order of the arena, from 1. numbers [graph_params()]: 0: another parameter. */
void groups_number_tables(const struct train_opts *o, const struct graph *graph, uint32_t *numbers);

/* The same of the dense parameters that they would hold, which follow the tables. numbers: as groups_number_tables()
 * has written them. Returns how many there are. */
uint32_t groups_number_dense(const struct train_opts *o, const struct graph *graph,
                             uint32_t *numbers);

/* Returns the group of a parameter or remote table: the first one of which a pattern matches the
 * name. NULL: no group. */
const struct train_params *groups_find(const struct train_opts *o, const char *name);

#endif
