/* test_cluster_start.c - tests clusters that mpirun, srun, pods and files define. */
#include "conf/cluster_kit.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/check.h"
#include "conf/cluster_slurm.h"

#define PAIR "{" TWO "}"
#define THREE "{\"cluster\":{\"worker\":[\"a:1\",\"b:2\"],\"chief\":[\"c:3\"]}}"
#define WORKER_ONLY                                                                                \
    "{\"cluster\":{\"worker\":[\"a:1\",\"b:2\"],\"chief\":[\"c:3\"]},"                             \
    "\"task\":{\"type\":\"worker\"}}"

static const struct cluster_row launched[] = {
    { .id = "mpirun",
      PAIR,
      "worker 1 rank 1 of 2",
      .env = { "OMPI_COMM_WORLD_RANK=1" },
      .note = "this is worker 1: OMPI_COMM_WORLD_RANK has the index 1" },
    { .id = "chief first",
      THREE,
      "chief 0 rank 0 of 3 chief",
      .env = { "PMI_RANK=0" },
      .note = "this is chief 0: PMI_RANK has the index 0" },
    { .id = "workers next",
      THREE,
      "worker 1 rank 2 of 3",
      .env = { "PMIX_RANK=2" },
      .note = "this is worker 1: PMIX_RANK has the index 2" },
    { .id = "srun",
      THREE,
      "worker 0 rank 1 of 3",
      .env = { "SLURM_PROCID=1" },
      .note = "this is worker 0: SLURM_PROCID has the index 1" },
    { .id = "pod",
      PAIR,
      "worker 1 rank 1 of 2",
      .host = "trainer-1",
      .note = "this is worker 1: the host name has the index 1" },
    { .id = "pod with a domain",
      PAIR,
      "worker 1 rank 1 of 2",
      .host = "trainer-1.svc-0.local",
      .note = "this is worker 1: the host name has the index 1" },
    { .id = "two agree",
      PAIR,
      "worker 1 rank 1 of 2",
      .host = "trainer-1",
      .env = { "PMI_RANK=1", "SLURM_PROCID=1" },
      .note = "PMI_RANK has the index 1" },
    { .id = "two disagree",
      PAIR,
      "!TF_CONFIG: PMI_RANK has the task index 1, but SLURM_PROCID has 0; unset one of them, or "
      "use --task TYPE:INDEX",
      .env = { "PMI_RANK=1", "SLURM_PROCID=0" } },
    { .id = "the host disagrees",
      PAIR,
      "!TF_CONFIG: PMI_RANK has the task index 0, but the host name 'trainer-1' has 1; use --task",
      .env = { "PMI_RANK=0" },
      .host = "trainer-1" },
    { .id = "the host means something else",
      PAIR,
      "worker 0 rank 0 of 2 chief",
      .env = { "PMI_RANK=0" },
      .host = "ip-10-0-0-12",
      .note = "the number at the end of the host name 'ip-10-0-0-12' is not a task index: the "
              "cluster has 2 training tasks" },
    { .id = "only a meaningless host",
      PAIR,
      "!the cluster does not define which task this is",
      .host = "ip-10-0-0-12" },
    { .id = "no suffix", PAIR, "!the cluster does not define which task", .host = "trainer1" },
    { .id = "only a suffix", PAIR, "!the cluster does not define which task", .host = "-1" },
    { .id = "a suffix with zeros",
      PAIR,
      "!the cluster does not define which task",
      .host = "n-01" },
    { .id = "a long suffix",
      PAIR,
      "!the cluster does not define which task",
      .host = "n-00000000000000000000000000000000000001" },
    { .id = "beyond",
      PAIR,
      "!OMPI_COMM_WORLD_RANK is 2, but the cluster has only 2 training tasks "
      "(chief, then workers); start as many tasks as are listed",
      .env = { "OMPI_COMM_WORLD_RANK=2" } },
    { .id = "nonsense",
      PAIR,
      "!no task index is given, and PMI_RANK='-1' is not an index: expected 0, 1",
      .env = { "PMI_RANK=-1" } },
    { .id = "empty is unset",
      PAIR,
      "worker 1 rank 1 of 2",
      .env = { "PMI_RANK=", "PMIX_RANK=1" },
      .note = "PMIX_RANK has the index 1" },
    { .id = "the text wins",
      "{\"cluster\":{\"worker\":[\"a:1\",\"b:2\"]},"
      "\"task\":{\"type\":\"worker\",\"index\":0}}",
      "worker 0 rank 0 of 2 chief",
      .env = { "SLURM_PROCID=1" },
      .host = "trainer-1" },
    { .id = "the flag wins",
      PAIR,
      "worker 0 rank 0 of 2 chief",
      .env = { "SLURM_PROCID=1" },
      .task = "worker:0" },
    { .id = "the type is given", WORKER_ONLY, "worker 1 rank 2 of 3", .env = { "SLURM_PROCID=1" } },
    { .id = "the type is given, beyond",
      WORKER_ONLY,
      "!/task/type: SLURM_PROCID is 2, but the "
      "cluster has only 2 worker tasks",
      .env = { "SLURM_PROCID=2" } },
    { .id = "alone, in an allocation",
      NULL,
      "worker 0 rank 0 of 1 chief local",
      .env = { "SLURM_PROCID=3" },
      .host = "n-3" },
};

static void task_without_index_gets_the_index_of_its_launcher(void **state)
{
    (void)state;
    kit_check_rows(launched, COUNT_OF(launched));
}

#define STEP(nodes_, counts_, rank_)                                                               \
    .file = "slurm", .env = { "SLURM_STEP_NODELIST=" nodes_, "SLURM_STEP_TASKS_PER_NODE=" counts_, \
                              "SLURM_PROCID=" rank_ }
#define NOTE(task_) .note = "this is " task_ ": SLURM_PROCID has the index"

static const struct cluster_row steps[] = {
    { .id = "SL-4",
      NULL,
      "worker 2 rank 2 of 5",
      STEP("n[1-2],m5", "2(x2),1", "2"),
      NOTE("worker 2") },
    { .id = "SL-4 first",
      NULL,
      "worker 0 rank 0 of 1 chief",
      STEP("n1", "1", "0"),
      NOTE("worker 0") },
    { .id = "numbered nodes say nothing",
      NULL,
      "worker 0 rank 0 of 2 chief",
      STEP("n-[1-2]", "1(x2)", "0"),
      .host = "n-1",
      NOTE("worker 0") },
    { .id = "TF_CONFIG stands back",
      PAIR,
      "worker 0 rank 0 of 2 chief",
      STEP("n[1-2]", "1(x2)", "0"),
      .note = "TF_CONFIG is set, but --cluster slurm is used instead" },
    { .id = "SL-7",
      NULL,
      "!slurm: SLURM_STEP_NUM_TASKS is '4', but SLURM_STEP_TASKS_PER_NODE adds "
      "up to 3 tasks",
      .file = "slurm",
      .env = { "SLURM_STEP_NODELIST=n[1-3]", "SLURM_STEP_TASKS_PER_NODE=1(x3)", "SLURM_PROCID=0",
               "SLURM_STEP_NUM_TASKS=4" } },
    { .id = "SL-7 mpirun",
      NULL,
      "!slurm: OMPI_COMM_WORLD_SIZE is '4'",
      .file = "slurm",
      .env = { "SLURM_STEP_NODELIST=n[1-3]", "SLURM_STEP_TASKS_PER_NODE=1(x3)", "SLURM_PROCID=0",
               "SLURM_STEP_NUM_TASKS=3", "OMPI_COMM_WORLD_SIZE=4" } },
    { .id = "two nodes, three counts",
      NULL,
      "!slurm: SLURM_STEP_NODELIST 'n[1-2]' names 2 hosts, "
      "but SLURM_STEP_TASKS_PER_NODE '1(x3)' counts 3",
      STEP("n[1-2]", "1(x3)", "0") },
    { .id = "not in a step",
      NULL,
      "!slurm: SLURM_STEP_NODELIST is not set; start the tasks with srun",
      .file = "slurm" },
    { .id = "bad list",
      NULL,
      "!SLURM_STEP_NODELIST: host list 'n[1-]': a range in brackets has no "
      "end",
      STEP("n[1-]", "1", "0") },
    { .id = "bad counts",
      NULL,
      "!SLURM_STEP_TASKS_PER_NODE: task counts '1(x': expected a form "
      "like 3(x2),2",
      STEP("n1", "1(x", "0") },
    { .id = "bad host",
      NULL,
      "!slurm: address 'n/1:8888' is not host:port",
      STEP("n/1", "1", "0") },
    { .id = "no rank",
      NULL,
      "!slurm: the cluster does not define which task this is",
      .file = "slurm",
      .env = { "SLURM_STEP_NODELIST=n[1-2]", "SLURM_STEP_TASKS_PER_NODE=1(x2)" } },
    { .id = "too many tasks",
      NULL,
      "!slurm: the step has 10000000 tasks; expected at most 65536",
      STEP("n1", "10000000", "0") },
    { .id = "too many on a host",
      NULL,
      "!slurm: n1 has more than 56648 tasks, and the ports from 8888 to 65535 do not suffice",
      STEP("n1", "56649", "0") },
    { .id = "twice the same host",
      NULL,
      "!slurm: address 'n1:8888' is also the address of worker 0",
      "worker 1 rank 1 of 2",
      STEP("n1,n1", "1(x2)", "1") },
};

#define AUTO_STEP(nodes_, counts_, size_, rank_, ...)                                              \
    .env = { "SLURM_STEP_NODELIST=" nodes_, "SLURM_STEP_TASKS_PER_NODE=" counts_,                  \
             "SLURM_STEP_NUM_TASKS=" size_, "SLURM_PROCID=" rank_, __VA_ARGS__ }
#define OPEN_MPI(size_, here_, rank_)                                                              \
    .env = { "OMPI_COMM_WORLD_SIZE=" size_, "OMPI_COMM_WORLD_LOCAL_SIZE=" here_,                   \
             "OMPI_COMM_WORLD_RANK=" rank_, "PMIX_RANK=" rank_ }

static const struct cluster_row without_text[] = {
    { .id = "srun",
      NULL,
      "worker 1 rank 1 of 2",
      AUTO_STEP("n[1-2]", "1(x2)", "2", "1"),
      .note = "no cluster is given: it is formed from the Slurm step (SLURM_STEP_NUM_TASKS=2, "
              "SLURM_PROCID=1)" },
    { .id = "srun of one task", NULL, LOCAL, AUTO_STEP("n1", "1", "1", "0") },
    { .id = "srun, TF_CONFIG without a cluster",
      "{}",
      "worker 1 rank 1 of 2",
      AUTO_STEP("n[1-2]", "1(x2)", "2", "1"),
      .note = "formed from the Slurm step" },
    { .id = "srun, PMI-2",
      NULL,
      "worker 1 rank 1 of 2",
      AUTO_STEP("n[1-2]", "1(x2)", "2", "1", "PMI_SIZE=2", "PMI_RANK=1"),
      .note = "formed from the Slurm step (PMI_SIZE=2" },
    { .id = "srun, alone by choice", NULL, LOCAL, AUTO_STEP("n[1-2]", "1(x2)", "2", "1"),
      .file = "none" },
    { .id = "mpirun on one host",
      NULL,
      "worker 1 rank 1 of 2",
      OPEN_MPI("2", "2", "1"),
      .note = "no cluster is given: it is formed on this host, with the ports from 8888, because "
              "all tasks of Open MPI are here" },
    { .id = "mpirun of one task", NULL, LOCAL, OPEN_MPI("1", "1", "0") },
    { .id = "mpirun on several hosts",
      NULL,
      "!TF_CONFIG: a launcher started several tasks (OMPI_COMM_WORLD_SIZE=4, "
      "OMPI_COMM_WORLD_LOCAL_SIZE=2, OMPI_COMM_WORLD_RANK=3), but there is no cluster, and each of "
      "them would train the whole job; give every task the same --hosts",
      OPEN_MPI("4", "2", "3") },
    { .id = "mpirun in a step of the same size",
      NULL,
      "!a launcher started several tasks (OMPI_COMM_WORLD_SIZE=2",
      AUTO_STEP("n[1-2]", "1(x2)", "2", "1", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=0") },
    { .id = "MPICH on several hosts",
      NULL,
      "!a launcher started several tasks (PMI_SIZE=2, MPI_LOCALNRANKS=1, PMI_RANK=0)",
      .env = { "PMI_SIZE=2", "PMI_RANK=0", "MPI_LOCALNRANKS=1" } },
    { .id = "MPICH on one host",
      NULL,
      "worker 0 rank 0 of 2 chief",
      .env = { "PMI_SIZE=2", "PMI_RANK=0", "MPI_LOCALNRANKS=2" },
      .note = "all tasks of PMI are here" },
    { .id = "PMIx, not the first", NULL, "!a launcher started several tasks (PMIX_RANK=1)",
      .env = { "PMIX_RANK=1" } },
    { .id = "PMIx, the first", NULL, "!a launcher started several tasks (PMIX_RANK=0)",
      .env = { "PMIX_RANK=0" } },
    { .id = "PMIx of Slurm, one task", NULL, LOCAL, AUTO_STEP("n1", "1", "1", "0", "PMIX_RANK=0") },
    { .id = "hosts",
      NULL,
      "worker 2 rank 2 of 3",
      OPEN_MPI("3", "1", "2"),
      .hosts = "a,b:7000,a",
      .note = "this is worker 2: OMPI_COMM_WORLD_RANK has the index 2" },
    { .id = "hosts of another launcher", NULL, "worker 0 rank 0 of 2 chief", .hosts = "a,b",
      .task = "worker:0" },
    { .id = "hosts instead of TF_CONFIG", PAIR, "worker 0 rank 0 of 2 chief", .hosts = "a,b",
      .task = "worker:0", .note = "TF_CONFIG is set, but --hosts is used instead" },
    { .id = "an empty host", NULL, "!--hosts: entry 1 of 'a,,b' is empty", .hosts = "a,,b" },
    { .id = "hosts and a file", NULL, "!both --cluster and --hosts are given", .hosts = "a",
      .file = "slurm" },
    { .id = "the same port twice", NULL, "!--hosts: address 'a:8888' is also the address of worker 0",
      "worker 0 rank 0 of 2 chief", .hosts = "a,a:8888", .task = "worker:0" },
    { .id = "a list that is too short", NULL,
      "!OMPI_COMM_WORLD_RANK is 1, but the cluster has only 1 training tasks",
      OPEN_MPI("2", "1", "1"), .hosts = "a" },
};

/* Environments as the launchers write them. */
#define REFUSED(seen_) "!a launcher started several tasks (" seen_ "), but there is no cluster"
#define VERTEX(pools_)                                                                            \
    "{\"cluster\":{" pools_ "\"workerpool0\":[\"cmle-training-workerpool0-ab-0:2222\"]},"          \
    "\"environment\":\"cloud\",\"task\":{\"type\":\"workerpool0\",\"index\":0},"                   \
    "\"job\":\"{\\\"replica_count\\\":\\\"1\\\"}\"}"
static const struct cluster_row recorded[] = {
    { .id = "torchrun on one host", NULL, SECOND, .note = "all tasks of torchrun are here",
      .env = { "RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "GROUP_RANK=0",
               "MASTER_ADDR=host", "MASTER_PORT=29500" } },
    { .id = "torchrun in a Slurm step", NULL, "worker 3 rank 3 of 4",
      .note = "all tasks of torchrun are here",
      .env = { "RANK=3", "WORLD_SIZE=4", "LOCAL_WORLD_SIZE=4", "SLURM_STEP_ID=0",
               "SLURM_STEP_NUM_TASKS=1", "SLURM_PROCID=0" } },
    { .id = "torchrun of one process", NULL, LOCAL,
      .env = { "RANK=0", "WORLD_SIZE=1", "LOCAL_WORLD_SIZE=1", "MASTER_ADDR=h", "MASTER_PORT=1" } },
    { .id = "ranks without MASTER_ADDR", NULL, REFUSED("WORLD_SIZE=2, RANK=1"),
      .env = { "RANK=1", "WORLD_SIZE=2" } },
    { .id = "WORLD_SIZE of another program", NULL, LOCAL, .env = { "WORLD_SIZE=800" } },
    { .id = "PyTorchJob of one replica", NULL, LOCAL,
      .env = { "RANK=0", "WORLD_SIZE=1", "MASTER_ADDR=job-master-0", "MASTER_PORT=23456" } },
    { .id = "TrainJob", NULL, REFUSED("PET_NNODES=2, PET_NODE_RANK=1"),
      .env = { "PET_NNODES=2", "PET_NPROC_PER_NODE=1", "PET_NODE_RANK=1", "PET_MASTER_ADDR=n-0-0.n",
               "PET_MASTER_PORT=29400", "JOB_COMPLETION_INDEX=1" } },
    { .id = "TrainJob of one node", NULL, LOCAL,
      .env = { "PET_NNODES=1", "PET_NODE_RANK=0", "JOB_COMPLETION_INDEX=0" } },
    { .id = "horovodrun on two hosts", NULL,
      REFUSED("HOROVOD_SIZE=2, HOROVOD_LOCAL_SIZE=1, HOROVOD_RANK=1"),
      .env = { "HOROVOD_RANK=1", "HOROVOD_SIZE=2", "HOROVOD_LOCAL_RANK=0", "HOROVOD_LOCAL_SIZE=1" } },
    { .id = "horovodrun on one host", NULL, SECOND, .note = "all tasks of Horovod are here",
      .env = { "HOROVOD_RANK=1", "HOROVOD_SIZE=2", "HOROVOD_LOCAL_RANK=1", "HOROVOD_LOCAL_SIZE=2" } },
    { .id = "Flux on two nodes", NULL,
      REFUSED("FLUX_JOB_SIZE=2, FLUX_JOB_NNODES=2, FLUX_TASK_RANK=1"),
      .env = { "FLUX_JOB_ID=f3", "FLUX_JOB_SIZE=2", "FLUX_JOB_NNODES=2", "FLUX_TASK_RANK=1",
               "FLUX_TASK_LOCAL_ID=0" } },
    { .id = "Flux on one node", NULL, SECOND, .note = "all tasks of Flux are here",
      .env = { "FLUX_JOB_ID=f3", "FLUX_JOB_SIZE=2", "FLUX_JOB_NNODES=1", "FLUX_TASK_RANK=1",
               "FLUX_TASK_LOCAL_ID=1" } },
    { .id = "Flux with hosts", NULL, SECOND, .hosts = "a,b", .note = "FLUX_TASK_RANK has the index 1",
      .env = { "FLUX_JOB_SIZE=2", "FLUX_JOB_NNODES=2", "FLUX_TASK_RANK=1" } },
    { .id = "jsrun", NULL,
      REFUSED("JSM_NAMESPACE_SIZE=4, JSM_NAMESPACE_LOCAL_SIZE=2, JSM_NAMESPACE_RANK=0"),
      .env = { "JSM_NAMESPACE_RANK=0", "JSM_NAMESPACE_SIZE=4", "JSM_NAMESPACE_LOCAL_SIZE=2",
               "PMIX_RANK=0" } },
    { .id = "PALS", NULL, REFUSED("PALS_SIZE=2, PALS_RANKID=1"),
      .env = { "PALS_RANKID=1", "PALS_SIZE=2", "PALS_NODEID=1", "PALS_LOCAL_RANKID=0" } },
    { .id = "PALS without a number", NULL, REFUSED("PALS_RANKID=0"), .env = { "PALS_RANKID=0" } },
    { .id = "ALPS", NULL, REFUSED("ALPS_APP_PE=0"), .env = { "ALPS_APP_PE=0" } },
    { .id = "MVAPICH2", NULL, SECOND, .note = "all tasks of MVAPICH2 are here",
      .env = { "MV2_COMM_WORLD_RANK=1", "MV2_COMM_WORLD_SIZE=2", "MV2_COMM_WORLD_LOCAL_SIZE=2" } },
    { .id = "AWS Batch", NULL,
      REFUSED("AWS_BATCH_JOB_NUM_NODES=2, AWS_BATCH_JOB_NODE_INDEX=1"),
      .env = { "AWS_BATCH_JOB_NUM_NODES=2", "AWS_BATCH_JOB_NODE_INDEX=1",
               "AWS_BATCH_JOB_MAIN_NODE_INDEX=0" } },
    { .id = "SageMaker", NULL, REFUSED("SM_HOST_COUNT=2, SM_CURRENT_HOST_RANK=0"),
      .env = { "SM_HOST_COUNT=2", "SM_CURRENT_HOST_RANK=0", "SM_MASTER_ADDR=algo-1" } },
    { .id = "Volcano", NULL, REFUSED("VC_WORKER_NUM=2, VC_TASK_INDEX=1"),
      .env = { "VC_TASK_INDEX=1", "VC_WORKER_NUM=2", "VC_WORKER_HOSTS=j-worker-0.j,j-worker-1.j" } },
    { .id = "TPU", NULL, REFUSED("TPU_WORKER_HOSTNAMES=t-0,t-1, TPU_WORKER_ID=1"),
      .env = { "TPU_WORKER_ID=1", "TPU_WORKER_HOSTNAMES=t-0,t-1" } },
    { .id = "TPU of one host", NULL, LOCAL,
      .env = { "TPU_WORKER_ID=0", "TPU_WORKER_HOSTNAMES=localhost" } },
    { .id = "Paddle", NULL, REFUSED("PADDLE_TRAINERS_NUM=2, PADDLE_TRAINER_ID=0"),
      .env = { "PADDLE_TRAINER_ID=0", "PADDLE_TRAINERS_NUM=2" } },
    { .id = "DMLC", NULL, REFUSED("DMLC_NUM_WORKER=2, DMLC_TASK_ID=0"),
      .env = { "DMLC_TASK_ID=0", "DMLC_NUM_WORKER=2", "DMLC_PS_ROOT_URI=10.0.0.1" } },
    { .id = "PBS", NULL, REFUSED("PBS_NUM_NODES=2, PBS_NODENUM=0"),
      .env = { "PBS_NUM_NODES=2", "PBS_NODENUM=0", "PBS_NODEFILE=/var/spool/aux/7" } },
    { .id = "Grid Engine", NULL, REFUSED("NHOSTS=2, PE_HOSTFILE=/spool/pe_hostfile"),
      .env = { "NHOSTS=2", "NSLOTS=8", "PE_HOSTFILE=/spool/pe_hostfile" } },
    { .id = "Slurm allocation", NULL, REFUSED("SLURM_NTASKS=4, SLURM_PROCID=0"),
      .env = { "SLURM_JOB_ID=7", "SLURM_NTASKS=4", "SLURM_JOB_NUM_NODES=1", "SLURM_PROCID=0" } },
    { .id = "Slurm allocation of nodes", NULL, REFUSED("SLURM_JOB_NUM_NODES=2, SLURM_NODEID=0"),
      .env = { "SLURM_JOB_ID=7", "SLURM_JOB_NUM_NODES=2", "SLURM_PROCID=0", "SLURM_NODEID=0" } },
    { .id = "one task of a step in a larger allocation", NULL, LOCAL,
      .env = { "SLURM_NTASKS=4", "SLURM_STEP_ID=1", "SLURM_STEP_NUM_TASKS=1", "SLURM_PROCID=0" } },
    { .id = "Slurm allocation of nodes without an index", NULL, REFUSED("SLURM_JOB_NUM_NODES=2"),
      .env = { "SLURM_JOB_ID=7", "SLURM_JOB_NUM_NODES=2", "SLURM_NNODES=2", "SLURM_JOB_NODELIST=n[1-2]",
               "SLURM_TASKS_PER_NODE=1(x2)" } },
    { .id = "Slurm allocation of nodes, old name", NULL, REFUSED("SLURM_NNODES=2"),
      .env = { "SLURM_JOB_ID=7", "SLURM_NNODES=2" } },
    { .id = "Slurm allocation of tasks without an index", NULL, REFUSED("SLURM_NTASKS=4"),
      .env = { "SLURM_JOB_ID=7", "SLURM_NTASKS=4", "SLURM_NNODES=1" } },
    { .id = "Slurm allocation of one node", NULL, LOCAL,
      .env = { "SLURM_JOB_ID=7", "SLURM_JOB_NUM_NODES=1", "SLURM_NNODES=1" } },
    { .id = "mpirun of one task in a Slurm allocation", NULL, LOCAL,
      .env = { "SLURM_JOB_NUM_NODES=2", "OMPI_COMM_WORLD_SIZE=1", "OMPI_COMM_WORLD_LOCAL_SIZE=1",
               "OMPI_COMM_WORLD_RANK=0" } },
    { .id = "mpirun of one task in a batch job of Slurm", NULL, LOCAL,
      .env = { "SLURM_NTASKS=4", "SLURM_PROCID=0", "OMPI_COMM_WORLD_SIZE=1", "OMPI_COMM_WORLD_RANK=0" } },
    { .id = "prterun in a Slurm allocation of one node", NULL, REFUSED("PMIX_RANK=1"),
      .env = { "SLURM_JOB_NUM_NODES=1", "SLURM_NTASKS=1", "PMIX_RANK=1" } },
    { .id = "HTCondor", NULL, REFUSED("_CONDOR_NPROCS=2, _CONDOR_PROCNO=1"),
      .env = { "_CONDOR_PROCNO=1", "_CONDOR_NPROCS=2", "_CONDOR_SLOT=slot1" } },
    { .id = "HTCondor of one machine", NULL, LOCAL,
      .env = { "_CONDOR_PROCNO=0", "_CONDOR_NPROCS=1", "_CONDOR_SLOT=slot1" } },
    { .id = "SageMaker toolkit", NULL,
      REFUSED("SM_HOSTS=[\"algo-1\",\"algo-2\"], SM_CURRENT_HOST=algo-2"),
      .env = { "SM_HOSTS=[\"algo-1\",\"algo-2\"]", "SM_CURRENT_HOST=algo-2", "SM_NUM_GPUS=1" } },
    { .id = "SageMaker toolkit of one host", NULL, LOCAL,
      .env = { "SM_HOSTS=[\"algo-1\"]", "SM_CURRENT_HOST=algo-1", "SM_NUM_GPUS=1" } },
    { .id = "Vertex AI", NULL, "!several tasks (CLUSTER_SPEC={\"cluster\":{\"workerpool1\":[\"cmle-trainin), but there is no cluster",
      .env = { "CLUSTER_SPEC=" VERTEX("\"workerpool1\":[\"cmle-training-workerpool1-ab-0:2222\"],") } },
    { .id = "Vertex AI of one replica", NULL, LOCAL, .env = { "CLUSTER_SPEC=" VERTEX("") } },
    { .id = "CLUSTER_SPEC of another program", NULL, LOCAL, .env = { "CLUSTER_SPEC=a:1,b:2" } },
    { .id = "Lightning", NULL, REFUSED("NNODES=2, NODE_RANK=1"),
      .env = { "NNODES=2", "NODE_RANK=1", "MASTER_ADDR=n0", "MASTER_PORT=29500" } },
    { .id = "Lightning of one node", NULL, LOCAL,
      .env = { "NNODES=1", "NODE_RANK=0", "MASTER_ADDR=n0", "MASTER_PORT=29500" } },
    { .id = "Lightning without a number", NULL, REFUSED("NODE_RANK=0"),
      .env = { "NODE_RANK=0", "MASTER_ADDR=n0", "MASTER_PORT=29500" } },
    { .id = "NODE_RANK of another program", NULL, LOCAL, .env = { "NODE_RANK=3" } },
    { .id = "WORLD_SIZE is empty", NULL, REFUSED("WORLD_SIZE=, RANK=1"),
      .env = { "WORLD_SIZE=", "RANK=1", "MASTER_ADDR=n0", "MASTER_PORT=29500" } },
    { .id = "WORLD_SIZE is no number", NULL,
      "!each of them would train the whole job; set WORLD_SIZE to the number of tasks, an integer of at most "
      "65536 (1 for one task alone), and add MASTER_ADDR=HOST",
      .env = { "WORLD_SIZE=two", "RANK=1" } },
    { .id = "WORLD_SIZE is too large", NULL,
      "!set WORLD_SIZE to the number of tasks, an integer of at most 65536 (1 for one task alone), and add "
      "MASTER_ADDR=HOST",
      .env = { "WORLD_SIZE=100000", "RANK=1" } },
    { .id = "RANK without WORLD_SIZE", NULL, REFUSED("RANK=1"),
      .env = { "RANK=1", "MASTER_ADDR=n0", "MASTER_PORT=29500" } },
    { .id = "RANK of another program", NULL, LOCAL, .env = { "RANK=3" } },
    { .id = "empty WORLD_SIZE in a Slurm step", NULL, SECOND, .note = "formed from the Slurm step",
      AUTO_STEP("n[1-2]", "1(x2)", "2", "1", "WORLD_SIZE=", "RANK=1") },
    { .id = "mpirun without a number", NULL, REFUSED("OMPI_COMM_WORLD_RANK=1"),
      .env = { "OMPI_COMM_WORLD_RANK=1" } },
    { .id = "MVAPICH2 without a number", NULL, REFUSED("MV2_COMM_WORLD_RANK=0"),
      .env = { "MV2_COMM_WORLD_RANK=0" } },
    { .id = "Horovod without a number", NULL, REFUSED("HOROVOD_RANK=0"), .env = { "HOROVOD_RANK=0" } },
    { .id = "jsrun without a number", NULL, REFUSED("JSM_NAMESPACE_RANK=0"),
      .env = { "JSM_NAMESPACE_RANK=0", "PMIX_RANK=0" } },
    { .id = "Flux without a number", NULL, REFUSED("FLUX_TASK_RANK=0"), .env = { "FLUX_TASK_RANK=0" } },
    { .id = "PMI without a number", NULL, REFUSED("PMI_RANK=0"), .env = { "PMI_RANK=0" } },
    { .id = "LSF on two hosts", NULL, REFUSED("LSB_MCPU_HOSTS=a 2 b 2 "),
      .env = { "LSB_JOBID=7", "LSB_DJOB_NUMPROC=4", "LSB_HOSTS=a a b b", "LSB_MCPU_HOSTS=a 2 b 2 ",
               "LSB_DJOB_HOSTFILE=/home/u/.lsbatch/7.hostfile" } },
    { .id = "LSF on two hosts, the list alone", NULL, REFUSED("LSB_HOSTS=a b"),
      .env = { "LSB_DJOB_NUMPROC=2", "LSB_HOSTS=a b" } },
    { .id = "LSF on one host", NULL, LOCAL,
      .env = { "LSB_JOBID=7", "LSB_DJOB_NUMPROC=4", "LSB_HOSTS=a a a a", "LSB_MCPU_HOSTS=a 4 " } },
    { .id = "jsrun of one task in a job of LSF", NULL, LOCAL,
      .env = { "JSM_NAMESPACE_RANK=0", "JSM_NAMESPACE_SIZE=1", "LSB_MCPU_HOSTS=batch 1 a 42 b 42" } },
    { .id = "Indexed Job", NULL, REFUSED("JOB_COMPLETION_INDEX=0"),
      .env = { "JOB_COMPLETION_INDEX=0" } },
};

static void recorded_environment_is_a_cluster_or_refused_with_the_line_to_add(void **state)
{
    (void)state;
    kit_check_rows(recorded, COUNT_OF(recorded));
}

/* PBS_NODEFILE has a line for each process of a chunk. */
static void file_of_hosts_with_two_different_hosts_is_refused(void **state)
{
    static const struct { const char *text, *expected; } files[] = {
        { "a\na\nb\nb\n", "!a launcher started several tasks (PBS_NODEFILE=/tmp/trainerd-hosts-" },
        { "a\na\n", LOCAL },
        { "", LOCAL },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        char variable[] = "PBS_NODEFILE=/tmp/trainerd-hosts-XXXXXX";
        char *path = strchr(variable, '=') + 1;
        const struct cluster_row row = { .id = files[i].text, NULL, files[i].expected,
                                         .env = { variable, "PBS_NODENUM=0", "PBS_JOBID=7" } };
        int fd = mkstemp(path);

        assert_true(fd >= 0);
        assert_int_equal(write(fd, files[i].text, strlen(files[i].text)), strlen(files[i].text));
        close(fd);
        kit_check_rows(&row, 1);
        unlink(path);
    }
}

static void several_tasks_without_a_cluster_are_formed_or_refused(void **state)
{
    (void)state;
    kit_check_rows(without_text, COUNT_OF(without_text));
}

static void check_canonical(const struct cluster_row *row, const char *expected)
{
    struct cluster *c = NULL;
    struct err err = { 0 };

    if (kit_resolve(row, CLUSTER_STRICT, &c, &err) < 0)
        fail_msg("%s: %s", row->id, err.text);
    assert_string_equal(c->canonical, expected);
    cluster_free(c);
}

static void hosts_without_ports_get_a_port_for_each_of_their_tasks(void **state)
{
    (void)state;
    check_canonical(&(struct cluster_row){ .id = "hosts", .hosts = "a,b:7000,a,[::1],[::1]:5,a",
                                           .port = 2222, .task = "worker:0" },
                    "{\"worker\":{\"0\":\"a:2222\",\"1\":\"b:7000\",\"2\":\"a:2223\",\"3\":\"[::1]:"
                    "2222\",\"4\":\"[::1]:5\",\"5\":\"a:2224\"}}");
}

/* The layouts are those of the manual page of srun, option --distribution. */
static void slurm_distribution_decides_the_host_of_a_task(void **state)
{
    (void)state;
    check_canonical(&(struct cluster_row){ .id = "cyclic",
                                           AUTO_STEP("n[1-2]", "3,1", "4", "3", "SLURM_NODEID=0",
                                                     "SLURM_LOCALID=2",
                                                     "SLURM_DISTRIBUTION=cyclic:block") },
                    "{\"worker\":{\"0\":\"n1:8888\",\"1\":\"n2:8888\",\"2\":\"n1:8889\",\"3\":\"n1:"
                    "8890\"}}");
    check_canonical(&(struct cluster_row){ .id = "plane",
                                           AUTO_STEP("n[1-2]", "3,2", "5", "2", "SLURM_NODEID=1",
                                                     "SLURM_LOCALID=0",
                                                     "SLURM_DISTRIBUTION=plane=2"),
                                           .port = 100 },
                    "{\"worker\":{\"0\":\"n1:100\",\"1\":\"n1:101\",\"2\":\"n2:100\",\"3\":\"n2:101\","
                    "\"4\":\"n1:102\"}}");
}

static const struct cluster_row wrong_places[] = {
    { .id = "another place than by the distribution",
      NULL,
      "!slurm: task 1 runs on node 1 as its task 0, but by the distribution 'block' it is task 1 of "
      "node 0; use srun --distribution=block",
      AUTO_STEP("n[1-2]", "2(x2)", "4", "1", "SLURM_NODEID=1", "SLURM_LOCALID=0") },
    { .id = "unknown distribution",
      NULL,
      "!slurm: SLURM_DISTRIBUTION is 'arbitrary'; expected block, cyclic or plane=N",
      AUTO_STEP("n[1-2]", "2(x2)", "4", "1", "SLURM_DISTRIBUTION=arbitrary") },
};

static void slurm_task_in_another_place_is_refused(void **state)
{
    (void)state;
    kit_check_rows(wrong_places, COUNT_OF(wrong_places));
}

static void slurm_step_is_resolved_as_a_cluster(void **state)
{
    (void)state;
    kit_check_rows(steps, COUNT_OF(steps));
}

static void slurm_second_task_of_a_host_has_the_next_port(void **state)
{
    const struct cluster_row row = { .id = "ports", NULL, "", STEP("n[08-09]", "2,1", "1") };
    struct cluster *c;

    (void)state;
    assert_int_equal(kit_resolve(&row, CLUSTER_STRICT, &c, NULL), 0);
    assert_string_equal(c->canonical,
                        "{\"worker\":{\"0\":\"n08:8888\",\"1\":\"n08:8889\",\"2\":\"n09:8888\"}}");
    assert_string_equal(c->source, "slurm");
    assert_string_equal(c->index_source, "SLURM_PROCID");
    assert_string_equal(c->self->host, "n08");
    assert_int_equal(c->self->port, 8889);
    cluster_free(c);
}

static void slurm_host_list_is_expanded(void **state)
{
    static const struct {
        const char *list, *expected; /* after "!": a part of the error text */
    } rows[] = {
        { "n[1-2],m5,o[3-4,6,7-9]", "n1 n2 m5 o3 o4 o6 o7 o8 o9" },              /* SL-1 */
        { "n[0001-0003],m5,o[009-011]", "n0001 n0002 n0003 m5 o009 o010 o011" }, /* SL-2 */
        { "n[8-11]", "n8 n9 n10 n11" },
        { "one", "one" },
        { "r[1-2]n[1-2]", "r1n1 r1n2 r2n1 r2n2" },
        { "n[1-2]-ib", "n1-ib n2-ib" },
        { "", "!a name is empty" },
        { "a,", "!a name is empty" },
        { "a,,b", "!a name is empty" },
        { "n[", "!a bracket is not closed" },
        { "n[]", "!a number is missing in the brackets" },
        { "n[1,]", "!a number is missing in the brackets" },
        { "n[a]", "!a number is missing in the brackets" },
        { "n[2-1]", "!a range in brackets ends before it begins" },
        { "n[1-2-3]", "!the brackets contain something other than" },
        { "n[1 ]", "!the brackets contain something other than" },
        { "n[1234567890]", "!the brackets contain something other than" },
        { "n[0-999999999]", "!it expands to more than 65536 names" },
        { "n[1][1][1][1][1]", "!a name has more than four pairs of brackets" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct arena mem = { 0 };
        struct err err = { 0 };
        char text[256] = "";
        const char **names;
        uint32_t n = 0;
        int rc = cluster_slurm_nodes(rows[i].list, &mem, &names, &n, &err);

        for (uint32_t k = 0; rc == 0 && k < n; k++)
            snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%s", k > 0 ? " " : "",
                     names[k]);
        if (rc < 0)
            assert_int_equal(rc, ERR_INPUT);
        if (rc == 0 ? strcmp(text, rows[i].expected) != 0
                    : rows[i].expected[0] != '!' || strstr(err.text, rows[i].expected + 1) == NULL)
            fail_msg("%s: expected '%s', found '%s' '%s'", rows[i].list, rows[i].expected, text,
                     err.text);
        arena_fini(&mem);
    }
}

static void slurm_host_list_above_the_limits_is_refused(void **state)
{
    struct arena mem = { 0 };
    char name[400];
    const char **names;
    uint32_t n;

    (void)state;
    memset(name, 'a', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    assert_int_equal(cluster_slurm_nodes(name, &mem, &names, &n, NULL), ERR_INPUT);
    memcpy(name, "[1-3]", 5);
    memcpy(name + 240, "[000000001-000000002]b", 23);
    assert_int_equal(cluster_slurm_nodes(name, &mem, &names, &n, NULL), 0);
    assert_int_equal(n, 6);
    assert_int_equal(cluster_slurm_nodes("n[1-65536]", &mem, &names, &n, NULL), 0);
    assert_int_equal(n, 65536);
    assert_string_equal(names[65535], "n65536");
    assert_int_equal(cluster_slurm_nodes("n[1-65536],m", &mem, &names, &n, NULL), ERR_INPUT);
    arena_fini(&mem);
}

static void slurm_task_count_list_is_expanded(void **state)
{
    static const uint32_t expected[] = { 3, 3, 2, 11, 11, 11, 11 };
    static const char *const bad[] = { "",     "0",     "x",    "3(",        "3(x",
                                       "3(x)", "3(x0)", "3(x2", "3(2)",      "3,",
                                       ",3",   "3 ",    "-1",   "3(x65537)", "1234567890" };
    struct arena mem = { 0 };
    uint32_t *counts, n;

    (void)state;
    assert_int_equal(cluster_slurm_counts("3(x2),2,11(x4)", &mem, &counts, &n, NULL), 0); /* SL-3 */
    assert_int_equal(n, COUNT_OF(expected));
    assert_memory_equal(counts, expected, sizeof(expected));
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        if (cluster_slurm_counts(bad[i], &mem, &counts, &n, NULL) != ERR_INPUT)
            fail_msg("'%s' was accepted", bad[i]);
    }
    arena_fini(&mem);
}

static void cluster_file_replaces_tf_config(void **state)
{
    char path[] = "/tmp/trainerd-cluster-XXXXXX";
    const char *text = "{\n  \"cluster\": {\"worker\": [\"a:1\", 7]}\n}\n";
    struct cluster_row row = { .id = "file", PAIR, "", .file = path };
    struct cluster *c = NULL;
    struct err err = { 0 };
    char place[64];
    int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    assert_int_equal(kit_resolve(&row, CLUSTER_STRICT, &c, &err), ERR_INPUT);
    snprintf(place, sizeof(place), "%s:2:33: /cluster/worker/1: ", path);
    assert_non_null(strstr(err.text, place));
    close(fd);
    unlink(path);
    assert_int_equal(kit_resolve(&row, CLUSTER_STRICT, &c, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, path));
    assert_non_null(strstr(err.text, "expected a file, 'slurm' or 'none'"));
    assert_null(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(task_without_index_gets_the_index_of_its_launcher),
        cmocka_unit_test(several_tasks_without_a_cluster_are_formed_or_refused),
        cmocka_unit_test(recorded_environment_is_a_cluster_or_refused_with_the_line_to_add),
        cmocka_unit_test(file_of_hosts_with_two_different_hosts_is_refused),
        cmocka_unit_test(hosts_without_ports_get_a_port_for_each_of_their_tasks),
        cmocka_unit_test(slurm_distribution_decides_the_host_of_a_task),
        cmocka_unit_test(slurm_task_in_another_place_is_refused),
        cmocka_unit_test(slurm_step_is_resolved_as_a_cluster),
        cmocka_unit_test(slurm_second_task_of_a_host_has_the_next_port),
        cmocka_unit_test(slurm_host_list_is_expanded),
        cmocka_unit_test(slurm_host_list_above_the_limits_is_refused),
        cmocka_unit_test(slurm_task_count_list_is_expanded),
        cmocka_unit_test(cluster_file_replaces_tf_config),
    };

    return cmocka_run_group_tests_name("conf/cluster_start", tests, NULL, NULL);
}
