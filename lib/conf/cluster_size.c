/* cluster_size.c - the cluster of a launcher that started several tasks without a cluster text.
 *
 *   Slurm       SLURM_STEP_NODELIST and SLURM_STEP_TASKS_PER_NODE have all hosts
 *   Open MPI    has no variable with the hosts; known if all tasks run on this host
 *   PMI, PMIx   have the number of tasks, or only the index
 *
 * Without this step each task would be a task without a cluster, and all of them would train the
 * whole job. */
#include "conf/cluster_size.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/text.h"
#include "conf/cluster_draft.h"
#include "conf/cluster_hosts.h"
#include "conf/cluster_slurm.h"

/* Variables of the launchers, the innermost first: mpirun inside a Slurm step sees both. */
static const struct launcher {
    const char *name;
    const char *size;       /* number of tasks */
    const char *local_size; /* number of tasks on this host; NULL: unknown */
    const char *rank;
} launchers[] = {
    { "Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_RANK" },
    { "PMI", "PMI_SIZE", "MPI_LOCALNRANKS", "PMI_RANK" },
    { "Slurm", "SLURM_STEP_NUM_TASKS", NULL, "SLURM_PROCID" },
};

/* Reads a number of tasks; 0: the variable is absent or invalid. */
static uint32_t read_size(const struct cluster_draft *d, const char *name)
{
    const char *text = name != NULL ? cluster_env(d, name) : NULL;
    uint64_t value = 0;

    return text != NULL && text_u64(text, CLUSTER_MAX_SLURM, &value) ? (uint32_t)value : 0;
}

static const struct launcher *find_launcher(const struct cluster_draft *d)
{
    for (size_t i = 0; i < COUNT_OF(launchers); i++)
        if (read_size(d, launchers[i].size) > 1)
            return &launchers[i];
    return NULL;
}

/* Appends "NAME=value" of a variable that is set. */
static void add_seen(const struct cluster_draft *d, const char *name, char *out, size_t n)
{
    const char *value = name != NULL ? cluster_env(d, name) : NULL;
    size_t used = strlen(out);

    if (value != NULL)
        snprintf(out + used, n - used, "%s%s=%.40s", used > 0 ? ", " : "", name, value);
}

static int refuse(const struct cluster_draft *d, const char *seen, struct err *err)
{
    return cluster_reject(d, NULL, err,
                          "a launcher started several tasks (%s), but there is no cluster, and "
                          "each of them would train the whole job; give every task the same "
                          "--hosts HOST,HOST,... (a host for each rank) or TF_CONFIG, start the "
                          "job with trainerd-mpirun or trainerd-srun, or use --cluster none to "
                          "train alone in every process",
                          seen);
}

/* All tasks run on this host: the workers listen on the loopback interface. */
static int add_local_tasks(struct cluster_draft *d, uint32_t n, struct err *err)
{
    static const char host[] = "127.0.0.1";
    int rc = 0;

    d->has_cluster = true;
    d->has_job[CLUSTER_WORKER] = true;
    for (uint32_t i = 0; rc == 0 && i < n; i++)
        rc = cluster_add_task_of_host(d, host, sizeof(host) - 1, i, i, err);
    return rc;
}

int cluster_form_from_launcher(struct cluster_draft *d, struct err *err)
{
    const struct launcher *l = find_launcher(d);
    const char *pmix = cluster_env(d, "PMIX_RANK");
    char seen[256] = "";
    uint32_t size;

    if (l == NULL) {
        if (pmix == NULL || pmix[0] == '\0' || strcmp(pmix, "0") == 0)
            return 0; /* PMIx has no variable with the number of tasks */
        add_seen(d, "PMIX_RANK", seen, sizeof(seen));
        return refuse(d, seen, err);
    }
    size = read_size(d, l->size);
    add_seen(d, l->size, seen, sizeof(seen));
    add_seen(d, l->local_size, seen, sizeof(seen));
    add_seen(d, l->rank, seen, sizeof(seen));
    /* Slurm's variables describe these tasks only if no other launcher was started in the step. */
    if (strcmp(l->name, "Open MPI") != 0 && read_size(d, "SLURM_STEP_NUM_TASKS") == size) {
        d->label = d->c->source = "slurm";
        cluster_note(d, "no cluster is given: it is formed from the Slurm step (%s)", seen);
        return cluster_read_slurm(d, err);
    }
    if (read_size(d, l->local_size) != size)
        return refuse(d, seen, err);
    d->label = d->c->source = l->name;
    cluster_note(d,
                 "no cluster is given: it is formed on this host, with the ports from %" PRIu32
                 ", because all tasks of %s are here (%s)",
                 cluster_first_port(d), l->name, seen);
    return add_local_tasks(d, size, err);
}
