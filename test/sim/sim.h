/* sim.h - a whole group in one process: member_worker and member_coord of many tasks, joined by
 * links with seeded delays, under a clock that jumps from event to event. The same seed gives the
 * same story.
 *
 * What is modelled: processes that start, die and are started again by a supervisor; connections
 * that deliver in order, break, or fall silent; training that ends for all or, when a member is
 * missing, for nobody; a job that is complete on disk once the coordinator said so. What the sim
 * does with the actions is what the daemon and rdzv do.
 *
 * Invariants are checked after every event; one that does not hold ends the test with the seed and
 * the story. */
#ifndef SIM_SIM_H
#define SIM_SIM_H

#include <stdbool.h>
#include <stdint.h>

#include "member/member.h"

enum {
    SIM_HEARTBEAT_MS = 250,
    SIM_SILENT_MS = 1500,
    SIM_RESTART_MS = 300, /* until the supervisor starts a task again */
    SIM_RUNNING = -1,     /* exit code of a process that has not ended */
    SIM_KILLED = -9,
};

struct sim_opts {
    uint32_t world;
    uint64_t seed;
    uint64_t start_ms;     /* tasks start at random within this time */
    uint32_t n_absent;     /* the last so many tasks do not start by themselves */
    uint64_t delay_ms;     /* a message takes 1 to this long; 0 stands for 1 */
    uint64_t job_ms;       /* of training without trouble */
    uint64_t deadline_ms;  /* of joining */
    bool supervised;       /* a task that dies or exits with 138 is started again */
    uint32_t break_one_in; /* a connection breaks at one message of so many; 0: never */
};

struct sim;

struct sim *sim_new(const struct sim_opts *opts);
void sim_free(struct sim *s);

void sim_advance_ms(struct sim *s, uint64_t ms);
void sim_run_until_active(struct sim *s); /* all of them; fails after a minute of virtual time */
/* Until no process is left (true), or until so much time has passed. */
bool sim_run_to_the_end(struct sim *s, uint64_t ms);

void sim_start(struct sim *s, uint32_t rank); /* again, after an end */
void sim_kill(struct sim *s, uint32_t rank);  /* the process dies, its connections close */
void sim_cut(struct sim *s,
             uint32_t rank); /* nothing reaches it, nothing comes from it, nothing closes */
void sim_stop(struct sim *s, uint32_t rank);  /* SIGTERM */
void sim_fail(struct sim *s, uint32_t rank, const char *reason); /* an error on this task */
void sim_disconnect(struct sim *s, uint32_t rank);               /* its connection breaks */

uint64_t sim_now_ms(const struct sim *s);
enum member_state sim_state(const struct sim *s, uint32_t rank);
int sim_exit_code(const struct sim *s, uint32_t rank);
const char *sim_exit_text(const struct sim *s, uint32_t rank);
uint64_t sim_generation(const struct sim *s, uint32_t rank); /* of the view it has; 0: none */
bool sim_is_complete(const struct sim *s);                   /* on disk */
/* What happened since the start or the last sim_forget(): "[12] worker 1 > joining -> waiting on
 * admitted". */
const char *sim_story(const struct sim *s);
void sim_forget(struct sim *s);

#endif
