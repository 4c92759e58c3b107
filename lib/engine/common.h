/* common.h - helpers that every engine uses: the object, notes for the log, the tree of lanes. */
#ifndef ENGINE_COMMON_H
#define ENGINE_COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/engine.h"

/* Fills in *e, whose replicas are zeroed. On failure engine_fini() frees the rest. Errors:
 * ERR_NOMEM. */
int engine_init(struct engine *e, const struct engine_ops *ops, const struct engine_opts *opts,
                struct err *err);
/* Frees the replicas and the memory. */
void engine_fini(struct engine *e);
/* Opens the memory for `o`, to which the numbers of the options and of eval_words are added. */
int engine_open_memory(struct engine *e, struct memory_opts *o, struct err *err);
void engine_note(const struct engine *e, bool is_warning, const char *text);
int engine_check_canceled(const struct engine *e, struct err *err); /* ERR_CANCELED, or 0 */
/* Appends to the string in text [n]; the result may be truncated. */
void engine_append(char *text, size_t n, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* tree_merges() after the replica's lane i, in its piece. */
uint32_t lane_merges(const struct engine_replica *r, uint32_t i);
/* Returns the entry of the stack, and the arena, in which the sum of the piece of lane i is: 0 or 1. */
uint32_t lane_base(const struct engine_replica *r, uint32_t i);

#endif
