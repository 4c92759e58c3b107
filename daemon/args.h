/* args.h - parses the flags of a command from a table. An environment variable may supply the value
 * of a flag (TRAINERD_JOB for --job), which is how a pod is configured. A flag on the command line
 * has priority over the environment. A variable that Kubernetes made for a Service of the same name, such
 * as TRAINERD_PORT=tcp://10.96.0.12:2222, is ignored. Pure apart from getenv(); any thread. */
#ifndef DAEMON_ARGS_H
#define DAEMON_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct err;

struct arg {
    const char *name;  /* "job": written --job VALUE or --job=VALUE */
    /* what the help calls the value; FILE, DIR or PREFIX: a path, checked by fs_check_path(). NULL: a switch */
    const char *value;
    const char *env;   /* "TRAINERD_JOB"; NULL: no variable. A switch is on for 1, true, yes */
    const char *help;  /* one or more lines; args_help() indents all but the first */
    /* receives the value, borrowed from argv or the environment; NULL: a switch */
    const char **text;
    bool *flag;        /* receives the state of a switch; NULL: not a switch */
};

/* Parses and removes the flags; the other arguments remain, in order, in argv[1..*argc-1]. All
 * words after "--" are arguments.
 * Errors: ERR_INPUT; the text names the flag and the nearest known one. */
int args_parse(const struct arg *table, size_t n, int *argc, char **argv, struct err *err);
enum { ARGS_UNREAD_BYTES = 384 };
/* Looks for a variable TRAINERD_... that has no effect, from environ[*at] on: it belongs to no flag of the table, is not one
 * of `others`, and neither a script nor a Service of Kubernetes made it. Returns false if there is no further one. Otherwise
 * writes a warning, with the nearest name that has an effect, and advances *at past the variable. */
bool args_next_unread(const struct arg *table, size_t n, const char *const *others, size_t n_others,
                      size_t *at, char out[ARGS_UNREAD_BYTES]);
/* Prints a list of the flags. */
void args_help(const struct arg *table, size_t n, FILE *out);

#endif
