/* trainerd.c - the main program: one task of a job. See README.md and --help. */
#include <assert.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/buf.h"
#include "base/cancel.h"
#include "base/check.h"
#include "base/err.h"
#include "base/log.h"
#include "base/log_sink.h"
#include "base/memory_room.h"
#include "base/process.h"
#include "base/text.h"
#include "conf/job_schema.h"
#include "daemon/args.h"
#include "daemon/build_commit.h"
#include "daemon/complete.h"
#include "daemon/exit_codes.h"
#include "daemon/launcher.h"
#include "daemon/own_name.h"
#include "daemon/preflight.h"
#include "daemon/restart.h"
#include "daemon/run.h"
#include "daemon/service.h"
#include "daemon/settle.h"
#include "daemon/stop_signals.h"
#include "op/op.h"

enum { EXIT_INPUT = 2, EXIT_RETRY = 138, EXIT_STOPPED = 143, PREFLIGHT_SECONDS_MAX = 3600 /* as of the key */ };

struct flags {
    struct settled_args settle;
    struct launcher launcher;
    const char *log_format, *log_level, *metrics, *metrics_hosts, *preflight, *usr_signals;
    bool check, schema, help, version, restart;
};

static int usage_error(const char *text)
{
    fprintf(stderr, "%strainerd: %s\n", log_sink_prefix(LOG_ERROR), text);
    return EXIT_INPUT;
}

static void print_help(const struct arg *table, size_t n)
{
    printf("trainerd " TRAINERD_VERSION " - one task of a synchronous data-parallel training job\n\n"
           "usage: trainerd --job FILE [flags]\n"
           "       trainerd --check [--job FILE] [flags]\n\n"
           "The cluster comes from TF_CONFIG in the environment, from --cluster or --hosts, from a Slurm step,\n"
           "from MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE as torchrun sets them. Without a cluster\n"
           "this process trains alone. A task of type evaluator follows the checkpoints of the job.\n\n");
    args_help(table, n, stdout);
    printf("\nsignals:     SIGTERM, SIGINT: save and end (a second one: at once); the other tasks continue or\n"
           "             wait, as \"elastic\" in the job says   SIGUSR1, SIGUSR2: save and end\n"
           "             SIGHUP: read the job file again\n"
           "environment: TF_CONFIG, TRAINERD_TOKEN (a secret that all tasks of the job share),\n"
           "             TRAINERD_TLS (a folder with tls.crt, tls.key, ca.crt)\n");
    exit_codes_help(stdout);
}

static int init_log(const struct flags *f, struct err *err)
{
    enum log_format format = LOG_TEXT;
    enum log_level level = LOG_INFO;

    if (f->log_format != NULL && strcmp(f->log_format, "json") == 0)
        format = LOG_JSON;
    else if (f->log_format != NULL && strcmp(f->log_format, "text") != 0)
        return err_set(err, ERR_INPUT, "--log-format: expected text or json, found '%.80s'",
                       f->log_format);
    if (f->log_level != NULL && !log_parse_level(f->log_level, &level))
        return err_set(err, ERR_INPUT,
                       "--log-level: expected debug, info, warn or error, found '%.80s'",
                       f->log_level);
    log_init(format, level);
    return 0;
}

static void quiet_event(void *arg, const struct train_event *e)
{
    (void)arg;
    if (e->kind == TRAIN_WARN)
        log_warn("warning", "%s", e->text);
}

/* Handles the stop signals while the job is read. Nothing has been started or written, so the
 * process ends immediately. Async-signal-safe. */
static void on_early_stop(int signum)
{
    static const char text[] = "trainerd: stopped before the job began\n";

    (void)signum;
    log_sink_write_final(text, sizeof(text) - 1);
    _exit(EXIT_STOPPED);
}

/* Blocks the stop and reload signals (`how` SIG_BLOCK) until run_task() registers its handlers, so
 * that a signal that arrives earlier is handled then. SIG_UNBLOCK restores the default action. */
static void hold_signals(int how)
{
    sigset_t later;

    sigemptyset(&later);
    stop_signals_add(&later);
    sigaddset(&later, SIGHUP);
    sigprocmask(how, &later, NULL);
}

/* --check: validates configuration, model and data, and prints the resolved plan; does not join the
 * group. The plan is also printed if a check fails. */
static int check(const struct settled *s)
{
    struct train_opts o = s->train;
    struct train *t = NULL;
    struct train_facts facts;
    struct buf out = { 0 };
    struct err err;
    struct cancel cancel = { 0 };
    int rc = 0;

    if (s->conf != NULL && settle_outputs_and_data(s, &err) < 0)
        return usage_error(err.text);
    if (s->conf != NULL && !s->is_ps) { /* a parameter server has neither data nor a plan */
        o.on_event = quiet_event;
        o.checkpoint.directory = NULL; /* --check must not create or remove files */
        o.trace = o.sample_log = NULL;
        rc = train_open(&o, &cancel, &t, &err);
        if (rc == 0)
            train_facts(t, &facts);
        train_close(t);
    }
    settled_print(s, s->conf != NULL && !s->is_ps && rc == 0 ? &facts : NULL,
                  rc < 0 ? err.text : NULL, &out);
    CHECK(!out.failed);
    fwrite(out.data, 1, out.len, stdout); /* process_close_output() reports a failure */
    fflush(stdout);                       /* before the error */
    if (rc < 0)
        rc = usage_error(err.text);
    buf_fini(&out);
    return rc;
}

static int print_schema(void)
{
    struct buf out = { 0 };

    conf_schema(&out);
    CHECK(!out.failed);
    fwrite(out.data, 1, out.len, stdout);
    buf_fini(&out);
    return 0;
}

static void log_plan(const struct settled *s)
{
    char name[32], tree[LANE_TREE_TEXT_BYTES];

    for (uint32_t i = 0; i < s->cluster->n_notes; i++)
        log_warn("cluster", "%s", s->cluster->notes[i]);
    if (settled_is_exposed(s) && s->security.tls == NULL)
        log_warn("tls", "control port %s: connections are neither encrypted nor authenticated",
                 s->listen);
    if (s->lanes.uneven[0] != '\0')
        log_warn("plan", "%s", s->lanes.uneven);
    if (s->ps_unused)
        log_warn(
            "plan",
            "/parameter_server: the cluster has no ps task: the tables are in the memory of the training tasks");
    if (s->over_quota[0] != '\0')
        log_warn("plan", "%s", s->over_quota);
    device_name(&s->devices[0], name, sizeof(name));
    if (s->is_ps) {
        log_info("plan", "trainerd " TRAINERD_VERSION ": job '%s', %s of %u training tasks and %u ps tasks (cluster from "
                         "%s), %u service thread%s (%s)", s->conf->name, s->task_name, s->cluster->world,
                 s->cluster->n_ps, s->cluster->source, s->n_servers, s->n_servers == 1 ? "" : "s", s->devices_from);
        return;
    }
    log_info("plan", "trainerd " TRAINERD_VERSION ": job '%s', %s of %u (cluster from %s), %u device%s from %s (%s), "
                     "%u lanes%s%s (%s), global batch %u, kernels %s",
             s->conf->name, s->task_name, s->cluster->world, s->cluster->source, s->n_devices,
             s->n_devices == 1 ? "" : "s", name, s->devices_from, s->lanes.n,
             s->lanes.tree.n_blocks > 0 ? " as " : "",
             s->lanes.tree.n_blocks > 0 ? lane_tree_text(&s->lanes.tree, s->lanes.n, tree) : "",
             s->lanes.from,
             s->lanes.global_batch, s->kernels);
}

/* Progress callback while a large checkpoint is verified. The loop does not run yet, so this
 * function notifies the service manager and ends the process if a stop signal is pending. */
static void on_verify_progress(void *arg, uint64_t done, uint64_t all)
{
    static const char text[] = "stopped while the last checkpoint was verified";

    (void)arg, (void)done, (void)all;
    service_watchdog(true);
    if (!stop_signals_are_pending())
        return;
    log_info("end", "exit %d: %s", EXIT_STOPPED, text);
    service_end(EXIT_STOPPED, text);
    exit(EXIT_STOPPED);
}

/* Ends a task of a complete job without joining the group: the other tasks may no longer exist. */
static int end_complete(const char *text)
{
    log_info("end", "%s", text);
    service_end(0, text);
    return 0;
}

/* Reports an error, or a stop signal (ERR_CANCELED), before anything was started. Takes ownership of `s`; returns the exit code. */
static int end_early(struct settled *s, int rc, const struct err *err)
{
    int code = rc == ERR_CANCELED ? EXIT_STOPPED : run_exit_code(rc);

    log_record(rc == ERR_CANCELED ? LOG_INFO : LOG_ERROR, "end", NULL, 0, "exit %d: %s", code,
               err->text);
    service_end(code, err->text);
    settled_free(s);
    return code;
}

/* --restart: only for a process without a cluster. */
static int restart(const struct settled *s, struct err *err)
{
    char text[8400];
    int rc;

    if (!s->cluster->is_local)
        return err_set(err, ERR_INPUT, "--restart: %s is a task of a group, and each task would decide separately; "
                                       "run `trainerctl restart JOB` once before the tasks start", s->task_name);
    rc = restart_set_aside(s->conf, text, sizeof(text), err);
    if (rc == 0)
        log_info("restart", "%s", text);
    return rc;
}

/* The flag has priority over the key of the job. */
static int read_preflight(const struct flags *f, const struct conf *conf, double *out,
                          struct err *err)
{
    uint64_t seconds;

    *out = conf != NULL ? conf->preflight_seconds : 0;
    if (f->preflight == NULL)
        return 0;
    if (!text_u64(f->preflight, PREFLIGHT_SECONDS_MAX, &seconds))
        return err_set(err, ERR_INPUT, "--preflight: expected seconds from 0 to %d, found '%.40s'",
                       PREFLIGHT_SECONDS_MAX, f->preflight);
    *out = (double)seconds;
    return 0;
}

static int run(const struct flags *f)
{
    struct settled *s = NULL;
    double preflight_seconds = 0;
    struct err err;
    int rc = settle(&f->settle, &s, &err);

    if (rc == 0)
        rc = read_preflight(f, s->conf, &preflight_seconds, &err);
    if (rc < 0) {
        settled_free(s);
        if (f->log_format != NULL && strcmp(f->log_format, "json") == 0)
            log_error("configuration", "%s", err.text);
        else
            usage_error(err.text);
        return run_exit_code(rc);
    }
    hold_signals(SIG_BLOCK);
    signal(SIGHUP, SIG_DFL);
    stop_signals_handle(SIG_DFL);
    log_set_task(s->task_name);
    if (f->log_level == NULL && s->conf != NULL)
        log_set_level(s->conf->log.level);
    if (s->cluster->self->rank == CLUSTER_NO_RANK && !settled_is_evaluator(s) &&
        (s->conf != NULL || s->cluster->self->type == CLUSTER_PS)) {
        char text[256];

        snprintf(text, sizeof(text), "%s has no part in synchronous data-parallel training: start trainerd "
                                     "only for chief, worker and evaluator tasks, or give the job the section "
                                     "\"parameter_server\"", s->task_name);
        rc = usage_error(text);
    } else if (f->check) {
        hold_signals(SIG_UNBLOCK);
        rc = check(s);
    } else if (s->conf == NULL) {
        rc = usage_error("--job FILE is needed (or --check to look at the cluster alone)");
    } else {
        char text[8400];
        struct run_opts o = { .settled = s, .metrics_listen = f->metrics, .metrics_hosts = f->metrics_hosts, .launcher = &f->launcher,
                              .level_is_given = f->log_level != NULL };

        log_plan(s);
        if (f->restart) {
            rc = restart(s, &err);
            if (rc < 0)
                return end_early(s, rc, &err);
        }
        if (!settled_is_evaluator(s) &&
            complete_already(s->conf, on_verify_progress, text, sizeof(text))) {
            rc = s->is_ps ? 0 : complete_check_model(&s->train, &err);
            if (rc < 0)
                return end_early(s, rc, &err);
            rc = end_complete(text);
        } else {
            rc = own_name_wait(s, &err);
            if (rc < 0)
                return end_early(s, rc, &err);
            if (preflight_seconds > 0 && !settled_is_evaluator(s))
                preflight_before_start(s, preflight_seconds);
            rc = run_task(&o);
        }
    }
    settled_free(s);
    return rc;
}

/* Called before any thread starts. */
static int prepare_process(struct err *err)
{
    struct rlimit files;
    int rc = memory_room_prepare(EXIT_RETRY, err);

    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a write beyond the limit fails with EFBIG */
    signal(SIGHUP, SIG_IGN);
    stop_signals_handle(on_early_stop);
    /* gRPC must resolve names as the host does (/etc/hosts, NSS), not with c-ares. */
    setenv("GRPC_DNS_RESOLVER", "native", 0);
    /* The coordinator of a large group needs at least one connection for each task. */
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files); /* on failure the size of the group is limited */
    }
    return rc;
}

/* Warns of each variable TRAINERD_... that has no effect, such as one with a misspelled name. */
static void warn_unread(const struct arg *table, size_t n)
{
    static const char *const others[] = { "TRAINERD_TOKEN", "TRAINERD_TLS", "TRAINERD_LOCATION",
                                          "TRAINERD_FAULT" };
    char text[ARGS_UNREAD_BYTES];
    size_t at = 0;

    while (args_next_unread(table, n, others, COUNT_OF(others), &at, text))
        log_warn("configuration", "%s", text);
}

static int run_flags(int argc, char **argv)
{
    struct flags f = { 0 };
    const struct arg table[] = {
        { "job", "FILE", "TRAINERD_JOB", "the job file (JSON; keys: --schema)", &f.settle.job, NULL },
        { "cluster", "FILE", "TRAINERD_CLUSTER",
          "cluster and task as in TF_CONFIG, from a file; \"slurm\": from\nthe variables of a Slurm step; \"none\": alone, also where a\n"
          "launcher starts several tasks",
          &f.settle.cluster, NULL },
        { "hosts", "HOST,HOST", "TRAINERD_HOSTS",
          "instead of TF_CONFIG: HOST or HOST:PORT of worker 0, 1, ...;\nthe index comes from the launcher or --task",
          &f.settle.hosts, NULL },
        { "port", "N", "TRAINERD_PORT",
          "control port of the first task of a host, where --hosts, Slurm\nor mpirun name the hosts (default 8888); the next task: N + 1",
          &f.settle.port, NULL },
        { "task", "TYPE:INDEX", "TRAINERD_TASK", "which task this is, whatever the cluster text says",
          &f.settle.task, NULL },
        { "devices", "SPEC", "TRAINERD_DEVICES",
          "auto, cpu (a replica per core), cpu:N, cuda, cuda:0,2\n(auto: GPUs if there are, else every core; a processor quota\nlimits auto and cpu); of a ps task cpu:N,\nN service threads (auto: 1)",
          &f.settle.devices, NULL },
        { "pin", "WHAT", "TRAINERD_PIN",
          "pin CPU replicas to cores: auto (default; if they are as many as\nthe cores that this process may use), on (tasks of one host in\n"
          "the order of the cluster, one after another), off",
          &f.settle.pin, NULL },
        { "profile", "NAME", "TRAINERD_PROFILE",
          "strict: refuse a doubtful cluster (default);\ntf: accept what TensorFlow accepts",
          &f.settle.profile, NULL },
        { "require-cluster", NULL, "TRAINERD_REQUIRE_CLUSTER", "no cluster is an error, not local mode", NULL,
          &f.settle.require_cluster },
        { "insecure", NULL, "TRAINERD_INSECURE",
          "clear text between hosts, without a token or certificates", NULL, &f.settle.insecure },
        { "ignore-jobs", "A,B", "TRAINERD_IGNORE_JOBS", "job names of the cluster to skip", &f.settle.ignore_jobs,
          NULL },
        { "allow-same-address", NULL, "TRAINERD_ALLOW_SAME_ADDRESS", "several tasks may name one address", NULL,
          &f.settle.allow_same_address },
        { "bind", "WHAT", "TRAINERD_BIND",
          "named: listen on this task's own address (default);\nany: on every interface, same port",
          &f.settle.bind, NULL },
        { "metrics", "[HOST:]PORT", "TRAINERD_METRICS",
          "serve the status page at http://HOST:PORT/, its data at\n/api/v1/ and Prometheus metrics at /metrics, read-only\n"
          "(HOST: default 127.0.0.1, this machine alone)",
          &f.metrics, NULL },
        { "metrics-hosts", "NAME,NAME", "TRAINERD_METRICS_HOSTS",
          "names that a browser may use for the status page beside\naddresses, localhost, this host and the hosts of the cluster;\n"
          "*.example.com: every name below it, *: every name",
          &f.metrics_hosts, NULL },
        { "trace", "FILE", "TRAINERD_TRACE",
          "write a few steps of this process as a time line (Chrome\ntrace JSON: Perfetto opens it) and log where their time\n"
          "went; with several tasks .TYPE-INDEX goes into the name:\nstep.json becomes step.worker-1.json",
          &f.settle.trace, NULL },
        { "trace-steps", "N", "TRAINERD_TRACE_STEPS", "how many steps (default 5), after three to warm up",
          &f.settle.trace_steps, NULL },
        { "sample-log", "FILE", "TRAINERD_SAMPLE_LOG",
          "append which samples went into which step: \"give GROUP STEP\nLANE SAMPLE...\" before the gradient of the lane is added to\n"
          "the others, \"done GROUP STEP TIME\" when the step is agreed;\nwith several tasks FILE gets .TYPE-INDEX as with --trace",
          &f.settle.sample_log, NULL },
        { "preflight", "SECONDS", "TRAINERD_PREFLIGHT",
          "measure every pair of tasks before training, for at most SECONDS,\nand log the matrix; has priority over preflight_seconds",
          &f.preflight, NULL },
        { "restart", NULL, NULL,
          "train a complete job again: its checkpoints are renamed, not\nremoved; an incomplete job continues",
          NULL, &f.restart },
        { "check", NULL, NULL, "validate everything, print the resolved plan as JSON, exit", NULL, &f.check },
        { "schema", NULL, NULL, "print the JSON Schema of the job file, exit", NULL, &f.schema },
        { "log-format", "FORMAT", "TRAINERD_LOG_FORMAT", "text (default) or json: one object per line",
          &f.log_format, NULL },
        { "log-level", "LEVEL", "TRAINERD_LOG_LEVEL", "debug, info, warn, error; has priority over log.level",
          &f.log_level, NULL },
        { "usr-signals", "WORD", "TRAINERD_USR_SIGNALS",
          "SIGUSR1 and SIGUSR2, with which Slurm and Grid Engine announce\nthe end of their time limit: stop (save and end; default), ignore",
          &f.usr_signals, NULL },
        { "version", NULL, NULL, "print version, commit and kernel library, exit", NULL, &f.version },
        { "help", NULL, NULL, "print this, exit", NULL, &f.help },
    };
    struct err err;

    launcher_find(&f.launcher);
    if (prepare_process(&err) < 0 || args_parse(table, COUNT_OF(table), &argc, argv, &err) < 0)
        return usage_error(err.text);
    if (f.help) {
        print_help(table, COUNT_OF(table));
        return 0;
    }
    if (f.version) {
        printf("trainerd " TRAINERD_VERSION " (%s%s%s)\n", build_commit,
               build_commit[0] != '\0' ? ", " : "", op_kernel_id());
        return 0;
    }
    if (f.schema)
        return print_schema();
    if (argc > 1) {
        err_set(&err, ERR_INPUT, "unexpected argument '%.80s'; --help lists the flags", argv[1]);
        return usage_error(err.text);
    }
    if (init_log(&f, &err) < 0 || stop_signals_select(f.usr_signals, &err) < 0)
        return usage_error(err.text);
    warn_unread(table, COUNT_OF(table));
    return run(&f);
}

int main(int argc, char **argv)
{
    process_open_standard_files();
    return process_close_output("trainerd", run_flags(argc, argv), EXIT_INPUT);
}
