/* gpu.h - the engine of replicas on GPUs.
 *
 * Each GPU holds a complete state and updates all weights itself, from gradients that are
 * bit-identical on all GPUs. The state in the host's memory is a shadow of that of replica 0
 * (gpu_copy.c), and is copied to the GPUs when it is newer than theirs.
 *
 *     feed stream    batch -> pinned -> stage ...     the next lane's, while this lane computes
 *     work stream    stage -> inputs | forward, backward, lanes added | ... | look | update
 *     reduce stream                    bucket 0 | bucket 1 | ...  NCCL, as backward completes them
 *     copies stream                                 a checkpoint's copy of the state, to the host
 *
 * After the last bucket the control words and the result of the gradient checks are copied to the
 * host, which waits for them: the only wait of a step (gpu_reduce.c). The update is enqueued after
 * the commit gate, without a wait.
 *
 * Gradients of tables are whole, because NCCL sums as many numbers in every step, from calls that
 * were captured; after them comes a number for each row, above 0 if a lane read it.
 *
 * Every wait checks `cancel`, which is set when the generation ends; then the replica's thread
 * itself aborts the communicator. */
#ifndef ENGINE_GPU_H
#define ENGINE_GPU_H

struct engine_ops;

extern const struct engine_ops engine_gpu;

#endif
