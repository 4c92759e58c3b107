/* cluster_size.c - the cluster of a launcher that started several tasks without a cluster text.
 *
 * Without this step each task would be a task without a cluster, and all of them would train the
 * whole job. A launcher whose variables have no addresses forms a cluster if all its tasks are on this
 * host; tasks that know the address of rank 0 meet before (cluster_master.c); else the task is refused with the line to add. */
#include "conf/cluster_size.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/fs.h"
#include "base/json.h"
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
#define ON_EACH_HOST(hosts_) "start a task on each host with `trainerd-mpirun JOB " hosts_ "`"
#define IN_STEP "this is an allocation without a step: start the tasks with `srun trainerd ...` or trainerd-srun"

enum { HOST_FILE_BYTES = 16 << 20 };

static uint32_t count_names(const char *list)
{
    uint32_t n = 1;

    for (; (list = strchr(list, ',')) != NULL; list++)
        n++;
    return n;
}

/* Returns the number of different hosts in a text of words, of which the first of each `every` is a host; 2: two or more. */
static uint32_t count_hosts(const char *text, size_t every)
{
    static const char space[] = " \t\r\n";
    const char *first = NULL;
    size_t first_bytes = 0, i = 0;

    for (text += strspn(text, space); *text != '\0'; text += strspn(text, space), i++) {
        size_t n = strcspn(text, space);

        if (first == NULL) {
            first = text;
            first_bytes = n;
        } else if (i % every == 0 && (n != first_bytes || memcmp(text, first, n) != 0))
            return 2;
        text += n;
    }
    return first != NULL ? 1 : 0;
}

static uint32_t count_words(const char *text)
{
    return count_hosts(text, 1);
}

static uint32_t count_pairs(const char *text)
{
    return count_hosts(text, 2);
}

/* Counts the hosts in a file; one that cannot be read has none. */
static uint32_t count_hosts_of_file(const char *path)
{
    struct buf text = { 0 };
    uint32_t n = 0;

    if (fs_read(path, HOST_FILE_BYTES, &text, NULL) == 0 && text.data != NULL)
        n = count_hosts(text.data, 1);
    buf_fini(&text);
    return n;
}

/* Counts the addresses of {"cluster": {"workerpool0": [...], ...}}; another text has none. */
static uint32_t count_addresses(const char *text)
{
    struct json *doc = NULL;
    const cJSON *job;
    uint32_t n = 0;

    if (json_parse("CLUSTER_SPEC", text, strlen(text), JSON_LAST_DUPLICATE_WINS, &doc, NULL) < 0)
        return 0;
    cJSON_ArrayForEach(job, cJSON_GetObjectItemCaseSensitive(json_root(doc), "cluster")) n +=
        cJSON_IsArray(job) ? (uint32_t)cJSON_GetArraySize(job) : 0;
    json_free(doc);
    return n;
}

/* The variables of launchers, the innermost first: mpirun or torchrun inside a Slurm step sees those of both. */
static const struct launcher {
    const char *name;
    const char *size;       /* number of tasks; NULL: no variable has it */
    const char *local_size; /* number of tasks on this host; NULL: unknown */
    const char *rank;       /* NULL: no variable has it */
    const char *nodes;      /* number of hosts; NULL: unknown */
    const char *with;       /* the row applies only where this variable is set; NULL: everywhere */
    const char *unless;     /* the row does not apply where this variable is set; NULL: none */
    /* counts the tasks or hosts in the value of `size` (2 may mean more); NULL: the value is a number */
    uint32_t (*count)(const char *value);
    /* `size` describes the allocation, not started tasks: `rank` is not required, and the row is ignored if a launcher
     * reports one task */
    bool is_request;
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
      .is_request = true, .remedy = IN_STEP },
    { .name = "Slurm", .size = "SLURM_JOB_NUM_NODES", .rank = "SLURM_NODEID", .unless = "SLURM_STEP_ID",
      .is_request = true, .remedy = IN_STEP },
    { .name = "Slurm", .size = "SLURM_NNODES", .rank = "SLURM_NODEID", .unless = "SLURM_STEP_ID",
      .is_request = true, .remedy = IN_STEP },
    /* Kubeflow's TrainJob: a node is a task, which has all devices of the node */
    { .name = "TrainJob", .size = "PET_NNODES", .rank = "PET_NODE_RANK",
      .remedy = MASTER("$PET_MASTER_ADDR", "$PET_MASTER_PORT", "$PET_NODE_RANK", "$PET_NNODES") },
    { .name = "AWS Batch", .size = "AWS_BATCH_JOB_NUM_NODES", .rank = "AWS_BATCH_JOB_NODE_INDEX",
      .remedy = MASTER("${AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS:-localhost}", "29500", "$AWS_BATCH_JOB_NODE_INDEX",
                       "$AWS_BATCH_JOB_NUM_NODES") },
    { .name = "SageMaker", .size = "SM_HOST_COUNT", .rank = "SM_CURRENT_HOST_RANK",
      .remedy = MASTER("$SM_MASTER_ADDR", "$SM_MASTER_PORT", "$SM_CURRENT_HOST_RANK", "$SM_HOST_COUNT") },
    /* The order of SM_HOSTS is that of the names: algo-10 is before algo-2. */
    { .name = "SageMaker", .size = "SM_HOSTS", .rank = "SM_CURRENT_HOST", .count = count_names,
      .remedy = HOSTS("$(echo \"$SM_HOSTS\" | tr -d '[]\" ')",
                      "$(($(echo \"$SM_HOSTS\" | tr , '\\n' | grep -n \"\\\"$SM_CURRENT_HOST\\\"\" | cut -d: -f1)-1))") },
    { .name = "Vertex AI", .size = "CLUSTER_SPEC", .count = count_addresses, .is_request = true,
      .remedy = "add to the environment of every task: TF_CONFIG=$(printf %s \"$CLUSTER_SPEC\" | sed "
                "'s/\"workerpool0\"/\"chief\"/g;s/\"workerpool1\"/\"worker\"/g;s/\"workerpool2\"/\"ps\"/g;"
                "s/\"workerpool3\"/\"evaluator\"/g')" },
    { .name = "Volcano", .size = "VC_WORKER_NUM", .rank = "VC_TASK_INDEX",
      .remedy = HOSTS("$VC_WORKER_HOSTS", "$VC_TASK_INDEX") },
    { .name = "TPU", .size = "TPU_WORKER_HOSTNAMES", .rank = "TPU_WORKER_ID", .count = count_names,
      .remedy = HOSTS("$TPU_WORKER_HOSTNAMES", "$TPU_WORKER_ID") },
    { .name = "Paddle", .size = "PADDLE_TRAINERS_NUM", .rank = "PADDLE_TRAINER_ID",
      .remedy = HOSTS("$PADDLE_TRAINER_ENDPOINTS", "$PADDLE_TRAINER_ID") },
    { .name = "DMLC", .size = "DMLC_NUM_WORKER", .rank = "DMLC_TASK_ID",
      .remedy = MASTER("$DMLC_PS_ROOT_URI", "29500", "$DMLC_TASK_ID", "$DMLC_NUM_WORKER") },
    { .name = "HTCondor", .size = "_CONDOR_NPROCS", .rank = "_CONDOR_PROCNO",
      .remedy = HOSTS("HOST,HOST,...", "$_CONDOR_PROCNO") },
    /* scripts that start Lightning, or torchrun, on each node */
    { .name = "Lightning", .size = "NNODES", .rank = "NODE_RANK",
      .remedy = MASTER("${MASTER_ADDR:-HOST}", "${MASTER_PORT:-29500}", "$NODE_RANK", "$NNODES") },
    { .name = "PBS", .size = "PBS_NUM_NODES", .rank = "PBS_NODENUM", .is_request = true,
      .remedy = ON_EACH_HOST("$(sort -u $PBS_NODEFILE)") },
    { .name = "PBS", .size = "PBS_NODEFILE", .count = count_hosts_of_file, .is_request = true,
      .remedy = ON_EACH_HOST("$(sort -u $PBS_NODEFILE)") },
    { .name = "LSF", .size = "LSB_MCPU_HOSTS", .count = count_pairs, .is_request = true,
      .remedy = ON_EACH_HOST("$(sort -u $LSB_DJOB_HOSTFILE)") },
    { .name = "LSF", .size = "LSB_HOSTS", .count = count_words, .is_request = true,
      .remedy = ON_EACH_HOST("$(sort -u $LSB_DJOB_HOSTFILE)") },
    { .name = "Grid Engine", .size = "NHOSTS", .rank = "PE_HOSTFILE",
      .remedy = ON_EACH_HOST("$(cut -d' ' -f1 $PE_HOSTFILE)") },
    /* Rows without a number of tasks follow: they apply where no launcher has it. */
    { .name = "torchrun", .rank = "RANK", .with = "MASTER_ADDR",
      .remedy = "add WORLD_SIZE=N (the number of tasks) and MASTER_PORT=PORT to the environment of every task" },
    { .name = "Lightning", .rank = "NODE_RANK", .with = "MASTER_ADDR",
      .remedy = MASTER("$MASTER_ADDR", "${MASTER_PORT:-29500}", "$NODE_RANK", "N (the number of tasks)") },
    { .name = "Open MPI", .rank = "OMPI_COMM_WORLD_RANK", .remedy = WITH("trainerd-mpirun") },
    { .name = "MVAPICH2", .rank = "MV2_COMM_WORLD_RANK", .remedy = EACH },
    { .name = "Horovod", .rank = "HOROVOD_RANK", .remedy = EACH },
    { .name = "jsrun", .rank = "JSM_NAMESPACE_RANK", .remedy = EACH },
    { .name = "Flux", .rank = "FLUX_TASK_RANK", .remedy = EACH },
    { .name = "PMI", .rank = "PMI_RANK", .remedy = WITH("trainerd-mpirun") },
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

static bool applies(const struct cluster_draft *d, const struct launcher *l)
{
    return (l->with == NULL || is_set(d, l->with)) && (l->unless == NULL || !is_set(d, l->unless));
}

static uint32_t read_row(const struct cluster_draft *d, const struct launcher *l)
{
    if (l->count == NULL)
        return read_size(d, l->size);
    return is_set(d, l->size) ? l->count(cluster_env(d, l->size)) : 0;
}

/* Whether the variable of the number of tasks exists, but read_size() cannot read it: "WORLD_SIZE=$N" of a script without N. */
static bool is_unreadable(const struct cluster_draft *d, const struct launcher *l)
{
    const char *text = l->size != NULL && l->count == NULL ? cluster_env(d, l->size) : NULL;
    uint64_t value;

    return text != NULL && !text_u64(text, CLUSTER_MAX_SLURM, &value);
}

/* Returns the row of the innermost launcher that started several tasks, or perhaps did; NULL: none. */
static const struct launcher *find_launcher(const struct cluster_draft *d)
{
    const struct launcher *unsure = NULL;
    bool is_one = false;

    for (size_t i = 0; i < COUNT_OF(launchers); i++) {
        const struct launcher *l = &launchers[i];
        uint32_t size;

        if (!applies(d, l))
            continue;
        size = read_row(d, l);
        /* WORLD_SIZE and NHOSTS alone are names that other programs use */
        if (size > 1 && (l->is_request ? !is_one : is_set(d, l->rank)))
            return l;
        if (unsure == NULL && is_set(d, l->rank) && (l->size == NULL || is_unreadable(d, l)))
            unsure = l;
        is_one |= size == 1 && !l->is_request && is_set(d, l->rank);
    }
    return is_one ? NULL : unsure;
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
    char number[160] = "";

    if (is_unreadable(d, l))
        snprintf(
            number, sizeof(number),
            "set %s to the number of tasks, an integer of at most %d (1 for one task alone), and ",
            l->size, CLUSTER_MAX_SLURM);
    return cluster_reject(d, NULL, err,
                          "a launcher started several tasks (%s), but there is no cluster, and "
                          "each of them would train the whole job; %s%s, or use --cluster none to "
                          "train alone in every process",
                          seen, number, l->remedy);
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
    size = read_row(d, l);
    add_seen(d, l->size, seen, sizeof(seen));
    add_seen(d, l->local_size, seen, sizeof(seen));
    add_seen(d, l->nodes, seen, sizeof(seen));
    add_seen(d, l->rank, seen, sizeof(seen));
    /* Slurm's variables describe these tasks only if no other launcher was started in the step. */
    if (size > 0 && (strcmp(l->name, "Slurm") == 0 || strcmp(l->name, "PMI") == 0) &&
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
