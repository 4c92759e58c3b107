/* shared_end.c - linked after the .cu files: marks the end of their static shared memory. */
extern __thread char emulated_shared_end[128];
__thread char emulated_shared_end[128];
