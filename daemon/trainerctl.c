/* trainerctl - look at a job and steer it. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/memory_room.h"
#include "base/process.h"
#include "base/text.h"
#include "daemon/build_commit.h"
#include "daemon/ctl.h"

static const struct command {
    const char *name, *usage, *help;
    int (*run)(int argc, char **argv);
} commands[] = {
    { "local", "local -n N JOB", "a cluster of N tasks on this machine, restarted when they die", ctl_local },
    { "status", "status [--json] ADDR", "members, phase, step, throughput, last error", ctl_status },
    { "top", "top [--once] ADDR", "live: tasks, phases, rates, where the time of a step goes", ctl_top },
    { "logs", "logs [--follow] ADDR", "the newest log records of all tasks, in the order of time", ctl_logs },
    { "events", "events [--follow] ADDR", "the same without steps: membership, checkpoints, warnings, errors", ctl_events },
    { "rows", "rows [--part NAME] [--json] ADDR TABLE ROW...", "rows of a table on parameter servers", ctl_rows },
    { "trace", "trace --out FILE ADDR", "one time line of all tasks (trainerd --trace) on one clock", ctl_trace },
    { "explain", "explain [CODE]", "what an exit code of trainerd or a signal means, and what to do", ctl_explain },
    { "checkpoint", "checkpoint ADDR", "save now (ADDR: the chief); prints the path when it is verified",
      ctl_checkpoint },
    { "reload", "reload ADDR", "this task reads its job file again; prints the changes, or why it is refused", ctl_reload },
    { "drain", "drain ADDR", "this task saves and ends; the others continue or wait", ctl_drain },
    { "stop", "stop ADDR", "the job saves and ends everywhere", ctl_stop },
    { "restart", "restart JOB", "renames the checkpoints of a complete job, so that its tasks train it again",
      ctl_restart },
    { "keys", "keys --out DIR", "writes certificates for the hosts of a cluster", ctl_keys },
    { "preflight", "preflight JOB", "measures every pair of tasks before training, and names the outlier; run it on each host",
      ctl_preflight },
    { "netcheck", "netcheck [--json] ADDR", "measures every pair of running tasks; names slow hosts and links, and racks", ctl_netcheck },
    { "verify", "verify DIR", "verifies every checkpoint below DIR, one line for each", ctl_verify },
    { "run", "run MODEL --input NAME=FILE... -o DIR", "runs a graph once on arrays, forward or also backward", ctl_run },
    { "recipe", "recipe NAME", "a script that exports a network: torch, huggingface, keras, tensorflow, jax",
      ctl_recipe },
    { "model", "model NAME -o FILE", "writes a predefined network: mlp, lenet, resnet18, ...", ctl_model },
    { "inspect", "inspect MODEL", "ops, parameters, memory and operations of a network", ctl_inspect },
    { "data", "data JOB", "the number of samples, one decoded sample, which task reads which samples", ctl_data },
    { "convert", "convert --out PREFIX INPUT...", "writes TFRecord from CSV, NumPy and image folders; joins the shard files of a checkpoint",
      ctl_convert },
};

static int help(FILE *out)
{
    fprintf(out, "trainerctl " TRAINERD_VERSION " - look at a job and steer it\n\nusage:\n");
    for (size_t i = 0; i < COUNT_OF(commands); i++)
        fprintf(out, "  trainerctl %-24s %s\n", commands[i].usage, commands[i].help);
    fprintf(out, "\n`trainerctl COMMAND --help` shows more. ADDR is a task's host:port from the cluster. A job with "
                 "a token\nneeds it in TRAINERD_TOKEN, one with certificates a folder with tls.crt, tls.key and ca.crt "
                 "in TRAINERD_TLS.\n");
    return out == stdout ? CTL_OK : CTL_USAGE;
}

static int run_command(int argc, char **argv)
{
    const char *names[COUNT_OF(commands)];
    const char *near;

    if (argc < 2)
        return help(stderr);
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0)
        return help(stdout);
    if (strcmp(argv[1], "--version") == 0) {
        printf("trainerctl " TRAINERD_VERSION "%s%s%s\n", build_commit[0] != '\0' ? " (" : "",
               build_commit, build_commit[0] != '\0' ? ")" : "");
        return CTL_OK;
    }
    for (size_t i = 0; i < COUNT_OF(commands); i++) {
        names[i] = commands[i].name;
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    }
    if (strcmp(argv[1], "train") == 0) {
        fprintf(stderr, "trainerctl: unknown command 'train'; `trainerd --job FILE` trains, and `trainerctl local -n N "
                        "FILE` with several tasks\n");
        return CTL_USAGE;
    }
    near = text_nearest(argv[1], names, COUNT_OF(commands));
    fprintf(stderr, "trainerctl: unknown command '%s'", argv[1]);
    fprintf(stderr, near != NULL ? "; did you mean %s?\n" : "; --help lists the commands\n", near);
    return CTL_USAGE;
}

int main(int argc, char **argv)
{
    struct err err;

    process_open_standard_files();
    if (memory_room_prepare(CTL_FAILED, &err) < 0) {
        fprintf(stderr, "trainerctl: %s\n", err.text);
        return CTL_USAGE;
    }
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);                 /* a write beyond the limit fails with EFBIG */
    setenv("GRPC_DNS_RESOLVER", "native", 0); /* resolve names as trainerd does */
    return process_close_output("trainerctl", run_command(argc, argv), CTL_FAILED);
}
