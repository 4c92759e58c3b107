/* job_keys_phases.c - the keys of /train/phases. */
#include "conf/job_keys_priv.h"

static const struct conf_word modes[] = {
    { "sync", TRAIN_SYNC },
    { "local_sgd", TRAIN_LOCAL_SGD },
    { "async", TRAIN_ASYNC },
};
static const struct conf_word rules[] = {
    { "quadratic", TRAIN_SYNC_QUADRATIC },
};
static const struct conf_word outers[] = {
    { "nesterov", TRAIN_OUTER_NESTEROV },
};
static const struct conf_word slots[] = {
    { "average", TRAIN_SLOTS_AVERAGE },
    { "reset", TRAIN_SLOTS_RESET },
};

#define PHASE_AT(field_) offsetof(struct train_phase, field_)
#define IS_LOCAL .when = { "mode", BIT(TRAIN_LOCAL_SGD) }

/* clang-format off */
static const struct conf_key rows[] = {
{ "/train", "phases", LIST, AT(run.phases), ALLOCATED | OPTIONAL, .hi = TRAIN_MAX_PHASES,
  .count = AT(run.n_phases), .stride = sizeof(struct train_phase), .fallback = "[]",
  .doc = "The modes in which the steps are trained, one after the other; absent or empty: all steps are "
         "synchronous." },
{ "/train/phases", "*", OBJECT,
  .doc = "A phase." },
{ "/train/phases/*", "until_step", U64, PHASE_AT(until_step), .hi = 1000000000000, .fallback = "0",
  .doc = "The last step of the phase; above that of the phase before. The last phase ends with the job and has "
         "none, or 0." },
{ "/train/phases/*", "mode", ENUM, PHASE_AT(mode), REQUIRED, WORDS(modes),
  .doc = "sync: gradients are reduced over all lanes in every step. local_sgd (DiLoCo): each group of lanes trains "
         "weights and optimizer state of its own, and the groups exchange at outer steps alone. async: each task "
         "applies the gradients of its lanes to the parameters on ps tasks, within /parameter_server/staleness." },
{ "/train/phases/*", "groups", U32, PHASE_AT(groups), REQUIRED, .lo = 1, .hi = 65536, IS_LOCAL,
  .doc = "The number of models; a power of two that divides train.lanes. A group is a block of lanes, so results "
         "do not depend on the number of tasks." },
{ "/train/phases/*", "sync_every", COUNT_OR_OBJECT, PHASE_AT(sync_every), REQUIRED, .lo = 1, .hi = 1000000000, IS_LOCAL,
  .doc = "Steps from one outer step to the next: a number, or a rule that is a function of the step. The last "
         "period of a phase may be shorter." },
{ "/train/phases/*/sync_every", "rule", ENUM, PHASE_AT(sync_rule.rule), REQUIRED, WORDS(rules),
  .doc = "quadratic: max(base, floor((alpha / rate)^2)), with the learning rate of the first step of the period, "
         "in a warm-up that of its end (arXiv 2310.14423)." },
{ "/train/phases/*/sync_every", "base", U32, PHASE_AT(sync_rule.base), REQUIRED, .lo = 1, .hi = 1000000000,
  .doc = "The smallest number of steps." },
{ "/train/phases/*/sync_every", "alpha", F64, PHASE_AT(sync_rule.alpha), REQUIRED | ABOVE_MIN, .max = 1e6,
  .doc = "The learning rate at which a period would have one step." },
{ "/train/phases/*", "outer", OBJECT, .fallback = "{}", IS_LOCAL,
  .doc = "The optimizer of the outer step. Its gradient is the mean over the groups of the weights before the "
         "period minus the weights after it." },
{ "/train/phases/*/outer", "type", ENUM, PHASE_AT(outer.type), WORDS(outers), .fallback = "nesterov",
  .doc = "nesterov: SGD with Nesterov momentum." },
{ "/train/phases/*/outer", "learning_rate", F64, PHASE_AT(outer.learning_rate), ABOVE_MIN, .max = 1e6, .fallback = "0.7",
  .doc = "The learning rate of the outer step; with momentum 0, a rate of 1 averages the weights of the groups." },
{ "/train/phases/*/outer", "momentum", F64, PHASE_AT(outer.momentum), BELOW_MAX, .max = 1, .fallback = "0.9",
  .doc = "The share of the last outer update that is kept. It starts at zero in each phase; checkpoints contain it." },
{ "/train/phases/*", "inner_slots", ENUM, PHASE_AT(inner_slots), WORDS(slots), .fallback = "average", IS_LOCAL,
  .doc = "The optimizer state of the groups at an outer step. average: its mean over the groups; reset: zero, and "
         "adam and similar optimizers count their steps from there." },
};
/* clang-format on */

const struct conf_key_table conf_keys_phases = { rows, COUNT_OF(rows) };
