/* ring.h - how much a test that repeats something does in `make test`, and in `make nightly` (scripts/test --ring). A program that is
 * started by hand does all. */
#ifndef TEST_HARNESS_RING_H
#define TEST_HARNESS_RING_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static inline bool ring_is_nightly(void)
{
    const char *ring = getenv("TEST_RING");

    return ring == NULL || strcmp(ring, "test") != 0;
}

static inline uint64_t ring_count(uint64_t in_test, uint64_t in_nightly)
{
    return ring_is_nightly() ? in_nightly : in_test;
}

#endif
