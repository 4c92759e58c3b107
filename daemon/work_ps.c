/* work_ps.c - the work of a parameter server, which this build does not have yet: open() fails, and the
 * other functions are never called. */
#include "base/check.h"
#include "base/err.h"
#include "daemon/run_priv.h"
#include "daemon/work.h"

static int open_ps(struct run *r, void **out, struct err *err)
{
    (void)r;
    *out = NULL;
    return err_set(err, ERR_UNSUPPORTED,
                   "parameter servers are not supported by this build; remove /parameter_server from the job");
}

static void ps_opened(struct run *r)
{
    (void)r;
    CHECK(!"open_ps() never succeeds");
}

static int start_ps(void *work, const struct train_generation *g, train_end_fn *on_end,
                    struct err *err)
{
    (void)work, (void)g, (void)on_end;
    return err_set(err, ERR_UNSUPPORTED, "parameter servers are not supported by this build");
}

static void request_ps(void *work, unsigned kinds)
{
    (void)work, (void)kinds;
}

static void abort_ps(void *work, const char *why)
{
    (void)work, (void)why;
}

static uint64_t held_by_ps(const void *work)
{
    (void)work;
    return 0;
}

static void progress_of_ps(const void *work, struct train_progress *out)
{
    (void)work;
    *out = (struct train_progress){ .phase = "serve" };
}

static void close_ps(void *work)
{
    (void)work;
}

const struct work_ops work_ps = {
    .what = "the tables",
    .open = open_ps,
    .opened = ps_opened,
    .start = start_ps,
    .request = request_ps,
    .abort = abort_ps,
    .held = held_by_ps,
    .progress = progress_of_ps,
    .close = close_ps,
};
