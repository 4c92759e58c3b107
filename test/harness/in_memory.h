/* in_memory.h - where tests make their folders: in memory where there is such a place, since hundreds of checkpoints
 * are synced there, and a disk that has something else to do is not what they are about. */
#ifndef TEST_IN_MEMORY_H
#define TEST_IN_MEMORY_H

#include <unistd.h>

static inline const char *in_memory(void)
{
    return access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm" : "/tmp";
}

#endif
