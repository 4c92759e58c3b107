/* cluster_size.c - the cluster of a launcher that started several tasks without a cluster text.
 *
 * Without this step each task would be a task without a cluster, and all of them would train the
 * whole job. A launcher whose variables have no addresses forms a cluster if all its tasks are on this
 * host; tasks that know the address of rank 0 meet before (cluster_master.c); else the task is refused with the line to add. */
#include "conf/cluster_size.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/text.h"
#include "conf/cluster_draft.h"
#include "conf/cluster_hosts.h"
#include "conf/cluster_master.h"
#include "conf/cluster_slurm.h"

#define EACH "give every task the same --hosts HOST,HOST,... (a host for each rank) or TF_CONFIG"
#define MASTER(addr_, port_, rank_, size_) \
    "add to the environment of every task: MASTER_ADDR=" addr_ " MASTER_PORT=" port_ " RANK=" rank_ " WORLD_SIZE=" size_
#define HOSTS(hosts_, rank_) \
    "add to the environment of every task: TRAINERD_HOSTS=" hosts_ " TRAINERD_TASK=worker:" rank_
#define WITH(word_) EACH ", or start the job with " word_

/* The variables of launchers, the innermost first: mpirun or torchrun inside a Slurm step sees those of both. */
static const struct launcher {
    const char *name;
    const char *size;       /* number of tasks; NULL: no variable has it */
    const char *local_size; /* number of tasks on this host; NULL: unknown */
    const char *rank;
    const char *nodes;  /* number of hosts; NULL: unknown */
    const char *unless; /* the row does not apply where this variable is set; NULL: none */
    bool is_list;       /* `size` has the names of the hosts, with commas between them */
    const char *remedy; /* what to add */
} launchers[] = {
    /* torchrun and what has its variables: Kubeflow's PyTorchJob and XGBoostJob, DeepSpeed, Accelerate */
    { .name = "torchrun", .size = "WORLD_SIZE", .local_size = "LOCAL_WORLD_SIZE", .rank = "RANK",
      .remedy = "add MASTER_ADDR=HOST (of rank 0) and MASTER_PORT=PORT to the environment of every task, which has "
                "RANK and WORLD_SIZE; rank 0 then collects the addresses" },
    { .name = "Open MPI", .size = "OMPI_COMM_WORLD_SIZE", .local_size = "OMPI_COMM_WORLD_LOCAL_SIZE",
      .rank = "OMPI_COMM_WORLD_RANK", .remedy = WITH("trainerd-mpirun") },
    { .name = "MVAPICH2", .size = "MV2_COMM_WORLD_SIZE", .local_size = "MV2_COMM_WORLD_LOCAL_SIZE",
      .rank = "MV2_COMM_WORLD_RANK", .remedy = EACH },
    { .name = "Horovod", .size = "HOROVOD_SIZE", .local_size = "HOROVOD_LOCAL_SIZE", .rank = "HOROVOD_RANK",
      .remedy = EACH },
    { .name = "jsrun", .size = "JSM_NAMESPACE_SIZE", .local_size = "JSM_NAMESPACE_LOCAL_SIZE",
      .rank = "JSM_NAMESPACE_RANK", .remedy = EACH },
    { .name = "Flux", .size = "FLUX_JOB_SIZE", .rank = "FLUX_TASK_RANK", .nodes = "FLUX_JOB_NNODES", .remedy = EACH },
    { .name = "PALS", .size = "PALS_SIZE", .local_size = "PALS_LOCAL_SIZE", .rank = "PALS_RANKID", .remedy = EACH },
    /* MPICH and Intel MPI */
    { .name = "PMI", .size = "PMI_SIZE", .local_size = "MPI_LOCALNRANKS", .rank = "PMI_RANK",
      .remedy = WITH("trainerd-mpirun") },
    { .name = "Slurm", .size = "SLURM_STEP_NUM_TASKS", .rank = "SLURM_PROCID", .remedy = WITH("trainerd-srun") },
    { .name = "Slurm", .size = "SLURM_NTASKS", .rank = "SLURM_PROCID", .unless = "SLURM_STEP_ID",
      .remedy = "this is an allocation without a step: start the tasks with `srun trainerd ...` or trainerd-srun" },
    { .name = "Slurm", .size = "SLURM_JOB_NUM_NODES", .rank = "SLURM_NODEID", .unless = "SLURM_STEP_ID",
      .remedy = "this is an allocation without a step: start the tasks with `srun trainerd ...` or trainerd-srun" },
    /* Kubeflow's TrainJob: a node is a task, which has all devices of the node */
    { .name = "TrainJob", .size = "PET_NNODES", .rank = "PET_NODE_RANK",
      .remedy = MASTER("$PET_MASTER_ADDR", "$PET_MASTER_PORT", "$PET_NODE_RANK", "$PET_NNODES") },
    { .name = "AWS Batch", .size = "AWS_BATCH_JOB_NUM_NODES", .rank = "AWS_BATCH_JOB_NODE_INDEX",
      .remedy = MASTER("${AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS:-localhost}", "29500", "$AWS_BATCH_JOB_NODE_INDEX",
                       "$AWS_BATCH_JOB_NUM_NODES") },
    { .name = "SageMaker", .size = "SM_HOST_COUNT", .rank = "SM_CURRENT_HOST_RANK",
      .remedy = MASTER("$SM_MASTER_ADDR", "$SM_MASTER_PORT", "$SM_CURRENT_HOST_RANK", "$SM_HOST_COUNT") },
    { .name = "Volcano", .size = "VC_WORKER_NUM", .rank = "VC_TASK_INDEX",
      .remedy = HOSTS("$VC_WORKER_HOSTS", "$VC_TASK_INDEX") },
    { .name = "TPU", .size = "TPU_WORKER_HOSTNAMES", .rank = "TPU_WORKER_ID", .is_list = true,
      .remedy = HOSTS("$TPU_WORKER_HOSTNAMES", "$TPU_WORKER_ID") },
    { .name = "Paddle", .size = "PADDLE_TRAINERS_NUM", .rank = "PADDLE_TRAINER_ID",
      .remedy = HOSTS("$PADDLE_TRAINER_ENDPOINTS", "$PADDLE_TRAINER_ID") },
    { .name = "DMLC", .size = "DMLC_NUM_WORKER", .rank = "DMLC_TASK_ID",
      .remedy = MASTER("$DMLC_PS_ROOT_URI", "29500", "$DMLC_TASK_ID", "$DMLC_NUM_WORKER") },
    { .name = "PBS", .size = "PBS_NUM_NODES", .rank = "PBS_NODENUM",
      .remedy = "start a task on each host with `trainerd-mpirun JOB $(sort -u $PBS_NODEFILE)`" },
    { .name = "Grid Engine", .size = "NHOSTS", .rank = "PE_HOSTFILE",
      .remedy = "start a task on each host with `trainerd-mpirun JOB $(cut -d' ' -f1 $PE_HOSTFILE)`" },
    /* Rows without a number of tasks follow: they apply where no other variable has it. */
    { .name = "PMIx", .rank = "PMIX_RANK", .remedy = WITH("trainerd-mpirun") },
    { .name = "PALS", .rank = "PALS_RANKID", .remedy = EACH },
    { .name = "ALPS", .rank = "ALPS_APP_PE", .remedy = EACH },
    { .name = "Indexed Job", .rank = "JOB_COMPLETION_INDEX",
      .remedy = "add to the environment of every pod: TRAINERD_HOSTS=HOST,HOST,... (job.yaml of the Kubernetes examples has "
                "one), and TRAINERD_TASK=worker:$(JOB_COMPLETION_INDEX)" },
};

static bool is_set(const struct cluster_draft *d, const char *name)
{
    const char *text = name != NULL ? cluster_env(d, name) : NULL;

    return text != NULL && text[0] != '\0';
}

/* Reads a number of tasks; 0: the variable is absent or invalid. */
static uint32_t read_size(const struct cluster_draft *d, const char *name)
{
    const char *text = name != NULL ? cluster_env(d, name) : NULL;
    uint64_t value = 0;

    return text != NULL && text_u64(text, CLUSTER_MAX_SLURM, &value) ? (uint32_t)value : 0;
}

static uint32_t read_row(const struct cluster_draft *d, const struct launcher *l)
{
    const char *list = l->is_list ? cluster_env(d, l->size) : NULL;
    uint32_t n = 1;

    if (l->unless != NULL && is_set(d, l->unless))
        return 0;
    if (!l->is_list)
        return read_size(d, l->size);
    if (list == NULL || list[0] == '\0')
        return 0;
    for (; (list = strchr(list, ',')) != NULL; list++)
        n++;
    return n;
}

/* Returns the row of the innermost launcher that started several tasks, or perhaps did; NULL: none. */
static const struct launcher *find_launcher(const struct cluster_draft *d)
{
    bool is_counted = false;

    for (size_t i = 0; i < COUNT_OF(launchers); i++) {
        const struct launcher *l = &launchers[i];
        uint32_t size = l->size != NULL ? read_row(d, l) : 0;

        /* WORLD_SIZE and NHOSTS alone are names that other programs use */
        if (size > 1 && is_set(d, l->rank))
            return l;
        if (l->size == NULL && !is_counted && is_set(d, l->rank))
            return l;
        is_counted |= size > 0;
    }
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

static int refuse(const struct cluster_draft *d, const struct launcher *l, const char *seen,
                  struct err *err)
{
    return cluster_reject(d, NULL, err,
                          "a launcher started several tasks (%s), but there is no cluster, and "
                          "each of them would train the whole job; %s, or use --cluster none to "
                          "train alone in every process",
                          seen, l->remedy);
}

/* Whether all tasks of the launcher run on this host. */
static bool is_local(const struct cluster_draft *d, const struct launcher *l, uint32_t size)
{
    return read_size(d, l->local_size) == size || read_size(d, l->nodes) == 1;
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
    char seen[256] = "";
    uint16_t meeting_port;
    uint32_t size;

    if (l == NULL)
        return 0;
    size = l->size != NULL ? read_row(d, l) : 0;
    add_seen(d, l->size, seen, sizeof(seen));
    add_seen(d, l->local_size, seen, sizeof(seen));
    add_seen(d, l->nodes, seen, sizeof(seen));
    add_seen(d, l->rank, seen, sizeof(seen));
    /* Slurm's variables describe these tasks only if no other launcher was started in the step. */
    if ((strcmp(l->name, "Slurm") == 0 || strcmp(l->name, "PMI") == 0) &&
        read_size(d, "SLURM_STEP_NUM_TASKS") == size) {
        d->label = d->c->source = "slurm";
        cluster_note(d, "no cluster is given: it is formed from the Slurm step (%s)", seen);
        return cluster_read_slurm(d, err);
    }
    if (size == 0 || !is_local(d, l, size))
        return refuse(d, l, seen, err);
    d->label = d->c->source = l->name;
    d->rank_variable = l->rank;
    if (strcmp(l->rank, "RANK") == 0 && cluster_master_port(d->opts, &meeting_port))
        d->first_port = meeting_port + 1U; /* two jobs of torchrun on this host have other ports */
    cluster_note(d,
                 "no cluster is given: it is formed on this host, with the ports from %" PRIu32
                 ", because all tasks of %s are here (%s)",
                 cluster_first_port(d), l->name, seen);
    return add_local_tasks(d, size, err);
}
