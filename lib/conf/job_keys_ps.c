/* job_keys_ps.c - the keys of /parameter_server. */
#include "conf/job_keys_priv.h"

static const struct conf_word tables[] = {
    { "auto", PS_TABLES_AUTO },
    { "none", PS_TABLES_NONE },
};
static const struct conf_word denses[] = {
    { "workers", PS_DENSE_WORKERS },
    { "ps", PS_DENSE_SERVERS },
};
static const struct conf_word kinds[] = {
    { "exact", PS_STALENESS_EXACT },
    { "bounded", PS_STALENESS_BOUNDED },
};

/* clang-format off */
static const struct conf_key rows[] = {
{ "", "parameter_server", OBJECT, AT(has_ps), OPTIONAL,
  .doc = "If given, the ps tasks of the cluster take part in the job and keep embedding tables; other parameters "
         "stay on the workers. Needs at least one ps task. Absent: ps tasks are not used." },
{ "/parameter_server", "tables", CHOICE, AT(ps.patterns), ALLOCATED, .lo = 1, .hi = 1024, WORDS(tables),
  .chosen = AT(ps.tables), .count = AT(ps.n_patterns), .stride = sizeof(const char *), .fallback = "auto",
  .doc = "The embedding tables that ps tasks keep. auto: all of at least min_shard_bytes; none: no table; a list: "
         "those that a pattern with *, ? and [...] matches; one that selects no table that trains is refused." },
{ "/parameter_server/tables", "*", STRING,
  .doc = "A pattern that matches the names of initializers." },
{ "/parameter_server", "min_shard_bytes", U64, AT(ps.min_shard_bytes), .lo = 1, .hi = INT64_MAX,
  .fallback = "262144",
  .when = { "tables", BIT(PS_TABLES_AUTO) },
  .doc = "Tables of fewer bytes stay on the workers." },
{ "/parameter_server", "dense", ENUM, AT(ps.dense), WORDS(denses), .fallback = "workers",
  .doc = "Where the parameters that are no such tables are. workers: on every worker, and all-reduced; ps: all "
         "parameters that train are on ps tasks, also all tables: workers read them in each step." },
{ "/parameter_server", "replicas", U32, AT(ps.replicas), FREE, .lo = 1, .hi = 8, .fallback = "2",
  .doc = "The number of ps tasks that hold the same rows; all of them, if there are fewer: with 2, any one of them "
         "may fail without a loss of steps." },
{ "/parameter_server", "min_ps", U32, AT(ps.min_ps), FREE, .lo = 1, .hi = 65536, .fallback = "1",
  .doc = "The least number of ps tasks with which the group trains; with fewer it waits until "
         "train.deadline_seconds. At most the ps tasks of the cluster. Tables must fit into the memory of so few." },
{ "/parameter_server", "staleness", U32, AT(ps.staleness), .hi = PS_BOUND_MAX, .fallback = "0",
  .doc = "exact: the number of steps by which the rows that a step reads are older than those after the step before, at "
         "most 4: step t reads the rows after step max(0, t - 1 - staleness). Parameters on workers are never older. "
         "Above 2 a warning is logged, because many learning rates then diverge. bounded: a task begins its lanes of "
         "step t when all lanes of the steps up to t - 1 - staleness are applied. 0: synchronous." },
{ "/parameter_server", "staleness_kind", ENUM, AT(ps.staleness_kind), WORDS(kinds), .fallback = "exact",
  .doc = "exact: each step reads rows of exactly that age, so that results are the same bits for any number of "
         "tasks. bounded (stale synchronous parallel): each task applies the gradients of its lanes as soon as it has them, "
         "and tasks are at most staleness steps apart; results depend on time. Of the phases with mode async; of all steps "
         "in a job without phases. Needs dense \"ps\"." },
};
/* clang-format on */

const struct conf_key_table conf_keys_ps = { rows, COUNT_OF(rows) };
