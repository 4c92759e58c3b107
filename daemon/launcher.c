#include "daemon/launcher.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/process.h"

enum { ANCESTORS_MAX = 6 /* shells and wrappers between the launcher and this task */ };

/* Programs that start tasks, and the variable that each sets for them. */
static const struct { const char *program, *variable; } launchers[] = {
    { "mpirun", "OMPI_COMM_WORLD_RANK" },      { "orterun", "OMPI_COMM_WORLD_RANK" },
    { "mpiexec", "OMPI_COMM_WORLD_RANK" },     { "orted", "OMPI_COMM_WORLD_RANK" },
    { "prterun", "PMIX_RANK" },                { "prted", "PMIX_RANK" },
    { "prte", "PMIX_RANK" },                   { "hydra_pmi_proxy", "PMI_RANK" },
    { "slurmstepd", "SLURM_PROCID" },          { "sshd", "SSH_CONNECTION" },
    { "sshd-session", "SSH_CONNECTION" },
};

/* Returns true if the user asked for a task that outlives its ssh connection, or may do so. */
static bool may_outlive_ssh(void)
{
    struct sigaction hangup;
    int tty = open("/dev/tty", O_RDONLY | O_CLOEXEC | O_NOCTTY);

    if (tty >= 0)
        close(tty);
    return tty >= 0 || (sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler == SIG_IGN);
}

static bool is_launcher(const char *program)
{
    for (size_t i = 0; i < COUNT_OF(launchers); i++)
        if (strcmp(program, launchers[i].program) == 0)
            return getenv(launchers[i].variable) != NULL &&
                   (strncmp(program, "sshd", 4) != 0 || !may_outlive_ssh());
    return false;
}

void launcher_find(struct launcher *out)
{
    uint64_t pid = (uint64_t)getppid();
    struct process p;

    *out = (struct launcher){ .pid = 0 };
    for (int i = 0; i < ANCESTORS_MAX && pid > 1 && process_read(pid, &p); i++, pid = p.parent) {
        if (!is_launcher(p.name))
            continue;
        out->pid = pid;
        out->started = p.started;
        snprintf(out->name, sizeof(out->name), "%s", p.name);
        return;
    }
}

bool launcher_has_ended(const struct launcher *l)
{
    struct process p;

    if (l->pid == 0)
        return false;
    return !process_read(l->pid, &p) || p.started != l->started || p.state == 'Z';
}
