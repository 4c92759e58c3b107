/* job_keys_optimizer.c - the keys of /optimizer. */
#include "conf/job_keys_priv.h"

#define GROUP_AT(field_) offsetof(struct conf_group, field_)

#define OPTIM_WORD(NAME, word, ...) { #word, OPTIM_##NAME },
static const struct conf_word optimizers[] = { OPTIM_LIST(OPTIM_WORD) };
static const struct conf_word schedules[] = { OPTIM_SCHEDULE_LIST(OPTIM_WORD) };
static const struct conf_word scalings[] = {
    { "none", OPTIM_SCALING_NONE },
    { "linear", OPTIM_SCALING_LINEAR },
    { "square_root", OPTIM_SCALING_SQUARE_ROOT },
};

/* The optimizers, and the schedules, that use a key, as bits for `when`: columns of their lists. */
/* clang-format off */
#define HAS_MOMENTUM(N, w, momentum, ...) | (unsigned)((momentum) != OPTIM_UNUSED) << OPTIM_##N
#define HAS_BETA2(N, w, momentum, beta2, ...) | (unsigned)((beta2) != OPTIM_UNUSED) << OPTIM_##N
#define HAS_EPSILON(N, w, momentum, beta2, epsilon, ...) \
    | (unsigned)((epsilon) != OPTIM_UNUSED) << OPTIM_##N
#define HAS_BETA1(N, w, m, b, e, decay, beta1, ...) | beta1##u << OPTIM_##N
#define HAS_TRUST(N, w, m, b, e, decay, beta1, trust, ...) | trust##u << OPTIM_##N
#define HAS_NESTEROV(N, w, m, b, e, decay, beta1, trust, nesterov, ...) | nesterov##u << OPTIM_##N
#define HAS_CENTERED(N, w, m, b, e, decay, beta1, trust, nesterov, centered) \
    | centered##u << OPTIM_##N
#define OPTIMIZERS(has_) .when = { "type", 0u OPTIM_LIST(has_) }
#define HAS_WARMUP(N, w, warmup, ...) | warmup##u << OPTIM_##N
#define HAS_STEP_SIZE(N, w, warmup, step, ...) | step##u << OPTIM_##N
#define HAS_GAMMA(N, w, warmup, step, gamma, ...) | gamma##u << OPTIM_##N
#define HAS_FINAL(N, w, warmup, step, gamma, final, ...) | final##u << OPTIM_##N
#define HAS_POWER(N, w, warmup, step, gamma, final, power, ...) | power##u << OPTIM_##N
#define HAS_CYCLE(N, w, warmup, step, gamma, final, power, cycle, ...) | cycle##u << OPTIM_##N
#define HAS_PATIENCE(N, w, warmup, step, gamma, final, power, cycle, patience) \
    | patience##u << OPTIM_##N
#define SCHEDULES(has_) .when = { "type", 0u OPTIM_SCHEDULE_LIST(has_) }
/* clang-format on */

/* clang-format off */
static const struct conf_key rows[] = {
{ "", "optimizer", OBJECT, 0, REQUIRED,
  .doc = "How updates are computed from gradients." },
{ "/optimizer", "type", ENUM, AT(optimizer.type), REQUIRED, WORDS(optimizers),
  .doc = OPTIM_LIST_DOC },
{ "/optimizer", "learning_rate", F64, AT(optimizer.schedule.learning_rate), REQUIRED, .min = 1e-30,
  .max = 1e6,
  .doc = "The highest learning rate of the schedule, before scaling." },
{ "/optimizer", "momentum", F64, AT(optimizer.hyper.momentum), BELOW_MAX, .max = 1,
  OPTIMIZERS(HAS_MOMENTUM),
  .doc = "The share of the last update that is kept; default: 0.9, for rmsprop 0." },
{ "/optimizer", "nesterov", BOOL, AT(optimizer.hyper.nesterov), .fallback = "false",
  OPTIMIZERS(HAS_NESTEROV),
  .doc = "Whether the momentum is Nesterov's." },
{ "/optimizer", "centered", BOOL, AT(optimizer.hyper.centered), .fallback = "false",
  OPTIMIZERS(HAS_CENTERED),
  .doc = "Whether gradients are divided by their standard deviation in place of their root mean square." },
{ "/optimizer", "beta1", F64, AT(optimizer.hyper.beta1), BELOW_MAX, .max = 1, .fallback = "0.9",
  OPTIMIZERS(HAS_BETA1),
  .doc = "Decay of the average of gradients." },
{ "/optimizer", "beta2", F64, AT(optimizer.hyper.beta2), BELOW_MAX, .max = 1,
  OPTIMIZERS(HAS_BETA2),
  .doc = "Decay of the average of squared gradients (lion: of the average that is kept); default: "
         "0.999, for rmsprop and lion 0.99." },
{ "/optimizer", "epsilon", F64, AT(optimizer.hyper.epsilon), .min = 1e-30, .max = 1,
  OPTIMIZERS(HAS_EPSILON),
  .doc = "Added to the divisor; default: 1e-8, for adagrad 1e-10, for lamb 1e-6." },
{ "/optimizer", "trust_coefficient", F64, AT(optimizer.hyper.trust_coefficient), ABOVE_MIN, .max = 1e6,
  .fallback = "0.001", OPTIMIZERS(HAS_TRUST),
  .doc = "The norm of an update is this share of the parameter's norm, times the learning rate." },
{ "/optimizer", "weight_decay", F64, AT(optimizer.hyper.weight_decay), .max = 1e6,
  .doc = "This share of the weight is added to its gradient; adamw, lamb, lion: subtracted from the weight "
         "itself, multiplied by the learning rate; default: 0.01 for adamw, else 0." },
{ "/optimizer", "groups", LIST, AT(groups), ALLOCATED, .hi = CONF_MAX_GROUPS,
  .count = AT(n_groups), .stride = sizeof(struct conf_group), .fallback = "[]",
  .doc = "Parameters with their own settings; the first group that matches a name applies." },
{ "/optimizer/groups", "*", OBJECT,
  .doc = "A group of parameters, and the settings that differ for them." },
{ "/optimizer/groups/*", "match", LIST, GROUP_AT(params.match), REQUIRED | ALLOCATED,
  .lo = 1, .hi = 1024,
  .count = GROUP_AT(params.n_match), .stride = sizeof(const char *),
  .doc = "Names of initializers, as patterns with *, ? and [...]." },
{ "/optimizer/groups/*/match", "*", STRING,
  .doc = "A pattern over initializer names." },
{ "/optimizer/groups/*", "learning_rate_factor", F64, GROUP_AT(params.rate_factor), .max = 1e6,
  .fallback = "1",
  .doc = "The factor of the learning rate." },
{ "/optimizer/groups/*", "weight_decay", F64, GROUP_AT(params.weight_decay), .max = 1e6,
  .doc = "Replaces optimizer.weight_decay, which is the default." },
{ "/optimizer/groups/*", "layer_adaptation", BOOL, GROUP_AT(params.adapts), .fallback = "true",
  .doc = "lars, lamb: whether steps are scaled with the norm of the parameter; often false for biases and "
         "normalisation." },
{ "/optimizer/groups/*", "lazy_rows", BOOL, GROUP_AT(params.lazy), .fallback = "false",
  .doc = "Embedding tables: a row that a step does not read keeps its weight and its optimizer state in this "
         "step. By default momentum, moments and decay change it in every step." },
{ "/optimizer/groups/*", "frozen", BOOL, GROUP_AT(frozen), .fallback = "false",
  .doc = "Whether the parameters are excluded from training, as by model.frozen; not allowed with other settings "
         "of the group." },
{ "/optimizer", "average", OBJECT, .fallback = "{}",
  .doc = "An exponential moving average of the weights, stored with them in every checkpoint." },
{ "/optimizer/average", "decay", F64, AT(optimizer.average.decay), BELOW_MAX, .max = 1,
  .fallback = "0",
  .doc = "The share of the average that is kept at each step, such as 0.999; 0: no average." },
{ "/optimizer/average", "evaluate", BOOL, AT(optimizer.average.evaluate), .fallback = "true",
  .doc = "Whether evaluation uses the average in place of the weights, if there is one." },
{ "/optimizer/average", "export", BOOL, AT(optimizer.average.exported), .fallback = "true",
  .doc = "Whether the export has the average in place of the weights, if there is one." },
{ "/optimizer", "schedule", OBJECT, .fallback = "{}",
  .doc = "The learning rate over the steps." },
{ "/optimizer/schedule", "type", ENUM, AT(optimizer.schedule.type), WORDS(schedules),
  .fallback = "constant",
  .doc = OPTIM_SCHEDULE_LIST_DOC },
{ "/optimizer/schedule", "warmup_steps", U64, AT(optimizer.schedule.warmup_steps),
  .hi = 1000000000000, .fallback = "0", SCHEDULES(HAS_WARMUP),
  .doc = "Steps in which the learning rate first rises linearly." },
{ "/optimizer/schedule", "step_size", U64, AT(optimizer.schedule.step_size), REQUIRED, .lo = 1,
  .hi = 1000000000000,
  SCHEDULES(HAS_STEP_SIZE),
  .doc = "Steps from one reduction to the next." },
{ "/optimizer/schedule", "gamma", F64, AT(optimizer.schedule.gamma), ABOVE_MIN, .max = 1,
  .fallback = "0.1",
  SCHEDULES(HAS_GAMMA),
  .doc = "The factor of each reduction." },
{ "/optimizer/schedule", "final_fraction", F64, AT(optimizer.schedule.final_fraction), .max = 1,
  .fallback = "0",
  SCHEDULES(HAS_FINAL),
  .doc = "The share of learning_rate at the last step, which is also its minimum." },
{ "/optimizer/schedule", "power", F64, AT(optimizer.schedule.power), ABOVE_MIN, .max = 100,
  .fallback = "1", SCHEDULES(HAS_POWER),
  .doc = "The exponent of the share of remaining steps; 1: linear." },
{ "/optimizer/schedule", "initial_fraction", F64, AT(optimizer.schedule.initial_fraction),
  .max = 1, .fallback = "0.04", SCHEDULES(HAS_CYCLE),
  .doc = "The share of learning_rate at the first step." },
{ "/optimizer/schedule", "rise_fraction", F64, AT(optimizer.schedule.rise),
  ABOVE_MIN | BELOW_MAX, .max = 1, .fallback = "0.3",
  SCHEDULES(HAS_CYCLE),
  .doc = "The share of all steps in which the rate rises." },
{ "/optimizer/schedule", "base_momentum", F64, AT(optimizer.schedule.base_momentum), BELOW_MAX,
  .max = 1, .fallback = "0", SCHEDULES(HAS_CYCLE),
  .doc = "The momentum (adam and similar optimizers: beta1) falls from the optimizer's value to this one while "
         "the rate rises, and rises again while the rate falls; 0: it is constant." },
{ "/optimizer/schedule", "patience", U32, AT(optimizer.schedule.patience), .hi = 1000000000,
  .fallback = "10", SCHEDULES(HAS_PATIENCE),
  .doc = "The number of evaluations in a row that may show no improvement; the next one reduces the rate." },
{ "/optimizer/schedule", "threshold", F64, AT(optimizer.schedule.threshold), BELOW_MAX, .max = 1,
  .fallback = "1e-4", SCHEDULES(HAS_PATIENCE),
  .doc = "An improvement is a loss that is below the best one by more than this share of it." },
{ "/optimizer", "scaling", OBJECT, .fallback = "{}",
  .doc = "Whether the learning rate depends on the batch size." },
{ "/optimizer/scaling", "rule", ENUM, AT(optimizer.scaling.rule), WORDS(scalings),
  .fallback = "none",
  .doc = "learning_rate is for reference_batch_size and grows with the global batch (linear) or "
         "with its square root (square_root)." },
{ "/optimizer/scaling", "reference_batch_size", U32, AT(optimizer.scaling.reference_batch_size),
  REQUIRED, .lo = 1, .hi = 16777216, .when = { "rule", BIT(OPTIM_SCALING_LINEAR) | BIT(OPTIM_SCALING_SQUARE_ROOT) },
  .doc = "The global batch size for which learning_rate is chosen." },
};
/* clang-format on */

const struct conf_key_table conf_keys_optimizer = { rows, COUNT_OF(rows) };
