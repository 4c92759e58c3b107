/* gpu_wait.h - waits of the host for a GPU. During a wait the thread checks whether the generation
 * has ended and whether NCCL has failed. Threads: the replica's. */
#ifndef ENGINE_GPU_WAIT_H
#define ENGINE_GPU_WAIT_H

#include "engine/engine.h"

struct cuda_event;
struct cuda_stream;

/* Waits until the event is complete; NULL: until the work stream is idle. Errors: ERR_CANCELED,
 * ERR_DEVICE, ERR_PEER. */
int gpu_wait(struct engine_replica *r, struct cuda_event *e, struct err *err);
int gpu_wait_stream(struct engine_replica *r, struct cuda_stream *s, struct err *err);
/* Called repeatedly during such a wait: returns the errors of gpu_wait(), or 0. */
int gpu_poll(struct engine_replica *r, struct err *err);
/* Returns ERR_TIMEOUT, with NCCL's own report, if the GPU has waited for other GPUs since
 * `since_ns` for longer than 1.25 * deadline_ms of the generation; else 0. */
int gpu_check_peers(const struct engine_replica *r, uint64_t since_ns, struct err *err);
/* Called after another rank aborted an operation that was waited for since `since_ns`: reports
 * NCCL's text to on_note before the communicator is destroyed. `what` is the subject of the
 * sentence. */
void gpu_note_wait(const struct engine_replica *r, uint64_t since_ns, const char *what);

/* Fault points: waits for the work stream and changes one number of the GPU, in its last bit or to
 * NaN. */
enum gpu_number { GPU_GRADIENT, GPU_WEIGHT };
int gpu_inject(struct engine_replica *r, enum gpu_number which, bool nan, struct err *err);

#endif
