/* in_memory.h - returns a folder for test files in memory, if the host has one: tests sync hundreds
 * of checkpoints there, and must not depend on the speed of a disk. */
#ifndef TEST_IN_MEMORY_H
#define TEST_IN_MEMORY_H

#include <unistd.h>

static inline const char *in_memory(void)
{
    return access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm" : "/tmp";
}

#endif
