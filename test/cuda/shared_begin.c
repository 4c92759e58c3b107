/* shared_begin.c - linked before the .cu files: where their static shared memory begins. See
 * shared_end.c and poison() in block.c. */
extern __thread char emulated_shared_begin[128];
__thread char emulated_shared_begin[128] __attribute__((aligned(128)));
