/* shared_begin.c - linked before the .cu files: marks the beginning of their static shared memory.
 * See shared_end.c and poison() in block.c. */
extern __thread char emulated_shared_begin[128];
__thread char emulated_shared_begin[128] __attribute__((aligned(128)));
