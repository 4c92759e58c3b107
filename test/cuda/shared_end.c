/* shared_end.c - linked after the .cu files: where their static shared memory ends. */
extern __thread char emulated_shared_end[128];
__thread char emulated_shared_end[128];
