/* ctl_preflight.c - `trainerctl preflight`: measures every pair of tasks before training. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cancel.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/text.h"
#include "daemon/args.h"
#include "daemon/ctl.h"
#include "daemon/preflight.h"
#include "daemon/settle.h"
#include "preflight/print.h"

enum { SECONDS = 60, SECONDS_MAX = 3600, GRADIENT_BYTES = 4 /* a float32 */ };

static const char usage[] =
    "usage: trainerctl preflight JOB [flags]\n"
    "\n"
    "Run it on every host at the same time, with the environment of trainerd, while no task runs: for the\n"
    "chief, the workers, and the ps tasks of a job with parameter_server. Each process opens model and data\n"
    "(not that of a ps), listens on the control and data port of its task, and measures every pair: both\n"
    "ports in both directions, round trip, bytes per second, packets of full size, clocks,\n"
    "names, storage (write, fsync, rename, lock), equal devices and versions. The first task prints a\n"
    "matrix and advice; each prints the verdict, which names the outlier and the remedy.\n";

struct command {
    struct settled_args settle;
    const char *seconds;
    bool json, help;
};

static void on_event(void *arg, const struct train_event *e)
{
    (void)arg;
    if (e->kind == TRAIN_WARN)
        fprintf(stderr, "trainerctl: warning: %s\n", e->text);
}

/* Times the opening of model and data. A failure is a fact that all tasks learn. */
static void open_model(const struct settled *s, struct preflight_facts *f)
{
    struct train_opts o = s->train;
    struct cancel cancel = { 0 };
    struct train_facts facts;
    struct train *t = NULL;
    uint64_t begin_ms = clock_ms();
    struct err err;

    o.checkpoint.directory = NULL; /* nothing is created or removed there */
    o.trace = o.sample_log = NULL;
    o.on_event = on_event;
    if (train_open(&o, &cancel, &t, &err) < 0) {
        snprintf(f->open_fault, sizeof(f->open_fault), "%s", err.text);
        return;
    }
    f->open_ms = clock_ms() - begin_ms + 1;
    train_facts(t, &facts);
    f->state_bytes = facts.state_bytes;
    f->gradient_bytes = GRADIENT_BYTES * facts.parameters;
    train_close(t);
}

/* The first task that has a row prints the matrix and the advice; the others the verdict. */
static int print(const struct preflight_task_list *tasks, const struct preflight_result *r,
                 uint32_t self, bool json)
{
    const struct preflight_table t = { .world = r->world, .tasks = tasks->at, .rows = r->rows };
    struct buf out = { 0 };
    uint32_t first = 0;
    bool ok;

    while (first < self && !r->rows[first].present)
        first++;
    if (json)
        print_json(&t, &r->findings, self, &out);
    if (!json && self == first)
        print_matrix(&t, &r->findings, &out);
    if (!json)
        print_verdict(&t, &r->findings, &out);
    if (!json && self == first)
        print_advice(&t, &r->findings, &out);
    ok = !out.failed && fwrite(out.data, 1, out.len, stdout) == out.len && fflush(stdout) == 0;
    buf_fini(&out);
    return ok && !r->has_fault ? CTL_OK : CTL_FAILED;
}

static int run(const struct command *c, uint32_t seconds)
{
    struct preflight_task_list tasks;
    struct preflight_opts o;
    struct preflight_result r;
    struct settled *s;
    struct err err;
    int rc = settle(&c->settle, &s, &err), code = CTL_USAGE;

    if (rc < 0) {
        fprintf(stderr, "trainerctl: %s\n", err.text);
        return ctl_exit_code(rc);
    }
    rc = preflight_tasks(s, &tasks, &err);
    if (rc == 0) {
        preflight_options(s, &tasks, &o);
        o.limit_ms = 1000 * seconds;
        if (!s->is_ps) /* a ps opens neither */
            open_model(s, &o.facts);
        rc = preflight_run(&o, &r, &err);
        if (rc == 0) {
            code = print(&tasks, &r, o.self, c->json);
            preflight_free(&r);
        }
        preflight_tasks_free(&tasks);
    }
    if (rc < 0) {
        fprintf(stderr, "trainerctl: %s\n", err.text);
        code = ctl_exit_code(rc);
    }
    settled_free(s);
    return code;
}

int ctl_preflight(int argc, char **argv)
{
    struct command c = { 0 };
    const struct arg table[] = {
        { "cluster", "FILE", "TRAINERD_CLUSTER", "as for trainerd", &c.settle.cluster, NULL },
        { "task", "TYPE:INDEX", "TRAINERD_TASK", "as for trainerd", &c.settle.task, NULL },
        { "devices", "SPEC", "TRAINERD_DEVICES", "as for trainerd", &c.settle.devices, NULL },
        { "profile", "NAME", "TRAINERD_PROFILE", "as for trainerd", &c.settle.profile, NULL },
        { "insecure", NULL, "TRAINERD_INSECURE", "as for trainerd", NULL, &c.settle.insecure },
        { "ignore-jobs", "A,B", "TRAINERD_IGNORE_JOBS", "as for trainerd", &c.settle.ignore_jobs, NULL },
        { "allow-same-address", NULL, "TRAINERD_ALLOW_SAME_ADDRESS", "as for trainerd", NULL, &c.settle.allow_same_address },
        { "bind", "WHAT", "TRAINERD_BIND", "as for trainerd", &c.settle.bind, NULL },
        { "seconds", "N", NULL, "limit of the measurement (default 60); half of it\nmay pass while tasks are missing",
          &c.seconds, NULL },
        { "json", NULL, NULL, "print JSON: every number, and the findings", NULL, &c.json },
        { "help", NULL, NULL, "print this, exit", NULL, &c.help },
    };
    uint64_t seconds = SECONDS;
    struct err err = { 0 };
    int rc = args_parse(table, COUNT_OF(table), &argc, argv, &err);

    if (rc == 0 && c.help) {
        fputs(usage, stdout);
        args_help(table, COUNT_OF(table), stdout);
        printf(
            "Exit code 0: no outlier; 1: an outlier, or a pair that does not work; 2: invalid input.\n");
        return CTL_OK;
    }
    if (rc == 0 && argc != 2)
        rc = err_set(&err, ERR_INPUT,
                     "expected one job file, found %d arguments; --help shows the usage", argc - 1);
    if (rc == 0 && c.seconds != NULL &&
        (!text_u64(c.seconds, SECONDS_MAX, &seconds) || seconds == 0))
        rc = err_set(&err, ERR_INPUT, "--seconds: expected a number from 1 to %d, found '%.40s'",
                     SECONDS_MAX, c.seconds);
    if (rc < 0) {
        fprintf(stderr, "trainerctl: preflight: %s\n", err.text);
        return CTL_USAGE;
    }
    c.settle.job = argv[1];
    return run(&c, (uint32_t)seconds);
}
