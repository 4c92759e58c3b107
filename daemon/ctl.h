/* ctl.h - the commands of trainerctl. Each gets argv with its own name at [0] and returns the exit code. */
#ifndef DAEMON_CTL_H
#define DAEMON_CTL_H

struct err;

int ctl_local(int argc, char **argv);
int ctl_status(int argc, char **argv);
int ctl_checkpoint(int argc, char **argv);
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

enum {
    CTL_OK = 0,
    CTL_FAILED = 1,
    CTL_USAGE = 2,       /* arguments or files are wrong */
    CTL_UNSUPPORTED = 3, /* what they ask for is legal, and not possible here */
};

/* ctl_restart.c: moves the checkpoints of a complete job aside, and logs what it did. */
int ctl_set_aside(const char *job, struct err *err);
/* Of the commands that look at files: what an error code means. */
int ctl_exit_code(int code);

#endif
