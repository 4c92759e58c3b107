/* launcher.h - the process that started this task for a launcher: mpirun, srun, or ssh.
 *
 * A task ends when its launcher ends, after it has saved; otherwise tasks whose launcher was killed
 * would train on without a supervisor. PR_SET_PDEATHSIG is not used: it reports the parent only,
 * which may be a shell, and the end of the parent's thread. */
#ifndef DAEMON_LAUNCHER_H
#define DAEMON_LAUNCHER_H

#include <stdbool.h>
#include <stdint.h>

struct launcher {
    uint64_t pid; /* 0: this task has no launcher */
    uint64_t started;
    char name[64];
};

/* Called once, before signal handlers are installed. Sets *out to the nearest ancestor that is the
 * program of a launcher, if the environment has the variables of that launcher. A task under ssh has
 * a launcher only without a terminal and if it does not ignore SIGHUP (nohup). */
void launcher_find(struct launcher *out);
/* Returns true if the launcher has ended. */
bool launcher_has_ended(const struct launcher *l);

#endif
