/* gpu_copy.h - copies of the state from the GPU of replica 0 to the host. The contracts of the
 * verbs are those of engine_ops. */
#ifndef ENGINE_GPU_COPY_H
#define ENGINE_GPU_COPY_H

#include "engine/engine.h"

struct cuda_stream;
struct gpu;

/* Called after all other allocations: allocates a snapshot if the remaining memory is sufficient.
 */
int gpu_copies_open(struct engine_replica *r, struct err *err);
void gpu_copies_close(struct gpu *g);
struct cuda_stream *gpu_copies_stream(const struct gpu *g); /* NULL: this replica has none */

int gpu_sync(struct engine *e, uint64_t held, struct err *err);
int gpu_snapshot(struct engine *e, uint64_t held, void *to, struct err *err);
int gpu_wait_snapshot(struct engine *e, struct err *err);
int gpu_staging(struct engine *e, void **out, struct err *err);
void gpu_abandon_staging(struct engine *e);

#endif
