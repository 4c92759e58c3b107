/* optim_list.h - one row for each optimizer, and one for each schedule.
 *
 * A new optimizer needs its row here, its kernels in lib/optim (CPU and CUDA) and a test. From the
 * row come the enumerator (opts/optim.h), the word in the job file, its defaults and the keys that
 * it uses (conf/job_keys_optimizer.c), and its place in the table of lib/optim/optim.c, which
 * expects a `struct optim_def` with the name optim_<word>. A schedule is a row here and a function
 * of that name in lib/optim/schedule.c. */
#ifndef OPTS_OPTIM_LIST_H
#define OPTS_OPTIM_LIST_H

/* Columns: defaults of the keys that differ between optimizers, and whether the other keys are
 * used. UNUSED: the optimizer does not use the key, and a job file that has it is refused. */
#define OPTIM_UNUSED (-1)

/* clang-format off */
#define OPTIM_LIST(ROW)                                                                            \
/*  enumerator word      momentum      beta2         epsilon       decay beta1 trust nesterov centered */ \
ROW(SGD,       sgd,      OPTIM_UNUSED, OPTIM_UNUSED, OPTIM_UNUSED, 0,    0,    0,    0,       0)      \
ROW(MOMENTUM,  momentum, 0.9,          OPTIM_UNUSED, OPTIM_UNUSED, 0,    0,    0,    1,       0)      \
ROW(ADAGRAD,   adagrad,  OPTIM_UNUSED, OPTIM_UNUSED, 1e-10,        0,    0,    0,    0,       0)      \
ROW(RMSPROP,   rmsprop,  0,            0.99,         1e-8,         0,    0,    0,    0,       1)      \
ROW(ADAM,      adam,     OPTIM_UNUSED, 0.999,        1e-8,         0,    1,    0,    0,       0)      \
ROW(ADAMW,     adamw,    OPTIM_UNUSED, 0.999,        1e-8,         0.01, 1,    0,    0,       0)      \
ROW(ADAMAX,    adamax,   OPTIM_UNUSED, 0.999,        1e-8,         0,    1,    0,    0,       0)      \
ROW(LARS,      lars,     0.9,          OPTIM_UNUSED, OPTIM_UNUSED, 0,    0,    1,    0,       0)      \
ROW(LAMB,      lamb,     OPTIM_UNUSED, 0.999,        1e-6,         0,    1,    0,    0,       0)      \
ROW(LION,      lion,     OPTIM_UNUSED, 0.99,         OPTIM_UNUSED, 0,    1,    0,    0,       0)

#define OPTIM_LIST_DOC                                                                             \
    "sgd, momentum (sgd with momentum), adagrad, rmsprop, adam, adamw (adam with decoupled "       \
    "weight decay), adamax, lars and lamb (steps in proportion to the norm of each parameter, "    \
    "for large batches), or lion."

/* Columns: whether the schedule uses the keys. step: step_size; cycle: initial_fraction,
 * rise_fraction and base_momentum; patience: patience and threshold. */
#define OPTIM_SCHEDULE_LIST(ROW)                                                                   \
/*  enumerator           word                 warmup step gamma final power cycle patience */      \
ROW(CONSTANT,            constant,            1,     0,   0,    0,    0,    0,    0)               \
ROW(STEP,                step,                1,     1,   1,    0,    0,    0,    0)               \
ROW(COSINE,              cosine,              1,     0,   0,    1,    0,    0,    0)               \
ROW(EXPONENTIAL,         exponential,         1,     1,   1,    0,    0,    0,    0)               \
ROW(POLYNOMIAL,          polynomial,          1,     0,   0,    1,    1,    0,    0)               \
ROW(ONE_CYCLE,           one_cycle,           0,     0,   0,    1,    0,    1,    0)               \
ROW(PLATEAU,             plateau,             1,     0,   1,    1,    0,    0,    1)               \
ROW(INVERSE_SQUARE_ROOT, inverse_square_root, 1,     0,   0,    0,    0,    0,    0)

#define OPTIM_SCHEDULE_LIST_DOC                                                                    \
    "constant; step: times gamma every step_size steps; exponential: the same without steps; "     \
    "cosine: half a cosine down to the last step; polynomial: a power of what is left; "           \
    "one_cycle: up and down again; plateau: times gamma when the evaluation loss stays; "          \
    "inverse_square_root: of the step."
/* clang-format on */

#endif
