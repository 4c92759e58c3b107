/* ctl_local.c - `trainerctl local`: runs a cluster on this machine. Starts the tasks, prefixes
 * their logs, restarts tasks that fail, and stops all tasks if one cannot continue. One thread runs
 * the tasks; a second one draws the progress line. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/errno_text.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/process.h"
#include "base/rng.h"
#include "base/text.h"
#include "daemon/args.h"
#include "daemon/ctl.h"
#include "conf/job.h"
#include "daemon/ctl_status.h"
#include "daemon/local_token.h"
#include "daemon/security.h"
#include "device/device.h"
#include "rdzv/rdzv.h"

extern char **environ;

enum {
    MAX_TASKS = 256,
    DOUBLED_MS = 1000, /* stop signals within this time count as one, as in run.c */
    LINE_BYTES = 16384,
    /* before a restart; doubles up to MAX_PAUSE_MS while a task lives less than YOUNG_MS */
    FIRST_PAUSE_MS = 200,
    MAX_PAUSE_MS = 5000,
    YOUNG_MS = 10000,
    STOP_MS = 20000,      /* from SIGTERM to SIGKILL */
    POLL_MS = 250,
    PORT_FIRST = 12000,
    PORT_LAST = 30000,
    PORT_TRIES = 1000,
    EXIT_RETRY = 138,
    EXIT_STOPPED = 143,
};

struct task {
    const char *type; /* "worker" or "ps" */
    uint32_t at;      /* in local.tasks */
    uint32_t index;   /* among the tasks of its type */
    uint16_t port;
    pid_t pid;      /* 0: not running */
    int out;        /* read end of the pipe for its stdout and stderr; -1: closed */
    bool done;      /* ended and not to be restarted */
    int code;       /* exit code of the last process, 128 + signal number if a signal ended it */
    uint64_t started_ms, restart_ms, pause_ms;
    uint32_t restarts;
    char line[LINE_BYTES]; /* start of a log line whose newline has not arrived */
    size_t n_line;
};

struct local {
    const char *job, *devices, *log_format, *metrics;
    char trainerd[4096];
    /* each task runs on its own share of `cores` and detects its devices there */
    bool shares_cores;
    cpu_set_t cores;
    uint32_t n, n_ps; /* all tasks; ps tasks, which follow the workers */
    struct task tasks[MAX_TASKS];
    uint32_t max_restarts;
    int signals;       /* signalfd */
    uint64_t signal_ms; /* of the last stop signal that counted (clock_ms()); 0: none */
    bool stopping;
    uint64_t kill_ms;  /* time of SIGKILL (clock_ms()), valid while stopping */
    int code;          /* exit code of the command */
    pthread_t display;
    bool has_display;
    int display_stop[2]; /* closing the write end ends the display thread */
    bool insecure;
    struct local_token token; /* fd -1: none */
};

/* ---- starting ---- */

/* Finds a port below the range of ephemeral ports. An outgoing connection could occupy an ephemeral
 * port while a task is restarted. */
static int free_port(const struct task *tasks, uint32_t n, uint16_t *port, struct err *err)
{
    for (int tries = 0; tries < PORT_TRIES; tries++) {
        struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        bool taken = false;
        uint16_t random;
        int fd, rc;

        if (rng_os(&random, sizeof(random)) < 0)
            break;
        *port = (uint16_t)(PORT_FIRST + random % (PORT_LAST - PORT_FIRST));
        for (uint32_t i = 0; i < n; i++)
            taken |= tasks[i].port == *port;
        if (taken)
            continue;
        a.sin_port = htons(*port);
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
            return err_sys(err, errno, "find a free port");
        rc = bind(fd, (struct sockaddr *)&a, sizeof(a));
        close(fd);
        if (rc == 0)
            return 0;
    }
    return err_set(err, ERR_IO, "no free port between %d and %d on 127.0.0.1", PORT_FIRST,
                   PORT_LAST);
}

static char *tf_config(const struct local *l, const struct task *t)
{
    struct buf b = { 0 };

    buf_str(&b, "TF_CONFIG={\"cluster\": {\"worker\": [");
    for (uint32_t i = 0; i < l->n; i++) {
        if (i == l->n - l->n_ps)
            buf_str(&b, "], \"ps\": [");
        buf_printf(&b, "%s\"127.0.0.1:%u\"", l->tasks[i].index > 0 ? ", " : "", l->tasks[i].port);
    }
    buf_printf(&b, "]}, \"task\": {\"type\": \"%s\", \"index\": %u}}", t->type, t->index);
    return buf_detach(&b);
}

/* Returns the caller's environment with a TF_CONFIG for this cluster and without the variables that
 * would contradict it. The caller frees the array and its last string. */
static char **environment_for(const struct local *l, const struct task *t)
{
    static const char *const dropped[] = { "TF_CONFIG=", "TRAINERD_CLUSTER=", "TRAINERD_HOSTS=", "TRAINERD_TASK=", "TRAINERD_METRICS=",
                                           "NOTIFY_SOCKET=" };
    size_t n = 0, kept = 0;
    char **env;

    while (environ[n] != NULL)
        n++;
    env = calloc(n + 2, sizeof(*env));
    CHECK(env != NULL);
    for (size_t i = 0; i < n; i++) {
        bool drop = false;

        for (size_t k = 0; k < COUNT_OF(dropped); k++)
            drop |= text_starts(environ[i], dropped[k]);
        if (!drop)
            env[kept++] = environ[i];
    }
    env[kept] = tf_config(l, t);
    CHECK(env[kept] != NULL);
    return env;
}

/* Returns the cores of a task: an equal share, or one core, assigned round-robin, if there are more
 * tasks than cores. */
static cpu_set_t share_of(const struct local *l, uint32_t index)
{
    uint32_t n = (uint32_t)CPU_COUNT(&l->cores), seen = 0;
    uint32_t first = n >= l->n ? n * index / l->n : index % n;
    uint32_t last = n >= l->n ? n * (index + 1) / l->n : first + 1;
    cpu_set_t set;

    CPU_ZERO(&set);
    for (int core = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, &l->cores))
            continue;
        if (seen >= first && seen < last)
            CPU_SET(core, &set);
        seen++;
    }
    return set;
}

/* Starts the process. A child inherits the affinity of the thread that spawns it, so that affinity
 * is changed for the duration of the call. */
static int spawn(const struct local *l, struct task *t, const posix_spawn_file_actions_t *acts,
                 const posix_spawnattr_t *attr, char **argv, char **env)
{
    cpu_set_t share;
    int rc;

    if (l->shares_cores) {
        share = share_of(l, t->at);
        /* on failure the task uses all cores, which is only slower */
        (void)sched_setaffinity(0, sizeof(share), &share);
    }
    rc = posix_spawn(&t->pid, l->trainerd, acts, attr, argv, env);
    if (l->shares_cores)
        (void)sched_setaffinity(0, sizeof(l->cores), &l->cores);
    return rc;
}

static void start(struct local *l, struct task *t)
{
    char metrics[64];
    /* the devices are those of the workers */
    const char *devices = strcmp(t->type, "ps") == 0 ? "auto" : l->devices;
    char *argv[12] = { l->trainerd, (char *)"--job", (char *)l->job, (char *)"--devices",
                       (char *)devices, (char *)"--log-format", (char *)l->log_format };
    char **env;
    posix_spawn_file_actions_t acts;
    posix_spawnattr_t attr;
    sigset_t none;
    int pipes[2], rc;
    size_t last = 0;

    if (l->metrics != NULL) {
        snprintf(metrics, sizeof(metrics), "127.0.0.1:%u",
                 (unsigned)(atoi(l->metrics) + (int)t->at));
        argv[7] = (char *)"--metrics";
        argv[8] = metrics;
    }
    if (pipe2(pipes, O_CLOEXEC) != 0) {
        log_error("spawn", "pipe for the log of %s %u: %s", t->type, t->index, errno_text(errno));
        t->done = true;
        t->code = l->code = CTL_USAGE;
        return;
    }
    env = environment_for(l, t);
    posix_spawn_file_actions_init(&acts);
    posix_spawn_file_actions_adddup2(&acts, pipes[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&acts, pipes[1], STDERR_FILENO);
    posix_spawnattr_init(&attr);
    sigemptyset(&none);
    posix_spawnattr_setsigmask(&attr, &none);
    /* the terminal sends Ctrl-C only to this process, which signals the tasks */
    posix_spawnattr_setpgroup(&attr, 0);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
    t->started_ms = clock_ms();
    t->n_line = 0;
    rc = spawn(l, t, &acts, &attr, argv, env);
    if (rc != 0) {
        log_error("spawn", "cannot start %s: %s", l->trainerd, errno_text(rc));
        t->pid = 0;
        t->done = true;
        t->code = l->code = CTL_USAGE;
        close(pipes[0]);
    } else {
        t->out = pipes[0];
        fcntl(t->out, F_SETFL, O_NONBLOCK);
    }
    close(pipes[1]);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&acts);
    while (env[last + 1] != NULL)
        last++;
    free(env[last]); /* TF_CONFIG; environ owns the other strings */
    free(env);
}

/* ---- running ---- */

/* Prints a line of a task with its name, which a line of the log has after time and level:
 * "2026-01-02T03:04:05.678Z INFO  worker 0: text" becomes "worker 0 | 2026-01-02T03:04:05.678Z INFO  text", on a terminal
 * "worker 0 | 03:04:05 INFO  text". A JSON record already contains the name. */
static void print_line(struct task *t)
{
    enum { DATE_BYTES = 11, CLOCK_BYTES = 8, TIME_BYTES = 24, HEAD_BYTES = 40 /* time, level and blanks */ };
    char line[LINE_BYTES + 32], prefix[32] = "", name[32];
    size_t head = t->n_line < HEAD_BYTES ? t->n_line : HEAD_BYTES, n_name, from = 0,
           n_time = TIME_BYTES;
    const char *at;
    int n;

    if (t->line[0] != '{')
        snprintf(prefix, sizeof(prefix), "%s %u | ", t->type, t->index);
    n_name = (size_t)snprintf(name, sizeof(name), " %s %u: ", t->type, t->index);
    at = head > TIME_BYTES
             ? memmem(t->line, t->n_line < head + n_name ? t->n_line : head + n_name, name, n_name)
             : NULL;
    if (at != NULL && t->line[TIME_BYTES - 1] == 'Z') {
        if (isatty(STDERR_FILENO)) {
            from = DATE_BYTES;
            n_time = CLOCK_BYTES;
        }
        head = (size_t)(at - t->line) + 1;
        n = snprintf(line, sizeof(line), "%s%.*s%.*s%.*s\n", prefix, (int)n_time, t->line + from,
                     (int)(head - TIME_BYTES), t->line + TIME_BYTES,
                     (int)(t->n_line - head - n_name + 1), t->line + head + n_name - 1);
    } else {
        n = snprintf(line, sizeof(line), "%s%.*s\n", prefix, (int)t->n_line, t->line);
    }
    log_raw(line, (size_t)n);
    t->n_line = 0;
}

static void drain(struct task *t)
{
    char bytes[8192];
    ssize_t n;

    while ((n = read(t->out, bytes, sizeof(bytes))) > 0)
        for (ssize_t i = 0; i < n; i++) {
            if (bytes[i] == '\n' || t->n_line == LINE_BYTES)
                print_line(t);
            if (bytes[i] != '\n')
                t->line[t->n_line++] = bytes[i];
        }
    if (n == 0) {
        if (t->n_line > 0)
            print_line(t);
        close(t->out);
        t->out = -1;
    }
}

static void stop_all(struct local *l, int signum)
{
    if (!l->stopping)
        l->kill_ms = clock_ms() + STOP_MS;
    l->stopping = true;
    for (uint32_t i = 0; i < l->n; i++)
        if (l->tasks[i].pid > 0)
            kill(l->tasks[i].pid, signum);
        else
            l->tasks[i].done = true; /* cancel a pending restart */
}

static void ended(struct local *l, struct task *t, int status)
{
    uint64_t lived = clock_ms() - t->started_ms;
    char how[64];

    t->pid = 0;
    t->code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (WIFEXITED(status))
        snprintf(how, sizeof(how), "exit code %d", t->code);
    else
        snprintf(how, sizeof(how), "signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    if (t->code == 0 || l->stopping || (WIFEXITED(status) && t->code == EXIT_STOPPED)) {
        t->done = true;
        if (t->code != 0)
            log_info("task_ended", "%s %u ended: %s", t->type, t->index, how);
    } else if ((WIFEXITED(status) && t->code < 128) || t->restarts >= l->max_restarts) {
        t->done = true;
        l->code = t->code;
        log_error("task_failed", "%s %u ended: %s; %s", t->type, t->index, how,
                  t->code < 128 ? "a restart cannot help, ending the others"
                                : "restarted too often, ending the others");
        stop_all(l, SIGTERM);
    } else {
        t->pause_ms = t->pause_ms == 0 || lived >= YOUNG_MS ? FIRST_PAUSE_MS : t->pause_ms * 2;
        if (t->pause_ms > MAX_PAUSE_MS)
            t->pause_ms = MAX_PAUSE_MS;
        t->restart_ms = clock_ms() + t->pause_ms;
        t->restarts++;
        log_warn("task_restart", "%s %u ended: %s; restarting it in %.1f s", t->type, t->index, how,
                 (double)t->pause_ms / 1e3);
    }
}

static void reap(struct local *l)
{
    for (uint32_t i = 0; i < l->n; i++) {
        struct task *t = &l->tasks[i];
        int status;

        if (t->pid > 0 && waitpid(t->pid, &status, WNOHANG) == t->pid) {
            if (t->out >= 0)
                drain(t);
            ended(l, t, status);
        }
    }
}

static void on_signal(struct local *l)
{
    struct signalfd_siginfo info;

    while (read(l->signals, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        if (info.ssi_signo == SIGCHLD)
            continue; /* wait_once() calls reap() after every wake-up */
        if ((info.ssi_signo == SIGUSR1 || info.ssi_signo == SIGUSR2) && l->stopping)
            continue; /* they announce the end of a time limit, and never count as the second signal */
        if (l->signal_ms > 0 && clock_ms() - l->signal_ms < DOUBLED_MS)
            continue; /* timeout(1) signals the process and its group */
        l->signal_ms = clock_ms();
        if (l->stopping) {
            log_warn("stop", "second signal: killing the tasks");
            stop_all(l, SIGKILL);
        } else {
            log_info("stop",
                     "stopping: every task saves and ends (a second signal kills the tasks)");
            l->code = EXIT_STOPPED;
            stop_all(l, SIGTERM);
        }
    }
}

static bool all_done(const struct local *l)
{
    for (uint32_t i = 0; i < l->n; i++)
        if (!l->tasks[i].done || l->tasks[i].out >= 0)
            return false;
    return true;
}

static void wait_once(struct local *l)
{
    struct pollfd fds[MAX_TASKS + 1];
    struct task *owners[MAX_TASKS + 1];
    nfds_t n = 1;
    uint64_t now;

    fds[0] = (struct pollfd){ .fd = l->signals, .events = POLLIN };
    for (uint32_t i = 0; i < l->n; i++)
        if (l->tasks[i].out >= 0) {
            owners[n] = &l->tasks[i];
            fds[n++] = (struct pollfd){ .fd = l->tasks[i].out, .events = POLLIN };
        }
    (void)poll(fds, n, 100); /* after a timeout or EINTR nothing is readable */
    for (nfds_t i = 1; i < n; i++)
        if (fds[i].revents != 0)
            drain(owners[i]);
    if (fds[0].revents != 0)
        on_signal(l);
    reap(l);
    now = clock_ms();
    for (uint32_t i = 0; i < l->n; i++)
        if (l->tasks[i].pid == 0 && !l->tasks[i].done && now >= l->tasks[i].restart_ms)
            start(l, &l->tasks[i]);
    if (l->stopping && now > l->kill_ms) {
        log_warn("stop", "some tasks did not end within %d s: killing them", STOP_MS / 1000);
        l->kill_ms = UINT64_MAX;
        stop_all(l, SIGKILL);
    }
}

/* ---- one progress line: the status of the group as the first task reports it ---- */

static void *display(void *arg)
{
    struct local *l = arg;
    char address[32];
    struct pollfd stop = { .fd = l->display_stop[0], .events = POLLIN };
    struct security security;

    if (security_open(&(struct security_opts){ .host = NULL }, &security, NULL) < 0)
        return NULL; /* the tasks report the reason */
    snprintf(address, sizeof(address), "127.0.0.1:%u", l->tasks[0].port);
    while (poll(&stop, 1, POLL_MS) == 0) {
        Trainerd__V1__StatusReply *s;
        struct buf line = { 0 };
        void *reply;
        size_t n;

        if (rdzv_call(address, security.tls, NULL, "Status", POLL_MS, &reply, &n, NULL) < 0)
            continue; /* the task is starting or restarting */
        s = trainerd__v1__status_reply__unpack(NULL, n, reply);
        free(reply);
        if (s == NULL)
            continue;
        ctl_status_line(s, &line);
        trainerd__v1__status_reply__free_unpacked(s, NULL);
        if (!line.failed)
            log_progress(line.data);
        buf_fini(&line);
    }
    security_close(&security);
    log_progress(NULL);
    return NULL;
}

static void start_display(struct local *l)
{
    if (!log_progress_wanted() || pipe2(l->display_stop, O_CLOEXEC) != 0)
        return;
    l->has_display = pthread_create(&l->display, NULL, display, l) == 0;
}

static void stop_display(struct local *l)
{
    if (!l->has_display)
        return;
    close(l->display_stop[1]);
    pthread_join(l->display, NULL);
    close(l->display_stop[0]);
}

/* ---- the command ---- */

static int find_trainerd(struct local *l, struct err *err)
{
    static const char name[] = "/trainerd";

    if (!process_folder(l->trainerd, sizeof(l->trainerd) - sizeof(name)))
        return err_sys(err, errno, "find the folder of trainerctl");
    strcat(l->trainerd, name);
    if (access(l->trainerd, X_OK) != 0)
        return err_sys(err, errno, "trainerd is expected beside trainerctl: %s", l->trainerd);
    return 0;
}

static int prepare(struct local *l, const char *n, const char *n_ps, const char *restarts,
                   struct err *err)
{
    uint64_t v = 2;
    sigset_t set;
    int rc = 0;

    if (n != NULL && (!text_u64(n, MAX_TASKS, &v) || v == 0))
        return err_set(err, ERR_INPUT, "-n: expected 1 to %d tasks, found '%.40s'", MAX_TASKS, n);
    l->n = (uint32_t)v;
    v = 0;
    if (n_ps != NULL && !text_u64(n_ps, MAX_TASKS - l->n, &v))
        return err_set(err, ERR_INPUT,
                       "--ps: expected 0 to %u ps tasks beside %u workers, found '%.40s'",
                       MAX_TASKS - l->n, l->n, n_ps);
    l->n_ps = (uint32_t)v;
    l->n += l->n_ps;
    v = 100;
    if (restarts != NULL && !text_u64(restarts, UINT32_MAX, &v))
        return err_set(err, ERR_INPUT, "--restarts: expected a number, found '%.40s'", restarts);
    l->max_restarts = (uint32_t)v;
    v = 0;
    if (l->metrics != NULL && (!text_u64(l->metrics, 65535 - MAX_TASKS, &v) || v == 0))
        return err_set(err, ERR_INPUT,
                       "--metrics: expected the port of the first task, found '%.40s'", l->metrics);
    if (l->devices == NULL) {
        l->devices = "auto";
        l->shares_cores = sched_getaffinity(0, sizeof(l->cores), &l->cores) == 0;
    }
    rc = find_trainerd(l, err);
    for (uint32_t i = 0; rc == 0 && i < l->n; i++) {
        bool is_ps = i >= l->n - l->n_ps;

        l->tasks[i].type = is_ps ? "ps" : "worker";
        l->tasks[i].at = i;
        l->tasks[i].index = is_ps ? i - (l->n - l->n_ps) : i;
        l->tasks[i].out = -1;
        rc = free_port(l->tasks, i, &l->tasks[i].port, err);
    }
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGUSR2);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, NULL);
    l->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return rc == 0 && l->signals < 0 ? err_sys(err, errno, "signalfd") : rc;
}

/* Whether the environment or the job already say who may talk to the tasks. An invalid job is left to the tasks. */
static bool has_security(const struct local *l)
{
    static const char *const names[] = { "TRAINERD_TOKEN", "TRAINERD_TLS" };
    struct conf *c;
    struct err err;
    bool has;

    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (getenv(names[i]) != NULL && getenv(names[i])[0] != '\0')
            return true;
    if (conf_read(l->job, &c, &err) < 0)
        return true;
    has = c->communication.token_file != NULL || c->communication.tls != NULL;
    conf_free(c);
    return has;
}

/* The tasks inherit the token; the display thread uses it. */
static int publish_token(struct local *l, struct err *err)
{
    uint16_t ports[MAX_TASKS];
    int rc;

    l->token.fd = -1;
    if (l->insecure || has_security(l))
        return 0;
    for (uint32_t i = 0; i < l->n; i++)
        ports[i] = l->tasks[i].port;
    rc = local_token_publish(ports, l->n, &l->token, err);
    if (rc < 0 && (rc == ERR_REFUSED || l->token.text[0] == '\0'))
        return rc;
    if (rc < 0)
        fprintf(stderr, "trainerctl: %s; other commands need TRAINERD_TOKEN, set before this one\n",
                err->text);
    return setenv("TRAINERD_TOKEN", l->token.text, 1) != 0 ? err_sys(err, errno, "environment") : 0;
}

static int run_local(struct local *l)
{
    uint32_t n_complete = 0;

    for (uint32_t i = 0; i < l->n; i++) {
        if (strcmp(l->tasks[i].type, "ps") == 0)
            log_info("task", "ps %u at 127.0.0.1:%u", l->tasks[i].index, l->tasks[i].port);
        else
            log_info("task", "worker %u at 127.0.0.1:%u, devices %s", i, l->tasks[i].port,
                     l->devices);
        start(l, &l->tasks[i]);
    }
    start_display(l);
    while (!all_done(l))
        wait_once(l);
    stop_display(l);
    for (uint32_t i = 0; i < l->n; i++)
        n_complete += l->tasks[i].code == 0;
    for (uint32_t i = 0; i < l->n && l->code == 0 && n_complete == 0; i++)
        l->code = l->tasks[i].code;
    if (l->code == 0 && n_complete == l->n)
        log_info("end", "the job is complete on all %u tasks", l->n);
    else if (l->code == 0) /* the other tasks were stopped earlier */
        log_info("end", "the job is complete, on %u of %u tasks", n_complete, l->n);
    return l->code;
}

int ctl_local(int argc, char **argv)
{
    static struct local l;
    const char *n = NULL, *n_ps = NULL, *restarts = NULL;
    bool wants_help = false, restarts_job = false;
    const struct arg table[] = {
        { "tasks", "N", NULL, "how many workers (also -n N); default 2", &n, NULL },
        { "ps", "N", NULL, "how many ps tasks beside them, for a job with parameter_server;\ndefault 0", &n_ps, NULL },
        { "devices", "SPEC", NULL,
          "of each worker; default: auto, on its share of this machine's cores", &l.devices, NULL },
        { "log-format", "FORMAT", NULL, "text (default) or json", &l.log_format, NULL },
        { "metrics", "PORT", NULL, "serve status page and metrics of task i on 127.0.0.1, port\nPORT + i",
          &l.metrics, NULL },
        { "restarts", "K", NULL, "restarts of one task before giving up; default 100", &restarts,
          NULL },
        { "restart", NULL, NULL,
          "train a complete job again: its checkpoints are renamed, not removed", NULL,
          &restarts_job },
        { "insecure", NULL, "TRAINERD_INSECURE",
          "without a token: other users of this machine may read and\nstop the job", NULL, &l.insecure },
        { "help", NULL, NULL, "print this", NULL, &wants_help },
    };
    struct err err;
    int code;

    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "-n") == 0)
            argv[i] = (char *)"--tasks";
    if (args_parse(table, COUNT_OF(table), &argc, argv, &err) < 0) {
        fprintf(stderr, "trainerctl: %s\n", err.text);
        return CTL_USAGE;
    }
    if (wants_help || argc != 2) {
        fprintf(wants_help ? stdout : stderr,
                "usage: trainerctl local [-n N] [flags] JOB\n\n"
                "Runs a cluster of N workers on this machine. A task that dies is "
                "restarted;\nCtrl-C saves and ends all of them. Commands of the same user "
                "find the token\nthat the tasks get, unless TRAINERD_TOKEN, TRAINERD_TLS or the job define one.\n\n");
        args_help(table, COUNT_OF(table), wants_help ? stdout : stderr);
        return wants_help ? CTL_OK : CTL_USAGE;
    }
    l.job = argv[1];
    if (l.log_format == NULL)
        l.log_format = "text";
    log_init(strcmp(l.log_format, "json") == 0 ? LOG_JSON : LOG_TEXT, LOG_INFO);
    if ((restarts_job && ctl_set_aside(l.job, &err) < 0) ||
        prepare(&l, n, n_ps, restarts, &err) < 0 || publish_token(&l, &err) < 0) {
        fprintf(stderr, "trainerctl: %s\n", err.text);
        return CTL_USAGE;
    }
    code = run_local(&l);
    local_token_remove(&l.token);
    return code;
}
