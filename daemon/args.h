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
    const char *value; /* what the help calls the value; NULL: a switch */
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
/* Finds the next variable of the environment, from environ[*at] on, whose name begins with TRAINERD_ and which nothing
 * reads: no flag of the table, no word of `others` (one that ends with _ is the beginning of names), and no
 * Service of Kubernetes made it. false: there is none. *name: borrowed from the environment, of *length
 * characters; *near: the nearest name that is read, or NULL. */
bool args_next_unread(const struct arg *table, size_t n, const char *const *others, size_t n_others,
                      size_t *at, const char **name, size_t *length, const char **near);
/* Prints a list of the flags. */
void args_help(const struct arg *table, size_t n, FILE *out);

#endif
