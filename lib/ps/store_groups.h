/* store_groups.h - the rows of dynamic tables as checkpoints have them (ckpt/shard_files.h): in a shard the trained
 * rows, and the candidates, each in the order of their ids, column by column.
 *
 * Threads: as store.h. */
#ifndef PS_STORE_GROUPS_H
#define PS_STORE_GROUPS_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/shard_files.h"

struct err;
struct ps_store;

bool ps_store_has_ids(const struct ps_store *s); /* is a table dynamic? */
bool ps_store_is_dynamic(const struct ps_store *s, uint32_t table);
/* Returns the number of rows of a group in a shard that is held, with all its rows. */
uint32_t ps_store_group_rows(const struct ps_store *s, uint32_t shard, uint32_t table,
                             enum ckpt_group group);
/* Lists the places of these rows, ascending by id. Valid until the store changes. The caller frees *order. Errors:
 * ERR_NOMEM. */
int ps_store_list_group(const struct ps_store *s, uint32_t shard, uint32_t table,
                        enum ckpt_group group, uint32_t **order, struct err *err);

enum { PS_COLUMN_IDS, PS_COLUMN_LAST_STEPS, PS_COLUMN_COUNTS, PS_COLUMN_PART /* + part of the state */ };

/* Copies a column of n listed rows: int64 [n], or float32 [n][width] of trained rows. */
void ps_store_export_column(const struct ps_store *s, uint32_t shard, uint32_t table,
                            uint32_t column, const uint32_t *order, uint32_t n, void *out);

/* A row of a checkpoint keeps its group if the job has another admit_after: returns the count with which
 * ps_store_import_ids() has the row in the group. A candidate of a table that trains every row becomes one with
 * initial values. */
uint32_t ps_store_group_count(const struct ps_store *s, uint32_t table, enum ckpt_group group,
                              int64_t count);

#endif
