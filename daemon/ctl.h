/* ctl.h - the commands of trainerctl. Each receives argv with its own name at [0] and returns the
 * exit code. */
#ifndef DAEMON_CTL_H
#define DAEMON_CTL_H

struct err;

int ctl_local(int argc, char **argv);
int ctl_status(int argc, char **argv);
int ctl_top(int argc, char **argv);
int ctl_logs(int argc, char **argv);
int ctl_events(int argc, char **argv);
int ctl_trace(int argc, char **argv);
int ctl_rows(int argc, char **argv);
int ctl_netcheck(int argc, char **argv);
int ctl_explain(int argc, char **argv);
int ctl_checkpoint(int argc, char **argv);
int ctl_reload(int argc, char **argv);
int ctl_drain(int argc, char **argv);
int ctl_stop(int argc, char **argv);
int ctl_verify(int argc, char **argv);
int ctl_run(int argc, char **argv);
int ctl_inspect(int argc, char **argv);
int ctl_model(int argc, char **argv);
int ctl_data(int argc, char **argv);
int ctl_convert(int argc, char **argv);
int ctl_recipe(int argc, char **argv);
int ctl_restart(int argc, char **argv);
int ctl_keys(int argc, char **argv);
int ctl_preflight(int argc, char **argv);

enum {
    CTL_OK = 0,
    CTL_FAILED = 1,
    CTL_USAGE = 2,       /* arguments or files are invalid */
    CTL_UNSUPPORTED = 3, /* the input is valid, but needs a feature that is not supported */
};

/* ctl_restart.c: renames the checkpoint directory of a complete job and logs the result. Errors:
 * those of conf_read() and restart_set_aside(). */
int ctl_set_aside(const char *job, struct err *err);
/* Maps an error code (0: success) to the exit code of a command that reads files. */
int ctl_exit_code(int code);

#endif
