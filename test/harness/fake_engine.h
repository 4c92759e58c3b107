/* fake_engine.h - an engine without plans, kernels and data, to drive lib/train in milliseconds.
 *
 * The state is FAKE_FLOATS floats. The gradient of a lane (micro-batch) is a small exact number
 * that follows from step, lane and element, so that the state after a step can be computed by hand
 * (fake_expect()) and does not depend on the placement of lanes. Like a GPU, the engine holds the
 * state in memory of its own, and the host's state is a shadow.
 *
 * A script decides what goes wrong. Threads: a script is read by the replica threads of its task;
 * it is changed while no generation runs, or by its own hook. */
#ifndef TEST_HARNESS_FAKE_ENGINE_H
#define TEST_HARNESS_FAKE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"

enum { FAKE_FLOATS = 64 };

struct fake_script {
    /* NULL, or called at the beginning of each verb of a generation, by local replica 0. `step`:
     * the step of the verb, or of the last verb that had one. */
    void (*on_verb)(void *arg, const char *verb, uint64_t step);
    void *arg;
    const char *fail_verb;  /* NULL, or this verb returns ERR_DEVICE */
    uint64_t fail_step;     /* ... at this step */
    const char *block_verb; /* NULL, or this verb waits at block_step until cancel() is called */
    uint64_t block_step;
    uint64_t nan_step;  /* the loss of this step is NaN; 0: of no step */
    uint32_t nan_steps; /* and of so many steps from there on; 0: of one */
    uint64_t flip_step; /* after this step one bit of the state is wrong; 0: never */
};

/* The next open() borrows the script until close(). */
extern struct fake_script *fake_next_script;
extern const struct engine_ops engine_fake;

/* The state after `step`, of a job with so many lanes. */
void fake_expect(uint64_t step, uint32_t lanes, float state[FAKE_FLOATS]);

#endif
