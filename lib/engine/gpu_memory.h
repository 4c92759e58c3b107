/* gpu_memory.h - memory, streams and events of a replica on a GPU. Threads: the task's. */
#ifndef ENGINE_GPU_MEMORY_H
#define ENGINE_GPU_MEMORY_H

#include "engine/engine.h"

struct gpu;

/* For a replica with plans, and with the layout of the host's memory. On failure gpu_close_device()
 * frees the rest. Errors: ERR_NOMEM, ERR_INPUT (the whole GPU has too little memory), ERR_DEVICE.
 */
int gpu_open_device(struct engine_replica *r, struct err *err);
void gpu_close_device(struct engine_replica *r); /* a lost GPU's memory stays allocated */
void gpu_free_lanes(struct gpu *g);              /* frees captured graphs and their array */

#endif
