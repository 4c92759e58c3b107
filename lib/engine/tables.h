/* tables.h - how the gradients of embedding tables are kept: packed, or whole. */
#ifndef ENGINE_TABLES_H
#define ENGINE_TABLES_H

#include "engine/engine.h"

/* The layout of the graph's parameters. packed: gradients of tables hold the rows that were read.
 */
void tables_layout(const struct engine_opts *o, bool packed, struct memory_opts *out);
/* Returns the number of tables in which an update does not change rows that the step did not
 * read. */
uint32_t tables_n_lazy(const struct engine_opts *o);
/* Reports to on_note how gradients of tables are reduced, if the model has tables. */
void tables_note(const struct engine *e, bool packed);

#endif
