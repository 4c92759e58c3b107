/* open.h - the parts of train_open(), for a test that supplies its own model and engine. */
#ifndef TRAIN_OPEN_H
#define TRAIN_OPEN_H

struct engine_ops;
struct err;
struct train;
struct train_opts;

/* A task without model and engine; train_close() frees it. Errors: ERR_NOMEM. */
int train_new(const struct train_opts *opts, struct train **out, struct err *err);
/* With t->model filled in, and t->optim if the engine needs one: opens the engine, and fills the
 * state with the initial parameters. On failure train_close() frees the rest. */
int train_open_engine(struct train *t, const struct engine_ops *ops, struct err *err);

#endif
